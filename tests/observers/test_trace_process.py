"""`AIOSTREAM_TRACE`: its file is there however the process ends, and an earlier one until then."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from installed import installed
from servers import asked, serving
from support import run_script, settle, succeed


def awaits(path: Path) -> int:
    """How many awaits a trace has. It is whole, whenever you read it."""
    return int(json.loads(path.read_text())["otherData"]["awaits"])


@contextlib.contextmanager
def traced_server(
    kind: str, driver_kind: str, folder: Path
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server, and the process of the worker that answered the last of ten requests."""
    trace, workers = str(folder / "trace-{pid}.json"), list[int]()
    with serving(kind, driver_kind, folder / "log", AIOSTREAM_TRACE=trace) as (server, url):

        def answered() -> bool:
            assert server.poll() is None, "the server has ended"
            if (answer := asked(lambda client: client.get(url + "/infer"))) is not None:
                workers.append(answer.json()["worker"])
            return len(workers) == 10

        assert settle(answered, 60)
        yield server, workers[-1]


@pytest.mark.parametrize(
    "kind",
    [
        "uvicorn",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("one uvicorn", "gunicorn")),
    ],
)
def test_server_that_a_signal_ends_leaves_its_trace(
    kind: str, driver_kind: str, tmp_path: Path
) -> None:
    """uvicorn raises the signal once more at its end, and no `atexit` handler runs."""
    with traced_server(kind, driver_kind, tmp_path) as (server, worker):
        server.send_signal(signal.SIGTERM)
        server.wait(30)
    traces = {path.name: awaits(path) for path in tmp_path.glob("*trace*")}
    assert f"trace-{worker}.json" in traces, "no partial file, and none that is empty"
    assert sum(traces.values()) >= 20, "each request has an acquire and an enqueue_async"


def test_process_that_is_killed_leaves_what_it_did_until_a_second_before(
    driver_kind: str, tmp_path: Path
) -> None:
    with traced_server("one uvicorn", driver_kind, tmp_path) as (server, worker):
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


LOST = "aiostream.exit_on_context_failed({}); simulator.break_context(700); await asyncio.sleep(30)"
simulated = pytest.mark.simulator_only("a GPU's context stays lost")


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("assert await aiostream.drain(10); os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        pytest.param(LOST.format(""), 70, marks=simulated),
        pytest.param(LOST.format("grace=1"), 70, marks=simulated),
    ],
    ids=["drained", "lost context", "lost context, grace"],
)
def test_process_that_is_ended_leaves_its_trace(
    end: str, code: int, driver_kind: str, tmp_path: Path
) -> None:
    assert awaits_after(end, code, driver_kind, tmp_path) == 1


def test_forked_child_leaves_the_file_alone(driver_kind: str, tmp_path: Path) -> None:
    behind = """
    path = os.environ["AIOSTREAM_TRACE"]
    assert asyncio.run(aiostream.drain(10))  # writes it
    before = os.stat(path).st_ino
    if (child := os.fork()) == 0:
        raise SystemExit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.stat(path).st_ino == before
    """
    path = tmp_path / "trace.json"
    succeed(driver_kind, PROGRAM.format(end="pass") + behind, AIOSTREAM_TRACE=str(path))
    assert awaits(path) == 2


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


# As uvicorn: it may import the application when it has its own handler, and at its end it puts the
# first one back and raises the signal again.
SERVER = """
    import asyncio, signal, time

    ended = []
    restored = signal.signal(signal.SIGTERM, lambda *_: ended.append(1)) if {late} else None
    import aiostream
    if not {late}:
        restored = signal.signal(signal.SIGTERM, lambda *_: ended.append(1))

    async def main():
        async with aiostream.Stream() as stream:
            await stream.run(time.sleep, 0.005)
            stream.launch_host_func(time.sleep, 0.1)  # longer than a busy machine keeps this thread
            stream.synchronize()

    asyncio.run(main())
    signal.raise_signal(signal.SIGTERM)
    print(ended, flush=True)
    signal.signal(signal.SIGTERM, restored)
    signal.raise_signal(signal.SIGTERM)
"""


@pytest.mark.parametrize("late", [False, True])
def test_short_lived_server_that_sigterm_ends_leaves_trace_and_report(
    driver_kind: str, tmp_path: Path, late: bool
) -> None:
    path = tmp_path / "trace.json"
    done = run_script(
        driver_kind,
        SERVER.format(late=late),
        AIOSTREAM_TRACE=str(path),
        AIOSTREAM_BLOCKING="count",
    )
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "[1]\n"), done.stderr
    assert awaits(path) >= 1
    assert done.stderr.count("cuStreamSynchronize <string>") == 1, done.stderr


@pytest.mark.parametrize("kind", installed(["asyncio", "uvloop"]))
def test_a_loop_s_handler_of_sigterm_is_called_once_for_each(
    kind: str, driver_kind: str, tmp_path: Path
) -> None:
    """Also if the loop had it before the import."""
    program = f"""
        import asyncio, os, signal
        import {kind}

        async def main():
            loop, called, heard = asyncio.get_running_loop(), [], asyncio.Event()
            loop.add_signal_handler(signal.SIGTERM, lambda: (called.append(1), heard.set()))
            import aiostream
            for _ in range(2):
                heard.clear()
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.wait_for(heard.wait(), 20)
                for _ in range(10):
                    await asyncio.sleep(0.001)
            print(len(called))

        {kind}.run(main())
    """
    path = tmp_path / "trace.json"
    assert succeed(driver_kind, program, AIOSTREAM_TRACE=str(path)) == "2\n"
