"""What the tests of servers share: a server in a process of its own, and its client."""

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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from commands import ROOT as ROOT
from commands import TESTS as TESTS
from commands import environment as environment
from support import settle

LOST = re.compile(
    r"^aiostream: .* (?:\(719\): the CUDA context is lost|is stalled: .*)\. Process (\d+) "
    r"ends now, with exit code (?:70|0) .*$",
    re.MULTILINE,
)
needs_granian = pytest.mark.skipif(find_spec("granian") is None, reason="needs granian")
Ask = Callable[[httpx.Client], httpx.Response]


def start(command: list[str], **options: Any) -> subprocess.Popen[str]:
    """Starts a Python program in a session of its own."""
    command = [sys.executable, *command]
    return subprocess.Popen(command, text=True, start_new_session=True, **options)


@contextlib.contextmanager
def running(
    command: list[str], log: Path, patience: float = 20, **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """A Python program that writes to a log. After the block SIGTERM ends it, or SIGKILL."""
    with log.open("w") as out:
        process = start(command, stdout=out, stderr=out, **options)
    try:
        yield process
    finally:
        # Some servers' workers are in sessions of their own, and only the server ends them.
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


GUNICORN = "faulty_app:app --workers 2 --worker-class asgi --log-level warning --bind"
GRANIAN = "granian --log-level warning --port {port}"
COMMANDS = {
    "one uvicorn": "uvicorn faulty_app:app --log-level warning --port {port}",
    "uvicorn": "uvicorn faulty_app:app --workers 2 --log-level warning --port {port}",
    "gunicorn": f"gunicorn {GUNICORN} 127.0.0.1:{{port}}",
    "gunicorn --preload": f"gunicorn --preload {GUNICORN} 127.0.0.1:{{port}}",
    "hypercorn": "hypercorn faulty_app:app --workers 2 --log-level WARNING --bind 127.0.0.1:{port}",
    "granian": f"{GRANIAN} --interface asgi faulty_app:app --workers 2 --respawn-failed-workers",
    "granian RSGI": f"{GRANIAN} served_bare:app --workers 2 --respawn-failed-workers",
    # Without a framework, in one process.
    "bare uvicorn": "uvicorn served_bare:app --log-level warning --port {port}",
    "bare hypercorn": "hypercorn served_bare:app --log-level WARNING --bind 127.0.0.1:{port}",
    "bare granian ASGI": f"{GRANIAN} --interface asgi served_bare:app",
    "bare granian RSGI": f"{GRANIAN} --interface rsgi served_bare:app",
    "bare granian, Rust's tasks": f"{GRANIAN} --interface rsgi --task-impl rust served_bare:app",
}


@contextlib.contextmanager
def serving(
    kind: str, driver_kind: str, log: Path, **variables: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server of `faulty_app.py` or `served_bare.py`, and its address."""
    port = free_port()
    command = ["-m", *COMMANDS[kind].format(port=port).split()]
    with running(command, log, env=environment(driver_kind, TESTS, **variables)) as server:
        yield server, f"http://127.0.0.1:{port}"


@dataclass
class Server:
    """A server in a process of its own."""

    process: subprocess.Popen[str]
    client: httpx.Client
    alive: str = "/ping"

    def infer(self, milliseconds: float = 1.0, n: int = 3) -> httpx.Response:
        x = [float(i) for i in range(n)]
        return self.client.post(
            "/infer", json={"a": 2.0, "x": x, "y": [10.0] * n, "milliseconds": milliseconds}
        )

    def answers(self) -> bool:
        assert self.process.poll() is None, "the server has ended"
        try:
            return self.client.get(self.alive).status_code == 200
        except httpx.TransportError:
            return False

    def stop(self) -> tuple[int, str, str]:
        """SIGTERM; the exit code and what it wrote."""
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err


def free_port() -> int:
    with socket.socket() as finder:
        finder.bind(("127.0.0.1", 0))
        return int(finder.getsockname()[1])


@contextlib.contextmanager
def started(
    program: Path,
    driver_kind: str,
    *arguments: str,
    alive: str = "/ping",
    path: Any = (),
    **variables: str,
) -> Iterator[Server]:
    """A server that answers, with folders that come first on its path. `PORT` stands for its port
    in the arguments.
    """
    port = free_port()
    command = [str(program), *(each.replace("PORT", str(port)) for each in arguments)]
    env = environment(driver_kind, *path, **variables)
    process = start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    try:
        with http_client(f"http://127.0.0.1:{port}") as client:
            server = Server(process, client, alive)
            assert settle(server.answers, 30), "the server does not answer"
            yield server
    finally:
        with contextlib.suppress(ProcessLookupError):  # its workers too, which hold the pipes
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def http_client(
    url: httpx.URL | str = "", timeout: float = 30, *, fresh: bool = False
) -> httpx.Client:
    """A client of a server of this machine: without proxies, and without certificates, which take
    40 ms to load.

    Args:
        url: What each request's address begins with.
        timeout: Seconds.
        fresh: Whether each request has a connection of its own, which may go to another worker.
    """
    limits = httpx.Limits(max_keepalive_connections=0 if fresh else None)
    return httpx.Client(base_url=url, timeout=timeout, limits=limits, trust_env=False, verify=False)


def asked(ask: Ask) -> httpx.Response | None:
    """The answer to one request, or None if there is none yet."""
    with contextlib.suppress(httpx.TransportError), http_client(timeout=20) as client:
        return ask(client)
    return None


class Clients:
    """Several threads that send one request after another, each on a connection of its own, and
    note the answers.
    """

    def __init__(self, ask: Ask, count: int = 4, timeout: float = 20) -> None:
        self._ask, self._timeout = ask, timeout
        # When it was sent, its status (0: the connection was cut), its worker.
        self.answers: list[tuple[float, int, int]] = []
        self._stopping = threading.Event()
        self.threads = [threading.Thread(target=self._run) for _ in range(count)]
        # From `lose_a_worker`: its beginning, the times of the fault and of the new worker, and the
        # lost one.
        self.began = self.faulted = self.replaced = 0.0
        self.failed = 0

    def __enter__(self) -> Clients:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self.threads:
            thread.join()

    def _client(self) -> httpx.Client:
        return http_client(timeout=self._timeout, fresh=True)

    def _run(self) -> None:
        with self._client() as client:
            while not self._stopping.is_set():
                began = time.monotonic()
                try:
                    answer = self._ask(client)
                    good = answer.status_code == 200
                    worker = answer.json().get("worker", 0) if good else 0
                    self.answers.append((began, answer.status_code, worker))
                except httpx.TransportError:
                    self.answers.append((began, 0, 0))

    def workers(self, since: float = 0.0) -> Counter[int]:
        """How many good answers each worker has given to requests since then."""
        return Counter(
            worker for began, status, worker in self.answers if status == 200 and began >= since
        )

    def lose_a_worker(self, fault: Ask, log: Path, patience: float = 60, then: int = 50) -> None:
        """Has one of two workers lose its context, or hang, until another one has replaced it."""
        self.began = time.monotonic()
        assert settle(lambda: sum(self.workers(self.began).values()) > 50, patience)
        self.faulted = time.monotonic()
        asked(fault)  # the worker may end before it has answered
        assert settle(lambda: LOST.search(log.read_text()) is not None, patience), log.read_text()
        self.failed = int(LOST.findall(log.read_text())[0])

        def is_replaced() -> bool:
            return len(self.workers(self.faulted) - Counter({self.failed: 10**9})) == 2

        assert settle(is_replaced, patience), log.read_text()
        self.replaced = time.monotonic()
        assert settle(lambda: sum(self.workers(self.replaced).values()) > then, patience)

    def check_that_one_was_replaced(self, log: Path, most: int) -> None:
        """Only requests that it had then were answered badly, and its end was said once."""
        assert len(self.bad) <= most, self.bad
        assert not [bad for bad in self.bad if bad[0] > self.replaced]
        assert self.failed not in self.workers(self.replaced)
        assert LOST.findall(log.read_text()) == [str(self.failed)], log.read_text()

    @property
    def bad(self) -> list[tuple[float, int, int]]:
        """The requests since `lose_a_worker` began that were not answered well."""
        return [each for each in self.answers if each[1] != 200 and each[0] >= self.began]


def end_under_load(
    server: Server, request: Callable[[httpx.Client, int, int], bool], least: int
) -> None:
    """Ends a server in the middle of the requests of six clients.

    Args:
        server: Its end must be clean.
        request: Has the n-th request of a client answered: `request(connection, client, n)`. It
            says whether the answer was whole, or raises the error of a broken connection.
        least: The end comes after at least that many answers.
    """
    whole, ending = [0], threading.Event()

    def send(client: int) -> None:
        with http_client(server.client.base_url) as connection:
            for number in range(10_000):
                try:
                    is_whole = request(connection, client, number)
                except (httpx.TransportError, OSError):
                    is_whole = False
                if not is_whole:
                    assert ending.is_set()
                    return
                whole[0] += 1

    with ThreadPoolExecutor(6) as pool:
        clients = [pool.submit(send, client) for client in range(6)]
        assert settle(lambda: whole[0] >= least)
        ending.set()
        code, _, written = server.stop()
        for each in clients:
            each.result()
    assert (code, written) == (0, "")
