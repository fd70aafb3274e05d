"""The examples and the README's Python blocks, run as a reader would run them, on the driver under
test.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from support import run_script, settle

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
# seconds that the server gives a request; long enough for what shall pass, on a busy machine too
TIMEOUT = 0.5
TOO_LONG = 2000  # milliseconds on the GPU


def environment(driver_kind: str) -> dict[str, str]:
    return {
        **os.environ,
        "AIOSTREAM_SIMULATOR": "1" if driver_kind == "simulator" else "",
        "PYTHONUNBUFFERED": "1",
    }


# --------------------------------------------------------------------------------------- quickstart


def test_quickstart(driver_kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / "quickstart.py")],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(driver_kind),
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("driver: ")
    assert "timed out after 20 ms; is the GPU done? False" in lines
    assert {line for line in lines if "is done" in line} == {
        f"the stream with {n} ms is done" for n in (20, 30, 40)
    }
    assert lines[-1].startswith("all three: ")


def test_quickstart_takes_the_simulator_only_when_asked() -> None:
    script = [sys.executable, "-W", "error", str(EXAMPLES / "quickstart.py")]
    variables = {**environment("none"), "CUDA_VISIBLE_DEVICES": "-1"}  # no GPU, or none to be seen
    done = subprocess.run(
        script, capture_output=True, text=True, timeout=60, env=variables, check=False
    )
    assert done.returncode == 1
    assert "AIOSTREAM_SIMULATOR=1" in done.stderr
    assert "Traceback" not in done.stderr
    done = subprocess.run(
        [*script, "--simulator"],
        capture_output=True,
        text=True,
        timeout=60,
        env=variables,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


# --------------------------------------------------------------------------------------- the README


def readme_blocks() -> list[str]:
    return re.findall(
        r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )


def test_the_readme_has_its_examples() -> None:
    assert len(readme_blocks()) >= 4


@pytest.mark.parametrize("number", range(len(readme_blocks())))
def test_the_readme_s_examples_run(driver_kind: str, number: int) -> None:
    done = run_script(driver_kind, readme_blocks()[number])
    assert (done.returncode, done.stderr) == (0, "")


# --------------------------------------------------------------------------------- the model server


@dataclass
class Server:
    """A model server in a process of its own."""

    process: subprocess.Popen[str]
    client: httpx.Client

    def infer(self, milliseconds: float = 1.0, n: int = 3) -> httpx.Response:
        x = [float(i) for i in range(n)]
        return self.client.post(
            "/infer", json={"a": 2.0, "x": x, "y": [10.0] * n, "milliseconds": milliseconds}
        )

    def answers(self) -> bool:
        assert self.process.poll() is None, "the server has ended"
        try:
            return self.client.get("/ping").text == "pong"
        except httpx.TransportError:
            return False

    def stop(self) -> tuple[int, str, str]:
        """SIGTERM; the exit code and what it wrote."""
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err


@contextlib.contextmanager
def serving(kind: str, driver_kind: str, *options: str) -> Iterator[Server]:
    with socket.socket() as finder:
        finder.bind(("127.0.0.1", 0))
        port = finder.getsockname()[1]
    program = [
        sys.executable,
        str(EXAMPLES / "model_server.py"),
        "--server",
        kind,
        "--port",
        str(port),
    ]
    process = subprocess.Popen(
        [*program, "--timeout", str(TIMEOUT), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(driver_kind),
    )
    try:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False
        ) as client:
            server = Server(process, client)
            assert settle(server.answers, 30), "the server does not answer"
            yield server
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture(params=["uvicorn", "hypercorn"])
def server(request: pytest.FixtureRequest, driver_kind: str) -> Iterator[Server]:
    with serving(request.param, driver_kind) as server:
        yield server


def test_the_server_computes_and_ends_cleanly(server: Server) -> None:
    answer = server.infer()
    assert (answer.status_code, answer.json()) == (200, {"y": [10.0, 12.0, 14.0]})
    code, out, err = server.stop()
    assert (code, err) == (0, "")
    assert out.startswith("driver: ")


def test_each_of_many_requests_at_once_gets_its_own_answer(server: Server) -> None:
    # 32 of 5 ms on the server's eight streams.
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda n: server.infer(milliseconds=5, n=n), range(1, 33)))
    for n, answer in enumerate(answers, start=1):
        assert answer.status_code == 200
        assert answer.json()["y"] == [10.0 + 2 * i for i in range(n)]
    assert server.stop()[::2] == (0, "")


def test_a_request_that_takes_too_long_gets_504_and_the_loop_goes_on(server: Server) -> None:
    answered = threading.Event()
    pings = 0

    def ask() -> httpx.Response:
        try:
            return server.infer(milliseconds=TOO_LONG)
        finally:
            answered.set()

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(ask)
        while not answered.is_set():
            assert server.answers()
            pings += 1
        answer = future.result()
    assert answer.status_code == 504
    assert answer.elapsed.total_seconds() < TOO_LONG / 1000
    assert pings > 10
    # The GPU is still at it, on one of its streams: the next request takes another.
    assert server.answers()
    assert server.infer().json() == {"y": [10.0, 12.0, 14.0]}
    # The end awaits the work that nobody waits for any more.
    assert server.stop()[::2] == (0, "")


@pytest.mark.parametrize("kind", ["uvicorn", "hypercorn"])
def test_stream_of_a_request_that_timed_out_comes_back_when_the_gpu_has_passed(
    kind: str, driver_kind: str
) -> None:
    with serving(kind, driver_kind, "--streams", "2", "--waiting", "0") as server:
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(server.infer, [TOO_LONG, TOO_LONG]))
        assert [answer.status_code for answer in answers] == [504, 504]
        # Both streams, and their memory, are still the GPU's.
        assert server.infer().status_code == 503
        assert settle(lambda: server.infer().status_code == 200, 30)
        assert server.infer(n=4096).json()["y"] == [10.0 + 2 * i for i in range(4096)]
        assert server.stop()[::2] == (0, "")


def test_server_recovers_from_an_overload(driver_kind: str) -> None:
    """Requests of which most time out leave nothing that delays those after them."""
    with serving("uvicorn", driver_kind, "--streams", "2", "--waiting", "32") as server:
        with ThreadPoolExecutor(32) as pool:
            answers = list(pool.map(server.infer, [300.0] * 64))
        assert {answer.status_code for answer in answers} == {200, 504}
        assert settle(lambda: server.infer().status_code == 200, 30)
        assert [server.infer(milliseconds=5).status_code for _ in range(20)] == [200] * 20
        assert server.stop()[::2] == (0, "")


@pytest.mark.parametrize(
    "body",
    [
        "",
        "[]",
        '{"x": [1], "y": []}',
        '{"x": ["a"], "y": [1]}',
        '{"x": [1], "y": [1], "milliseconds": -1}',
    ],
)
def test_nonsense_is_a_bad_request(uvicorn_server: Server, body: str) -> None:
    answer = uvicorn_server.client.post("/infer", content=body)
    assert answer.status_code == 400
    assert "bad request" in answer.json()["error"]


@pytest.fixture(scope="module")
def uvicorn_server(driver_kind: str) -> Iterator[Server]:
    with serving("uvicorn", driver_kind) as server:
        yield server
