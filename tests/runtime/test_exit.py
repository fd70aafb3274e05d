"""P9: the interpreter ends at once and cleanly, whatever is pending; a forked child learns that it
cannot.
"""

from __future__ import annotations

import time

import pytest

from support import STRATEGIES, USUAL, run_script, succeed

# 100 completions and 100 Python host functions on four streams, behind `{work}`; `end` is when that
# work would be done.
PENDING = """
    import asyncio, atexit, sys, time, warnings
    import anyio
    from aiostream import Stream
    from support import Gate, spin
    ran = []
    gate = Gate()
    WORK = {work!r}
    # opens after the library's own end: what was registered first runs last
    if WORK == "gate-late":
        atexit.register(gate.open)
    streams = [Stream() for _ in range(4)]
    if WORK == "gate-early":
        atexit.register(gate.open)
    spin(streams[0], 0)
    streams[0].synchronize()

    async def main():
        futures = []
        for stream in streams:
            if WORK == "spin":
                spin(stream, 1)  # not over when the 200 are enqueued, also on a busy machine
            else:
                gate.hold(stream)
        end = time.monotonic() + (1 if WORK == "spin" else 0)
        for number in range(100):
            stream = streams[number % 4]
            ways = (stream.checked_completion_future, stream.completion_future)
            futures.append(ways[number % 2]())
            stream.launch_host_func(ran.append, number)
        print(end, flush=True)
        {leave}
        assert not any(future.done() for future in futures)

    if {backend!r} == "left open":
        warnings.simplefilter("ignore", ResourceWarning)  # asyncio's own, about the loop
        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
    else:
        anyio.run(main, backend={backend!r})
"""


def end_of(driver_kind: str, script: str, code: int = 0) -> str:
    """Runs a script that prints when its work would end, and holds what P9 says of the process's
    own end.
    """
    done = run_script(driver_kind, script, forked=USUAL)
    ended = time.monotonic()
    assert (done.returncode, done.stderr) == (code, ""), (
        f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    )
    first, _, rest = done.stdout.partition("\n")
    print(f"the process ended {(ended - float(first)) * 1000:.0f} ms after its work would have")
    # On an idle machine 0.2 s. The end of a process takes longer where others run, also on the GPU.
    assert ended - float(first) < 5.0
    return rest


@pytest.mark.parametrize(
    ("work", "code", "backend"),
    [
        *(("spin", 0, "asyncio"), ("spin", 5, "trio"), ("spin", 5, "left open")),
        *(("gate-early", 0, "trio"), ("gate-late", 0, "asyncio"), ("gate-late", 0, "left open")),
    ],
)
def test_exit_with_completions_and_host_functions_pending(
    driver_kind: str, work: str, code: int, backend: str
) -> None:
    leave = f"sys.exit({code})" if code else "pass"
    end_of(driver_kind, PENDING.format(work=work, backend=backend, leave=leave), code)


def test_exit_while_a_python_host_function_runs(driver_kind: str) -> None:
    """Those inside are waited for: half a function is worse than a late exit."""
    script = """
        import asyncio, threading, time
        from aiostream import Stream
        running, at_end, refused = threading.Event(), threading.Event(), threading.Event()
        def function():
            running.set()
            refused.wait(20)
            for _ in range(100_000):
                pass
            print("finished", flush=True)
        def see_the_end():  # it has begun once new host functions are refused
            at_end.wait(20)
            try:
                while True:
                    other.launch_host_func(int)
                    time.sleep(0.001)
            except RuntimeError:
                refused.set()
        async def main():
            stream.launch_host_func(function)
            stream.launch_host_func(print, "never")
            for _ in range(10):
                stream.completion_future()
        stream, other = Stream(), Stream()
        asyncio.run(main())
        threading.Thread(target=see_the_end, daemon=True).start()
        assert running.wait(20)
        print(time.monotonic(), flush=True)
        import atexit
        # the last registered runs first: just before the library's own end
        atexit.register(at_end.set)
    """
    assert end_of(driver_kind, script) == "finished\n"


def test_an_interrupt_while_the_end_waits_for_a_host_function(driver_kind: str) -> None:
    script = """
        import _thread, os, threading, time
        from aiostream import Stream
        running, at_end = threading.Event(), threading.Event()
        def function():
            running.set()
            at_end.wait(20)
            _thread.interrupt_main()
            time.sleep(20)  # without Python's lock: it is not there to be had again
        stream = Stream()
        stream.launch_host_func(function)
        assert running.wait(20)
        import atexit
        # the last registered runs first: just before the library's own end
        atexit.register(at_end.set)
        print(time.monotonic(), flush=True)
    """
    done = run_script(driver_kind, script, forked=USUAL)
    ended = time.monotonic()
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "KeyboardInterrupt: ")
    assert ended - float(done.stdout) < 10


