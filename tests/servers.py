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
from dataclasses import dataclass
from pathlib import Path

import httpx

from support import settle

ROOT = Path(__file__).parents[1]
LOST = re.compile(
    r"^aiostream: .* (?:\(719\): the CUDA context is lost|is stalled: .*)\. Process (\d+) "
    r"ends now, with exit code (?:70|0) .*$",
    re.MULTILINE,
)
Ask = Callable[[httpx.Client], httpx.Response]


def environment(driver_kind: str) -> dict[str, str]:
    return {
        **os.environ,
        "AIOSTREAM_SIMULATOR": "1" if driver_kind == "simulator" else "",
        "PYTHONUNBUFFERED": "1",
    }


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
    port: int,
    *arguments: str,
    alive: str = "/ping",
    **variables: str,
) -> Iterator[Server]:
    process = subprocess.Popen(
        [sys.executable, str(program), *arguments],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment(driver_kind), **variables},
    )
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


class Clients:
    """Several threads that send one request after another, each on a connection of its own, and
    note the answers.
    """

    def __init__(self, ask: Ask, count: int = 4, timeout: float = 20) -> None:
        self._ask, self._timeout = ask, timeout
        self.answers: list[
            tuple[float, int, int]
        ] = []  # when it was sent, its status (0: the connection was cut), its worker
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
        # The worker may end before it has answered.
        with contextlib.suppress(httpx.TransportError), self._client() as client:
            fault(client)
        assert settle(lambda: LOST.search(log.read_text()) is not None, patience), log.read_text()
        self.failed = int(LOST.findall(log.read_text())[0])

        def is_replaced() -> bool:
            return len(self.workers(self.faulted) - Counter({self.failed: 10**9})) == 2

        assert settle(is_replaced, patience), log.read_text()
        self.replaced = time.monotonic()
        assert settle(lambda: sum(self.workers(self.replaced).values()) > then, patience)

    @property
    def bad(self) -> list[tuple[float, int, int]]:
        """The requests since `lose_a_worker` began that were not answered well."""
        return [each for each in self.answers if each[1] != 200 and each[0] >= self.began]
