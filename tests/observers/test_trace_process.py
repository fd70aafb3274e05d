"""`AIOSTREAM_TRACE`: its file is there however the process ends, and an earlier one until then."""

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

from servers import environment, free_port
from support import run_script, settle, succeed

APP = """
import contextlib, os
import aiostream
from aiostream.testing import spin
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

@contextlib.asynccontextmanager
async def lifespan(app):
    async with aiostream.StreamPool(2) as app.state.pool:
        yield
        if not os.environ.get("NO_DRAIN"):
            assert await aiostream.drain(5)

async def work(request):
    async with request.app.state.pool.stream() as stream:
        await stream.enqueue_async(spin, 0.001)
    return PlainTextResponse(str(os.getpid()))

app = Starlette(lifespan=lifespan, routes=[Route("/", work)])
"""
SERVERS = {
    "uvicorn": ("uvicorn", "app:app", "--log-level", "warning", "--port"),
    "workers": ("uvicorn", "app:app", "--log-level", "warning", "--workers", "2", "--port"),
    "gunicorn": (
        *("gunicorn", "app:app", "--worker-class", "uvicorn.workers.UvicornWorker"),
        *("--log-level", "warning", "--bind"),
    ),
}


def awaits(path: Path) -> int:
    """How many awaits a trace has. It is whole, whenever you read it."""
    return int(json.loads(path.read_text())["otherData"]["awaits"])


