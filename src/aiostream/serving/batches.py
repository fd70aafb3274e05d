"""Batches: many requests share one launch."""

from __future__ import annotations

import bisect
import contextvars
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable, Generator, Iterable, MappingView, Set
from functools import partial
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from aiostream import _native
from aiostream._base import checks, hints
from aiostream._runtime import completion, loops
from aiostream._runtime.observing import hook
from aiostream._waits import pending, waiting
from aiostream.errors import PoolFullError
from aiostream.pool import StreamPool, uncounted

Item = TypeVar("Item")
Result = TypeVar("Result")
Own = TypeVar("Own")
Failure = TypeVar("Failure", bound=BaseException)
if TYPE_CHECKING:
    from _typeshed import SupportsLenAndGetItem as Rows

    # What a function of batches returns, or yields once and then returns. A row that is an
    # exception is raised, and is no result. pyright sees that of one kind of exceptions: of a union
    # it takes away the types that stand here, and what alone is left for `Failure`.
    Found = Rows[Result | Failure] | Rows[Result | BaseException | Exception]
    Results = Found[Result, Failure] | Generator[None, None, Found[Result, Failure]]
# Items, and when they came, by the future of their task.
Items = dict[Any, tuple[Item, float]]
# These have no order, are text, or are records: a subclass of a tuple has a name for each part.
_NO_ROWS = (Set, MappingView, str, bytes, bytearray, memoryview, tuple)


class _Batch(Generic[Item]):
    """A task, and the items that it serves. It has none before it has a stream."""

    def __init__(self) -> None:
        self.items: Items[Item] = {}
        self.task: Any = None  # because asyncio's loop does not keep it
        self.queues = False  # whether the task counts among those that wait in the pool


