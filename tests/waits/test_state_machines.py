"""Futures and pools against plain models in Python, step by step, on asyncio and trio.

hypothesis chooses the steps, the same ones each time, and prints those that failed.
`AIOSTREAM_TEST_SECONDS=60` makes about five times as many, and `AIOSTREAM_TEST_SEED=2` chooses
others. Gates in the streams say what is still to come.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

import aiostream
from aiostream import (
    Event,
    PoolFullError,
    Stream,
    StreamClosedError,
    StreamPool,
    WaitStrategy,
    statistics,
)
from machines import STRATEGIES, OnLoop, Waiter, check, only_simulated
from support import BACKENDS, LIMIT, Kept, spin


def rule_with(name: str, **arguments: Any) -> Callable[[Any], Any]:
    """A rule that draws from `data`. It is possible only while the machine has some of these."""
    are_there = precondition(lambda self: getattr(self, name))
    make_rule: Any = rule(data=st.data(), **arguments)
    return lambda function: are_there(make_rule(function))


# ------------------------------------------------------------------------------ streams and futures


class Entry:
    """What the model knows of one future: when it may come, and who wants to know."""

    def __init__(
        self, future: Any, stream: int, ahead: frozenset[int], thing: weakref.ref[Kept] | None
    ) -> None:
        self.future, self.stream, self.ahead, self.thing = future, stream, ahead, thing
        self.cancelled = False
        self.waiters: list[Waiter] = []
        self.calls: list[list[Any]] = []  # of each callback that was added


class Futures(OnLoop):
    """Streams with gates, and their futures: awaited by several tasks, cancelled in two ways,
    called back, dropped.
    """

    def __init__(self) -> None:
        super().__init__()
        self.streams: dict[int, Stream] = {}
        self.ahead: dict[int, frozenset[int]] = {}
        self.entries: list[Entry] = []
        self.waits: list[tuple[Waiter, frozenset[int]]] = []
        self.things: list[tuple[weakref.ref[Kept], frozenset[int]]] = []
        self.made = 0
        self.event, self.ahead_of_event = Event(), frozenset[int]()

    def a_stream(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.streams)))

    def an_entry(self, data: st.DataObject) -> Entry:
        return self.entries[data.draw(st.integers(0, len(self.entries) - 1))]

    @initialize(wait=STRATEGIES)
    def begin(self, wait: WaitStrategy) -> None:
        self.make_stream(wait)

    @precondition(lambda self: len(self.streams) < 3)
    @rule(wait=STRATEGIES)
    def make_stream(self, wait: WaitStrategy) -> None:
        self.made += 1
        self.streams[self.made], self.ahead[self.made] = Stream(wait=wait), frozenset()

    @precondition(lambda self: self.streams and self.may_hold())
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        number = self.a_stream(data)
        self.ahead[number] |= {self.new_gate(self.streams[number])}

    @rule_with("streams")
    def record(self, data: st.DataObject) -> None:
        number = self.a_stream(data)
        self.event.record(self.streams[number])
        self.ahead_of_event = self.ahead[number]

    @rule_with("streams")
    def wait_for_the_event(self, data: st.DataObject) -> None:
        number = self.a_stream(data)
        self.streams[number].wait_event(self.event)
        self.ahead[number] |= self.ahead_of_event

    @rule_with(
        "streams",
        kind=st.sampled_from(["completion_future", "checked_completion_future", "enqueue_async"]),
    )
    def ask(self, data: st.DataObject, kind: str) -> None:
        number = self.a_stream(data)
        stream, reference = self.streams[number], None
        spin(stream, data.draw(st.sampled_from([0, 0.0001])))
        if kind == "enqueue_async":
            thing = Kept()
            reference = weakref.ref(thing)
            self.things.append((reference, self.ahead[number]))
            future = self.call(stream.enqueue_async, lambda _, kept: None, thing)
            del thing
        else:
            future = self.call(getattr(stream, kind))
        self.entries.append(Entry(future, number, self.ahead[number], reference))

    @rule_with("streams")
    def a_function_that_raises(self, data: st.DataObject) -> None:
        number, thing = self.a_stream(data), Kept()
        self.things.append((weakref.ref(thing), self.ahead[number]))
        with pytest.raises(ZeroDivisionError):
            self.call(self.streams[number].enqueue_async, lambda _, kept: 1 // 0, thing)

    @rule_with("streams")
    def synchronize(self, data: st.DataObject) -> None:
        number = self.a_stream(data)
        self.waits.append(
            (Waiter(self, self.streams[number].synchronize_async), self.ahead[number])
        )

    @rule_with("waits")
    def cancel_synchronize(self, data: st.DataObject) -> None:
        waiter, ahead = self.waits.pop(data.draw(st.integers(0, len(self.waits) - 1)))
        self.call(waiter.scope.cancel)
        self.turn()
        assert waiter.done, "a cancelled wait goes on"
        assert waiter.scope.cancelled_caught or self.is_due(ahead), waiter.error

    @rule_with("entries")
    def await_it(self, data: st.DataObject) -> None:
        entry = self.an_entry(data)

        async def wait() -> Any:
            return await entry.future

        entry.waiters.append(Waiter(self, wait))

    @precondition(lambda self: any(entry.waiters for entry in self.entries))
    @rule(data=st.data())
    def cancel_a_task(self, data: st.DataObject) -> None:
        """On asyncio that cancels the future, for all who await it; on trio it ends that wait
        alone.
        """
        entry = data.draw(st.sampled_from([entry for entry in self.entries if entry.waiters]))
        waiter = entry.waiters.pop(data.draw(st.integers(0, len(entry.waiters) - 1)))
        was_waiting = not waiter.done
        self.call(waiter.scope.cancel)
        self.turn()
        assert waiter.done
        if was_waiting and self.backend == "asyncio" and not entry.cancelled:
            entry.cancelled = self.call(entry.future.cancelled)
            assert entry.cancelled or self.is_due(entry.ahead)

    @rule_with("entries")
    def cancel_the_future(self, data: st.DataObject) -> None:
        entry = self.an_entry(data)
        could = self.call(entry.future.cancel)
        assert could is (not entry.cancelled) or self.is_due(entry.ahead)
        entry.cancelled |= could

    @rule_with("entries", remove=st.booleans())
    def call_back(self, data: st.DataObject, remove: bool) -> None:
        entry, calls = self.an_entry(data), list[Any]()

        def add() -> None:
            entry.future.add_done_callback(calls.append)
            if remove and not entry.future.done():
                assert entry.future.remove_done_callback(calls.append) == 1
            else:
                entry.calls.append(calls)

        self.call(add)

    @rule_with("entries")
    def drop(self, data: st.DataObject) -> None:
        self.entries.remove(self.an_entry(data))

    @precondition(lambda self: len(self.entries) > 1)
    @rule(
        data=st.data(),
        return_when=st.sampled_from(["ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION"]),
    )
    def wait_for_some(self, data: st.DataObject, return_when: Any) -> None:
        chosen = data.draw(
            st.lists(st.sampled_from(self.entries), min_size=1, max_size=4, unique_by=id)
        )

        async def wait() -> Any:
            return await aiostream.wait([entry.future for entry in chosen], return_when=return_when)

        waiter = Waiter(self, wait)
        ended = [entry.cancelled or self.is_due(entry.ahead) for entry in chosen]
        if not (all(ended) or (return_when == "FIRST_COMPLETED" and any(ended))):
            assert not waiter.done
            self.must_cancel(waiter)
            return
        self.must_end(waiter)
        done, pending = waiter.result
        assert done | pending == {entry.future for entry in chosen}
        assert all(
            not entry.ahead - self.opened or entry.cancelled
            for entry in chosen
            if entry.future in done
        )

    @rule_with("streams")
    def query(self, data: st.DataObject) -> None:
        number = self.a_stream(data)
        if not self.is_due(self.ahead[number]):
            assert not self.call(self.streams[number].query)
        else:
            self.until(self.streams[number].query, "a stream does not end")

    @rule_with("streams", drop=st.booleans())
    def end_stream(self, data: st.DataObject, drop: bool) -> None:
        stream = self.streams.pop(self.a_stream(data))
        if drop:
            return
        self.call(stream.close)
        for refused in (
            stream.completion_future,
            stream.query,
            lambda: stream.enqueue_async(print),
        ):
            with pytest.raises(StreamClosedError):
                self.call(refused)

    @rule_with("streams", cancel=st.booleans())
    def aclose_stream(self, data: st.DataObject, cancel: bool) -> None:
        number = self.a_stream(data)
        stream = self.streams.pop(number)
        waiter = Waiter(self, stream.aclose)
        if self.is_due(self.ahead[number]):
            self.must_end(waiter)
        elif cancel:
            self.must_cancel(waiter)
        else:
            assert not waiter.done
            self.waits.append((waiter, self.ahead[number]))
            return
        assert stream.closed

    @rule()
    def let_come_what_can(self) -> None:
        due = [entry for entry in self.entries if entry.cancelled or self.is_due(entry.ahead)]
        waiters = [waiter for entry in due for waiter in entry.waiters]
        waiters += [waiter for waiter, ahead in self.waits if self.is_due(ahead)]
        calls = [calls for entry in due for calls in entry.calls]
        self.until(
            lambda: (
                all(entry.future.done() for entry in due)
                and all(waiter.done for waiter in waiters)
                and all(calls)
            ),
            "a future, a task or a callback whose gates are open does not come",
        )
        for entry in due:
            assert all(calls == [entry.future] for calls in entry.calls), "called more than once"
            for waiter in entry.waiters:
                assert (waiter.error is None) is not entry.cancelled, (waiter.error, entry.future)
        gc.collect()
        gone = [thing for thing, ahead in self.things if self.is_due(ahead)]
        self.until(lambda: not any(thing() for thing in gone), "what a call kept stays alive")

    @invariant()
    def what_is_done_may_be_done(self) -> None:
        def look() -> None:
            for entry in self.entries:
                assert entry.future.cancelled() is entry.cancelled
                if not entry.cancelled and not self.is_due(entry.ahead):
                    assert not entry.future.done(), "a gate in front of it is shut"
                    with pytest.raises(Exception, match=r"(?i)not set|not ready|pending"):
                        entry.future.result()
                elif not entry.cancelled and entry.future.done():
                    assert entry.future.exception() is None
                    assert entry.future.result() is None
            for thing, ahead in self.things:
                assert thing() is not None or self.is_due(ahead), "the GPU has not passed"
            for waiter, ahead in self.waits:
                assert not waiter.done or self.is_due(ahead), "a gate in front of it is shut"

        self.call(look)

    @invariant()
    def each_stream_is_first_in_first_out(self) -> None:
        def look() -> None:
            for number in {entry.stream for entry in self.entries}:
                done = [
                    entry.future.done()
                    for entry in self.entries
                    if entry.stream == number and not entry.cancelled
                ]
                assert done == sorted(done, reverse=True), "a later one was done before"

        self.call(look)

    @invariant()
    def the_numbers_add_up(self) -> None:
        assert statistics().balanced, statistics()

    def finish(self) -> None:
        self.let_come_what_can()
        self.what_is_done_may_be_done()
        self.event.close()
        for kept in (self.entries, self.waits, self.streams):
            kept.clear()


@only_simulated
@pytest.mark.timeout(2 * LIMIT)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_of_futures(backend: str) -> None:
    check(Futures, backend, examples=10, steps=40)


# -------------------------------------------------------------------------------------------- pools


class Pools(OnLoop):
    """A pool's streams are idle, busy or in use; tasks that wait are served in order."""

    @initialize(size=st.integers(1, 3), max_waiting=st.none() | st.integers(0, 3), wait=STRATEGIES)
    def begin(self, size: int, max_waiting: int | None, wait: WaitStrategy) -> None:
        self.size, self.max_waiting = size, max_waiting
        self.pool = StreamPool(size, max_waiting=max_waiting, wait=wait)
        self.idle = size
        # What is ahead of the ends of those that were given back.
        self.busy: list[frozenset[int]] = []
        self.lent: list[tuple[Stream, frozenset[int]]] = []
        self.returned: list[Stream] = []
        self.waiters: list[Waiter] = []

    def took(self, stream: Stream) -> None:
        handles = [other.handle for other, _ in self.lent]
        assert stream.handle not in handles, "a stream was given twice"
        assert self.call(stream.query), "a stream was given with work in it"
        self.lent.append((stream, frozenset()))

    def serve(self) -> None:
        """Streams that are free go to those who wait, in their order."""
        ready = [ahead for ahead in self.busy if self.is_due(ahead)]
        self.busy = [ahead for ahead in self.busy if not self.is_due(ahead)]
        self.idle += len(ready)
        while self.idle and self.waiters:
            waiter = self.waiters.pop(0)
            self.must_end(waiter)
            self.idle -= 1
            self.took(waiter.result)
        expected = self.idle, len(self.busy)
        self.until(
            lambda: (self.pool.idle, self.pool.busy) == expected,
            f"not {expected} idle and busy, but {self.pool!r}",
        )

    after_opening = serve

    @rule()
    def acquire(self) -> None:
        waiter = Waiter(self, self.pool.acquire)
        if self.idle and not self.waiters:
            assert waiter.done
            assert waiter.error is None
            self.idle -= 1
            self.took(waiter.result)
        elif self.max_waiting is not None and len(self.waiters) >= self.max_waiting:
            assert isinstance(waiter.error, PoolFullError)
        else:
            assert not waiter.done, "it was served, and none was free"
            self.waiters.append(waiter)

    @rule()
    def acquire_nowait(self) -> None:
        if self.idle and not self.waiters:
            stream = self.call(self.pool.acquire_nowait)
            self.idle -= 1
            self.took(stream)
        else:
            with pytest.raises(PoolFullError):
                self.call(self.pool.acquire_nowait)

    @rule_with("lent", work=st.booleans(), close=st.booleans())
    def release(self, data: st.DataObject, work: bool, close: bool) -> None:
        stream, ahead = self.lent.pop(data.draw(st.integers(0, len(self.lent) - 1)))
        if work:
            spin(stream, 0.0001)
        if close:
            with pytest.raises(RuntimeError, match="belongs to a pool"):
                self.call(stream.close)
        self.call(self.pool.release, stream)
        assert stream.closed
        self.returned.append(stream)
        self.busy.append(ahead)
        self.serve()

    @precondition(lambda self: self.lent and self.may_hold())
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.lent) - 1))
        stream, ahead = self.lent[place]
        self.lent[place] = stream, ahead | {self.new_gate(stream)}

    @rule_with("returned")
    def release_again(self, data: st.DataObject) -> None:
        stream = data.draw(st.sampled_from(self.returned))
        if all(stream is not other for other, _ in self.lent):
            with pytest.raises(ValueError, match="was not lent by this pool, or was given back"):
                self.call(self.pool.release, stream)

    @rule_with("lent")
    def await_a_stream_in_use(self, data: st.DataObject) -> None:
        stream, ahead = data.draw(st.sampled_from(self.lent))
        waiter = Waiter(self, stream.synchronize_async)
        if self.is_due(ahead):
            self.must_end(waiter)
        else:
            assert not waiter.done
            self.must_cancel(waiter)

    @rule_with("waiters")
    def cancel_a_waiter(self, data: st.DataObject) -> None:
        waiter = self.waiters.pop(data.draw(st.integers(0, len(self.waiters) - 1)))
        self.call(waiter.scope.cancel)
        self.turn()
        assert waiter.scope.cancelled_caught

    @precondition(lambda self: self.waiters and self.lent)
    @rule(data=st.data())
    def release_and_cancel_at_once(self, data: st.DataObject) -> None:
        """The first one is cancelled in the turn in which its stream comes: it has it, or the next
        one does.
        """
        place = data.draw(st.integers(0, len(self.lent) - 1))
        stream, ahead = self.lent[place]
        if not self.is_due(ahead):
            return
        self.until(stream.query, "a stream does not end")
        del self.lent[place]
        waiter = self.waiters.pop(0)

        def both() -> None:
            self.pool.release(stream)
            waiter.scope.cancel()

        self.call(both)
        self.returned.append(stream)
        self.until(lambda: waiter.done, "a cancelled task goes on waiting")
        if waiter.result is not None:
            self.took(waiter.result)
        else:
            self.busy.append(frozenset())
        self.serve()

    @invariant()
    def the_counts_are_right(self) -> None:
        counts = self.call(attrgetter("size", "idle", "busy", "lent", "waiting"), self.pool)
        numbers = self.idle, len(self.busy), len(self.lent), len(self.waiters)
        assert counts == (self.size, *numbers), self.pool

    def finish(self) -> None:
        self.returned.clear()
        if len(self.lent) % 2:
            self.call(self.pool.close)
        else:
            self.portal.call(self.pool.aclose)
        for waiter in self.waiters:
            self.until(lambda waiter=waiter: waiter.done, "a closed pool lets a task wait")
            assert isinstance(waiter.error, StreamClosedError)
        for stream, _ in self.lent:
            self.call(self.pool.release, stream)
        with pytest.raises(StreamClosedError):
            self.call(self.pool.acquire_nowait)


@only_simulated
@pytest.mark.timeout(2 * LIMIT)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_of_pools(backend: str) -> None:
    check(Pools, backend, examples=10, steps=40)
