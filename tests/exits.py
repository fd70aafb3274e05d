"""Programs that end at a random moment, with much under way. Each is made by its seed.

    python tests/exits.py 17                           # carries out program 17 in this process
    python tests/exits.py 17 --show                    # says what it does

`test_exits.py` runs them, and `AIOSTREAM_EXITS=1000 python -m pytest tests/runtime/test_exits.py` a
thousand of them.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import dataclasses
import faulthandler
import gc
import logging
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from traceback import format_exception
from typing import Any

from installed import installed

# Nothing here imports aiostream before `run` does: handlers that a program registers first must
# come before the library's.

LOOPS = installed(["asyncio", "asyncio", "uvloop", "trio", "left open"])
ENDS = ["return", "exit in task", "exit after", "error"]
ENDS += ["_exit", "_exit in thread", "_exit in host function"]
ENDS += ["SIGTERM", "SIGTERM in loop", "SIGINT"]
if os.environ.get("AIOSTREAM_EXITS_RAISING_HANDLERS") == "1":
    # Open: a few in a hundred hang, because a task does not end when it is cancelled. The handler's
    # `SystemExit` may have struck asyncio, anyio or the library, between any two steps.
    ENDS.append("SIGTERM handled")
PENDING = ["waits", "futures", "events", "host functions", "running host function"]
PENDING += ["threads", "graphs", "pool"]
THREADS = installed(["loop", "trio", "synchronize", "queries", "host functions", "not a daemon"])
HANDLERS = installed(["open", "use", "close", "collect", "await", "await on trio", "drain"])
OWN = "the error with which the program was to end"


@dataclasses.dataclass(frozen=True)
class Program:
    """What one program does."""

    seed: int
    loop: str
    end: str
    code: int
    delay: float
    """Seconds from when all is under way to the end."""
    work: str
    """What holds the streams: a spin, or a gate that perhaps only an `atexit` handler opens."""
    pending: tuple[str, ...]
    threads: tuple[str, ...]
    early: tuple[str, ...]
    """`atexit` handlers that are registered before aiostream is imported."""
    late: tuple[str, ...]
    """Those that are registered after its first use."""

    @property
    def expected(self) -> int:
        """The exit status, as `subprocess` gives it."""
        return {"return": 0, "error": 1, "SIGTERM": -signal.SIGTERM}.get(self.end, self.code)

    @property
    def waits_in_handlers(self) -> float:
        """Seconds that its own handlers may take."""
        return 0.3 * sum(each == "drain" for each in self.early + self.late)


def program(seed: int) -> Program:
    """Returns the program of a seed."""
    rng = random.Random(seed)

    def some(choices: list[str], most: int) -> tuple[str, ...]:
        return tuple(rng.sample(choices, rng.randint(0, most)))

    loop, early = rng.choice(LOOPS), some(HANDLERS, 2)
    end, pending = rng.choice(ENDS), some(PENDING, len(PENDING))
    if loop == "left open" or end == "SIGTERM handled":
        # anyio's worker threads end with their loop's main task, and Python waits for them: they
        # would keep the process.
        pending = tuple(each for each in pending if each != "threads")
    if loop == "trio" and end == "SIGTERM handled":
        # trio does not survive an error that a signal's handler raises in its own code
        end = "SIGTERM in loop"
    return Program(
        seed=seed,
        loop=loop,
        end=end,
        code=rng.randint(2, 99),
        delay=rng.choice([0, 0, 0.001, 0.005, 0.02]) * rng.random(),
        work=rng.choice(["spin", "gate"]),
        pending=pending,
        threads=some(THREADS, 3),
        late=some(HANDLERS, 2),
        early=early,
    )


class Running:
    """A program that is carried out in this process."""

    def __init__(self, plan: Program) -> None:
        self.plan = plan
        self.kept: list[Any] = []
        self.stop: Callable[[], None] = lambda: None

    def run(self) -> None:
        """Begins everything, and ends the process as the program says."""
        # asyncio's, about a loop that is left open
        warnings.simplefilter("ignore", ResourceWarning)
        # Python's, about coroutines that such a loop has never begun
        warnings.simplefilter("ignore", RuntimeWarning)
        logging.getLogger("asyncio").disabled = True
        sys.excepthook = hide_own_error
        # A job in a shell's background would ignore it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        faulthandler.dump_traceback_later(30, exit=True)
        for name in self.plan.early:
            atexit.register(self.handler, name)
        self.prepare()
        for name in self.plan.late:
            atexit.register(self.handler, name)
        for name in self.plan.threads:
            threading.Thread(
                target=self.thread, args=(name,), daemon=name != "not a daemon"
            ).start()
        if self.plan.end == "SIGTERM handled":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(self.plan.code))
        try:
            self.run_loop()
        except KeyboardInterrupt:
            sys.exit(self.plan.code)
        except BaseExceptionGroup as group:
            if group.split((SystemExit, KeyboardInterrupt))[0] is not None:
                sys.exit(self.plan.code)
            raise
        if self.plan.end in ("exit after", "SIGTERM in loop"):
            self.note_end()
            sys.exit(self.plan.code)

    def prepare(self) -> None:
        """The first use of the library."""
        from aiostream import Event, Stream, WaitStrategy
        from support import Gate, spin

        self.spin = spin
        self.gate = Gate()
        self.streams = [Stream(wait=wait) for wait in WaitStrategy]
        self.free = Stream()
        self.event = Event()
        for stream in (*self.streams, self.free):
            spin(stream, 0)
            stream.synchronize()
        for stream in self.streams:
            if self.plan.work == "spin":
                spin(stream, 0.1)
            else:
                self.gate.hold(stream)
        self.event.record(self.streams[0])

    def note_end(self) -> None:
        """The end begins now."""
        os.write(1, f"{time.monotonic()}\n".encode())

    # ------------------------------------------------------------------------------------- the loop

    def run_loop(self) -> None:
        from support import run_on

        if self.plan.loop != "left open":
            run_on(self.plan.loop, self.main)
            return
        loop = asyncio.new_event_loop()
        self.kept.append(loop)

        async def begin() -> None:
            self.begin_all(lambda function: self.kept.append(loop.create_task(function())))
            await asyncio.sleep(0)

        loop.run_until_complete(begin())
        loop.run_until_complete(self.end())

    async def main(self) -> None:
        import anyio

        if self.plan.end == "SIGTERM handled":
            # Without a task group: if the handler's SystemExit strikes one of anyio at some places,
            # the group cancels its tasks again and again, and the program does not end.
            self.begin_all(lambda function: self.kept.append(asyncio.ensure_future(function())))
            await self.end()
            return
        async with anyio.create_task_group() as group:
            self.begin_all(group.start_soon)
            await anyio.lowlevel.checkpoint()
            await self.end()
            group.cancel_scope.cancel()

    def begin_all(self, start: Callable[[Any], Any]) -> None:
        for name in self.plan.pending:
            self.begin(name, start)

    def begin(self, name: str, start: Callable[[Any], Any]) -> None:
        for stream in self.streams:
            if name == "waits":
                for _ in range(3):
                    start(stream.synchronize_async)
            elif name == "futures":
                self.kept += [stream.completion_future(), stream.checked_completion_future()]
                self.kept += [
                    stream.enqueue_async(lambda _, kept: kept, bytearray(1000)) for _ in range(3)
                ]
            elif name == "host functions":
                for number in range(5):
                    stream.launch_host_func(self.kept.append, number)
                    stream.add_callback(self.kept.append)
            elif name == "threads":
                start(lambda stream=stream: stream.enqueue_in_thread(self.launch_slowly))
        if name == "events":
            for _ in range(3):
                start(self.event.synchronize_async)
        elif name == "running host function":
            self.free.launch_host_func(time.sleep, 0.03)
        elif name == "graphs":
            self.begin_graph()
        elif name == "pool":
            self.begin_pool(start)

    def launch_slowly(self, stream: Any) -> bytearray:
        time.sleep(0.01)
        self.spin(stream, 0.0001)
        time.sleep(0.01)
        return bytearray(1000)

    def begin_graph(self) -> None:
        """Launches of a graph with a host function, behind what holds the stream."""
        from aiostream import Stream

        captured = Stream()
        with captured.capture_executable() as scope:
            captured.launch_host_func(self.kept.append, 1)
        self.kept.append(scope.executable)
        for _ in range(3):
            self.kept.append(scope.executable.launch_async(self.streams[0]))

    def begin_pool(self, start: Callable[[Any], Any]) -> None:
        from aiostream import StreamClosedError, StreamPool

        pool = StreamPool(1)
        held = pool.acquire_nowait()
        self.kept += [pool, held]
        self.spin(held, 0.05)

        async def acquire() -> None:
            with contextlib.suppress(StreamClosedError):  # the pool was closed meanwhile
                await pool.acquire()

        start(acquire)
        start(pool.aclose)

    async def end(self) -> None:
        """Ends in the loop; or returns, and `run` ends."""
        import anyio

        name, code = self.plan.end, self.plan.code
        await anyio.sleep(self.plan.delay)
        if name.startswith("SIG") or name in ("_exit in thread", "_exit in host function"):
            await self.be_ended()
            return
        if name == "exit after":
            return
        self.note_end()
        if name == "exit in task":
            sys.exit(code)
        if name == "error":
            raise RuntimeError(OWN)
        if name == "_exit":
            os._exit(code)

    async def be_ended(self) -> None:
        """Waits until another thread has ended the process, or has sent the signal that ends it."""
        import anyio

        name, code = self.plan.end, self.plan.code

        def end_here() -> None:
            self.note_end()
            os._exit(code)

        def send() -> None:
            # asyncio's plain loop misses a signal that comes when it is about to sleep in its poll
            time.sleep(0.02)
            self.note_end()
            os.kill(os.getpid(), signal.SIGINT if name == "SIGINT" else signal.SIGTERM)

        if name == "SIGTERM in loop":
            with anyio.open_signal_receiver(signal.SIGTERM) as signals:
                threading.Thread(target=send, daemon=True).start()
                async for _ in signals:
                    return
        if name == "_exit in host function":
            self.free.launch_host_func(end_here)
        else:
            threading.Thread(
                target=end_here if name == "_exit in thread" else send, daemon=True
            ).start()
        await anyio.sleep(60)

    # ------------------------------------------------------------------------- threads and handlers

    def thread(self, name: str) -> None:
        from aiostream import StreamClosedError

        with contextlib.suppress(StreamClosedError):  # a handler has closed it
            self.use_in_thread(name)

    def use_in_thread(self, name: str) -> None:
        stream = self.streams[1]
        if name == "loop":
            asyncio.run(stream.synchronize_async())
        elif name == "trio":
            import trio

            trio.run(stream.synchronize_async)
        elif name == "synchronize":
            stream.synchronize()
        elif name == "not a daemon":
            asyncio.run(self.free.synchronize_async())
        while name in ("queries", "host functions"):
            if name == "queries":
                self.free.query()
                stream.query()
            elif not self.launch_host_function():
                return

    def launch_host_function(self) -> bool:
        """Launches one of Python, which is refused once Python is ending."""
        try:
            self.free.launch_host_func(int)
        except RuntimeError as error:
            if "ending" not in str(error):
                raise
            return False
        return True

    def handler(self, name: str) -> None:
        import aiostream

        with contextlib.suppress(aiostream.StreamClosedError):  # by another handler
            self.handle(name)

    def handle(self, name: str) -> None:
        import aiostream

        if name == "open":
            self.gate.open()
        elif name == "use":
            self.streams[2].query()
            self.launch_host_function()
            aiostream.statistics()
            aiostream.Stream().close()
        elif name == "close":
            for stream in self.streams:
                stream.close()
        elif name == "collect":
            self.kept.clear()
            gc.collect()
        elif name == "await":
            asyncio.run(self.await_new())
        elif name == "await on trio":
            import trio

            trio.run(self.await_new)
        else:
            asyncio.run(aiostream.drain(timeout=0.3))

    async def await_new(self) -> None:
        from aiostream import Stream, WaitStrategy

        for wait in WaitStrategy:
            async with Stream(wait=wait) as stream:
                self.spin(stream, 0.0003)
                await stream.synchronize_async()
                await stream.completion_future()
                assert await stream.enqueue_async(lambda _: 5) == 5


def hide_own_error(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
    """Prints what Python would print, unless it is the error with which the program was to end."""
    if OWN not in "".join(format_exception(error)):
        sys.__excepthook__(kind, error, traceback)


if __name__ == "__main__":
    chosen = program(int(sys.argv[1]))
    if "--show" in sys.argv:
        print(chosen)
    else:
        Running(chosen).run()
