"""`examples/torch_server.py` checks itself, with a stand-in for torch where there is none."""

from __future__ import annotations

import pytest

from commands import ROOT, environment, python, torch_path
from support import succeed

EXAMPLES = ROOT / "examples"


@pytest.mark.slow
def test_torch_server_answers_right_in_every_way(driver_kind: str) -> None:
    options = ("--check", "--seconds", "0.2", "--connections", "8")
    program = str(EXAMPLES / "torch_server.py")
    done = python(driver_kind, program, *options, path=torch_path(driver_kind))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if "the loop was blocked for" not in line]
    assert [line.split()[:2] for line in lines[1:-1]] == [
        [way, kind] for kind in ("closed", "open") for way in ("score", "eager", "to_thread")
    ]
    assert lines[-1] == "all answers right"


def run(driver_kind: str, script: str) -> str:
    pytest.importorskip("fastapi")
    path = environment(driver_kind, *torch_path(driver_kind), EXAMPLES)["PYTHONPATH"]
    return succeed(driver_kind, script, PYTHONPATH=path)


def test_torch_server_serves_without_garbage_collections_of_torch(driver_kind: str) -> None:
    """They stopped its loop for 100 ms each: the server freezes what there is when it starts."""
    printed = run(
        driver_kind,
        """
        import asyncio, gc, torch_server

        async def main():
            async with torch_server.lifespan(torch_server.app):
                print(len(gc.get_objects()) < 0.1 * gc.get_freeze_count())

        asyncio.run(main())
        """,
    )
    assert printed == "True\n"


def test_check_names_the_line_that_blocks_the_loop(driver_kind: str) -> None:
    printed = run(
        driver_kind,
        """
        import asyncio, gc, time, torch_server

        def slow_line():
            began = time.perf_counter()
            while len(blocks._seen) < 3:
                time.sleep(0.01)

        def slow_collection(phase, info):
            if phase == "start":
                time.sleep(0.2)

        async def beats():
            done = asyncio.Event()
            asyncio.get_running_loop().call_later(3 * blocks.EVERY, done.set)
            await done.wait()

        async def main():
            global blocks
            blocks = torch_server.Blocks()
            await beats()
            slow_line()
            await beats()
            print([" looks at " in found and " slow_line < " in found for found in blocks.take()])
            gc.callbacks.append(slow_collection)
            gc.collect()
            gc.callbacks.remove(slow_collection)
            await beats()
            print([" ms: garbage collections: " in found for found in blocks.take()])
            blocks.stop()

        asyncio.run(main())
        """,
    )
    # A busy machine may have blocked it too.
    assert ["True" in line for line in printed.splitlines()] == [True, True], printed
