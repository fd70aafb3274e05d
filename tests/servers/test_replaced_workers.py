"""P19 in servers with several worker processes: the one that lost its context ends, and its
supervisor starts another.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from servers import LOST, Clients, free_port
from support import settle

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


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["/fault", "/hang"])
@pytest.mark.parametrize("kind", SERVERS)
def test_worker_that_lost_its_context_or_hangs_is_replaced(
    kind: str, fault: str, driver_kind: str, tmp_path: Path
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
        [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    )
    log = tmp_path / "log"
    with log.open("w") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", *SERVERS[kind], address], stdout=out, stderr=out, env=variables
        )
    url = f"http://127.0.0.1:{port}"
    try:
        with Clients(lambda client: client.get(url + "/infer")) as clients:
            assert settle(lambda: len(clients.workers()) == 2, 60), log.read_text()
            clients.lose_a_worker(lambda client: client.get(url + fault), log)
        assert len(clients.bad) <= len(clients.threads), clients.bad
        assert not [bad for bad in clients.bad if bad[0] > clients.replaced]
        seconds, total = clients.replaced - clients.faulted, len(clients.answers)
        print(f"{kind} {fault}: {seconds:.1f} s, {len(clients.bad)} of {total} answers bad")
        assert clients.failed not in clients.workers(clients.replaced)
        assert LOST.findall(log.read_text()) == [str(clients.failed)], log.read_text()
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
        # hypercorn ends the other workers by SIGTERM, and its code is that of one of them. That is
        # 241 (-15) if the worker was not yet ready to handle the signal.
        assert server.wait(60) in (0, 241)


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
    search = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
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
