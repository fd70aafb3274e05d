"""What blocks a loop is found: by each way to call the driver, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import inspect
import json
import re
import runpy
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
import trio
from cuda.bindings import driver as cuda

import aiostream
import internals
from aiostream import Stream, StreamPool, blocking, metrics, serving, simulator, trace
from aiostream.testing import check, spin
from compiling import gcc
from installed import beside
from support import ASYNCIO_LOOPS, PLAIN_LOOPS, new_uvloop, run_on, succeed

HERE = Path(__file__).name

NATIVE = """
#include <pthread.h>

int cuStreamSynchronize(void *);
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
void lock(void) { pthread_mutex_lock(&mutex); }
void unlock(void) { pthread_mutex_unlock(&mutex); }
int wait_for(void *stream) { return cuStreamSynchronize(stream); }
int wait_with_lock(void *stream) {
    lock();
    int code = cuStreamSynchronize(stream);
    unlock();
    return code;
}
"""


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that is linked against libcuda.so.1, as those of other projects are."""
    folder = tmp_path_factory.mktemp("native")
    path, source = folder / "native.so", folder / "native.c"
    source.write_text(NATIVE)
    gcc("-shared", "-fPIC", "-o", path, source, internals.forwarding_path())
    return path


def by_native_code(kind: Any, path: Path, name: str = "wait_for") -> Callable[[Stream], None]:
    function = kind(str(path))[name]
    return lambda stream: function(ctypes.c_void_p(stream.handle))


async def blocked_by(
    wait: Callable[[Stream], Any] = Stream.synchronize, seconds: float = 0
) -> None:
    async with Stream() as stream:
        spin(stream, seconds)
        wait(stream)  # here


def waits(found: list[blocking.BlockingCall]) -> list[blocking.BlockingCall]:
    """Without the calls that need not block. On a busy machine, any call may take long."""
    return [call for call in found if call.kind in ("waits", "copies")]


