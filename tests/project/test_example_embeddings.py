"""`examples/embedding_server.py`: each way answers right, under load, at its end, and when a client
leaves. On the simulator it runs with kernels of its own, and with a stand-in for torch.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from commands import torch_path
from servers import ROOT, Server, end_under_load, started

PROGRAM = ROOT / "examples" / "embedding_server.py"
CLOSE = 0.1  # bfloat16
KINDS = ["blocking", "to_thread", "polling", "aiostream", "torch"]


def options_of(way: str, driver_kind: str) -> tuple[list[str], Sequence[Path]]:
    arguments = ["--streams", "3"]
    path = torch_path(driver_kind)
    if way == "torch" or not path:
        return [*arguments, "--way", way.replace("torch", "aiostream")], path
    if driver_kind == "gpu":
        pytest.skip("torch is not installed")
    return [*arguments, "--way", way, "--simulator"], ()


@pytest.fixture(
    params=[
        pytest.param(kind, marks=pytest.mark.slow if kind in ("blocking", "polling") else [])
        for kind in KINDS
    ]
)
def server(request: pytest.FixtureRequest, driver_kind: str) -> Iterator[Server]:
    arguments, path = options_of(request.param, driver_kind)
    arguments += ["--port", "PORT"]
    with started(PROGRAM, driver_kind, *arguments, alive="/health", path=path) as running:
        yield running


def is_right(answer: httpx.Response, expected: list[list[float]], text: int) -> bool:
    found = answer.json()
    pairs = zip(found["embedding"], expected[text], strict=True)
    return found["text"] == text and all(abs(a - b) <= CLOSE for a, b in pairs)


def leave(server: Server, text: int) -> None:
    """A client that sends a request and goes."""
    url = server.client.base_url
    with socket.create_connection((url.host, url.port)) as connection:
        connection.sendall(f"GET /embed?text={text} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


def test_every_answer_is_right_until_the_end(server: Server) -> None:
    for wrong in ("", "?text=x", "?text=-1", "?text=256"):
        assert server.client.get(f"/embed{wrong}").status_code == 400
    expected = server.client.get("/expected").json()

    def request(connection: httpx.Client, client: int, number: int) -> bool:
        text = (37 * client + number) % len(expected)
        answer = connection.get("/embed", params={"text": text})
        if client == 0 and number % 5 == 0:
            leave(server, text)
        assert answer.status_code == 200
        assert is_right(answer, expected, text)
        return True

    end_under_load(server, request, 60)
