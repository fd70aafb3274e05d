"""Metrics: the hook for each wait, the Prometheus collector, and what is logged."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any

import anyio
import pytest

import aiostream
import internals
from aiostream import Event, PoolFullError, Stream, StreamPool, metrics
from aiostream.metrics import Collector, Wait, on_wait
from aiostream.serving import Batches
from aiostream.testing import Gate
from interrupts import at_line, sample
from support import run_on, settle, spin, succeed
from waiters import turns, wait_for_work


def hooked(hook: Callable[[Wait], Any]) -> contextlib.ExitStack:
    """The hook is called from now on, to the end of the block."""
    ends = contextlib.ExitStack()
    ends.callback(on_wait(hook))
    return ends


def outcomes(waits: list[Wait]) -> list[tuple[str, str]]:
    return [(wait.call, wait.outcome) for wait in waits]


@pytest.mark.cuda_leaks(1)
def test_an_error_that_no_task_retrieves_is_still_reported_by_asyncio(
    breakable: Any, waits: list[Wait]
) -> None:
    messages: list[str] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, said: messages.append(said["message"])
        )
        stream = Stream()
        with Gate() as gate:
            gate.hold(stream)
            future = stream.completion_future()
            breakable.break_context(700)
            while not future.done():
                await asyncio.sleep(0.001)
            await turns()
            del future
            waits.clear()
            gc.collect()
        with pytest.raises(aiostream.CudaError):
            stream.shutdown()

    run_on("asyncio", main)
    assert [message.endswith("exception was never retrieved") for message in messages] == [True]


def test_hooks_end() -> None:
    first: list[Wait] = []
    second: list[Wait] = []
    ends = [on_wait(first.append), on_wait(second.append), on_wait(first.append)]

    async def wait() -> None:
        async with Stream() as stream:
            await stream.synchronize_async()

    asyncio.run(wait())
    assert len(first) == 2 * len(second) == 4
    ends[0]()
    ends[0]()
    asyncio.run(wait())
    assert len(first) == 6
    for end in ends:
        end()
    asyncio.run(wait())
    assert len(first) == 6
    assert not internals.observers()


async def test_a_method_of_a_subclass_and_one_taken_before_are_reported_once() -> None:
    class Own(Stream):
        async def wait_twice(self) -> None:
            await self.synchronize_async()
            await super().synchronize_async()

        def enqueue_async(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            return super().enqueue_async(fn, *args, **kwargs)

    waits: list[Wait] = []
    async with Own() as stream:
        wait = stream.synchronize_async
        with hooked(waits.append):
            await wait()
            await stream.wait_twice()
            await (await stream.enqueue_async(Stream.completion_future))
            await turns()
    assert Counter(outcomes(waits)) == {
        ("Stream.synchronize_async", "done"): 3,
        ("Stream.enqueue_async", "done"): 1,
        ("Stream.completion_future", "done"): 1,
    }


async def test_a_hook_that_raises_disturbs_no_wait(unraisable: list[Any]) -> None:
    with hooked(lambda wait: 1 / 0):
        async with Stream() as stream:
            await stream.synchronize_async()
    assert {kind for kind, *_ in unraisable} == {ZeroDivisionError}


def test_what_is_no_hook_is_refused() -> None:
    async def coroutine(wait: Wait) -> None: ...

    for wrong in (None, coroutine):
        with pytest.raises(TypeError, match="on_wait"):
            on_wait(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("loop_kind", ["asyncio"])
async def test_a_wait_that_is_dropped_is_not_reported(waits: list[Wait]) -> None:
    """The garbage collector may drop it anywhere, also where a hook would meet a held lock."""
    async with Stream() as stream:
        with Gate() as gate:
            gate.hold(stream)
            dropped = stream.synchronize_async()
            dropped.send(None)
            dropped.close()
            assert waits == []


async def test_a_hook_gets_only_waits_that_begin_after_it(waits: list[Wait]) -> None:
    later: list[Wait] = []
    async with Stream() as stream:
        with Gate() as gate:
            gate.hold(stream)
            async with anyio.create_task_group() as group:
                group.start_soon(stream.synchronize_async)
                future = stream.completion_future()
                await turns()
                end = on_wait(later.append)
                gate.open()
            await future
            await turns()
            end()
            assert (len(waits), later) == (2, [])


def test_ctrl_c_in_a_hook_goes_on(report_failed_waits: Callable[[], None]) -> None:
    def interrupt(wait: Wait) -> None:
        raise KeyboardInterrupt

    with hooked(interrupt), pytest.raises(KeyboardInterrupt):
        report_failed_waits()


# ------------------------------------------------------------------------------ interrupts


@pytest.fixture
def report_failed_waits(stream: Stream, event: Event) -> Iterator[Callable[[], None]]:
    """Has a wait of each class fail and reported, before it returns: no loop runs here."""
    with stream.capture_executable() as capture:
        stream.launch_host_func(str)
    with capture.executable as executable, contextlib.closing(StreamPool(1)) as pool:
        waits: list[Callable[[], Any]] = [
            stream.synchronize_async,
            event.synchronize_async,
            partial(executable.launch_and_wait, stream),
            partial(executable.upload_and_wait, stream),
            pool.acquire,
        ]

        def report() -> None:
            for wait in waits:
                with pytest.raises(RuntimeError, match="no running event loop"):
                    wait().send(None)

        yield report


def with_a_handler_at_each_line(function: Callable[[], object], handler: Callable[[], Any]) -> None:
    """Calls a function often, with a signal handler at a line of `metrics` or `awaits`."""
    with at_line(0, handler, "metrics.py", "awaits.py") as lines:
        function()
    assert len(lines) > 5
    for number in sample(len(lines), 30, "handlers"):
        with at_line(number, handler, "metrics.py", "awaits.py"):
            function()


def test_a_handler_may_add_a_hook_while_one_is_added_or_removed(
    report_failed_waits: Callable[[], None],
) -> None:
    ends: list[Callable[[], None]] = []
    seen: list[Wait] = []

    def add() -> None:
        ends.append(on_wait(seen.append))

    def add_and_remove() -> None:
        assert not ends
        on_wait(lambda wait: None)()
        seen.clear()
        report_failed_waits()
        while ends:
            assert len(seen) == 5, "the handler's hook"
            ends.pop()()
        assert not internals.observers()

    with_a_handler_at_each_line(add_and_remove, add)


async def test_a_pools_refusal_is_an_outcome_of_its_own() -> None:
    waits: list[Wait] = []
    async with StreamPool(1, max_waiting=0) as pool, pool.stream():
        for call in (pool.acquire(), pool.run(int)):
            with hooked(waits.append), pytest.raises(PoolFullError):
                await call
    assert outcomes(waits) == [("StreamPool.acquire", "refused")] * 2


FAILED = 'aiostream_wait_seconds_count{call="StreamPool.acquire",name="",outcome="failed"}'


@contextlib.contextmanager
def scraped(**options: Any) -> Iterator[Callable[[], dict[str, float]]]:
    """A collector, which ends with the block: what a scrape of it gets."""
    prometheus = pytest.importorskip("prometheus_client", reason="pip install prometheus-client")

    def scrape() -> dict[str, float]:
        registry = prometheus.CollectorRegistry()
        registry.register(collector)
        lines = prometheus.generate_latest(registry).decode().splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    with contextlib.closing(Collector(**options)) as collector:
        yield scrape


@pytest.mark.slow
def test_a_wait_may_end_in_a_garbage_collection_in_a_scrape(
    report_failed_waits: Callable[[], None],
) -> None:
    with scraped() as scrape:

        def scrape_it() -> None:
            on_wait(lambda wait: None)()
            report_failed_waits()
            scrape()

        with_a_handler_at_each_line(scrape_it, report_failed_waits)
    counted = scrape()[FAILED]
    report_failed_waits()
    assert counted > 10
    assert scrape()[FAILED] == counted


def test_waits_are_counted_also_if_no_scrape_comes(report_failed_waits: Callable[[], None]) -> None:
    with scraped() as scrape:
        for _ in range(1000):
            report_failed_waits()
    assert scrape()[FAILED] == 1000


# ------------------------------------------------------------------------------ where the time went


def parts(waits: list[Wait], call: str) -> list[tuple[float | None, float | None]]:
    return [(each.queued_seconds, each.gpu_seconds) for each in waits if each.call == call]


class Work:
    """Its functions keep the loop, then the GPU, and then the loop again."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def whole(self, items: list[int]) -> list[int]:
        time.sleep(0.01)
        spin(self.stream, 0.03)
        return items

    def halves(self, items: list[int]) -> Generator[None, None, list[int]]:
        for _ in range(2):
            time.sleep(0.01)
            spin(self.stream, 0.015)
            yield
        time.sleep(0.01)
        return items