def line_of(function: Any, text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(n for n, line in enumerate(lines) if text in line)


@pytest.mark.parametrize("seconds", [0.0, 0.004])
@pytest.mark.parametrize("way", ["aiostream", "bindings", "without_gil", "with_gil"])
async def test_each_way_to_wait_is_found(way: str, seconds: float, native: Path) -> None:
    ways: dict[str, Callable[[Stream], object]] = {
        "aiostream": Stream.synchronize,
        "bindings": lambda stream: check(cuda.cuStreamSynchronize(cuda.CUstream(stream.handle))),
        "without_gil": by_native_code(ctypes.CDLL, native),
        "with_gil": by_native_code(ctypes.PyDLL, native),
    }
    with blocking.watch() as found:
        await blocked_by(ways[way], seconds)
    (call,) = waits(found)
    assert (call.call, call.kind, Path(call.file).name) == ("cuStreamSynchronize", "waits", HERE)
    at = line_of(test_each_way_to_wait_is_found, "cuda.cuStream") if way == "bindings" else None
    inner = at or line_of(
        by_native_code if "gil" in way else blocked_by, "lambda" if "gil" in way else "# here"
    )
    assert call.line == inner
    assert "wait(stream)  # here" in call.where
    assert "base_events.py" not in call.where
    assert call.stream
    assert call.task is not None
    assert call.thread == threading.current_thread().name
    assert call.advice in str(call)
    assert f"{HERE}:{inner}" in str(call)


KINDS_OF_LOOPS = pytest.mark.parametrize("kind", PLAIN_LOOPS)
LIBRARIES = pytest.mark.parametrize("library", [ctypes.CDLL, ctypes.PyDLL])  # PyDLL keeps the GIL


@KINDS_OF_LOOPS
@LIBRARIES
def test_the_caller_is_named_although_it_has_ended(kind: str, library: Any, native: Path) -> None:
    # The reader looks at one that keeps the GIL when its task and its thread may be gone.
    wait = by_native_code(library, native)
    names: list[Any] = []

    async def main(stream: Stream) -> None:
        wait(stream)
        names.append(task_here(kind))

    with contextlib.closing(Stream()) as stream, blocking.watch() as found:
        for n in range(20):
            job = threading.Thread(target=run_on, args=(kind, main, stream), name=f"thread {n}")
            job.start()
            job.join()
    assert [(call.loop, call.task) for call in waits(found)] == [(kind, name) for name in names]
    assert [call.thread for call in waits(found)] == [f"thread {n}" for n in range(20)]


def task_here(kind: str) -> str:
    task: Any = trio.lowlevel.current_task() if kind == "trio" else None
    return str(task.name) if task else asyncio.current_task().get_name()  # type: ignore[union-attr]


def test_each_of_two_native_loops_has_its_own_task() -> None:
    pytest.importorskip("uvloop")
    loops = [new_uvloop(), new_uvloop()]

    async def blocker() -> str:
        await blocked_by()
        return task_here("uvloop")

    names: list[str] = []
    other = threading.Thread(target=lambda: names.append(loops[1].run_until_complete(blocker())))

    async def busy() -> None:  # this task is at work while the other one blocks
        other.start()
        other.join()

    with blocking.watch() as found:
        loops[0].run_until_complete(busy())
    for loop in loops:
        loop.close()
    expected = "native" if sys.version_info >= (3, 14) else "uvloop"
    (call,) = waits(found)
    assert (call.loop, call.task) == (expected, names[0] if expected == "uvloop" else None)


@LIBRARIES
async def test_variables_of_a_caller_end_with_its_function(library: Any, native: Path) -> None:
    # The reader must not keep them: their finalizers would run in its thread, under its lock.
    wait, ended = by_native_code(library, native), []

    class Variable:
        def __del__(self) -> None:
            ended.append(threading.current_thread())

    def step(stream: Stream, _: Variable) -> None:
        wait(stream)

    with contextlib.closing(Stream()) as stream, blocking.watch():
        for n in range(1, 21):
            step(stream, Variable())
            # Without the GIL they end when the reader runs again, and also in this thread.
            assert len(ended) in ({n} if internals.has_gil() else {n - 1, n})
    assert set(ended) == {threading.current_thread()}


@LIBRARIES
async def test_a_call_under_many_frames_is_found(library: Any, native: Path) -> None:
    wait = by_native_code(library, native)

    def under(frames: int, stream: Stream) -> None:
        if frames:
            under(frames - 1, stream)
        else:
            wait(stream)

    with contextlib.closing(Stream()) as stream, blocking.watch() as found:
        under(600, stream)
    assert len(waits(found)) == 1


@pytest.mark.parametrize("folder", ["_core", "trio", "asyncio"])
async def test_a_folder_named_as_one_of_a_loop_is_the_programs(folder: str, tmp_path: Path) -> None:
    path = tmp_path / "app" / folder / "model.py"
    path.parent.mkdir(parents=True)
    path.write_text("def forward(stream):\n    stream.synchronize()\n")
    forward = runpy.run_path(str(path))["forward"]
    with contextlib.closing(Stream()) as stream, blocking.watch() as found:
        forward(stream)
    assert [call.place for call in waits(found)] == [f"{path}:2"]


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_native_loop_without_a_runner_is_found(is_kept: bool) -> None:
    pytest.importorskip("uvloop")
    loop = new_uvloop()
    kept = [loop]
    if not is_kept:
        del loop
    with blocking.watch() as found:
        kept[0].run_until_complete(blocked_by())
        with contextlib.closing(Stream()) as stream:
            stream.synchronize()  # no loop runs any more
    kept[0].close()
    is_known = is_kept or sys.version_info < (3, 14)
    assert [call.loop for call in waits(found)] == ["uvloop" if is_known else "native"]


def test_what_does_not_block_a_loop_is_not_found() -> None:
    async def main() -> None:
        async with Stream() as stream:
            spin(stream, 0.001)
            await stream.synchronize_async()
            await stream.enqueue_async(spin, 0.001)
            await anyio.to_thread.run_sync(stream.synchronize)
            assert stream.query()
            await aiostream.drain(10)
        await blocked_by()  # allow_blocking: a test

    with blocking.watch() as found:
        run_on("asyncio", main)
        with contextlib.closing(Stream()) as stream:
            stream.synchronize()
    assert waits(found) == []


def test_threshold_and_nested_blocks() -> None:
    async def main() -> None:
        await blocked_by()
        await blocked_by(Stream.synchronize, 0.4)
        with blocking.watch(threshold=30) as none:
            await blocked_by()
        assert none == []

    # A busy machine may shorten the long wait, and make the short ones long, by what it takes.
    with blocking.watch() as all_of_them, blocking.watch(threshold=0.2) as long:
        run_on("asyncio", main)
    assert [len(waits(each)) for each in (all_of_them, long)] == [3, 1]
    assert 0.2 <= waits(long)[0].seconds < 10


@pytest.mark.simulator_only("a call that enqueues blocks on command")
async def test_calls_that_need_not_block_are_found_if_they_do() -> None:
    async with Stream() as stream:
        with blocking.watch() as found:
            spin(stream, 0.0)
            found.clear()
            with simulator.adversary(blocking_enqueue=0.004):
                spin(stream, 0.0)
        assert ("enqueues", stream.handle) in [(call.kind, call.stream) for call in found]


async def test_synchronous_copies_are_found() -> None:
    with aiostream.Device(0).primary_context.as_current():
        memory = check(cuda.cuMemAlloc(64))
        with blocking.watch() as found:
            check(cuda.cuMemcpyHtoD(memory, bytes(64), 64))
            check(cuda.cuMemcpyDtoH(bytearray(64), memory, 64))
            check(cuda.cuMemsetD8(memory, 0, 64))
        check(cuda.cuMemFree(memory))
    assert [call.call for call in waits(found)] == ["cuMemcpyHtoD", "cuMemcpyDtoH"]
    assert {(call.kind, call.stream) for call in waits(found)} == {("copies", None)}


async def test_a_capture_is_left_alone() -> None:
    async with Stream() as stream:
        with blocking.watch() as found:
            with stream.capture_executable() as capture:
                spin(stream, 0.004)
            await capture.executable.launch_and_wait(stream)
            capture.executable.launch(stream)
            stream.synchronize()
        assert [(call.call, call.stream) for call in waits(found)] == [
            ("cuStreamSynchronize", stream.handle)
        ]
        capture.executable.close()


def test_the_look_up_function_finds_itself_and_what_can_block() -> None:
    exports = ctypes.CDLL("libcuda.so.1")
    found, flags, status = ctypes.c_void_p(), ctypes.c_uint64(0), ctypes.c_int(-1)
    take = ctypes.byref(found)

    def look_up(name: bytes, version: int) -> int | None:
        code = exports.cuGetProcAddress_v2(name, take, version, flags, ctypes.byref(status))
        assert (code, status.value) == (0, 0)
        return found.value

    def export(name: str) -> int | None:
        return ctypes.cast(exports[name], ctypes.c_void_p).value

    assert look_up(b"cuGetProcAddress", 11030) == export("cuGetProcAddress")
    assert look_up(b"cuGetProcAddress", 12000) == export("cuGetProcAddress_v2")
    assert exports.cuGetProcAddress(b"cuStreamQuery", take, 12000, flags) == 0
    # A wrapper, which is another one for each form of the function.
    wrapper, other = look_up(b"cuStreamSynchronize", 7000), flags.__class__(2)
    assert exports.cuGetProcAddress(b"cuStreamSynchronize", take, 7000, other) == 0
    assert wrapper != found.value
    assert internals.library_of(wrapper) == internals.forwarding_path()
    assert internals.library_of(found.value) == internals.forwarding_path()
    assert internals.library_of(look_up(b"cuEventQuery", 2000)) != internals.forwarding_path()


async def test_callers_with_locks_do_not_hang(native: Path) -> None:
    # Another thread keeps the GIL and waits for the lock of the caller, so that the reader cannot
    # read the line. The caller goes on without.
    library, with_gil = ctypes.CDLL(str(native)), ctypes.PyDLL(str(native))
    async with Stream() as stream:
        spin(stream, 0.02)

        def take_lock() -> None:
            started.set()
            with_gil.lock()
            with_gil.unlock()

        started = threading.Event()
        library.lock()
        other = threading.Thread(target=take_lock)
        with blocking.watch():
            library.unlock()
            other.start()
            started.wait()
            library.wait_with_lock(ctypes.c_void_p(stream.handle))
        other.join()


# ------------------------------------------------------------------------ for a whole process


@pytest.fixture
def installed() -> Iterator[Callable[..., Callable[[], None]]]:
    """Installs, and forgets what was counted before. Ended after the test."""
    ends = []

    def install(*args: Any, **named: Any) -> Callable[[], None]:
        internals.forget_places()
        ends.append(blocking.install(*args, **named))
        return ends[-1]

    yield install
    for end in ends:
        end()


async def test_counts_by_place(installed: Callable[..., Any]) -> None:
    """Also if an installation that was replaced, or has ended, is ended again."""
    installed("count", threshold=0.0)()
    replaced, _ = installed("count", threshold=0.0), installed("count", threshold=0.0)
    replaced()
    for _ in range(3):
        await blocked_by()
    (place,) = [each for each in blocking.places() if each.place.endswith(here())]
    assert (place.calls, place.call) == (3, "cuStreamSynchronize")
    assert place.latest.seconds < place.seconds < 10
    assert here() in blocking.table()
    assert "wait(stream)  # here" in blocking.table()


def here() -> str:
    return f"{HERE}:{line_of(blocked_by, '# here')}"


async def test_warns_once_for_each_place(
    installed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed("warn", threshold=0.0)
    caught: list[tuple[Any, ...]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        # Not `record`: without the GIL that is for this thread alone, and the reader's may warn.
        monkeypatch.setattr(warnings, "showwarning", lambda *shown: caught.append(shown))
        for _ in range(2):
            await blocked_by()
            blocking.places()  # delivers
    (warning,) = [each for each in caught if "cuStreamSynchronize" in str(each[0])]
    _, category, file, line, *_ = warning
    assert category is blocking.BlockedLoopWarning
    assert f"{Path(file).name}:{line}" == here()


RAISES = pytest.mark.filterwarnings("ignore::aiostream.blocking.BlockedLoopWarning")


@RAISES
@pytest.mark.parametrize("seconds", [0.0, 0.003])
async def test_raises_in_the_task(installed: Callable[..., Any], seconds: float) -> None:
    async with Stream() as stream:
        spin(stream, seconds)
        end = installed("raise", threshold=0.0)
        with pytest.raises(blocking.BlockedLoopError, match="cuStreamSynchronize on") as raised:
            wait_here(stream)
        end()
        end()
    assert raised.value.call is not None
    assert raised.value.call.line == line_of(wait_here, "# here")
    assert "wait_here" in [entry.name for entry in raised.traceback]


@RAISES
@KINDS_OF_LOOPS
@pytest.mark.parametrize("way", ["keeps_the_gil", "callback", "item"])
def test_raises_nothing_where_it_would_come_in_the_loop(
    kind: str, way: str, native: Path, installed: Callable[..., Any]
) -> None:
    wait = (ctypes.PyDLL if way == "keeps_the_gil" else ctypes.CDLL)(str(native)).wait_for

    async def main(stream: Stream) -> int:
        handle = ctypes.c_void_p(stream.handle)
        if way == "callback":
            done = anyio.Event()

            def call() -> None:
                wait(handle)
                done.set()

            if kind == "trio":
                trio.lowlevel.current_trio_token().run_sync_soon(call)
            else:
                asyncio.get_running_loop().call_soon(call)
            await done.wait()
            return 0
        # An instruction that is no call has the native function called.
        item: Any = type("Item", (), {"__getitem__": wait})()
        return int(item[handle] if way == "item" else wait(handle))

    end = installed("raise", threshold=0.0)
    with contextlib.closing(Stream()) as stream:
        for _ in range(10):
            assert run_on(kind, main, stream) == 0
    end()
    (place,) = [each for each in blocking.places() if each.latest.kind == "waits"]
    assert place.calls == 10


def wait_here(stream: Stream) -> None:
    try:
        cuda.cuStreamSynchronize(cuda.CUstream(stream.handle))  # here
    except RuntimeError:  # what libraries catch around driver calls
        pass
    raise AssertionError("the thread went on")


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="warn, count, raise, not 'shout'"):
        blocking.install("shout")
    with pytest.raises(ValueError, match="0 or more, not -1"):
        blocking.install(threshold=-1)
    wrong: Any = "1"
    with pytest.raises(TypeError, match="threshold is a number of seconds"):
        blocking.install(threshold=wrong)
    assert blocking.BlockedLoopError("mine").call is None


async def test_metrics_have_the_places(installed: Callable[..., Any]) -> None:
    client = pytest.importorskip("prometheus_client")
    installed("count", threshold=0.0)
    await blocked_by()
    registry, collector = client.CollectorRegistry(), metrics.Collector()
    registry.register(collector)
    page = client.generate_latest(registry).decode()
    collector.close()
    # On a GPU the launch before it may block too.
    counted = re.findall(r"aiostream_blocking_calls_total{(.*)} 1.0", page)
    (counted,) = [row for row in counted if 'call="cuStreamSynchronize"' in row]
    assert here() in counted
    assert re.search(r'aiostream_blocking_seconds_total{call="cuStreamSynchronize"', page)


async def test_traces_have_the_calls_in_red(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with blocking.watch(), trace.record(path) as recording:
        await blocked_by()
    (call,) = [each for each in recording.awaits if each.call == "cuStreamSynchronize"]
    assert (call.outcome, call.stages) == ("blocked", ())
    assert here() in str(call.error)
    spans = json.loads(path.read_text())["traceEvents"]
    (span,) = [each for each in spans if each["name"].startswith("cuStreamSynchronize (")]
    assert span["cname"] == "terrible"
    with trace.record() as recording:
        await blocked_by()
    assert [each for each in recording.awaits if each.outcome == "blocked"] == []


def test_each_kind_has_its_advice_on_the_page() -> None:
    page = beside("docs/blocking.md").read_text()
    sections = re.findall(r"^### (\w+)$", page, re.MULTILINE)
    assert sections == list(internals.blocking_kinds()) == list(internals.blocking_advice())


# ------------------------------------------------------------------------------------- launches


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@pytest.mark.all_loops
async def test_a_long_launch_is_reported_with_its_line_and_task(loop_kind: str) -> None:
    async with Stream() as stream:
        await stream.run(int)
        with blocking.watch() as found:
            await stream.run(burn, 0.004)
            await stream.enqueue_async(lambda _: burn(0.004))
            await stream.run(burn, 0.0002)
            await stream.run_in_thread(burn, 0.004)
    launches = [call for call in found if call.kind == "launches"]
    assert [call.call for call in launches] == ["Stream.run", "Stream.enqueue_async"]
    one = launches[0]
    assert "await stream.run(burn, 0.004)" in str(one)
    assert "run_in_thread" in one.advice
    assert "graph" in one.advice
    assert one.file == __file__
    assert one.loop == loop_kind.split("-")[0]
    assert one.task is not None
    assert one.seconds >= 0.004
    assert one.stream is None


async def test_a_long_launch_of_a_graph_has_its_own_name(stream: Stream) -> None:
    def burning(original: Callable[..., int]) -> Callable[..., int]:
        def slow(*args: int) -> int:
            burn(0.004)
            return original(*args)

        return slow

    with stream.capture_executable() as capture:
        spin(stream, 0)
    signature = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    with capture.executable as executable, blocking.watch() as found:
        for call, name in (("cuGraphLaunch", "launch"), ("cuGraphUpload", "upload")):
            with internals.native_call_replaced(call, signature, burning):
                await getattr(executable, f"{name}_async")(stream)
    launches = [call.call for call in found if call.kind == "launches"]
    assert launches == ["ExecutableGraph.launch_async", "ExecutableGraph.upload_async"]


async def test_what_a_launch_calls_is_named_only_if_it_blocks() -> None:
    async with Stream() as stream:

        def launch() -> None:
            burn(0.003)
            spin(stream, 0.001)
            spin(stream, 0.001)
            stream.synchronize()

        with blocking.watch() as found:
            await stream.run(launch)
    assert sorted(call.kind for call in found if call.kind != "enqueues") == ["launches", "waits"]


async def test_one_line_that_blocks_in_a_launch_is_reported_once() -> None:
    """With its own cure. The same holds for a line that may block."""
    async with Stream() as stream:

        def launch() -> None:
            spin(stream, 0.01)
            stream.synchronize()

        def may_launch() -> None:
            spin(stream, 0.01)
            stream.synchronize()  # allow_blocking: a test

        await stream.run(spin, stream, 0.001)  # loads the kernel
        # A busy machine may take two milliseconds for the first report, which is in the launch.
        with blocking.watch(threshold=0.005) as found:
            await stream.run(launch)
            await stream.run(may_launch)
    assert [call.kind for call in found if call.kind != "enqueues"] == ["waits"]


async def launched_by(way: str, stream: Stream, pool: StreamPool, function: Any) -> None:
    """Without a line here that calls it."""
    if way in ("one item", "items"):
        async with serving.Batches(pool, function, most=4) as score:
            await asyncio.gather(*(score(n) for n in range(2 if way == "items" else 1)))
    else:
        call = {"run": stream.run, "pool.run": pool.run}[way]
        await asyncio.create_task(call(function, [1]))


def long_function(items: list[int]) -> list[int]:
    burn(0.004)
    return items


def long_halves(items: list[int]) -> Generator[None, None, list[int]]:
    burn(0.004)
    yield
    burn(0.004)
    return items


@pytest.mark.parametrize("way", ["run", "pool.run", "one item", "items"])
@pytest.mark.parametrize("function", [long_function, long_halves])
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("loop_kind", ASYNCIO_LOOPS)
async def test_a_launch_that_no_line_of_the_program_calls_is_its_function_s(
    way: str, function: Callable[..., Any], wrapped: bool
) -> None:
    fn = functools.partial(function) if wrapped else function
    async with Stream() as stream, StreamPool(1) as pool:
        with blocking.watch() as found:
            await launched_by(way, stream, pool, fn)
    launches = [call for call in found if call.kind == "launches"]
    assert len(launches) == (1 if function is long_function else 2)
    for call in launches:
        assert (call.file, call.line) == (__file__, function.__code__.co_firstlineno)
        assert call.lines[-1] == (__file__, call.line, function.__name__)


async def test_the_function_of_a_batch_may_launch_for_long_if_it_says_so() -> None:
    def may_block(items: list[int]) -> list[int]:  # allow_blocking: a test
        return long_function(items)

    async with StreamPool(1) as pool, serving.Batches(pool, may_block, most=4) as score:
        with blocking.watch() as found:
            await score(1)
    assert "launches" not in [call.kind for call in found]


async def test_a_line_may_launch_for_long_if_it_says_so() -> None:
    async with Stream() as stream:
        with blocking.watch() as found, blocking.watch(threshold=0.05) as longer:
            await stream.run(burn, 0.004)  # allow_blocking: the first one
            await stream.run(burn, 0.006)
    assert [call.kind for call in found if call.kind == "launches"] == ["launches"]
    assert "launches" not in [call.kind for call in longer]


def test_the_development_mode_warns_once_for_each_line(driver_kind: str) -> None:
    """Of its second launch, because the first one may load kernels."""
    script = """
        import asyncio, time, warnings
        from aiostream import Stream

        def burn():
            end = time.thread_time() + 0.005
            while time.thread_time() < end:
                pass

        async def main():
            async with Stream() as stream:
                await stream.run(burn)
                for _ in range(4):
                    await stream.run(burn)
                for _ in range(4):
                    await stream.run(int)

        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            asyncio.run(main(), debug=False)
        print([(each.lineno, "launch of burn()" in str(each.message)) for each in found])
    """
    printed = succeed(driver_kind, script, PYTHONDEVMODE="1")
    lines = textwrap.dedent(script).splitlines()
    [line] = [
        n
        for n, text in enumerate(lines, 1)
        if text.startswith("            await stream.run(burn)")
    ]
    assert printed == f"[({line}, True)]\n"
