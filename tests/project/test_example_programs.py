"""The smaller examples, each started by its command: a pipeline, several GPUs or loops."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from aiostream import Device
from commands import python
from servers import ROOT, Server, free_port, http_client, started
from support import USUAL, run_script, settle, succeed

EXAMPLES = ROOT / "examples"


# ------------------------------------------------------------------------------ pipeline.py


def test_pipeline_computes_every_batch(driver_kind: str) -> None:
    options = ("-W", "error", str(EXAMPLES / "pipeline.py"), "--batches", "20")
    done = python(driver_kind, *options)
    assert (done.returncode, done.stderr) == (0, "")
    first, three, one = done.stdout.splitlines()
    assert first.startswith("driver: ")
    assert re.fullmatch("three streams: 20 batches in .*all results right", three)
    assert re.fullmatch("one stream: 20 batches in .*all results right", one)


# ------------------------------------------------------------------------------ workers.py


@contextlib.contextmanager
def workers(driver_kind: str, locks: Path, *options: str) -> Iterator[Server]:
    if driver_kind == "gpu" and Device.count() < 2:
        pytest.skip("needs two GPUs")
    settings = {"WORKERS_LOCKS": str(locks), "AIOSTREAM_SIMULATOR_DEVICES": "2"}
    arguments = ("--gpus", "2", "--port", "PORT", *options)
    with started(EXAMPLES / "workers.py", driver_kind, *arguments, **settings) as server:
        yield server


def who(server: Server, requests: int = 30, milliseconds: float = 2) -> Counter[tuple[int, str]]:
    """Who answers: process and GPU. Any worker may take a new connection."""

    def ask(_: int) -> Any:
        with contextlib.suppress(httpx.TransportError):
            return client.get("/infer", params={"milliseconds": milliseconds}).json()
        return None  # a worker that was killed had it

    with http_client(server.client.base_url, fresh=True) as client, ThreadPoolExecutor(8) as pool:
        answers = [answer for answer in pool.map(ask, range(requests)) if answer is not None]
    return Counter((answer["pid"], answer["gpu"]) for answer in answers)


@pytest.mark.slow
def test_each_worker_has_a_gpu_and_its_successor_takes_it(driver_kind: str, tmp_path: Path) -> None:
    with workers(driver_kind, tmp_path) as server:
        assert settle(lambda: len(who(server)) == 2, 60)
        before = set(who(server, 60))
        assert {gpu for _, gpu in before} == {"0", "1"}
        victim, its_gpu = min(before)
        os.kill(victim, signal.SIGKILL)

        def replaced() -> bool:
            now = set(who(server))
            return len(now) == 2 and victim not in {pid for pid, _ in now}

        assert settle(replaced, 60)
        assert {gpu for pid, gpu in who(server, 60) if (pid, gpu) not in before} == {its_gpu}
        assert server.stop()[0] == 0


def test_one_process_uses_the_gpu_with_the_least_work(driver_kind: str, tmp_path: Path) -> None:
    with workers(driver_kind, tmp_path, "--one-process") as server:
        answers = who(server, 32, milliseconds=100)
        assert len({pid for pid, _ in answers}) == 1
        assert {gpu for _, gpu in answers} == {"0", "1"}
        assert min(answers.values()) >= 8  # of 32, with eight requests at once
        assert server.stop()[::2] == (0, "")


def test_more_workers_than_gpus_are_refused(driver_kind: str, tmp_path: Path) -> None:
    script = f"""
        import os, sys
        sys.path.insert(0, {str(EXAMPLES)!r})
        import workers

        def claim():
            os.environ["CUDA_VISIBLE_DEVICES"] = "GPU-a,GPU-b"
            return workers.claimed_gpu(2)

        with claim() as first, claim() as second:
            assert (first, second) == ("GPU-a", "GPU-b")
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-b"
            try:
                claim().__enter__()
            except RuntimeError as error:
                print(error)
        with claim() as first:
            assert first == "GPU-a"
    """
    printed = succeed(driver_kind, script, forked=USUAL, WORKERS_LOCKS=str(tmp_path))
    assert printed == "other processes hold all 2 GPUs\n"


# ------------------------------------------------------------------------------ several_loops.py


@pytest.fixture
def loops(driver_kind: str) -> Iterator[Server]:
    options = ("--loops", "3", "--streams", "2", "--port", "PORT")
    with started(EXAMPLES / "several_loops.py", driver_kind, *options) as server:
        yield server


def asked(server: Server, path: str, **query: float) -> Any:
    """The answer on a connection of its own, for which the kernel chooses the loop."""
    with http_client(server.client.base_url) as client:
        return client.get(path, params=query).json()


def test_each_loop_of_one_process_answers_right(loops: Server) -> None:
    seen: set[int] = set()

    def all_answer(a: int = 2) -> bool:
        answer = asked(loops, "/infer", a=a, milliseconds=2)
        assert answer["y"] == [a, 2 * a, 3 * a, 4 * a]
        seen.add(answer["loop"])
        return seen == {0, 1, 2}

    assert settle(all_answer)
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(all_answer, range(100)))
    assert loops.stop()[::2] == (0, "")


def test_requests_of_all_loops_are_answered_after_sigterm(loops: Server) -> None:
    begun: dict[int, int] = {}

    def all_have_begun() -> bool:
        answer = asked(loops, "/ping")
        begun[answer["loop"]] = answer["requests"]
        return sum(begun.values()) == 6

    with ThreadPoolExecutor(6) as pool:
        answers = [pool.submit(asked, loops, "/infer", milliseconds=1000) for _ in range(6)]
        assert settle(all_have_begun)
        assert loops.stop()[::2] == (0, "")
        assert [answer.result()["y"] for answer in answers] == [[1, 2, 3, 4]] * 6


def test_no_loop_serves_if_one_cannot(driver_kind: str) -> None:
    script = f"""
        import sys
        sys.path.insert(0, {str(EXAMPLES)!r})
        import several_loops

        def fails_in_one(model, loop, streams):
            return application(model, loop, streams if loop != 1 else 0)  # a pool of none

        application = several_loops.application
        several_loops.application = fails_in_one
        print(several_loops.serve(loops=3, streams=2, port={free_port()}))
    """
    done = run_script(driver_kind, script, forked=USUAL)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
