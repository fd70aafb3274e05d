"""LitServe, BentoML and Dask, as docs/serving.md shows them: a worker whose context is lost is
replaced. They need the extra `engines`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from servers import LOST, ROOT, Ask, Clients, environment, free_port
from support import settle

TESTS = ROOT / "tests"
# Each is started by its command, in the folder of the tests, and listens on the port at the end.
COMMANDS = {
    "litserve": ["served_litserve.py"],
    "bentoml": ["-m", "bentoml", "serve", "served_bentoml:Model", "--port"],
}

pytestmark = pytest.mark.timeout(300)


def need(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed: pip install '.[engines]'")


def variables(driver_kind: str, folder: Path) -> dict[str, str]:
    return {
        **environment(driver_kind),
        "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
        "BENTOML_HOME": str(folder / "bentoml"),
        "BENTOML_DO_NOT_TRACK": "True",
        "DASK_TEMPORARY_DIRECTORY": str(folder),
    }


@pytest.fixture(params=COMMANDS)
def engine(
    request: pytest.FixtureRequest, driver_kind: str, tmp_path: Path
) -> Iterator[tuple[str, Path]]:
    """An engine with two workers: its address, and its log."""
    need(request.param)
    port, log = free_port(), tmp_path / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, *COMMANDS[request.param], str(port)],
            stdout=out,
            stderr=out,
            cwd=TESTS,
            env=variables(driver_kind, tmp_path),
            start_new_session=True,
        )
    try:
        yield f"http://127.0.0.1:{port}/infer", log
    finally:
        # BentoML's workers are in sessions of their own, and only BentoML ends them.
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_worker_that_lost_its_context_is_replaced(engine: tuple[str, Path]) -> None:
    """LitServe does not answer the requests that the lost worker had: their clients time out."""
    url, log = engine

    def asks(**body: bool) -> Ask:
        return lambda client: client.post(url, json=body)

    def answers() -> bool:
        try:
            return httpx.post(url, json={}, timeout=10, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    assert settle(answers, 120), log.read_text()
    with Clients(asks(), timeout=5) as clients:
        assert settle(lambda: len(clients.workers()) == 2, 60), log.read_text()
        clients.lose_a_worker(asks(fault=True), log, patience=120)
    # Each client had one request there, and may have had another before the engine noticed.
    assert len(clients.bad) <= 2 * len(clients.threads), clients.bad
    assert not [bad for bad in clients.bad if bad[0] > clients.replaced]
    assert LOST.findall(log.read_text()) == [str(clients.failed)], log.read_text()


def test_dask_repeats_the_tasks_of_a_lost_worker(driver_kind: str, tmp_path: Path) -> None:
    need("distributed")
    done = subprocess.run(
        [sys.executable, "served_dask.py", str(tmp_path / "marker")],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=TESTS,
        env=variables(driver_kind, tmp_path),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    before, after, failing = json.loads(done.stdout.splitlines()[-1])
    assert len(after) == 16
    assert {failing}.isdisjoint(before)
    assert len(LOST.findall(done.stderr)) == 1, done.stderr
