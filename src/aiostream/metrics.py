"""Numbers for operators: a hook for each wait, and a collector for Prometheus.

    pip install '.[metrics]'

Before `on_wait` or `Collector` is called, a wait only tests a truth value more.
"""

from __future__ import annotations

import bisect
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

from aiostream import blocking
from aiostream._base import checks
from aiostream._ends import health
from aiostream._observers.awaits import Observation, add_observer, marked, remove_observer
from aiostream._runtime.statistics import statistics
from aiostream.errors import ContextFailedError, PoolFullError, StalledError
from aiostream.pool import StreamPool
from aiostream.serving import Batches, Steps

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

__all__ = ["BUCKETS", "Collector", "Wait", "on_wait"]

BUCKETS = tuple(
    digit * 10**power for power in range(-4, 1) for digit in (1, 2.5, 5)
)  # 0.1 ms to 5 s
"""Upper bounds, in seconds, of the histograms of a `Collector`."""


@dataclass(frozen=True, slots=True)
class Wait:
    """One wait that is over.

    Attributes:
        call: The method, such as `Stream.synchronize_async` or `StreamPool.acquire`.
        seconds: From the call until the task goes on, or until the callbacks of its future are
            called.
        outcome: `done`, `failed` or `cancelled`; or `refused`, with a `PoolFullError`.
        error: What was raised, if anything. Do not keep it: its traceback keeps the frames of the
            task.
        name: The name of the stream, pool or `Batches`, if you gave it one.
        queued_seconds: Of a `StreamPool.acquire`, and of the `Stream.run` of a `pool.run`: until
            the pool gave the stream. A `pool.run` may have waited for its turn to launch before
            that, and both are in its `StreamPool.acquire`. Of an item of `Batches`: from the call
            until its batch began. Otherwise `None`.
        gpu_seconds: Of a `Stream.run` or `run_in_thread`, and of an item of `Batches`, of its
            batch: from the end of the launch, when the function has returned or yielded, until the
            loop went on with it because the GPU had done that, and all that lay before it on the
            stream. Of a function that yields several times, all of these together. It is the
            host's clock, so it has the lateness of the loop too, and not the GPU's work during the
            launch. Otherwise `None`, also if that has failed or was cancelled before.
    """

    call: str
    seconds: float
    outcome: str
    error: BaseException | None
    name: str | None = None
    queued_seconds: float | None = None
    gpu_seconds: float | None = None


Hook = Callable[[Wait], object]
T = TypeVar("T")


def on_wait(hook: Hook, /) -> Callable[[], None]:
    """Has `hook(wait)` called at the end of each wait that begins from now on.

    Waits are the awaitable methods of `Stream`, `Event` and `ExecutableGraph`,
    `StreamPool.acquire`, and those of `serving`. A request of `Steps` has `Steps.slot` and
    `Steps.first_result`, both from the call on, and `Steps.next_result`. `Steps.step` is a step,
    until the GPU has passed it. While there is no hook, a wait only tests a truth value more.

    Threads: `hook` is called in the thread of the loop in which the task waits, so it must not
    block. Its exception goes to `sys.unraisablehook`. A `KeyboardInterrupt` and a `SystemExit` go
    on to the task.

    Returns:
        A function that ends this. You may call it again.

    Raises:
        TypeError: `hook` is not callable, or is a coroutine or generator function.

    Example:
        >>> from aiostream import metrics
        >>> calls = []
        >>> end = metrics.on_wait(lambda wait: calls.append((wait.call, wait.outcome)))
        >>> async with aiostream.Stream() as stream:
        ...     await stream.synchronize_async()
        >>> end()
        >>> calls[0]
        ('Stream.synchronize_async', 'done')
    """
    checks.plain_function(hook, "on_wait", "have it call loop.create_task")
    hooks = [hook]

    observer = partial(_Timed, hooks)

    def end() -> None:
        hooks.clear()  # a wait that began before is not reported any more
        remove_observer(observer)

    add_observer(observer)
    return end