@pytest.mark.parametrize("fn", [Work.whole, Work.halves])
@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_run_says_how_long_it_has_waited_for_the_gpu(
    fn: Any, in_thread: bool, waits: list[Wait]
) -> None:
    async with Stream() as stream:
        run = stream.run_in_thread if in_thread else stream.run
        assert await run(fn, Work(stream), [1]) == [1]
    (wait,) = [each for each in waits if each.call.startswith("Stream.run")]
    assert wait.queued_seconds is None
    assert wait.gpu_seconds is not None
    assert 0.015 < wait.gpu_seconds < wait.seconds - 0.009


async def test_a_run_of_a_pool_says_how_long_it_was_queued(waits: list[Wait]) -> None:
    async with StreamPool(1, each=Work) as pool, anyio.create_task_group() as group:
        for run in (pool.run, pool.run, pool.run_in_thread):
            group.start_soon(run, Work.halves, [1])
    runs = parts(waits, "Stream.run") + parts(waits, "Stream.run_in_thread")
    acquired = parts(waits, "StreamPool.acquire")
    assert [gpu for _, gpu in acquired] == [None] * 3
    for found in (runs, acquired):
        queued = sorted(seconds for seconds, _ in found if seconds is not None)
        assert len(queued) == 3
        assert min(queued[1] - queued[0], queued[2] - queued[1]) > 0.03  # a run takes 0.06
    assert all(gpu is not None and gpu > 0.015 for _, gpu in runs)