def test_exit_while_other_threads_wait(driver_kind: str) -> None:
    """Daemon threads with loops of their own, and one blocked in `synchronize()`, behind a spin."""
    script = """
        import asyncio, threading, time
        from aiostream import Stream, statistics
        from support import spin
        streams = [Stream() for _ in range(3)]
        for stream in streams:
            spin(stream, 0)
            stream.synchronize()
        async def wait(stream):
            await stream.synchronize_async()
        for stream in streams:
            spin(stream, 1)  # not over when all wait, also on a busy machine
        end = time.monotonic() + 1
        blocking = threading.Event()
        def block():
            blocking.set()
            streams[2].synchronize()
        for function in (lambda: asyncio.run(wait(streams[0])),
                lambda: asyncio.run(wait(streams[1])), block):
            threading.Thread(target=function, daemon=True).start()
        blocking.wait(20)
        while statistics().waits.pending < 2:
            time.sleep(0.001)
        print(end, flush=True)
    """
    end_of(driver_kind, script)


def test_what_comes_after_the_end_is_counted(driver_kind: str) -> None:
    """A Python host function that fires after the gate has closed returns at once, and is
    not run.
    """
    script = """
        import atexit, sys, time
        from aiostream import Stream, statistics
        from support import Gate
        ran, gate = [], Gate()
        def after():  # runs after the library's own end
            gate.open()
            deadline = time.monotonic() + 20
            while statistics().late_host_functions < 5 and time.monotonic() < deadline:
                time.sleep(0.001)
            print("late", statistics().late_host_functions, "ran", ran, flush=True)
        atexit.register(after)
        stream = Stream()
        gate.hold(stream)
        for number in range(5):
            stream.launch_host_func(ran.append, number)
        print(time.monotonic(), flush=True)
    """
    assert end_of(driver_kind, script) == "late 5 ran []\n"


def test_objects_that_die_after_the_modules_end_quietly(driver_kind: str) -> None:
    """The interpreter empties the modules before it drops what a host function of a graph refers
    to.
    """
    script = """
        import asyncio, warnings
        from aiostream import Event, Stream, StreamPool
        warnings.simplefilter("ignore", ResourceWarning)  # asyncio's own, about the loop

        def loop():
            loop = asyncio.new_event_loop()
            async def begin():
                return Stream().completion_future()
            return loop, loop.run_until_complete(begin())

        def make():
            kept, stream = [], Stream()
            with stream.capture() as made:
                stream.launch_host_func(kept.append, 1)
            kept += [Stream(), Event(), StreamPool(1), loop()]
            kept += [made.graph, made.graph.instantiate()]  # which keeps the function

        make()
    """
    assert succeed(driver_kind, script, forked=USUAL) == ""


LATE = """
    import atexit
    # before the library: so it runs after the library's own end
    atexit.register(lambda: run_on({kind!r}, late))
    import aiostream
    from aiostream import Event, Stream, StreamPool, statistics
    from support import Gate, run_on, spin

    async def begin():
        global future, pool, unfinished
        unfinished = Stream()
        gate.hold(unfinished)
        future = unfinished.completion_future()  # of a loop that ends before
        pool = StreamPool(2)
        async with pool.stream() as stream:
            spin(stream, 0.001)

    async def all_waits():
        for wait in aiostream.WaitStrategy:
            stream = Stream(wait=wait)
            for _ in range(20):
                spin(stream, 0.002)
                await stream.synchronize_async()
            spin(stream, 0.002)
            assert await stream.enqueue_async(lambda _: 3) == 3
            await stream.aclose()
            print(wait, flush=True)
        stream, event = Stream(), Event()
        for make in (stream.completion_future, stream.checked_completion_future,
                lambda: event.record(stream) and None):
            spin(stream, 0.002)
            waited = make()
            await (event.synchronize_async() if waited is None else waited)
            print("ok", flush=True)

    async def drained():
        gate.open()
        assert await aiostream.drain(20)
        await pool.aclose()
        assert statistics().balanced
        print("drained", flush=True)

    async def late():
        await all_waits()
        await drained()

    gate = Gate()
    run_on({kind!r} if {used_before} else "asyncio", begin)
"""


@pytest.mark.parametrize(
    ("kind", "used_before"), [("asyncio", True), ("trio", True), ("blind", True), ("blind", False)]
)
def test_a_handler_that_was_registered_first_may_await(
    driver_kind: str, kind: str, used_before: bool
) -> None:
    """An application registers its clean-up when it is imported, and Python calls that last. The
    loop may be the first one of its kind.
    """
    printed = succeed(driver_kind, LATE.format(kind=kind, used_before=used_before))
    assert printed.splitlines() == [*STRATEGIES, "ok", "ok", "ok", "drained"]


