"""docs/torch.md: each snippet runs on a GPU with the real torch, and on the simulator.

On the simulator `stand_ins/torch.py` takes torch's place, whose models compute nothing.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from commands import FIRST_IMPORTS, ROOT, STAND_INS
from support import run_script

PAGE = ROOT / "docs" / "torch.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
MAIN = re.compile(r"^(?:async )?def (\w+)\(\):", re.MULTILINE)
RUN = """
import torch
from aiostream import drain, statistics
import gc

async def main():
    result = await {name}()
    # The layers of the stand-in keep their input's size.
    shapes = ((32, 8), (32, 512) if hasattr(torch, "Memory") else None)
    assert result.shape in shapes, result
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


def test_the_page_has_snippets() -> None:
    assert len(SNIPPETS) >= 6


@pytest.mark.parametrize("snippet", SNIPPETS[1:], ids=lambda snippet: MAIN.findall(snippet)[-1])
def test_snippet_runs(driver_kind: str, snippet: str) -> None:
    options: dict[str, Any]
    if driver_kind == "gpu":
        pytest.importorskip("torch")
        before, options = "", {"warnings": "ignore"}  # torch's own
    else:
        options = {"forked": FIRST_IMPORTS}
        before = f"import sys; sys.path[:0] = {[str(STAND_INS), str(ROOT)]}\n"
    name = MAIN.findall(snippet)[-1]
    script = before + SNIPPETS[0] + snippet + RUN.format(name=name)
    done = run_script(driver_kind, script, timeout=90, **options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "survived"