@pytest.mark.parametrize("fn", [Work.whole, Work.halves])
@pytest.mark.all_loops
async def test_an_item_says_how_long_it_was_queued_and_on_the_gpu(
    fn: Any, waits: list[Wait]
) -> None:
    async with (
        StreamPool(1, each=Work) as pool,
        Batches(pool, fn, most=2, name="work") as same,
        anyio.create_task_group() as group,
    ):
        for number in range(4):
            group.start_soon(same, number)
    found = sorted(parts(waits, "Batches.__call__"), key=lambda each: each[0] or 0.0)
    assert {each.name for each in waits if each.call == "Batches.__call__"} == {"work"}
    queued = [seconds for seconds, _ in found if seconds is not None]
    assert len(queued) == 4
    assert queued[1] - queued[0] < 0.03  # of one batch, which takes 0.04 or more
    assert queued[2] - queued[1] > 0.01
    assert all(gpu is not None and gpu > 0.015 for _, gpu in found)


async def test_what_has_failed_or_never_began_has_no_parts(waits: list[Wait]) -> None:
    def fails(items: Any) -> list[Any]:
        raise LookupError

    async with StreamPool(1) as pool, Batches(pool, fails, most=1) as failing:
        async with pool.stream() as stream:
            with anyio.move_on_after(0.01):
                await failing(1)
            with pytest.raises(LookupError):
                await stream.run(fails, 2)
        with pytest.raises(LookupError):
            await failing(3)
    assert parts(waits, "Stream.run") == [(None, None)] * 2
    (never, failed) = parts(waits, "Batches.__call__")
    assert never == (None, None)
    assert failed[0] is not None
    assert failed[1] is None


# ------------------------------------------------------------------------------ Prometheus


