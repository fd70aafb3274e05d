"""`examples/torch_server.py` checks itself, with a stand-in for torch where there is none."""

from __future__ import annotations

import pytest

from commands import ROOT, environment, python, torch_path
from support import succeed

EXAMPLES = ROOT / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("way", ["graphs", "eager"])
def test_torch_server_answers_right_under_load(driver_kind: str, way: str) -> None:
    options = ["--check", "--seconds", "0.3", "--connections", "8"]
    options += ["--eager"] if way == "eager" else []
    program = str(EXAMPLES / "torch_server.py")
    done = python(driver_kind, program, *options, path=torch_path(driver_kind))
    assert done.returncode == 0, done.stdout + done.stderr
    count, _, rest = done.stdout.partition(" ")
    assert rest == "answers, all right\n"
    assert int(count) > 8


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
            app = torch_server.application()
            async with app.router.lifespan_context(app):
                print(len(gc.get_objects()) < 0.1 * gc.get_freeze_count())

        asyncio.run(main())
        """,
    )
    assert printed == "True\n"