@contextlib.contextmanager
def serving(
    kind: str, driver_kind: str, folder: Path, **settings: str
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A server, its process and the process of the worker that answered ten requests."""
    (folder / "app.py").write_text(APP)
    port = free_port()
    address = f"127.0.0.1:{port}" if kind == "gunicorn" else str(port)
    variables = {"AIOSTREAM_TRACE": str(folder / "trace-{pid}.json"), **settings}
    server = subprocess.Popen(
        [sys.executable, "-m", *SERVERS[kind], address],
        cwd=folder,
        env={**environment(driver_kind), **variables},
        start_new_session=True,
    )
    workers: list[int] = []

    def answered() -> bool:
        assert server.poll() is None, "the server has ended"
        with contextlib.suppress(httpx.TransportError):
            answer = httpx.get(f"http://127.0.0.1:{port}/", timeout=20, trust_env=False)
            workers.append(int(answer.text))
        return len(workers) == 10

    try:
        assert settle(answered, 60)
        yield server, workers[-1]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[] if kind == "workers" else pytest.mark.slow) for kind in SERVERS],
)
def test_server_that_a_signal_ends_leaves_its_trace(
    kind: str, driver_kind: str, tmp_path: Path
) -> None:
    """uvicorn raises the signal once more at its end, and no `atexit` handler runs."""
    if kind == "gunicorn" and importlib.util.find_spec("uvicorn.workers") is None:
        pytest.skip("this uvicorn has no worker for gunicorn")
    with serving(kind, driver_kind, tmp_path) as (server, worker):
        server.send_signal(signal.SIGTERM)
        server.wait(30)
    traces = {path.name: awaits(path) for path in tmp_path.glob("*trace*")}
    assert f"trace-{worker}.json" in traces, "no partial file, and none that is empty"
    assert sum(traces.values()) >= 20, "each request has an acquire and an enqueue_async"


def test_process_that_is_killed_leaves_what_it_did_until_a_second_before(
    driver_kind: str, tmp_path: Path
) -> None:
    with serving("uvicorn", driver_kind, tmp_path, NO_DRAIN="1") as (server, worker):
        path = tmp_path / f"trace-{worker}.json"
        assert settle(lambda: path.exists() and awaits(path) >= 20, 10)
        server.kill()
        server.wait()
    assert awaits(path) >= 20


PROGRAM = """
    import asyncio, os, signal
    import aiostream
    from aiostream import simulator

    async def main():
        async with aiostream.Stream() as stream:
            await stream.enqueue_async(lambda stream: None)
            {end}

    asyncio.run(main())
"""


def awaits_after(end: str, code: int, driver_kind: str, folder: Path) -> int:
    """How many awaits the trace has of a program that ends so after an await."""
    path = folder / "trace.json"
    done = run_script(driver_kind, PROGRAM.format(end=end), AIOSTREAM_TRACE=str(path))
    assert done.returncode == code, done.stderr
    assert [each.name for each in folder.iterdir()] == [path.name]
    return awaits(path)


def test_drain_writes_the_trace(driver_kind: str, tmp_path: Path) -> None:
    end = "assert await aiostream.drain(10); os.kill(os.getpid(), signal.SIGKILL)"
    assert awaits_after(end, -signal.SIGKILL, driver_kind, tmp_path) == 1


@pytest.mark.simulator_only("a GPU's context stays lost")
@pytest.mark.parametrize("arguments", ["", "grace=1"])
def test_process_that_ends_with_its_context_leaves_its_trace(
    arguments: str, driver_kind: str, tmp_path: Path
) -> None:
    end = (
        f"aiostream.exit_on_context_failed({arguments}); simulator.break_context(700); "
        "await asyncio.sleep(30)"
    )
    assert awaits_after(end, 70, driver_kind, tmp_path) == 1


def test_earlier_trace_stays_until_there_is_a_new_one(driver_kind: str, tmp_path: Path) -> None:
    (path := tmp_path / "trace.json").write_text("the earlier trace")
    script = """
        import asyncio, os, pathlib
        import aiostream

        async def main():
            async with aiostream.Stream() as stream:
                assert await aiostream.drain(10)
                print(pathlib.Path(os.environ["AIOSTREAM_TRACE"]).read_text())

        asyncio.run(main())
        """
    said = succeed(driver_kind, script, AIOSTREAM_TRACE=str(path))
    assert said == "the earlier trace\n", "there was no await yet"
    assert awaits(path) == 1, "the stream's end"


def test_file_is_written_again_for_news_alone(driver_kind: str, tmp_path: Path) -> None:
    """So an idle process writes nothing."""
    end = """
            for is_new in (True, False, True):
                before = os.stat(path).st_ino if os.path.exists(path) else None
                if is_new:
                    await stream.enqueue_async(lambda stream: None)
                assert await aiostream.drain(10)
                assert (os.stat(path).st_ino != before) is is_new
    """
    end = 'path = os.environ["AIOSTREAM_TRACE"]' + end
    assert awaits_after(end, 0, driver_kind, tmp_path) == 4


@pytest.mark.slow
def test_file_that_cannot_be_written_costs_little_and_is_written_later(
    driver_kind: str, tmp_path: Path
) -> None:
    script = """
    import asyncio, os, sys, time
    import aiostream
    from aiostream.testing import settle

    errors = []
    sys.unraisablehook = lambda what: errors.append(what.exc_value)

    async def main():
        async with aiostream.Stream() as stream:
            await stream.synchronize_async()
            os.rmdir("folder")
            end = time.monotonic() + 1.5
            while time.monotonic() < end:
                stream.enqueue_async(lambda stream: None).cancel()
                await asyncio.sleep(0.01)
            assert 1 <= len(errors) <= 2, errors
            os.mkdir("folder")
            assert await aiostream.drain(5)
            assert os.listdir("folder") == ["trace.json"]

    asyncio.run(main())
    """
    (tmp_path / "folder").mkdir()
    succeed(driver_kind, script, folder=tmp_path, AIOSTREAM_TRACE="folder/trace.json")


def test_drain_does_not_wait_for_a_library_that_was_never_started(tmp_path: Path) -> None:
    script = """
    import asyncio, time
    import aiostream

    async def main():
        try:
            aiostream.Stream()
        except aiostream.NoDriverError:
            began = time.monotonic()
            assert await aiostream.drain()
            print(time.monotonic() - began < 3)

    asyncio.run(main())
    """
    settings = {"AIOSTREAM_TRACE": "trace.json", "CUDA_VISIBLE_DEVICES": "-1"}
    assert succeed("none", script, folder=tmp_path, **settings) == "True\n"
