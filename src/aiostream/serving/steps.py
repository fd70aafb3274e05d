"""`Steps`: the loop of a server whose answers come in pieces, such as tokens.

One task of the loop runs the steps. In its turn it chooses who is in the next step, launches that
step's first half, and waits. The GPU settles each step (`OneStep`) in the drain of the loop, in the
order of the launches. Then the task runs the second half, and gives each reader its result.

With `ahead=1`, when step n is done on the GPU:

    task     second half of n, results, a turn of the loop, first half of n + 2
    GPU      step n + 1

A request (`Results`) goes through these states:

    state     it is in          it leaves that when
    called    `_places`         its block begins, or it is garbage
    entered   `_queue`          a slot is free, or it is over
    seated    `_seats`          it is over, and no launched step has it
    gone

It is over after its last result, an error, the end of its block, or that of the `Steps`. What is
over is in no further step. All of this is touched in the thread of the loop alone, except where a
comment says otherwise.
"""

from __future__ import annotations

import contextlib
import contextvars
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any, Generic, Self

from aiostream import _native, errors
from aiostream._base import checks, driver
from aiostream._runtime import completion, loops
from aiostream._runtime.observing import hook
from aiostream._waits import enqueuing, pending, waiting
from aiostream.errors import PoolFullError, StreamClosedError
from aiostream.serving._one_step import OneStep, Step
from aiostream.serving.results import Active, Request, Result, Results, wake
from aiostream.stream import Stream

_now = time.perf_counter
_AGAIN = 0.025  # seconds


