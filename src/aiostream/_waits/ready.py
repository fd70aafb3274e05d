"""Waits for what only a Python function knows: `ready`.

The function belongs to the loop's thread, so that thread asks it, when the loop drains its queue.
The timer behind the queue's descriptor says when. So a task sleeps until its answer is there, and
one wake-up serves all questions that are due. While nothing is known, one wait of each key is asked
closely, and the others less often; about half of the loop's time is left to its tasks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from contextvars import copy_context
from time import monotonic_ns as _clock  # native code's clock
from typing import Any, TypeVar

from aiostream import _native
from aiostream._base import checks
from aiostream._runtime import completion, loops

__all__ = ["ready"]

T = TypeVar("T")

_PASS = 1_000_000  # ns for which the queries of one drain may keep the loop


async def ready(query: Callable[[], T], /, *, key: Hashable = None) -> T:
    """Waits until `query()` returns something true, and returns it.

    Use it for work that you can only ask a function about, such as a transfer of NIXL or UCX, a
    communicator of NCCL, or an array of JAX. It takes the place of a loop around
    `asyncio.sleep(0.001)`. It learns how long such waits take, so it asks often when the end is
    near, and seldom before. For work on a CUDA stream, use `Stream.synchronize_async`, which ends
    earlier and costs less.

    The thread of the loop calls `query`, with the context variables of this task. It does so at
    once, and later in callbacks of the loop, so `query` must not block. All queries of a loop
    together take at most about half of its time.

    Args:
        query: A plain function without arguments.
        key: Waits with equal keys in one loop learn together. By default these are the waits with
            the same code: the same function or `lambda`, or the same method of one class. Pass a
            key if one function waits for several kinds of work.

    Cancellation: raises at once. The work goes on, and so you may ask again.

    Threads: call it in a task of a running asyncio or trio loop. On trio it is always a checkpoint.

    Raises:
        RuntimeError: No loop runs here.
        TypeError: `query` is not a plain function, or `key` cannot be hashed.

    What `query` raises, `ready` raises in this task.

    Example:
        >>> import time
        >>> ends = time.monotonic() + 0.005  # in place of a transfer
        >>> await aiostream.ready(lambda: time.monotonic() > ends)
        True
    """
    checks.plain_function(query, "ready", "pass a function that says whether the work is over")
    start, answer = _clock(), _native.plain_result(query(), False)
    if answer:
        await loops.checkpoint()
        return answer
    bridge = loops.current_bridge()
    questions = bridge.questions = bridge.questions or Questions(bridge.queue)
    history = questions.history_of(_code_of(query) if key is None else key)
    question: Any = _Question(query, bridge.new_future(), history, start)
    question.plan(False, len(questions.asked))
    del bridge  # an exception keeps this frame, and the bridge must not outlive its loop
    try:
        questions.asked[question] = None
        _native.wake_by(questions.queue, question.at)
        answer, error = await question.future
        if error is not None:
            raise error
        return answer
    finally:
        questions.asked.pop(question, None)
        question = error = None  # the traceback of the error refers to this frame


def _code_of(query: Any) -> Hashable:
    query = getattr(query, "func", query)  # of a partial
    # Without code, it is a function in C, or an object with `__call__`.
    in_c = type(getattr(query, "__self__", query)), getattr(query, "__name__", None)
    return getattr(getattr(query, "__func__", query), "__code__", in_c)


class _Question:
    """One wait. Its times are the clock's."""

    def __init__(self, query: Any, future: Any, history: _native.History, start: int) -> None:
        self.query, self.future, self.context = query, future, copy_context()
        # `false_at` is when the last call began whose answer was false.
        self.history, self.start, self.false_at = history, start, start
        self.soon = self.at = 0  # when to ask again if the loop is awake, and by when

    def plan(self, over: bool, waits: int) -> None:
        """Learns an answer, and plans the next question."""
        times = self.history.asked(self.start, self.false_at, _clock(), over, waits)
        self.soon, self.at = times


class Questions:
    """The waits of one loop. Used in its thread."""

    def __init__(self, queue: int) -> None:
        self.queue = queue
        self.asked: dict[_Question, None] = {}
        self.not_before = 0
        # limited, for a program that makes a key for each wait
        self.history_of = functools.lru_cache(1024)(lambda _: _native.History())

    def ask(self) -> None:
        """Asks those that are due, or nearly so. The loop calls it at each drain."""
        if self.asked and _clock() >= self.not_before:  # drains come for other reasons too
            self._ask_those_due()
        if self.asked:
            following = min([each.at for each in self.asked])
            _native.wake_by(self.queue, max(following, self.not_before))

    def _ask_those_due(self) -> None:
        begin = _clock()
        due = [each for each in self.asked if each.soon <= begin]
        for each in sorted(due, key=lambda each: each.at):  # a query may begin and cancel others
            if each.future.done():
                continue
            began, over, answer, error = _clock(), True, None, None
            if began > begin + _PASS:
                break
            try:
                answer = _native.plain_result(each.context.run(each.query), False)
                over = bool(answer)
                each.plan(over, len(self.asked))
            except BaseException as raised:  # the task raises it
                error = raised
            each.false_at = each.false_at if over else began
            if over and not each.future.done():  # a query may cancel its own task
                completion.set_result(each.future, (answer, error))
        self.not_before = 2 * _clock() - begin  # half of the loop's time is left to others