class Batches(Generic[Item, Result], checks.NotCopied, checks.AsyncBlock, hints.Hinted):
    """Collects items into batches while the GPU is busy, and runs each on a stream of a pool.

    `async with Batches(pool, fn, most=32) as score:` gives you a function: `await score(item)`
    returns the result of that item. Items that come while all streams are busy are the next batch.
    So an item that comes alone starts at once, and under load the batches grow by themselves. There
    is no timer, and nothing to tune.

    The first item that came is served first, unless you give it a `priority`. The items of a batch
    are taken when there is a stream for it, so the items of one turn of the loop share a batch.
    Each batch has the context variables of the block's beginning, so no request's variables reach
    it. It runs in a task of the block. While items wait, such a task goes on with its stream,
    unless others wait for one in the pool.

    An error of `fn` or of the GPU is raised in each task that waits for that batch, and in no
    other. Each task gets a copy, if `copy.copy` gives one of the same type and arguments. A result
    that is an exception is raised in its own task alone. If no stream can be had, because the pool
    was closed or its context is lost, all tasks that wait get that error.

    The end of the block refuses what comes later, and waits for the items that it has. It cancels
    nothing. It does not wait if the pool was closed before. If you close the pool, the items that
    are in no batch yet get a `StreamClosedError`.

    Args:
        pool: Where the batches run, of several `Batches` too. Its own `max_waiting` does not count
            for them.
        fn: What `pool.run` takes: a function, or a function in two halves. It gets a list of items,
            and returns a list, a tuple, an array or a like collection with one result for each, in
            their order. If the pool has `each`, it gets first what belongs to the stream.
        most: How many items a batch has at most.
        max_waiting: How many items may wait for a batch, without those that idle streams are
            about to take. If you set it, one more gets a `PoolFullError`. `None` sets no limit.
        in_thread: Use `pool.run_in_thread` in place of `pool.run`.
        cost: A function that gets a list of items, and returns what a batch of them costs, such as
            `lambda texts: len(texts) * max(map(len, texts))` for padded texts. It must not fall
            when an item is added, as a larger batch is tried first. It is called in the thread of
            the loop: for each item alone, and a few times for a batch. What it raises for several
            items, each of their tasks gets.
        most_cost: What a batch costs at most. Items are taken in order while the cost allows.
        name: What metrics call it. By default it is the name of the pool.

    Threads: use it in tasks of the loop in which its block began.

    Raises:
        TypeError: `pool` is not a `StreamPool`, `fn` is not what `pool.run` takes, `most` or
            `max_waiting` is not an int, `cost` is not a plain function, or `most_cost` not a
            number. Or you gave only one of these two.
        ValueError: `most` or `max_waiting` is less than 1, or `most_cost` is a NaN.

    Attributes:
        sizes: How many batches there were, by how many items they had.

    Example:
        >>> from aiostream import serving
        >>> def score(numbers):
        ...     # launch the kernels of a model here
        ...     return [number * number for number in numbers]
        >>> async with aiostream.StreamPool(2) as pool:
        ...     async with serving.Batches(pool, score, most=32) as scored:
        ...         await asyncio.gather(*(scored(number) for number in range(3)))
        [0, 1, 4]
        >>> scored.sizes
        Counter({3: 1})
    """

    @overload
    def __init__(
        self, pool: StreamPool[None], fn: Callable[[list[Item]], Results[Result, Failure]], *,
        most: int, max_waiting: int | None = None, in_thread: bool = False,
        cost: Callable[[list[Item]], float] | None = None, most_cost: float | None = None,
        name: str | None = None,
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self, pool: StreamPool[Own], fn: Callable[[Own, list[Item]], Results[Result, Failure]], *,
        most: int, max_waiting: int | None = None, in_thread: bool = False,
        cost: Callable[[list[Item]], float] | None = None, most_cost: float | None = None,
        name: str | None = None,
    ) -> None: ...  # fmt: skip
    @hints.answers_keywords
    def __init__(
        self, pool: StreamPool[Any], fn: Callable[..., Any], *,
        most: int, max_waiting: int | None = None, in_thread: bool = False,
        cost: Callable[[list[Item]], float] | None = None, most_cost: float | None = None,
        name: str | None = None,
    ) -> None:  # fmt: skip
        self._pool = checks.instance(StreamPool, pool, "Batches takes a StreamPool, not")
        checks.plain_function(fn, "Batches", halves=True)
        self._fn, self._fn_name = fn, completion.name_of(fn)
        self._called = f"Batches of {self._fn_name}"
        self._most = checks.number("most", most, 1, "a batch has at least one item")
        limit = sys.maxsize if max_waiting is None else max_waiting
        self._max_waiting = checks.number("max_waiting", limit, 1, "each item waits for a batch")
        self._in_thread = checks.flag("in_thread", in_thread)
        if (cost is None) != (most_cost is None):
            raise TypeError("Batches takes cost and most_cost together, or neither of them")
        self._cost, self._most_cost = cost, 0.0
        if cost is not None:
            checks.plain_function(cost, "cost")
            self._most_cost = checks.real(most_cost, "most_cost is a number")
        self._label = checks.label(name) or pool.name  # what observers call it
        self.sizes: Counter[int] = Counter()
        # Only the thread of the block's loop touches these. A thread that exports figures reads
        # lengths and copies.
        # The next two know each item: it waits until a batch takes it, or its task leaves, and is
        # in a batch until it is answered. An interrupt may leave it in both. First those that wait,
        # by priority, the highest first.
        self._waiting: dict[int, Items[Item]] = {0: {}}
        self._batches: dict[_Batch[Item], None] = {}
        # The one of them that has no stream yet, and takes what waits when it gets one. If it is in
        # `_batches` no more, its task is over, and the next item begins another.
        self._next: _Batch[Item] | None = None
        self._ends: dict[Any, None] = {}  # the futures for which ends of blocks wait
        # That of the loop of the block, within it. Weak, because the bridge ends with its loop.
        self._bridge: Callable[[], loops.Bridge | None] = lambda: None
        # That of the loop of the latest block, also after its end.
        self._latest: Callable[[], loops.Bridge | None] = self._bridge

    @property
    def waiting(self) -> int:
        """How many items wait for a batch."""
        # Without those whose tasks were cancelled and have yet to run.
        ranks = list(self._waiting.values())
        return sum(loops.is_awaited(each) for rank in ranks for each in list(rank))

    def __repr__(self) -> str:
        in_batches = sum(len(batch.items) for batch in list(self._batches))
        counts = f"{self.waiting} items wait, {in_batches} are in batches"
        return f"<aiostream.serving.{self._called}: {counts}{'' if self._bridge() else ', closed'}>"

    # ------------------------------------------------------------------------------------ the block

    async def __aenter__(self) -> Self:
        await waiting.checkpoint()
        bridge, last = loops.current_bridge(), self._latest()
        # Batches go on in their loop if the end of their block was cancelled.
        is_left = self._bridge() or (self._batches and last is not bridge)
        if is_left and last and not last.is_gone():
            raise RuntimeError(f"the block of {self._called} has begun before, and has not ended")
        if last is not bridge:
            # Their loop will not run again. Their streams would be busy until the next collection.
            for batch in [*self._batches]:
                getattr(batch.task, "get_coro", lambda task=batch.task: task.coro)().close()
            self._waiting, self._batches, self._ends, self._next = {0: {}}, {}, {}, None
        self._bridge = self._latest = weakref.ref(bridge)
        self._context = contextvars.copy_context()
        pending.queues[id(self)] = self
        return self

    async def __aexit__(self, *error: object) -> None:
        self._bridge = lambda: None
        await waiting.checkpoint()
        for batch in [*self._batches]:
            if getattr(batch.task, "done", bool)():  # no interrupt reaches a task of trio
                self._end_batch(batch)
        self._look_after()
        while self._is_here() and self._batches and not self._pool.closed:
            self._ends[end := loops.current_bridge().new_future()] = None
            await end

    # ------------------------------------------------------------------------------------ the items

    async def __call__(self, item: Item, /, *, priority: int = 0) -> Result:
        """Waits for a batch with this item, and returns the item's result.

        Args:
            item: What the function gets, in a list.
            priority: Items with a higher one are taken first, and those with the same one in the
                order in which they came. If higher ones always wait, an item with a low one waits
                until its task is cancelled: limit how many high ones may wait, or how long a task.

        Cancellation: raises at once. If the item's batch has not begun, the item will not be in it.
        If it has begun, it goes on without you.

        Threads: call it in a task of the loop in which the block began. On trio it is a checkpoint.

        Raises:
            PoolFullError: `max_waiting` items wait already. A server answers with 503.
            RuntimeError: The block has not begun, or has ended. Or this is another loop. Or `fn`
                has raised asyncio's `CancelledError`, which is the cause then: no task was
                cancelled.
            TypeError: `fn` has returned another number of results than it got items, or something
                else than a collection in their order, or a class of exceptions as a result. Or
                `priority` is not an int.
            ValueError: The item alone costs more than `most_cost`.
            StreamClosedError: The pool is closed, or was closed while you waited.
            ContextFailedError: A context of the pool has failed.
            BaseException: What `fn` or `cost` has raised, or the result, if that is an exception.
        """
        if hook and not hook.is_observed():
            call = "Batches.__call__"
            return await hook.observed(call, Batches.__call__, self, item, priority=priority)
        bridge = loops.current_bridge()
        if self._bridge() is not bridge:
            raise RuntimeError(
                f"{self._called} take items within their `async with` block, in tasks of its loop"
            )
        limit = self._max_waiting
        # Idle streams take their batches in the next turns.
        if (
            limit < sys.maxsize
            and self._count() >= limit <= self.waiting - self._most * self._pool.idle
        ):
            del bridge
            await waiting.checkpoint()  # a task that tries again and again must not keep the loop
            raise PoolFullError(
                f"{limit} items wait for {self._called}, and no more may wait. A server "
                "answers 503 now"
            )
        if self._cost is not None and (alone := self._cost([item])) > self._most_cost:
            raise ValueError(
                f"this item alone costs {alone}, and a batch of {self._called} may cost "
                f"{self._most_cost:g}"
            )
        if (queue := self._waiting.get(priority)) is None:
            ranks = {**self._waiting, checks.integer("priority", priority): (queue := {})}
            self._waiting = dict(sorted(ranks.items(), reverse=True))
        # One by which the batch's observers find those of the item.
        future = bridge.new_polled_future() if hook else bridge.new_future()
        try:
            queue[future] = item, time.perf_counter()
            # The frame of a task that waits must not hold the bridge, which would survive its loop.
            del bridge
            if self._next not in self._batches:
                self._look_after()
            outcome: Result | BaseException = await future
        except BaseException:
            queue.pop(future, None)
            raise
        if isinstance(outcome, BaseException):
            try:
                raise outcome
            finally:
                # The traceback refers to this frame. If the frame referred to the error, they would
                # keep each other alive.
                del outcome, future
        return outcome

    # ------------------------------------------------------------------------------------ a batch

    def _is_here(self) -> bool:
        """Whether the loop of the items runs here. The collector may end its tasks elsewhere."""
        return loops.bridge_here() is self._latest()

    def _look_after(self) -> None:
        """Begins a batch if items wait and none is about to take them, and ends blocks.

        It is called for an item that comes and finds no such batch, when a batch has taken its
        items, at its end and that of its task, and at the end of the block. So what an interrupt
        keeps one call from doing, the next one does.
        """
        if not self._is_here():
            return
        # An item that comes now is not yet awaited on trio.
        waits = any(not future.done() for rank in self._waiting.values() for future in rank)
        if waits and self._next not in self._batches:
            batch = _Batch[Item]()
            serve, context = partial(self._serve, batch), self._context.copy()
            # It starts in a later turn.
            batch.task = task = loops.current_bridge().spawn(serve, self._called, context)
            self._batches[batch], self._next = None, batch
            if hasattr(task, "add_done_callback"):  # one of asyncio's
                task.add_done_callback(partial(self._end_batch, batch))
        if self._ends and not self._batches:
            _settle(self._ends, repeat(None))
            self._ends.clear()

    def _end_batch(self, batch: _Batch[Item], _: object = None) -> None:
        """The task of a batch is over, or about to be. Without an interrupt, all have an answer."""
        if batch.items and self._is_here():
            error = RuntimeError(f"an interrupt has ended the task of {self._called}")
            _settle(batch.items, map(completion.copy_of, repeat(error)))
            batch.items.clear()
        self._batches.pop(batch, None)
        self._look_after()

    async def _serve(self, batch: _Batch[Item]) -> None:
        """Waits for a stream, and runs what waits then as one batch, and so on."""
        pool = self._pool
        try:
            batch.queues = True
            async with uncounted(pool) as stream:
                while self._take_into(batch):
                    # In a context of its own, so that what one batch sets does not reach the next.
                    call = self._run(batch.items, stream)
                    _settle(batch.items, await waiting.within(self._context.copy(), call))
                    batch.items.clear()
                    # No item waits, the pool was closed, or others want the stream.
                    queues = self._next is not None and self._next.queues
                    if not self._count() or pool.closed or pool.waiting > queues:
                        break
        except BaseException as error:
            # The loop is gone, and the tasks that wait. A function may raise it too.
            if isinstance(error, GeneratorExit) and all(map(loops.is_elsewhere, batch.items)):
                raise
            self._fail(batch, error)
        finally:
            # The futures hold errors, whose tracebacks refer to this frame.
            batch.items.clear()
            self._end_batch(batch)

    async def _run(self, items_of: Items[Item], stream: Any) -> list[Any]:
        self.sizes[size := len(items_of)] += 1
        items = [item for item, _ in items_of.values()]
        run = stream.run_in_thread if self._in_thread else stream.run
        call = run(self._fn, stream.own, items) if self._pool._has_own else run(self._fn, items)
        if hook:
            hook.serves(items_of)
        return self._outcomes(await call, size)

    def _fail(self, batch: _Batch[Item], error: BaseException) -> None:
        """Gives each task of a batch the error that has ended it, and raises what no task gets."""
        bridge = loops.current_bridge()
        if self._next is batch:  # no other one will take what waits
            for rank in self._waiting.values():
                batch.items.update(rank)
                rank.clear()
        is_trio = bridge.checkpoint is not None
        is_cancelled = isinstance(error, bridge.cancelled)
        if is_cancelled:
            # Else `fn` has raised it. It cannot raise trio's, which comes from trio alone.
            is_cancelled = is_trio or bridge.current_task().cancelling() > 0
            what = f"{self._fn_name} has raised {error!r}, but its task was not cancelled"
            if is_cancelled:
                what = f"the task of {self._called} was cancelled"
            error, error.__cause__ = RuntimeError(what), error  # the new one's cause is the old
        # A task raises it, or it may be lost.
        is_over = isinstance(error, Exception) or any(map(loops.is_awaited, batch.items))
        _settle(batch.items, chain([error], map(completion.copy_of, repeat(error))))
        if is_cancelled or not (is_over or is_trio):
            raise
        if not is_over:  # it would end the run of trio if it left a system task
            _native.write_unraisable(error, self._fn)

    # ------------------------------------------------------------------------------------ the queue

    def _count(self) -> int:
        return sum(map(len, self._waiting.values()))

    def _is_too_much(self, items: list[Item]) -> bool:
        return self._cost is not None and self._cost(items) > self._most_cost

    def _take_into(self, batch: _Batch[Item]) -> int:
        """Moves the first items that wait into a batch, as many as it may have: how many."""
        ranks = [*self._waiting.values()]
        # Of the others the tasks were cancelled, and have yet to run.
        waiting = (each for rank in ranks for each in rank.items() if loops.is_awaited(each[0]))
        found = dict(islice(waiting, self._most))
        size = len(found)
        try:
            if self._cost is not None and size > 1:  # one alone was asked about at its call
                items = [item for item, _ in found.values()]
                if self._is_too_much(items):
                    sizes = range(2, size)
                    size = 1 + bisect.bisect(
                        sizes, False, key=lambda count: self._is_too_much(items[:count])
                    )
        finally:  # what `cost` has raised, all of them get
            # First in one step, so an interrupt leaves each item in one of the two, or in both.
            batch.items.update(islice(found.items(), size))
            for rank in ranks:
                for each in batch.items:
                    rank.pop(each, None)
            if len(ranks) > 1:
                self._waiting = {each: r for each, r in self._waiting.items() if r or not each}
            if self._next is batch:
                self._next = None
            if self._count():
                self._look_after()
        return size

    def _outcomes(self, results: Any, size: int) -> list[Any]:
        kind = type(results)
        named = kind is not list and (hasattr(kind, "keys") or issubclass(kind, _NO_ROWS))
        if not hasattr(kind, "__getitem__") or (named and kind is not tuple):
            what = kind.__name__
        # A list now, because the stream's next user may overwrite what is read from an array later.
        elif len(found := list(results)) != size:
            what = f"{len(found)} results"
        elif [each for each in found if isinstance(each, type) and issubclass(each, BaseException)]:
            what = "a class of exceptions in place of one"
        else:
            return found
        raise TypeError(
            f"{self._fn_name} got {size} items and returned {what}: it returns a list, a tuple or "
            "an array, with one result for each item"
        )

    def _pending(self) -> list[tuple[str, float, str, Any, str]]:
        """Returns the pool, beginning, call, future and function of each wait for a result."""
        batches = [batch.items for batch in list(self._batches)]
        name = f" {self._pool.name!r}" if self._pool.name else ""
        of = f"pool{name} of {self._pool.size} streams"
        return [
            (of, since, "Batches.__call__", future, self._fn_name)
            for items in (*batches, *list(self._waiting.values()))
            for future, (_, since) in items.copy().items()
        ]


def _settle(futures: Iterable[Any], outcomes: Iterable[Any]) -> None:
    """Gives the tasks that wait for futures their outcomes."""
    for future, outcome in zip(futures, outcomes, strict=False):
        if not future.done():  # else its task was cancelled meanwhile
            completion.set_result(future, outcome)
