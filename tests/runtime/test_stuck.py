"""The log says which thread of the library does not come back from a call, and where it is."""

from __future__ import annotations

import textwrap
import time

from support import USUAL, succeed

BEGINNING = """
    import asyncio, contextlib, logging, threading, time
    import internals
    from aiostream import Stream
    from support import Gate, held_stream, settle

    internals.say_what_is_stuck_after(0.2)
    records = []

    class Keep(logging.Handler):
        def emit(self, record):
            records.append(record)

    logging.getLogger("aiostream").addHandler(Keep())

    def said(beginning):
        return [each for each in records if each.getMessage().startswith(beginning)]

    going_on = threading.Event()

    def blocks_for_long():
        assert going_on.wait(60)
"""


def run(driver_kind: str, script: str) -> str:
    return succeed(driver_kind, textwrap.dedent(BEGINNING) + textwrap.dedent(script), forked=USUAL)


def test_host_function_is_named_once_for_each_call(driver_kind: str) -> None:
    printed = run(
        driver_kind,
        """
        with contextlib.closing(Stream()) as stream:
            for times in (1, 2):
                stream.launch_host_func(blocks_for_long)
                assert settle(lambda: len(said("a host function has blocked the d")) == times)
                going_on.set()
                stream.synchronize()
                going_on.clear()
        for record in said("a host function"):
            print(record.levelname, "blocks_for_long" in record.getMessage())
        """,
    )
    assert printed == "WARNING True\nWARNING True\n"


def test_janitor_that_a_loop_holds(driver_kind: str) -> None:
    printed = run(
        driver_kind,
        """
        from support import Blind

        class Slow(Blind):
            def call_soon_threadsafe(self, *args, **options):
                if threading.current_thread().name == "aiostream-janitor":
                    blocks_for_long()
                return super().call_soon_threadsafe(*args, **options)

        async def main():
            stream = Stream()
            future = stream.completion_future()
            assert await asyncio.to_thread(settle, lambda: said("a call has blocked the jan"))
            # The releaser asks again before it names the next one.
            stream.launch_host_func(blocks_for_long)
            assert await asyncio.to_thread(settle, lambda: said("a host function"))
            going_on.set()
            await future
            stream.close()

        with asyncio.Runner(loop_factory=Slow) as runner:
            runner.run(main())
        (janitor,) = said("a call has blocked the janitor")
        print(janitor.levelname, "blocks_for_long" in janitor.getMessage())
        """,
    )
    assert printed == "WARNING True\n"


def test_watcher_that_a_call_of_the_driver_holds(driver_kind: str) -> None:
    """It holds up the end of the process too, for about a second."""
    printed = run(
        driver_kind,
        """
        gate = Gate()

        async def main():
            task = asyncio.ensure_future(held_stream(gate, wait="event").synchronize_async())
            await asyncio.sleep(0)
            internals.block_native_call("cuEventQuery")
            assert settle(lambda: said("a call of the CUDA driver has blocked the watcher thread"))
            task.cancel()

        asyncio.run(main())
        print(time.monotonic(), flush=True)
        """,
    )
    assert time.monotonic() - float(printed) < 5


def test_what_only_waits_is_not_named(driver_kind: str) -> None:
    """Neither threads that sleep, nor work that takes long on the GPU."""
    printed = run(
        driver_kind,
        """
        internals.say_what_is_stuck_after(0.7)  # a busy machine may hold up any call for a while
        with Gate() as gate:
            stream = held_stream(gate, wait="event")

            async def main():
                task = asyncio.ensure_future(stream.synchronize_async())
                stream.launch_host_func(going_on.set)
                await asyncio.to_thread(internals.run_in_janitor, lambda: None)
                # By the time that one has been named, the others would have been named too.
                other = Stream()
                other.launch_host_func(named.wait)
                assert await asyncio.to_thread(settle, lambda: records)
                named.set()
                await other.synchronize_async()
                gate.open()
                await task
                other.close()

            named = threading.Event()
            asyncio.run(main())
            stream.close()
        print({each.getMessage().split(" blocked ")[0] for each in records})
        """,
    )
    assert printed == "{'a host function has'}\n"