@pytest.mark.parametrize("used_before", [True, False])
def test_a_late_run_of_trio_that_leaves_a_generator(driver_kind: str, used_before: bool) -> None:
    """Its finalizer awaits when trio has cancelled what serves the run, and Python may refuse to
    start another thread by then.
    """
    script = f"""
        import atexit
        atexit.register(lambda: trio.run(main))
        import trio
        from aiostream import Stream
        from support import spin

        async def generate():
            try:
                yield
            finally:
                stream = Stream(wait="event")
                spin(stream, 0.002)
                with trio.CancelScope(shield=True):
                    await stream.synchronize_async()
                print("generator", flush=True)

        async def main():
            global kept
            kept = generate()
            await kept.__anext__()

        Stream().close()
        if {used_before}:
            trio.run(main)
    """
    assert succeed(driver_kind, script, forked=USUAL) == "generator\n" * (1 + used_before)


def test_a_late_host_function_is_refused(driver_kind: str) -> None:
    """The driver's threads may not enter Python any more, and a function that is never called must
    not look as if it were.
    """
    script = """
        import atexit
        def late():
            stream = Stream()
            for enqueue in (stream.launch_host_func, stream.add_callback):
                try:
                    enqueue(print, "never")
                except RuntimeError as error:
                    print("Python is ending" in str(error))
            stream.synchronize()
            stream.close()
            print(statistics().late_host_functions, statistics().points.pending)
        atexit.register(late)
        from aiostream import Stream, statistics
        stream = Stream()
        stream.launch_host_func(print, "in time")
        stream.synchronize()
    """
    assert succeed(driver_kind, script, forked=USUAL) == "in time\nTrue\nTrue\n0 0\n"


FORK = """
    import asyncio, gc, os, sys, threading, warnings
    warnings.simplefilter("ignore", ResourceWarning)  # the child's copy of the loop
    import aiostream
    from aiostream import Context, Device, Event, Stream, statistics
    from support import Gate, spin
    from waiters import Waiter

    loop = asyncio.new_event_loop()
    gate = Gate()
    waiters = [Waiter("spinning"), Waiter("watched"), Waiter("by timer")]
    stream, doomed, timed = Stream(), Stream(), Event(timing=True)
    legacy, device, context = Stream.legacy(), Device(0), Stream().context
    handle, event_handle = stream.handle, timed.handle
    timed.record(stream)
    stream.synchronize()
    gate.hold(stream)

    async def begin():
        for waiter in waiters:
            await waiter.hold(gate)
        before = statistics().waits.polls
        coroutines.extend(waiter.wait() for waiter in waiters)
        begun = [stream.completion_future(), *map(asyncio.ensure_future, coroutines)]
        while statistics().waits.pending < 3 or statistics().waits.polls < before + 20:
            await asyncio.sleep(0)
        return begun

    coroutines = []
    pending = loop.run_until_complete(begin())

    def raises(name, call):
        try:
            call()
        except RuntimeError as error:
            assert "fork" in str(error) and "spawn" in str(error), (name, error)
        else:
            raise AssertionError(name + " did not raise")

    def awaits(make):
        async def main():
            await make()
        return lambda: asyncio.run(main())

    def child():
        global doomed
        calls = dict(
            stream=Stream, stream_on=lambda: Stream(device=0), borrow=lambda: Stream.borrow(handle),
            event=Event, from_raw=lambda: Stream.from_raw(handle), legacy=Stream.legacy,
            per_thread=Stream.per_thread, query=stream.query, synchronize=stream.synchronize,
            shutdown=stream.shutdown, flags=lambda: stream.flags, close=stream.close,
            into_raw=stream.into_raw, wait_event=lambda: stream.wait_event(timed),
            wait_handle=lambda: stream.wait_event(event_handle),
            host=lambda: stream.launch_host_func(print),
            callback=lambda: stream.add_callback(print), record=lambda: timed.record(stream),
            event_query=timed.query, event_synchronize=timed.synchronize,
            elapsed=lambda: timed.elapsed_time(timed), event_close=timed.close,
            count=Device.count, device=lambda: Device(0), name=lambda: device.name,
            primary=lambda: device.primary_context,
            priorities=lambda: device.stream_priority_range, current=Context.get_current,
            health=context.health, legacy_query=legacy.query,
            completion=awaits(stream.completion_future),
            checked=awaits(stream.checked_completion_future),
            waits=awaits(stream.synchronize_async),
            enqueue=awaits(lambda: stream.enqueue_async(print)), aclose=awaits(stream.aclose),
            event_waits=awaits(timed.synchronize_async),
            completion_on=awaits(lambda: timed.completion_future_on(stream)),
            drain=awaits(aiostream.drain),
        )
        for name, call in calls.items():
            raises(name, call)
        before = statistics().handles
        # finalizers do nothing, and above all do not wait for threads that are not there
        for coroutine in coroutines:
            coroutine.close()
        for task in pending[1:]:
            task._log_destroy_pending = False
        doomed = None
        gc.collect()
        assert statistics().handles == before
        repr(stream), stream == stream, hash(stream), statistics()
        print("child", len(calls), flush=True)

    pid = os.fork()
    if pid == 0:
        child()
        {end}
    _, status = os.waitpid(pid, 0)
    print("parent", os.waitstatus_to_exitcode(status), flush=True)

    async def go_on():
        assert not any(future.done() for future in pending)
        gate.open()
        await asyncio.gather(*pending)
        await stream.synchronize_async()
        assert await stream.enqueue_async(lambda _: 3) == 3
        other = Stream()
        spin(other, 0)
        await other.aclose()

    loop.run_until_complete(go_on())
    loop.close()
    for each in (doomed, *waiters):
        each.close()
    assert statistics().balanced and statistics().futures.dropped == 0
    print("parent done")
"""


