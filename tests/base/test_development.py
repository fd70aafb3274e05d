"""Python's development mode and asyncio's debug mode: what blocks a loop is said, and where."""

from __future__ import annotations

import pytest

from support import run_script

SCRIPT = """
import asyncio, anyio.to_thread, trio, warnings
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
        await anyio.to_thread.run_sync(use, stream, event)
        await stream.synchronize_async()

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    asyncio.run(main())
    trio.run(main)
for each in caught:
    print(each.category.__name__, each.filename, each.lineno, each.message)
"""


@pytest.mark.parametrize(
    ("variable", "loops"), [("PYTHONDEVMODE", 2), ("PYTHONASYNCIODEBUG", 1), ("PYTHONDEVMODE", 0)]
)
def test_a_call_that_blocks_a_loop_is_said_with_its_place(
    driver_kind: str, variable: str, loops: int
) -> None:
    """Only in these modes, and trio has no debug mode of its own."""
    done = run_script(driver_kind, SCRIPT, **{variable: "1" if loops else ""})  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr  # asyncio may say there that a step took long
    said = "blocks the event loop until the GPU is done: await synchronize_async()"
    assert done.stdout.splitlines() == loops * [
        f"RuntimeWarning <string> 6 Stream.synchronize {said}",
        f"RuntimeWarning <string> 7 Event.synchronize {said}",
        f"RuntimeWarning <string> 8 Stream.synchronize {said}",
        f"RuntimeWarning <string> 10 Stream.synchronize {said}",
    ]
