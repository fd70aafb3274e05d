"""What the tests of servers share: a server in a process of its own, and its client."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from support import settle

ROOT = Path(__file__).parents[1]


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


def free_port() -> int:
    with socket.socket() as finder:
        finder.bind(("127.0.0.1", 0))
        return int(finder.getsockname()[1])


@contextlib.contextmanager
def started(
    program: Path, driver_kind: str, port: int, *arguments: str, **variables: str
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
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False
        ) as client:
            server = Server(process, client)
            assert settle(server.answers, 30), "the server does not answer"
            yield server
    finally:
        with contextlib.suppress(ProcessLookupError):  # its workers too, which hold the pipes
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
