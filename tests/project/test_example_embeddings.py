"""`examples/embedding_server.py`: each way answers right, under load, at its end, and when a client
leaves. On the simulator it runs with kernels of its own, and with a stand-in for torch.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from servers import ROOT, Server, free_port, http_client, started
from support import settle

PROGRAM = ROOT / "examples" / "embedding_server.py"
CLOSE = 0.1  # bfloat16, and kernels that depend on the batch's size
KINDS = ["blocking", "to_thread", "polling", "aiostream", "aiostream batch 4", "torch batch 4"]


def options_of(kind: str, driver_kind: str) -> tuple[list[str], dict[str, str]]:
    way, _, batch = kind.partition(" batch ")
    arguments = ["--streams", "3", "--batch", batch or "1"]
    has_torch = driver_kind == "gpu" and importlib.util.find_spec("torch") is not None
    if way == "torch" or has_torch:
        way = way.replace("torch", "aiostream")
        paths = [] if has_torch else [str(ROOT / "tests" / "stand_ins"), str(ROOT)]
        path = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
        return [*arguments, "--way", way], {"PYTHONPATH": path}
    if driver_kind == "gpu":
        pytest.skip("torch is not installed")
    return [*arguments, "--way", way, "--simulator"], {}


@pytest.fixture(
    params=[
        pytest.param(
            kind,
            id=kind.replace(" ", "-"),
            marks=pytest.mark.slow if kind in ("blocking", "polling") else [],
        )
        for kind in KINDS
    ]
)
def server(request: pytest.FixtureRequest, driver_kind: str) -> Iterator[Server]:
    port = free_port()
    arguments, variables = options_of(request.param, driver_kind)
    arguments += ["--port", str(port)]
    with started(PROGRAM, driver_kind, port, *arguments, alive="/health", **variables) as running:
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
    right, lost, ending = [0], [0], threading.Event()

    def client(number: int) -> None:
        with http_client(server.client.base_url) as own:
            for at in range(10_000):
                text = (37 * number + at) % len(expected)
                try:
                    answer = own.get("/embed", params={"text": text})
                    if number == 0 and at % 5 == 0:
                        leave(server, text)
                except (httpx.TransportError, OSError):  # the server has closed the connection
                    assert ending.is_set()
                    lost[0] += 1
                    return
                assert answer.status_code == 200
                assert is_right(answer, expected, text)
                right[0] += 1

    with ThreadPoolExecutor(6) as pool:
        clients = [pool.submit(client, number) for number in range(6)]
        assert settle(lambda: right[0] > 60)
        ending.set()
        code, _, written = server.stop()  # in the middle of it
        for each in clients:
            each.result()
    assert (code, written) == (0, "")
    assert lost[0] == 6
