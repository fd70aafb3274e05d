"""Python's development mode and asyncio's debug mode: what blocks a loop is said, and where."""

from __future__ import annotations

import pytest

from support import run_script

SCRIPT = """
import asyncio, trio, warnings
import aiostream

def use(stream, event):
    stream.synchronize()  # line 6
    event.synchronize()
    with stream.sync_scope():
        pass
    aiostream.Stream().shutdown()

async def main():
    async with aiostream.Stream() as stream, aiostream.Event() as event:
        use(stream, event)
        await TO_THREAD(use, stream, event)
        await stream.synchronize_async()

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    RUN(main)
for each in caught:
    print(each.category.__name__, each.filename, each.lineno, each.message)
"""
ASYNCIO = {"TO_THREAD": "asyncio.to_thread", "RUN(main)": "asyncio.run(main())"}
TRIO = {"TO_THREAD": "trio.to_thread.run_sync", "RUN(main)": "trio.run(main)"}


def said_by(driver_kind: str, loop: dict[str, str], variable: str, value: str) -> list[str]:
    script = SCRIPT
    for name, call in loop.items():
        script = script.replace(name, call)
    done = run_script(driver_kind, script, **{variable: value})  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr  # asyncio may say there that a step took long
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("loop", "variable"),
    [(ASYNCIO, "PYTHONDEVMODE"), (ASYNCIO, "PYTHONASYNCIODEBUG"), (TRIO, "PYTHONDEVMODE")],
)
def test_a_call_that_blocks_a_loop_is_said_with_its_place(
    driver_kind: str, loop: dict[str, str], variable: str
) -> None:
    said = "blocks the event loop until the GPU is done: await synchronize_async()"
    assert said_by(driver_kind, loop, variable, "1") == [
        f"RuntimeWarning <string> 6 Stream.synchronize {said}",
        f"RuntimeWarning <string> 7 Event.synchronize {said}",
        f"RuntimeWarning <string> 8 Stream.synchronize {said}",
        f"RuntimeWarning <string> 10 Stream.synchronize {said}",
    ]


def test_nothing_is_said_otherwise(driver_kind: str) -> None:
    assert said_by(driver_kind, ASYNCIO, "PYTHONDEVMODE", "") == []
