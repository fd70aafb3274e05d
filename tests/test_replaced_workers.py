"""P19 in servers with several worker processes: the one that lost its context ends, and its
supervisor starts another.
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
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support import settle

CLIENTS = 4
LINE = re.compile(
    r"^aiostream: .* \(719\): the CUDA context is lost\. Process (\d+) ends now, with exit code "
    r"(?:70|0) .*$",
    re.MULTILINE,
)
SERVERS = {
    "uvicorn": ["uvicorn", "faulty_app:app", "--workers", "2", "--log-level", "warning", "--port"],
    "gunicorn": [
        "gunicorn",
        "faulty_app:app",
        "--workers",
        "2",
        "--worker-class",
        "asgi",
        "--log-level",
        "warning",
        "--bind",
    ],
    "hypercorn": [
        "hypercorn",
        "faulty_app:app",
        "--workers",
        "2",
        "--log-level",
        "WARNING",
        "--bind",
    ],
}
SERVERS["gunicorn --preload"] = [*SERVERS["gunicorn"][:-1], "--preload", "--bind"]
# hypercorn ends the whole server when a worker ends with another code.
EXIT_CODES = {"hypercorn": "0"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Clients:
    """Several threads that send one request after another, each on a connection of its own, and
    note the answers.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.answers: list[
            tuple[float, int, int]
        ] = []  # when it was sent, its status (0: the connection was cut), its worker
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(CLIENTS)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        every_worker = httpx.Limits(
            max_keepalive_connections=0
        )  # a new connection may go to another worker
        with httpx.Client(timeout=20, limits=every_worker) as client:
            while not self._stopping.is_set():
                began = time.monotonic()
                try:
                    answer = client.get(self._url + "/infer")
                    self.answers.append((began, answer.status_code, answer.json().get("worker", 0)))
                except httpx.TransportError:
                    self.answers.append((began, 0, 0))

    def workers(self, since: float = 0.0) -> Counter[int]:
        return Counter(
            worker for began, status, worker in self.answers if status == 200 and began >= since
        )


@pytest.mark.parametrize("kind", SERVERS)
def test_worker_that_lost_its_context_is_replaced(
    kind: str, driver_kind: str, tmp_path: Path
) -> None:
    """Only the requests that it had then are answered badly, each once; no later one is."""
    port = free_port()
    address = str(port) if kind == "uvicorn" else f"127.0.0.1:{port}"
    variables = {
        **os.environ,
        "AIOSTREAM_SIMULATOR": "1" if driver_kind == "simulator" else "",
        "PYTHONUNBUFFERED": "1",
        "FAULTY_EXIT_CODE": EXIT_CODES.get(kind, "70"),
    }
    variables["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    )
    log = tmp_path / "log"
    with log.open("w") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", *SERVERS[kind], address], stdout=out, stderr=out, env=variables
        )
    url = f"http://127.0.0.1:{port}"
    try:
        with Clients(url) as clients:
            assert settle(lambda: len(clients.workers()) == 2, 60), log.read_text()
            began = time.monotonic()
            assert settle(lambda: sum(clients.workers(began).values()) > 100, 60)
            with contextlib.suppress(
                httpx.TransportError
            ):  # the worker may end before it has answered
                httpx.get(url + "/fault", timeout=20)
            faulted = time.monotonic()
            assert settle(lambda: LINE.search(log.read_text()) is not None, 10), log.read_text()
            failed = int(LINE.findall(log.read_text())[0])
            assert settle(
                lambda: len(clients.workers(faulted) - Counter({failed: 10**9})) == 2, 60
            ), log.read_text()
            replaced = time.monotonic()
            assert settle(lambda: sum(clients.workers(replaced).values()) > 200, 60)
        answers = [each for each in clients.answers if each[0] >= began]
        bad = [each for each in answers if each[1] != 200]
        assert len(bad) <= CLIENTS, bad
        assert not [each for each in bad if each[0] > replaced]
        assert failed not in clients.workers(replaced)
        assert LINE.findall(log.read_text()) == [str(failed)], log.read_text()
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def test_hypercorn_ends_the_server_when_a_worker_ends_with_another_code(driver_kind: str) -> None:
    """docs/serving.md says so; it is hypercorn's doing."""
    port = free_port()
    with serving("hypercorn", driver_kind, port, FAULTY_EXIT_CODE="70") as server:
        url = f"http://127.0.0.1:{port}"

        def answers() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(url + "/infer", timeout=20).status_code == 200
            return False

        assert settle(answers, 60)
        with contextlib.suppress(httpx.TransportError):
            httpx.get(url + "/fault", timeout=20)
        assert server.wait(60) == 0


def test_gunicorn_preload_with_cuda_in_the_parent_is_refused(driver_kind: str) -> None:
    port = free_port()
    preload, touches = "gunicorn --preload", "FAULTY_TOUCHES_CUDA"
    with serving(preload, driver_kind, port, stderr=subprocess.PIPE, **{touches: "1"}) as server:
        _, errors = server.communicate(timeout=60)
    assert server.returncode != 0
    assert "CUDA cannot be used in a forked child" in errors


@contextlib.contextmanager
def serving(
    kind: str, driver_kind: str, port: int, stderr: int = subprocess.DEVNULL, **settings: str
) -> Iterator[subprocess.Popen[str]]:
    search = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    simulator = "1" if driver_kind == "simulator" else ""
    server = subprocess.Popen(
        [sys.executable, "-m", *SERVERS[kind], f"127.0.0.1:{port}"],
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        text=True,
        env={**os.environ, "AIOSTREAM_SIMULATOR": simulator, "PYTHONPATH": search, **settings},
        start_new_session=True,
    )
    try:
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