async def test_collector_counts_waits_pools_and_handles() -> None:
    async with StreamPool(2, name="model") as pool, anyio.create_task_group() as group:
        with scraped(pools={"model": pool}, buckets=(0.005, 10)) as scrape, Gate() as gate:
            async with pool.stream() as stream:
                await wait_for_work(stream, 0.02)
                await stream.synchronize_async()
                now = scrape()
                async with pool.stream():
                    gate.hold(stream)
                    group.start_soon(stream.synchronize_async)
                    group.start_soon(pool.run, int)
                    await turns()
                    waiting = scrape()
                    gate.open()
    labels = '{{call="Stream.synchronize_async",{}name="model[0]",outcome="done"}}'
    waits = f"aiostream_wait_seconds{{}}{labels}".format
    assert now[waits("_count", "")] == 2
    assert 0.02 <= now[waits("_sum", "")] < 10
    in_buckets = {
        name.split('le="')[1].split('"')[0]: value
        for name, value in now.items()
        if name.startswith('aiostream_wait_seconds_bucket{call="Stream.synchronize_async"')
    }
    assert in_buckets["10.0"] == in_buckets["+Inf"] == 2
    assert in_buckets["0.005"] <= 1
    for state, counts in {"idle": [1, 0], "busy": [0, 0], "lent": [1, 2]}.items():
        name = f'aiostream_pool_streams{{pool="model",state="{state}"}}'
        assert [now[name], waiting[name]] == counts
    for name in ('aiostream_pool_waiting_tasks{pool="model"}', 'aiostream_pending{kind="wait"}'):
        assert [now[name], waiting[name]] == [0, 1]
    assert now["aiostream_open_handles"] == aiostream.statistics().handles.open + 2
    assert now["aiostream_context_lost"] == 0
    assert now['aiostream_leaked_total{kind="handle"}'] == aiostream.statistics().handles.leaked


async def test_collector_counts_as_host_functions_only_those_of_streams() -> None:
    """Not each wait, and not those that wait in a graph for its launch."""
    name = 'aiostream_pending{kind="host_function"}'
    async with Stream() as stream:
        with stream.capture_executable() as capture:
            stream.launch_host_func(print)
        with Gate() as gate, scraped() as scrape:
            gate.hold(stream)
            futures = [stream.enqueue_async(lambda stream: None) for _ in range(2)]
            waits = scrape()
            futures.append(stream.completion_future())
            stream.launch_host_func(lambda: None)
            host_functions = scrape()
        for future in futures:
            await future
        capture.executable.close()
    assert (waits[name], waits['aiostream_pending{kind="future"}']) == (0, 2)
    assert host_functions[name] == 2


def test_a_registry_takes_one_collector() -> None:
    """With two, each family would be twice in the page, and no scraper could read it."""
    prometheus = pytest.importorskip("prometheus_client", reason="pip install prometheus-client")
    registry = prometheus.CollectorRegistry()
    first, second = Collector(), Collector()
    registry.register(first)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(second)
    registry.unregister(first)
    registry.register(second)
    first.close()
    second.close()


def test_collector_shows_a_lost_context(breakable: Any) -> None:
    stream = Stream()
    with scraped() as scrape:
        breakable.break_context(700)
        now = scrape()
    with pytest.raises(aiostream.CudaError):
        stream.shutdown()
    assert (now["aiostream_context_lost"], now["aiostream_stalled"]) == (1, 0)


def test_collector_shows_a_stall(driver_kind: str) -> None:
    with (
        scraped() as scrape,
        contextlib.closing(Stream(stalled_after=0.05)) as stream,
        Gate() as gate,
    ):
        gate.hold(stream)
        thread = threading.Thread(target=stream.synchronize)
        thread.start()
        assert settle(lambda: scrape()["aiostream_stalled"] == 1)
        assert scrape()["aiostream_context_lost"] == 0
        gate.open()
        thread.join()
        assert scrape()["aiostream_stalled"] == 0


