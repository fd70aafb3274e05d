"""docs/torch.md: each snippet is Python, and runs on a GPU with the real torch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support import run_script

PAGE = Path(__file__).parents[1] / "docs" / "torch.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
MAIN = re.compile(r"^(?:async )?def (\w+)\(\):", re.MULTILINE)
RUN = """
from aiostream import drain, statistics
import gc, inspect

async def main():
    result = {name}()
    if inspect.iscoroutine(result):
        result = await result
    assert {name} is at_the_start_of_a_server or result.shape == (32, 8), result
    del result
    gc.collect()
    assert await drain(10)

import asyncio
asyncio.run(main())
gc.collect()
counts = statistics()
assert counts.balanced and not counts.points.leaked, counts
print("survived")
"""


def test_snippets_are_python() -> None:
    assert len(SNIPPETS) >= 8
    for snippet in SNIPPETS:
        compile(snippet, str(PAGE), "exec")


@pytest.mark.parametrize("snippet", SNIPPETS[1:], ids=lambda snippet: MAIN.findall(snippet)[-1])
def test_snippet_runs(driver_kind: str, snippet: str) -> None:
    if driver_kind != "gpu":
        pytest.skip("torch needs a GPU")
    pytest.importorskip("torch")
    name = MAIN.findall(snippet)[-1]
    others = "" if name == "at_the_start_of_a_server" else "at_the_start_of_a_server = None\n"
    script = SNIPPETS[0] + snippet + others + RUN.format(name=name)
    done = run_script(driver_kind, script, timeout=90, warnings="ignore")  # torch's own
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "survived"
