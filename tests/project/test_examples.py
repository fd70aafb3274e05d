"""The examples, run as a reader would run them, on the driver under test."""

from __future__ import annotations

import contextlib
import importlib.util
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest

from commands import python
from servers import ROOT, Server, http_client, started
from support import settle

EXAMPLES = ROOT / "examples"
SERVED = Path(__file__).parents[1] / "served_model.py"
HYPERCORN = pytest.param("hypercorn", id="hypercorn on trio")
SERVERS = ["uvicorn", pytest.param("hypercorn", id="hypercorn on trio", marks=pytest.mark.slow)]
TIMEOUT = 1  # seconds of a request; enough for what shall pass, on a busy machine too
TOO_LONG = 2000  # milliseconds on the GPU


# ------------------------------------------------------------------------------ quickstart


QUICKSTART = ("-W", "error", str(EXAMPLES / "quickstart.py"))


def test_quickstart(driver_kind: str) -> None:
    done = python(driver_kind, *QUICKSTART)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("driver: ")
    assert "timed out after 20 ms; is the GPU done? False" in lines
    ends = {line for line in lines if "is done" in line}
    assert ends == {f"the stream with {n} ms is done" for n in (20, 30, 40)}
    assert lines[-1].startswith("all three: ")


def test_quickstart_takes_the_simulator_only_when_asked() -> None:
    hidden = {"CUDA_VISIBLE_DEVICES": "-1"}  # no GPU, or none to be seen
    done = python("none", *QUICKSTART, **hidden)
    assert done.returncode == 1
    assert "AIOSTREAM_SIMULATOR=1" in done.stderr
    assert "Traceback" not in done.stderr
    done = python("none", *QUICKSTART, "--simulator", **hidden)
    assert (done.returncode, done.stderr) == (0, "")


# ------------------------------------------------------------------------------ the model server


def serving(kind: str, driver_kind: str, *options: str) -> AbstractContextManager[Server]:
    options = ("--server", kind, "--port", "PORT", "--timeout", str(TIMEOUT), *options)
    return started(EXAMPLES / "model_server.py", driver_kind, *options)


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, driver_kind: str) -> Iterator[Server]:
    """A server whose end must be clean."""
    with serving(request.param, driver_kind) as server:
        yield server
        code, out, err = server.stop()
        assert (code, err) == (0, "")
        assert out.startswith("driver: ")


def test_each_of_many_requests_at_once_gets_its_own_answer(server: Server) -> None:
    assert server.client.get("/livez").text == "ok"
    # 32 of 5 ms on the server's eight streams.
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda n: server.infer(milliseconds=5, n=n), range(1, 33)))
    for n, answer in enumerate(answers, start=1):
        assert answer.status_code == 200
        assert answer.json()["y"] == [10.0 + 2 * i for i in range(n)]
    metrics = server.client.get("/metrics")
    if importlib.util.find_spec("prometheus_client") is None:
        assert (metrics.status_code, metrics.text) == (501, "pip install prometheus-client")
    else:
        lines = metrics.text.splitlines()
        assert 'aiostream_pool_streams{pool="model",state="idle"} 8.0' in lines
        assert any(line.startswith("aiostream_wait_seconds_bucket") for line in lines)
        assert "aiostream_context_lost 0.0" in lines
    wrong = ("", "[]", '{"x": [1], "y": []}', '{"x": ["a"], "y": [1]}')
    for body in (*wrong, '{"x": [1], "y": [1], "milliseconds": -1}'):
        answer = server.client.post("/infer", content=body)
        assert answer.status_code == 400
        assert "bad request" in answer.json()["error"]


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
    # The end, in the fixture, awaits the work for which no request waits any more.


@pytest.mark.parametrize("kind", SERVERS)
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


@pytest.mark.parametrize("kind", SERVERS)
def test_client_that_disconnects_frees_its_place_in_the_queue(kind: str, driver_kind: str) -> None:
    with started(SERVED, driver_kind, kind, "PORT") as server, ThreadPoolExecutor(2) as pool:

        def counts() -> dict[str, int]:
            return dict(server.client.get("/statistics").json())

        first = pool.submit(server.infer, TOO_LONG)
        assert settle(lambda: counts()["lent"] == 1)
        impatient = http_client(server.client.base_url, timeout=0.2)
        with impatient, pytest.raises(httpx.ReadTimeout):
            Server(server.process, impatient).infer()
        assert settle(lambda: counts()["waiting"] == 0)
        # The one place in the queue is free again, and the next request is not refused.
        assert server.infer().status_code == 200
        assert first.result().status_code == 200
        assert server.stop()[::2] == (0, "")


@pytest.mark.parametrize("kind", ["uvicorn", HYPERCORN])
def test_request_in_flight_is_answered_after_sigterm(kind: str, driver_kind: str) -> None:
    with started(SERVED, driver_kind, kind, "PORT") as server, ThreadPoolExecutor(1) as pool:
        for _ in range(8):  # on a busy machine it may be answered before it was seen
            answer = pool.submit(server.infer, 500.0)
            assert settle(
                lambda answer=answer: (
                    answer.done() or server.client.get("/statistics").json()["lent"] == 1
                )
            )
            if not answer.done():
                break
        assert server.stop()[::2] == (0, "")
        assert answer.result().json() == {"y": [10.0, 12.0, 14.0]}


@pytest.mark.simulator_only("a GPU's driver may wait for its kernels when the process ends")
@pytest.mark.parametrize("kind", SERVERS)
def test_server_ends_while_the_gpu_hangs(kind: str, driver_kind: str) -> None:
    with started(SERVED, driver_kind, kind, "PORT", "0.5", "0.2") as server:
        assert server.infer(milliseconds=40_000).status_code == 504
        began = time.monotonic()
        assert server.stop()[::2] == (0, "")
        assert time.monotonic() - began < 15


@pytest.mark.parametrize("kind", ["uvicorn", HYPERCORN])
def test_lost_context_ends_the_server(kind: str, driver_kind: str) -> None:
    with started(SERVED, driver_kind, kind, "PORT") as server:
        assert server.infer().status_code == 200
        with contextlib.suppress(httpx.TransportError):
            server.client.get("/fault")
        assert settle(lambda: server.process.poll() is not None, 30)
        assert server.process.returncode == 70
        assert "the CUDA context is lost" in server.process.communicate()[1]