def test_buckets_rise() -> None:
    infinity, nan = float("inf"), float("nan")
    many = ((), (1, 1), (2, 1), (-1, 1), (infinity,), (1, infinity, infinity), (infinity, 1))
    for wrong in (*many, (1, nan), (nan, 1), (-infinity, 1)):
        with pytest.raises(ValueError, match="buckets"):
            Collector(buckets=wrong)
    for no_numbers in ("123", b"123", ("1", "2"), (True, 2), (None,)):
        with pytest.raises(TypeError, match="buckets"):
            Collector(buckets=no_numbers)  # type: ignore[arg-type]
    assert list(metrics.BUCKETS) == sorted(metrics.BUCKETS)


async def test_a_last_infinite_bucket_comes_once() -> None:
    """Twice would be an exposition that Prometheus refuses."""
    prometheus_client = pytest.importorskip("prometheus_client")
    exposition = pytest.importorskip("prometheus_client.openmetrics.exposition")
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    registry = prometheus_client.CollectorRegistry()
    collector = Collector(buckets=prometheus_client.Histogram.DEFAULT_BUCKETS)
    registry.register(collector)
    async with Stream() as stream:
        await stream.synchronize_async()
    collector.close()
    text = exposition.generate_latest(registry).decode()
    assert text.count('le="+Inf"') == 1
    assert "inf" not in text
    list(parser.text_string_to_metric_families(text))  # raises if it is not valid


async def test_pools_of_a_collector_are_checked_at_once() -> None:
    async with StreamPool(1) as pool:
        for wrong in ({"a": 1}, {"a": None}, {1: pool}, [pool], pool, 5):
            with pytest.raises(TypeError, match="pool"):
                Collector(pools=wrong)  # type: ignore[arg-type]
        Collector(pools={"a": pool}).close()


async def test_a_collector_follows_a_pool_that_is_replaced() -> None:
    pools = {"model": StreamPool(1), "other": StreamPool(3)}

    def idle() -> dict[str, float]:
        lines = scrape().items()
        return {name.split('"')[1]: count for name, count in lines if 'state="idle"' in name}

    with scraped(pools=pools) as scrape:
        assert idle() == {"model": 1, "other": 3}
        pools["model"].close()
        assert idle() == {"other": 3}
        assert not [name for name in scrape() if 'pool="model"' in name]
        pools["model"] = StreamPool(2)
        assert idle() == {"model": 2, "other": 3}
        del pools["other"]
        assert idle() == {"model": 2}
        pools["model"] = None  # type: ignore[assignment]
        with pytest.raises(TypeError, match="'model'"):
            scrape()


# ------------------------------------------------------------------------------ logging


def test_lost_context_is_logged_once_where_logging_is_configured(
    breakable: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def lost() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.name == "aiostream"]

    stream = Stream()
    breakable.break_context(700)
    for _ in range(3):
        assert aiostream.health() is not None
        with pytest.raises(aiostream.ContextFailedError):
            stream.query()
    with pytest.raises(aiostream.CudaError):
        stream.shutdown()
    assert settle(lambda: bool(lost()))
    assert [record.levelname for record in lost()] == ["ERROR"]
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in lost()[0].getMessage()


def test_a_slow_handler_of_logging_does_not_delay_the_listeners(breakable: Any) -> None:
    called = threading.Event()
    came_first: list[bool] = []

    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            came_first.append(called.wait(5))

    logger, slow = logging.getLogger("aiostream"), Slow()
    logger.addHandler(slow)
    end = aiostream.on_context_failed(lambda error: called.set())
    try:
        stream = Stream()
        breakable.break_context(700)
        assert aiostream.health() is not None
        with pytest.raises(aiostream.CudaError):
            stream.shutdown()
        assert settle(lambda: bool(came_first))
    finally:
        end()
        logger.removeHandler(slow)
    assert came_first == [True]


@pytest.mark.simulator_only("loses a context on command")
def test_nothing_is_printed_where_logging_is_not_configured(driver_kind: str) -> None:
    script = """
        import aiostream
        from aiostream import simulator
        stream = aiostream.Stream()
        simulator.break_context(700)
        print(aiostream.health().code)
    """
    assert succeed(driver_kind, script) == "700\n"