class Steps(checks.NotCopied, checks.AsyncBlock, Generic[Request, Result]):
    """Runs the steps of a model for all requests at once, and gives each its results.

    It is the loop of a server of tokens, speech or images (continuous batching). A request joins
    between two steps and leaves between two steps, and each result reaches its reader at once.

    `step` is a function in two halves. The first half launches a step for the requests in `active`,
    a mapping from slot to request. The second half reads the results, and returns them by slot.
    A slot is a row of your batch.

    With `ahead=1` the first half of step n + 1 runs *before* the second half of step n, so the GPU
    has work while Python reads and hands out the results. Engines call this overlap or asynchronous
    scheduling. So keep on the GPU what the next step needs, such as the last tokens. Give each step
    that is in flight a buffer of its own: `buffers[active.number % (ahead + 1)]`.

    - A slot that is missing in the results has none in this step. A result may be a list.
    - `End(result)` is the last result of its request, and `End()` ends it without one.
    - `yield slots` in place of `yield` says whose last step this is. They are in no later one.
    - An exception as a result is raised in its request alone, which ends.

    No two halves run at once. The tasks of the loop have a turn before each launch, so requests
    that come in one turn share their first step. The lowest free slot goes to the request that was
    called first. A slot is used again when no launched step has it, and `active.left` names it.

    Each step has the context variables of the block's beginning, in a copy of its own. A step keeps
    the loop while its halves run. If a first half takes milliseconds, capture a graph.

    An error of a step or of the GPU is raised in each request of that step, after the results that
    came before it, in a copy if `copy.copy` gives one. The loop goes on. A lost context or a closed
    stream ends all requests, those that wait, and those that come later.

    The end of the block refuses what comes later, and waits for the requests that have begun or
    entered their blocks. If the block ends by an error or a cancellation, it does what `close`
    does.

    Args:
        stream: Where the steps run. Use it for nothing else that takes long. Several replicas or
            GPUs have one `Steps` each.
        step: The function. `Steps` calls it with an `Active`, with the stream current.
        slots: How many requests may be in one step.
        ahead: How many steps are launched before the results of the first of them are read. Use 0
            if the host decides the next token.
        max_waiting: How many requests may wait, without those that the free slots will take. If you
            set it, one more gets a `PoolFullError`. `None` sets no limit.
        max_unread: A request that has this number of unread results sits out until they are read.
            Steps in flight may add `ahead` more. `None` keeps all results.
        ready: It is called with a request, in the loop, before each launch. If its answer is false,
            the request sits out: say `results.wake()` when that may have changed. What it raises is
            raised in that request alone.

    Threads: use it in tasks of the loop in which its block began.

    Raises:
        TypeError: `stream` is not a `Stream`, `step` is not what `Stream.run` takes, or a number is
            not an int.
        ValueError: `slots` or `max_unread` is less than 1, or another number is less than 0.

    Attributes:
        launched: How many steps were launched.
        idle_seconds: How long requests were ready and the GPU had no step, as the loop sees it. It
            does not see a step's end while it is busy.

    Example:
        >>> from aiostream import serving
        >>> def step(active):
        ...     # launch the kernels of a step here
        ...     yield
        ...     return {slot: f"{request} {active.number}" for slot, request in active.items()}
        >>> async with aiostream.Stream() as stream:
        ...     async with serving.Steps(stream, step, slots=16, max_waiting=64) as steps:
        ...         async with steps("hello") as results:
        ...             async for result in results:
        ...                 print(result)
        ...                 if result == "hello 1":
        ...                     break
        hello 0
        hello 1
    """

    def __init__(
        self, stream: Stream, step: Step[Request, Result], *, slots: int, ahead: int = 1,
        max_waiting: int | None = None, max_unread: int | None = None,
        ready: Callable[[Request], object] | None = None,
    ) -> None:  # fmt: skip
        self._stream = checks.instance(Stream, stream, "Steps takes a Stream, not")
        checks.plain_function(step, "Steps", halves=True)
        if ready is not None:
            checks.plain_function(ready, "Steps")
        self._fn, self._ready, self._fn_name = step, ready, completion.name_of(step)
        self._called = f"Steps of {self._fn_name}"
        self._label = stream.name  # what observers call it
        slots = checks.number("slots", slots, 1, "a step has at least one slot")
        self._ahead = checks.number("ahead", ahead, 0, "no fewer than 0 steps are launched ahead")
        most = sys.maxsize if max_waiting is None else max_waiting
        self._max_waiting = checks.number("max_waiting", most, 0, "no fewer than 0 can wait")
        most = sys.maxsize if max_unread is None else max_unread
        self._max_unread = checks.number("max_unread", most, 1, "a reader has at least one result")
        self.launched: int = 0
        self.idle_seconds: float = 0.0
        self._next_ticket = count(1).__next__
        self._clear(slots)
        # Why nothing is launched any more. Any thread, one assignment.
        self._closed: BaseException | None = None
        # Whether this is within the block. And whether the task of the steps has nothing to do.
        self._is_open, self._stopped = False, True
        self._task: object = None  # asyncio's loop does not keep it
        # That of the block's loop. Weak, because the bridge ends with its loop.
        self._bridge: Callable[[], loops.Bridge | None] = lambda: None
        self._cancelled: type[BaseException] = GeneratorExit  # that loop's

    def _clear(self, slots: int) -> None:
        """Forgets what another loop has left."""
        # See the module. Those that have yet to enter are weak, because some never do.
        self._places = weakref.WeakValueDictionary[int, Results[Result]]()
        self._queue: dict[int, Results[Result]] = {}  # by ticket, in that order
        self._seats: list[Results[Result] | None] = [None] * slots
        self._left: set[int] = set()  # see `Active`
        self._flying: deque[OneStep] = deque()  # the steps that were launched, in order
        self._idle_since: float | None = None  # when the GPU had no step, and a request came
        # For which the task waits, and the end of the block. Whether there is something new, and
        # whether the task will look again by itself.
        self._future: Any = None
        self._ends: Any = None
        self._told = self._is_timed = False

    @property
    def running(self) -> int:
        """How many requests have a slot, and have not ended."""
        return sum(each is not None and not each._over for each in self._seats)

    @property
    def waiting(self) -> int:
        """How many requests wait for a slot, or have yet to enter their block."""
        return 0 if self._closed else len(self._places) + len(self._queue)

    def __repr__(self) -> str:
        closed = "" if self._is_open and not self._closed else ", closed"
        counts = f"{self.running} requests run, {self.waiting} wait, {self.launched} steps launched"
        return f"<aiostream.serving.{self._called}: {counts}{closed}>"

    # ------------------------------------------------------------------------------------ the block

    async def __aenter__(self) -> Self:
        await waiting.checkpoint()
        if self._closed:
            raise completion.copy_of(self._closed)
        bridge, last = loops.current_bridge(), self._bridge()
        if (self._is_open or not self._stopped) and last and not last.is_gone():
            raise RuntimeError(f"the block of {self._called} has begun before, and has not ended")
        if last is not bridge:
            self._clear(len(self._seats))
        self._bridge, self._cancelled = weakref.ref(bridge), bridge.cancelled
        # Neither refers to the bridge. trio's tasks have no order within a turn.
        checkpoint, self._launches = bridge.checkpoint, bridge.launches
        self._turn: Any = (loops.yield_turn,) if checkpoint is None else (checkpoint, checkpoint)
        self._context = contextvars.copy_context()
        self._is_open, self._stopped = True, False
        pending.queues[id(self)] = self
        self._task = task = bridge.spawn(self._run, self._called, self._context.copy())
        if hasattr(task, "add_done_callback"):  # one of asyncio's, which may be cancelled at once
            task.add_done_callback(self._task_ended)
        return self

    def _task_ended(self, task: object) -> None:
        if task is self._task:  # and no later block has begun
            if not self._stopped:
                self._fail(f"the task of {self._called} was cancelled")
            wake(self._ends)

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        self._is_open, why = False, f"the block of {self._called} was left by an error"
        if kind is not None:  # requests may be endless
            self._fail(why)
        if isinstance(error, GeneratorExit):  # of the collector, perhaps in another thread
            return
        self._tell()
        try:
            await waiting.checkpoint()
            while not self._stopped:
                self._ends = loops.current_bridge().new_future()
                await self._ends
        except BaseException:
            self._fail(why)
            raise

    def close(self) -> None:
        """Ends all requests now. It waits for no GPU, and you may call it again.

        Nothing more is launched. Readers get a `StreamClosedError` after their unread results, and
        those that wait for a slot get it at once. Call it at the end of a server whose requests may
        be long. The end of the block does not wait then.

        Threads: any, also within a step.
        """
        self._fail(f"{self._called} were closed")

    def _fail(self, why: str | BaseException) -> None:
        """Has the loop end everything with an error. Any thread."""
        if self._closed is None:
            self._closed = StreamClosedError(why) if isinstance(why, str) else why
        self._post(self._stop)

    def _stop(self) -> None:
        """Ends all requests with the error. The task repeats what an interrupt has cut short."""
        self._tell()
        for results in [*self._queue.values(), *filter(None, self._seats)]:
            results._end(self._closed)
            self._give_on(results)
        while self._flying:
            if self._flying[0].passed:
                self._let_go(self._flying[0], is_over=False)
            self._flying.popleft()
        self._stopped = True
        wake(self._ends)

    def _post(self, function: Callable[[], None]) -> None:
        """Has the loop call a function, if there is one. Any thread."""
        bridge = self._bridge()
        if bridge is not None:
            bridge.call_soon(function)

    def _here(self) -> loops.Bridge:
        """Returns the bridge of the loop, which runs here."""
        bridge = loops.current_bridge()
        if bridge is not self._bridge():
            where = "within their `async with` block, in tasks of its loop"
            raise RuntimeError(f"{self._called} take requests {where}")
        return bridge

    # ------------------------------------------------------------------------------------ the slots

    def __call__(self, request: Request, /) -> Results[Result]:
        """Takes a place for a request. `async with steps(request) as results:` gives it a slot.

        It refuses at once, so a server can answer 503 before it sends headers. A place whose block
        is never entered counts no more when it is garbage.

        Threads: call it in a task of the loop in which the block began.

        Raises:
            PoolFullError: `max_waiting` requests wait already. A server answers with 503.
            RuntimeError: The block has not begun, or has ended. Or this is another loop.
            StreamClosedError: The steps were closed.
            ContextFailedError: The context has failed.
        """
        self._require_open()
        # Those that have yet to enter are about to take the free slots.
        if self.waiting - self._seats.count(None) >= self._max_waiting:
            raise PoolFullError(
                f"{self._max_waiting} requests wait for a slot of {self._called}, and no more may "
                "wait. A server answers 503 now"
            )
        results = Results(self, request, self._next_ticket())
        self._places[results._ticket] = results
        return results

    def _check(self) -> None:
        """Ends everything if the context is lost, or the stream is closed."""
        operand = self._stream._operand
        if code := operand.context.health():
            self._fail(driver.error(code, "cuStreamQuery", operand.name))
        elif self._stream.closed:
            self._fail(errors.closed(operand.name))

    def _require_open(self) -> None:
        if not self._closed:
            self._check()
        if self._closed:
            raise completion.copy_of(self._closed)
        self._here()
        if not self._is_open:
            raise RuntimeError(f"the block of {self._called} has ended")

    def _enter(self, results: Results[Result]) -> None:
        """The block of a request begins. It gets a slot now, or waits for one."""
        ticket = results._ticket
        self._places.pop(ticket, None)
        is_late = ticket < next(reversed(self._queue), 0)
        self._queue[ticket] = results
        if is_late:
            self._queue = dict(sorted(self._queue.items()))
        self._admit()

    def _admit(self) -> None:
        """Gives free slots to those that have entered."""
        # The slot first and the queue last, because after an interrupt this is repeated.
        while self._queue:
            ticket, results = next(iter(self._queue.items()))
            if results not in self._seats:
                if None not in self._seats:
                    return
                self._seats[self._seats.index(None)] = results
            results.slot = self._seats.index(results)
            self._queue.pop(ticket, None)
            wake(results._future)
            self._tell()

    def _give_on(self, results: Results[Result]) -> None:
        """Gives the slot of a request to the next one, if it is over and no launched step has it.

        It may be repeated.
        """
        self._queue.pop(results._ticket, None)
        if results not in self._seats or results._flying or not results._over:
            return
        slot = self._seats.index(results)
        if results._seen:
            self._left.add(slot)
        self._seats[slot] = results._request = None
        if not self._closed:
            self._admit()
            self._tell()

    # ------------------------------------------------------------------------------------- the task

    def _tell(self) -> None:
        """Has the task look at everything again."""
        self._told = True
        if not self._flying and self._idle_since is None:
            self._idle_since = _now()
        wake(self._future)

    def _passed(self, step: OneStep) -> None:
        """The GPU has passed a step. In the drain."""
        if self._stopped:
            self._let_go(step, is_over=False)
        else:
            if self._flying and step is self._flying[-1]:
                self._idle_since = _now()
            self._tell()

    async def _run(self) -> None:
        flying = self._flying
        try:
            while not self._closed:
                self._told = False
                if len(flying) <= self._ahead:
                    for turn in self._turn:  # of all other tasks
                        await turn()
                    if self._launches.wait:
                        await waiting.launch_turn(self._launches)
                    if not self._closed and self._launch():
                        continue
                if flying and flying[0].passed:
                    await self._land(flying[0])
                elif not (self._is_open or flying or self._queue or any(self._seats)):
                    break
                elif not self._told:
                    if not flying:
                        self._idle_since = None
                        self._look_again()
                    self._future = loops.current_bridge().new_future()
                    await self._future
        except GeneratorExit:  # the loop is gone, and this may be any thread
            raise
        except BaseException as error:
            self._fail(f"the task of {self._called} was cancelled, or has failed: {error!r}")
            if not isinstance(error, Exception):
                raise
            _native.write_unraisable(error, self._fn)
        else:
            if self._closed:
                self._stop()
            self._stopped, self._idle_since = True, None
            wake(self._ends)

    def _look_again(self) -> None:
        """Without a step in flight no wait notices a lost context, so the task asks by itself."""
        if self._queue or any(self._seats):
            self._check()
            if not self._is_timed:
                self._is_timed = self._here().call_later(_AGAIN, self._time_is_up)

    def _time_is_up(self) -> None:
        self._is_timed = False
        self._tell()

    def _choose(self) -> dict[int, Results[Result]]:
        """Returns who is in the next step, by slot."""
        most = self._max_unread
        seats = [(slot, each) for slot, each in enumerate(self._seats) if each is not None]
        for _, each in seats:
            if each._over:  # an interrupt may have kept its block from that
                self._give_on(each)
        return {
            slot: each
            for slot, each in seats
            if not (each._over or each._last or len(each._unread) >= most) and self._is_ready(each)
        }

    def _is_ready(self, results: Results[Result]) -> bool:
        if self._ready is None:
            return True
        try:
            results._sits_out = not self._ready(results._request)
        except BaseException as error:
            results._end(error)
            self._give_on(results)
        return not (results._sits_out or results._over)

    def _launch(self) -> bool:
        """Launches a step, if there is a request for it."""
        members = self._choose()
        if not members or self._closed:  # `ready` may close
            return False
        requests = {slot: results._request for slot, results in members.items()}
        new = [slot for slot, results in members.items() if not results._seen]
        step = OneStep(self, Active(self.launched, requests, new, self._left), members)
        self._flying.append(step)
        idle_since, self._idle_since = self._idle_since, None
        try:
            _enqueue(self._stream, step.first, step)
        except BaseException as error:
            # The stream has refused, before the step was called or behind its work.
            step._exception, step.passed = error, True
            if not step.began:
                step.error = error
        if step.began:
            self.launched += 1
            self._left -= step.active.left
            if idle_since is not None:
                self.idle_seconds += _now() - idle_since
        step.has_launched()
        return True

    async def _land(self, step: OneStep) -> None:
        """Runs the second half of a step. Nothing of it stays in this frame: see `_hand_out`."""
        operand = self._stream._operand
        if step._exception is not None and step.began:  # nothing proves that the GPU has passed it
            with contextlib.suppress(Exception):
                await waiting.synchronize_async(waiting.Unobserved(operand, self._stream._mode))
            if self._closed:
                return
        self._flying.popleft()
        began = waiting.now()
        step.finish()
        self._launches.note(waiting.now() - began, self._fn)
        self._hand_out(step)

    def _hand_out(self, step: OneStep) -> None:
        """Gives the requests of a step what has come of it.

        An error of the step refers to the frames in which the second half ran, and so to theirs.
        What this one holds is gone when it returns.
        """
        error, found = step.error, step.value
        has_left = all(results._over for results in step.members.values())
        if has_left and not isinstance(error, Exception | None):
            _native.write_unraisable(error, self._fn)
        for slot, results in step.members.items():
            if error is not None:
                results._end(error)
            elif slot in found:
                results._give(found[slot])
            if slot in step.last:
                results._end()
        self._let_go(step)
        if error is not None:
            self._check()

    def _let_go(self, step: OneStep, is_over: bool = True) -> None:
        """No longer counts a step for its requests. If it is not over, it is closed."""
        if not is_over:
            step.discard()
        for results in step.members.values():
            results._flying -= 1
            self._give_on(results)
        # The tracebacks of errors refer to the step, and to frames that have this dict.
        step.members.clear()
        step.error = step._exception = None

    def _pending(self) -> list[tuple[str, float, str, Any, str]]:
        """Returns the stream, beginning, call, future and function of each wait of a reader."""
        waits = [("Steps.slot", each) for each in self._queue.copy().values()]
        for each in filter(None, self._seats.copy()):
            waits.append(("Steps.ready" if each._sits_out else "Steps.next_result", each))
        of, name = self._stream._operand.name, self._fn_name
        return [
            (of, each._since, call, future, name)
            for call, each in waits
            if (future := each._future) is not None
        ]


def _enqueue(stream: Stream, call: Callable[[], None], step: OneStep) -> Any:
    if hook and not hook.is_observed():
        return hook.observed("Steps.step", _enqueue, stream, call, step)
    return enqueuing.enqueue(stream._operand, stream._mode, call, (step.steps._fn, step), step)
