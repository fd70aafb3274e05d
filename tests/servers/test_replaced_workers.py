"""P19 in servers with several worker processes: the one that lost its context ends, and its
supervisor starts another.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from servers import Clients, asked, needs_granian, serving
from support import settle

KINDS = [
    "uvicorn",
    "gunicorn",
    "gunicorn --preload",
    "hypercorn",
    pytest.param("granian", marks=needs_granian),
    pytest.param("granian RSGI", marks=needs_granian),
]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["/fault", "/hang"])
@pytest.mark.parametrize("kind", KINDS)
def test_worker_that_lost_its_context_or_hangs_is_replaced(
    kind: str, fault: str, driver_kind: str, tmp_path: Path
) -> None:
    """Only the requests that it had then are answered badly, each once; no later one is."""
    # hypercorn ends the whole server when a worker ends with another code.
    code, log = "0" if kind == "hypercorn" else "70", tmp_path / "log"
    with serving(kind, driver_kind, log, FAULTY_EXIT_CODE=code) as (_, url):
        with Clients(lambda client: client.get(url + "/infer")) as clients:
            assert settle(lambda: len(clients.workers()) == 2, 60), log.read_text()
            clients.lose_a_worker(lambda client: client.get(url + fault), log)
        clients.check_that_one_was_replaced(log, len(clients.threads))
        seconds, total = clients.replaced - clients.faulted, len(clients.answers)
        print(f"{kind} {fault}: {seconds:.1f} s, {len(clients.bad)} of {total} answers bad")


def test_hypercorn_ends_the_server_when_a_worker_ends_with_another_code(
    driver_kind: str, tmp_path: Path
) -> None:
    """docs/serving.md says so; it is hypercorn's doing."""
    log = tmp_path / "log"
    with serving("hypercorn", driver_kind, log, FAULTY_EXIT_CODE="70") as (server, url):

        def answers() -> bool:
            answer = asked(lambda client: client.get(url + "/infer"))
            return answer is not None and answer.status_code == 200

        assert settle(answers, 60)
        asked(lambda client: client.get(url + "/fault"))
        # hypercorn ends the other workers by SIGTERM, and its code is that of one of them. That is
        # 241 (-15) if the worker was not yet ready to handle the signal.
        assert server.wait(60) in (0, 241)


def test_gunicorn_preload_with_cuda_in_the_parent_is_refused(
    driver_kind: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with serving("gunicorn --preload", driver_kind, log, FAULTY_TOUCHES_CUDA="1") as (server, _):
        assert server.wait(60) != 0
    assert "CUDA cannot be used in a forked child" in log.read_text()
