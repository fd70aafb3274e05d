"""What a request of `Steps` gets, and what a step gets of the requests.

The task of the `Steps` gives results (`_give`) and ends (`_end`), and one task at a time reads. A
future of the loop lies between the two while the reader waits. All of it is touched in the thread
of the loop alone, except where a comment says otherwise.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from aiostream._base import checks
from aiostream._runtime import completion, loops
from aiostream._runtime.observing import hook
from aiostream._waits import waiting

if TYPE_CHECKING:
    from aiostream.serving.steps import Steps

Request = TypeVar("Request")
Result = TypeVar("Result")
Piece = TypeVar("Piece", covariant=True)
_NOTHING: Any = object()
# After this number of results the reader gives asyncio's loop a turn. If each step is done at once,
# its future is done whenever anyio looks, and anyio cancels no such task.
_TURN_EACH = 16
_TOO_LATE = (
    "the block of this request has ended before its results: read them within it, which for a "
    "streamed answer is in the generator of the answer"
)


class End(Generic[Piece]):
    """In what a step returns: the last result of its request. `End()` ends it without one.

    Example:
        >>> from aiostream import serving
        >>> {0: "a token", 1: serving.End("the last token"), 2: serving.End()}[1].result
        'the last token'
    """

    def __init__(self, result: Piece = _NOTHING) -> None:
        self.result = result


class Active(Mapping[int, Request]):
    """What a step gets: its requests by slot, in the order of slots. It never changes.

    Attributes:
        number: How many steps there were before this one.
        new: The slots whose requests are in a step for the first time.
        left: The slots that were in a step, and were given back since the last step. A slot may be
            in both, so look at `left` first.
    """

    def __init__(
        self, number: int, requests: dict[int, Request], new: Iterable[int], left: Iterable[int]
    ) -> None:
        self.number: int = number
        self.new: frozenset[int] = frozenset(new)
        self.left: frozenset[int] = frozenset(left)
        self._requests = requests

    def __getitem__(self, slot: int) -> Request:
        return self._requests[slot]

    def __iter__(self) -> Iterator[int]:
        return iter(self._requests)

    def __len__(self) -> int:
        return len(self._requests)

    # Those of a Mapping call `__getitem__` for each slot.
    def keys(self) -> KeysView[int]:
        """The slots."""
        return self._requests.keys()

    def values(self) -> ValuesView[Request]:
        """The requests."""
        return self._requests.values()

    def items(self) -> ItemsView[int, Request]:
        """The slots with their requests."""
        return self._requests.items()

    def __repr__(self) -> str:
        return f"<aiostream.serving.Active, step {self.number}: {self._requests!r}>"


class Results(checks.NotCopied, checks.AsyncBlock, Generic[Result]):
    """The results of one request: what `steps(request)` returns.

    Its `async with` block begins when the request has a slot. Within it, `async for` gives one
    result after another, as soon as the GPU has it. The end of the block gives the slot back. The
    block may be entered, read and left in different tasks of the loop, and one task at a time
    reads.

    Attributes:
        slot: The request's row of your batch, from 0 on. `None` before the block.
    """

    def __init__(self, steps: Steps[Any, Result], request: Any, ticket: int) -> None:
        self._label, self._called = steps._label, steps._called  # for observers
        self._steps, self._request, self._ticket = steps, request, ticket
        self.slot: int | None = None
        self._unread: deque[Result] = deque()
        self._error: BaseException | None = None  # what ends it
        # It is in no further step, and gets no more results. A finalizer may set it, in any thread.
        self._over = False
        self._entered = self._reading = False
        self._seen = self._last = False  # a step has had it; no later step may
        self._sits_out = False  # `ready` has said no
        self._count = 0  # of results that were read
        self._flying = 0  # how many launched steps have it
        self._future: Any = None  # of the task that waits
        # When it was called, until the first result. And when the latest wait began.
        self._began: float | None = time.perf_counter()
        self._since = 0.0

    async def __aenter__(self) -> Self:
        if hook and not hook.is_observed():
            await hook.observed("Steps.slot", Results.__aenter__, self)
            return self
        self._steps._require_open()
        if self._entered:
            raise RuntimeError("the block of a request begins once: call the steps again")
        self._entered = True
        try:
            self._steps._enter(self)
            await waiting.checkpoint()
            while self.slot is None:
                if self._error is not None:
                    raise completion.copy_of(self._error)
                await self._news()
        except BaseException as error:
            self._leave(error)
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self._leave(error)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Result:
        """Waits for the next result.

        Cancellation: raises at once, and loses no result.

        Raises:
            RuntimeError: The block has not begun, or has ended before the results have. Or another
                task reads, or this is another loop.
            StreamClosedError: The steps were closed.
            ContextFailedError: The context has failed.
            BaseException: What the step or `ready` has raised, or an exception in a result's place.
        """
        if hook and not hook.is_observed():
            call = "Steps.first_result" if self._began else "Steps.next_result"
            return await hook.observed(call, Results.__anext__, self)
        if self._reading or self.slot is None:
            raise RuntimeError(
                "one task at a time reads the results of a request, within the block `async with "
                "steps(request) as results:`"
            )
        self._reading = True
        self._count += 1
        try:
            if self._count % _TURN_EACH == 0 and self._steps._here().checkpoint is None:
                await loops.yield_turn()
            elif self._unread or self._over:
                self._steps._here()
                await waiting.checkpoint()
            while not self._unread:
                if self._error is not None:
                    raise completion.copy_of(self._error)
                if self._over:
                    raise StopAsyncIteration
                await self._news()
        finally:
            self._reading, self._future = False, None
        self._began = None
        if len(self._unread) >= self._steps._max_unread:  # it sits out, and no longer
            self._steps._tell()
        return self._unread.popleft()

    def chunks(self) -> Chunks[Result]:
        """Iterates over lists of all results that are there, at least one, in place of results.

        With it a server sends one chunk for many results to a client that is slow.

        Example:
            ::

                async for chunk in results.chunks():
                    await send("".join(chunk))
        """
        return Chunks(self)

    def wake(self) -> None:
        """Says that `ready` may answer otherwise now. Threads: any."""
        self._steps._post(self._steps._tell)

    def _news(self) -> Any:
        """Returns a future that is done when there is something new."""
        self._future, self._since = self._steps._here().new_future(), time.perf_counter()
        return self._future

    def _give(self, result: Any) -> None:
        found = result.result if isinstance(result, End) else result
        if isinstance(found, type) and issubclass(found, BaseException):
            found = TypeError(f"{self._steps._fn_name} returned {found!r}, and not an exception")
        if isinstance(found, BaseException):
            self._end(found)
        elif not self._over:
            if found is not _NOTHING:
                self._unread.append(found)
                wake(self._future)
            if found is not result:
                self._end()

    def _end(self, error: BaseException | None = None) -> None:
        if not self._over:
            self._over, self._error = True, error
            # As an error of its own it would be taken for another's, or for the end.
            if isinstance(error, (self._steps._cancelled, GeneratorExit, StopAsyncIteration)):
                self._error = RuntimeError(f"a function of {self._called} has raised {error!r}")
                self._error.__cause__ = error
        wake(self._future)

    def _leave(self, error: BaseException | None = None) -> None:
        # From here on no step takes the request, also after an interrupt.
        was_over, self._over = self._over, True
        if self._unread or not was_over:  # who reads on gets an error, and no end
            self._error = self._error or RuntimeError(_TOO_LATE)
        if isinstance(error, GeneratorExit):
            # This may be the collector, in any thread.
            self._steps._post(self._leave)
            return
        self._end(self._error)
        self._unread.clear()
        self._steps._give_on(self)


class Chunks(Generic[Result]):
    """What `Results.chunks` returns. Not a generator, because trio warns of one that is left."""

    def __init__(self, results: Results[Result]) -> None:
        self._results = results

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Result]:
        results = self._results
        found = [await results.__anext__(), *results._unread]
        results._unread.clear()
        return found


def wake(future: Any) -> None:
    """Wakes the task that waits for a future, if there is one."""
    if future is not None and not future.done():
        completion.set_result(future, None)