class _Timed(Observation):
    def __init__(self, hooks: list[Hook], call: str, target: Any, _: object) -> None:
        self._call, self._name = call, getattr(target, "_label", None)
        self._hooks: list[Hook] | None = hooks
        # Those of `Steps` have begun with the request, before their first await.
        began = getattr(target, "_began", None) if call.startswith("Steps.") else None
        self._began = began or time.perf_counter()
        self._runs = call.startswith("Stream.run")
        # What `StreamPool.acquire` has left there just now, if this is a run of the pool.
        number, queued = vars(target).get("_queued", (0, None)) if self._runs else (0, None)
        is_this = queued is not None and target._place().number == number
        self._queued: float | None = queued if is_this else None
        self._gpu: float | None = None
        self._launched = 0.0  # the time of the launch that the task waits for, if it does
        self._waited: float | None = None  # in all, until now
        self._items: list[_Timed] = []

    def arguments(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        if not self._runs:
            return args
        return (marked(args[0], True, self._passed, self._has_launched, self._passed), *args[1:])

    def serves(self, others: list[Observation]) -> None:
        now, self._queued = time.perf_counter(), None
        self._items = [each for each in others if isinstance(each, _Timed)]
        for each in self._items:
            each._queued = now - each._began

    def _has_launched(self, _: object) -> None:
        self._launched = time.perf_counter()

    def _passed(self) -> None:
        if self._launched:
            self._waited = (self._waited or 0.0) + time.perf_counter() - self._launched
        self._launched = 0.0

    def ended(self, outcome: str, error: BaseException | None, result: Any = None) -> None:
        if isinstance(error, PoolFullError):
            outcome = "refused"
        seconds = time.perf_counter() - self._began
        if outcome == "done" and self._call == "StreamPool.acquire":
            self._queued = seconds
            vars(result.stream)["_queued"] = result.number, seconds
        if outcome == "done" and self._runs:
            self._passed()
            for each in (self, *self._items):
                each._gpu = self._waited
        wait = Wait(self._call, seconds, outcome, error, self._name, self._queued, self._gpu)
        # Once: an await of a future reports its end, and so does the future's callback.
        hooks, self._hooks = self._hooks or (), None
        for hook in hooks:
            hook(wait)


# ------------------------------------------------------------------------------ Prometheus


def _bounds_of(buckets: Sequence[float]) -> list[float]:
    """Returns the finite bounds, because each histogram adds its own `+Inf`."""
    several = checks.several("buckets", buckets)  # elements of bytes are numbers too
    bounds = [checks.real(each, "buckets are numbers of seconds") for each in several]
    finite = bounds[:-1] if bounds and bounds[-1] == math.inf else bounds
    if not finite or sorted(set(finite)) != finite or not 0 <= finite[0] <= finite[-1] < math.inf:
        raise ValueError(f"buckets rise from 0 on, and at least one is finite, unlike {bounds}")
    return finite


def _checked(what: str, kind: type[T], named: Mapping[str, T] | None) -> dict[str, T]:
    if named is None:
        return {}
    checks.instance(Mapping, named, f"{what} maps names to {kind.__name__} objects, and is not")
    for name, each in (copied := dict(named)).items():
        checks.instance(str, name, f"a name in {what} is a str, not")
        checks.instance(kind, each, f"{what}[{name!r}] is a {kind.__name__}, not")
    return copied


class Collector:
    """Counts and histograms of this process, for the registry of `prometheus_client`.

    Give it to `prometheus_client.REGISTRY.register`. A registry takes one, for all your pools. It
    exports:

    - how long waits take, by call, outcome, and name of the stream, pool or `Batches`,
    - futures, waits and host functions that are pending, the age of the oldest wait, and how
      futures ended,
    - how often each stage of waiting was used,
    - the streams of the pools that you name and that are open, and the tasks that wait for one,
    - of the `Batches` that you name the items that wait, and the batches by their size,
    - of the `Steps` that you name the requests that run and wait, the steps that were launched, and
      how long the GPU had none although requests were ready,
    - handles that are open, and what has leaked,
    - the places that have blocked a loop, how often and how long, if `blocking.install` counts,
    - whether a context is lost, and whether something is stalled.

    How late a task is resumed is not among them, because the library does not know when the GPU
    was done. `python -m benchmarks` in a clone of the repository measures that.

    Threads: any. A scrape never blocks, and calls the driver only for its `health()`.

    Args:
        pools: The pools to report, by the name that their numbers get. Each scrape reads this
            mapping again, so if you replace a pool, put the new one into your dict.
        batches: The same for `serving.Batches`.
        steps: The same for `serving.Steps`.
        buckets: Upper bounds of the histograms, in seconds. The last one may be infinity, as in
            `prometheus_client.Histogram.DEFAULT_BUCKETS`.

    Raises:
        ImportError: When it is scraped, `prometheus_client` is not installed.
        TypeError: `pools`, `batches` or `steps` does not map names to such objects, now or when it
            is scraped. Or `buckets` are not numbers.
        ValueError: `buckets` do not rise, or one is negative or a NaN.

    Example:
        >>> from aiostream.metrics import Collector
        >>> pool = aiostream.StreamPool(4)
        >>> collector = Collector(pools={"model": pool})
        >>> collector.close()
        >>> await pool.aclose()
    """

    def __init__(
        self,
        *,
        pools: Mapping[str, StreamPool[Any]] | None = None,
        batches: Mapping[str, Batches[Any, Any]] | None = None,
        steps: Mapping[str, Steps[Any, Any]] | None = None,
        buckets: Sequence[float] = BUCKETS,
    ) -> None:
        self._bounds = _bounds_of(buckets)
        given = ("pools", StreamPool, pools), ("batches", Batches, batches), ("steps", Steps, steps)
        self._given: tuple[tuple[str, type[Any], Any], ...] = given
        # Here too, because a wrong one would fail at each scrape, long after the mistake.
        self._named()
        # By call, outcome and name: the counts of the buckets, and then the sum of the seconds.
        self._histograms: dict[tuple[str, str, str], list[float]] = {}
        # Held for a few steps, and so for microseconds. It is reentrant, because a wait may end in
        # a garbage collection or a signal handler of the thread that has it. So each change is one
        # step, and a scrape copies first.
        self._lock = threading.RLock()
        self._end = on_wait(self._observe)

    def close(self) -> None:
        """Ends the timing of waits. What was counted remains. You may call it again."""
        self._end()

    def _observe(self, wait: Wait) -> None:
        bucket = bisect.bisect_left(self._bounds, wait.seconds)
        labels = wait.call, wait.outcome, wait.name or ""
        with self._lock:
            if (found := self._histograms.get(labels)) is None:
                found = self._histograms.setdefault(labels, [0.0] * (len(self._bounds) + 2))
            found[bucket] += 1
            found[-1] += wait.seconds

    def _named(self) -> list[dict[str, Any]]:
        return [_checked(*each) for each in self._given]

    def describe(self) -> list[Metric]:
        """What `collect` gives, without a call of the driver.

        By these names the registry refuses a second collector.
        """
        return list(self._families(None))

    def collect(self) -> Iterator[Metric]:
        """What the registry calls for each scrape."""
        return self._families(health.health())

    def _families(self, failed: Exception | None) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        # Copies, because another thread may replace one meanwhile.
        now, (pools, batches, steps) = statistics(), self._named()
        places = blocking.places()
        gauges = {
            ("aiostream_pending", "What waits for the GPU now", "kind"): {
                ("future",): now.futures.pending,
                ("wait",): now.waits.pending,
                ("host_function",): now.points.host_functions,
            },
            ("aiostream_oldest_wait_seconds", "The age of the oldest wait that is pending"): {
                (): now.waits.oldest
            },
            ("aiostream_open_handles", "Streams, events and graphs that are open"): {
                (): now.handles.open
            },
            ("aiostream_pool_streams", "Streams of a pool, by their state", "pool", "state"): {
                (name, *state): count
                for name, pool in pools.items()
                if not pool.closed
                for state, count in _fields(pool, "idle", "busy", "lent").items()
            },
            ("aiostream_pool_waiting_tasks", "Tasks that wait for a stream", "pool"): {
                (name,): pool.waiting for name, pool in pools.items() if not pool.closed
            },
            ("aiostream_batches_waiting_items", "Items that wait for a batch", "batches"): {
                (name,): each.waiting for name, each in batches.items()
            },
            ("aiostream_steps_requests", "Requests of steps, by their state", "steps", "state"): {
                (name, *state): count
                for name, each in steps.items()
                for state, count in _fields(each, "running", "waiting").items()
            },
            ("aiostream_context_lost", "1 if a CUDA context is lost: only a new process helps"): {
                (): int(isinstance(failed, ContextFailedError))
            },
            ("aiostream_stalled", "1 if something has not come back within its limit"): {
                (): int(isinstance(failed, StalledError))
            },
        }
        counters = {
            ("aiostream_futures", "Futures by what became of them", "outcome"): _fields(
                now.futures, "done", "failed", "cancelled", "dropped"
            ),
            ("aiostream_wait_stages", "How often a stage of waiting was entered", "stage"): _fields(
                now.waits, "ready", "spun", "by_timer", "watched", "handed_back"
            ),
            ("aiostream_watcher_polls", "How often the watcher, or a loop, has polled an event"): {
                (): now.waits.polls
            },
            ("aiostream_batches", "Batches by how many items they had", "batches", "size"): {
                (name, str(size)): count
                for name, each in batches.items()
                for size, count in sorted(each.sizes.copy().items())
            },
            ("aiostream_steps_launched", "Steps that were launched", "steps"): {
                (name,): each.launched for name, each in steps.items()
            },
            ("aiostream_steps_idle_seconds", "How long the GPU had no step", "steps"): {
                (name,): each.idle_seconds for name, each in steps.items()
            },
            ("aiostream_blocking_calls", "Driver calls that blocked a loop", "call", "place"): {
                (each.call, each.place): each.calls for each in places
            },
            ("aiostream_blocking_seconds", "How long they blocked", "call", "place"): {
                (each.call, each.place): each.seconds for each in places
            },
            ("aiostream_leaked", "What is kept until the process ends", "kind"): {
                ("point",): now.points.leaked,
                ("handle",): now.handles.leaked,
            },
        }
        yield self._waits()
        families: Any = (GaugeMetricFamily, gauges), (CounterMetricFamily, counters)
        for make, rows in families:
            for (name, text, *labels), values in rows.items():
                family = make(name, text, labels=labels)
                for of, value in values.items():
                    family.add_metric(of, value)
                yield family

    def _waits(self) -> Metric:
        from prometheus_client.core import HistogramMetricFamily

        family = HistogramMetricFamily(
            "aiostream_wait_seconds",
            "How long waits took, until their task went on",
            labels=["call", "outcome", "name"],
        )
        with self._lock:
            copied = [(labels, [*found]) for labels, found in self._histograms.copy().items()]
        bounds = [*map(str, self._bounds), "+Inf"]
        for labels, (*counts, seconds) in sorted(copied):
            buckets = [*zip(bounds, accumulate(counts), strict=True)]
            family.add_metric(labels, buckets, seconds)
        return family


def _fields(counts: Any, *names: str) -> dict[tuple[str, ...], int]:
    """Returns the fields of these names, with their names as labels."""
    return {(name,): getattr(counts, name) for name in names}
