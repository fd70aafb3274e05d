"""The simulator's answers to the questions of `answers.py` stay as they are.

`answers.txt` is what is compared with a GPU's answers. If you change the simulator, write it again:
`AIOSTREAM_SIMULATOR=1 python tests/simulator/answers.py > tests/simulator/answers.txt`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_answers_are_those_of_the_table() -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "answers.py"), "--at-once", "2"],
        env={**os.environ, "AIOSTREAM_SIMULATOR": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    known = (HERE / "answers.txt").read_text().splitlines()
    assert len(known) > 400
    assert done.stdout.splitlines() == known