@pytest.mark.parametrize("end", ["sys.exit(0)", "os._exit(0)"], ids=["exit", "_exit"])
def test_a_forked_child_is_refused_and_its_parent_goes_on(driver_kind: str, end: str) -> None:
    printed = succeed(driver_kind, FORK.format(end=end), forked=USUAL)
    assert printed == "child 38\nparent 0\nparent done\n"


CHILD_ON_THE_LOOP = """
    import asyncio, os
    from aiostream import Stream
    from support import Gate

    async def main():
        loop, stream, gate = asyncio.get_running_loop(), Stream(), Gate()
        gate.hold(stream)
        future = stream.completion_future()
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            # The child has the parent's loop, epoll and eventfd: it sees the wake-up that is the
            # parent's, and leaves it. A callback ends it, because from Python 3.14 on asyncio
            # resumes no task of a loop in a forked child, and says so to the handler.
            os.write(writing, b"x")
            loop.set_exception_handler(lambda *_: None)
            loop.call_later(0.2, lambda: os._exit(9 if future.done() else 0))
            await loop.create_future()
        os.read(reading, 1)  # the child is on its way round the loop
        gate.open()
        stream.synchronize()
        # it has had its chance to take the wake-up
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        await asyncio.wait_for(future, 20)
        print("parent", code)
        stream.close()

    asyncio.run(main())
"""


def test_a_forked_child_that_goes_on_with_the_loop_takes_nothing_from_its_parent(
    driver_kind: str,
) -> None:
    assert succeed(driver_kind, CHILD_ON_THE_LOOP, forked=USUAL) == "parent 0\n"


# ----------------------------------------------------------------------------- waits in every stage


WAITING = """
    import asyncio, atexit, os, sys, time
    import anyio
    from aiostream import statistics
    from support import Gate
    from waiters import CASES, Waiter

    gate = Gate()
    waiters = [Waiter(*case) for case in CASES]

    async def prepare():
        for waiter in waiters:
            waiter.work(0)
            await waiter.wait()
            await waiter.prepare()
        for waiter in waiters:
            gate.hold(waiter.stream)
            waiter.event.record(waiter.stream)

    async def until_all_are_pending():
        polls = statistics().waits.polls
        with_event = sum(stage != "host function" for stage, _ in CASES)
        while statistics().waits.pending < with_event or statistics().waits.polls < polls + 40:
            await anyio.lowlevel.checkpoint()

    # runs before the library's exit handler, whose threads then meet the completions
    atexit.register(gate.open)
"""
CANCELLED = (
    WAITING
    + """
    async def main():
        await prepare()
        async with anyio.create_task_group() as tasks:
            for waiter in waiters:
                tasks.start_soon(waiter.wait)
            await until_all_are_pending()
            tasks.cancel_scope.cancel()

    anyio.run(main, backend={backend!r})
    sys.exit(5)
"""
)
NEVER_CLOSED = (
    WAITING
    + """
    loop = asyncio.new_event_loop()
    loop.run_until_complete(prepare())
    tasks = [loop.create_task(waiter.wait()) for waiter in waiters]
    for task in tasks:
        task._log_destroy_pending = False
    loop.run_until_complete(until_all_are_pending())
    import warnings
    warnings.simplefilter("ignore", ResourceWarning)  # asyncio's own, about the loop
    sys.exit(5)
"""
)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(CANCELLED.format(backend="asyncio"), id="asyncio"),
        pytest.param(CANCELLED.format(backend="trio"), id="trio"),
        pytest.param(NEVER_CLOSED, id="never closed"),
    ],
)
def test_interpreter_exits_with_waits_in_every_stage(driver_kind: str, script: str) -> None:
    began = time.monotonic()
    done = run_script(driver_kind, script, forked=USUAL)
    assert (done.returncode, done.stderr) == (5, ""), done.stderr
    assert time.monotonic() - began < 20
