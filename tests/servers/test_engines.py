"""LitServe, BentoML and Dask, as docs/serving.md shows them: a worker whose context is lost is
replaced. They need the extra `engines`.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from commands import TESTS, python
from servers import LOST, Ask, Clients, asked, environment, free_port, running
from support import settle

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
    return environment(
        driver_kind,
        TESTS,
        BENTOML_HOME=str(folder / "bentoml"),
        BENTOML_DO_NOT_TRACK="True",
        DASK_TEMPORARY_DIRECTORY=str(folder),
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_worker_that_lost_its_context_is_replaced(
    name: str, driver_kind: str, tmp_path: Path
) -> None:
    """LitServe does not answer the requests that the lost worker had: their clients time out."""
    need(name)
    port, log = free_port(), tmp_path / "log"

    def asks(**body: bool) -> Ask:
        return lambda client: client.post(f"http://127.0.0.1:{port}/infer", json=body)

    def answers() -> bool:
        answer = asked(asks())
        return answer is not None and answer.status_code == 200

    command = [*COMMANDS[name], str(port)]
    with running(command, log, 30, cwd=TESTS, env=variables(driver_kind, tmp_path)):
        assert settle(answers, 120), log.read_text()
        with Clients(asks(), timeout=5) as clients:
            assert settle(lambda: len(clients.workers()) == 2, 60), log.read_text()
            clients.lose_a_worker(asks(fault=True), log, patience=120)
        # Each client had one request there, and may have had another before the engine noticed.
        clients.check_that_one_was_replaced(log, 2 * len(clients.threads))


def test_dask_repeats_the_tasks_of_a_lost_worker(driver_kind: str, tmp_path: Path) -> None:
    need("distributed")
    marker, settings = str(tmp_path / "marker"), variables(driver_kind, tmp_path)
    done = python(driver_kind, "served_dask.py", marker, folder=TESTS, timeout=200, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    before, after, failing = json.loads(done.stdout.splitlines()[-1])
    assert len(after) == 16
    assert {failing}.isdisjoint(before)
    assert len(LOST.findall(done.stderr)) == 1, done.stderr
