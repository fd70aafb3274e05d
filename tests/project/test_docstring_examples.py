"""The examples in the docstrings of public names print what they show, and leave nothing open."""

from __future__ import annotations

import re

import pytest

from docstrings import examples_of, public_docstrings, run_docstring
from support import USUAL, succeed

DOCSTRINGS = public_docstrings()
WITH_EXAMPLES = [name for name, text in DOCSTRINGS.items() if examples_of(text)]
# A method that several classes inherit runs once.
TO_RUN = list({DOCSTRINGS[name]: name for name in reversed(WITH_EXAMPLES)}.values())[::-1]

# What a first program uses.
NEEDED = {
    "Stream",
    "Stream.synchronize_async",
    "Stream.enqueue_async",
    "Stream.completion_future",
    "Stream.capture",
    "Event",
    "StreamPool",
    "ExecutableGraph",
    "drain",
    "wait",
    "on_context_failed",
    "simulator.install",
}


# Examples that use these run in a process of their own.
CHANGES_THE_PROCESS = ("break_context", "exit_on_", "set_default_", "simulator.install")


@pytest.mark.parametrize("name", TO_RUN)
def test_the_examples_of_a_docstring_do_what_they_show(name: str, driver_kind: str) -> None:
    text = DOCSTRINGS[name]
    code = "".join(example.source for example in examples_of(text))
    if re.search(r"simulator|nogpu|Faults\(", code) and driver_kind == "gpu":
        pytest.skip("the example uses the simulator")
    if any(name in code for name in CHANGES_THE_PROCESS):
        script = f"import docstrings; docstrings.run_in_this_process({name!r})"
        succeed(driver_kind, script, forked=USUAL)
    else:
        run_docstring(name, text)


def test_what_a_first_program_uses_has_an_example() -> None:
    assert set(DOCSTRINGS) >= NEEDED, "a name has moved"
    assert set(WITH_EXAMPLES) >= NEEDED


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (">>> 1 + 1\n3\n", "Expected:\n    3\nGot:\n    2"),
        (">>> 1 + 1\n", "Expected nothing"),
        (">>> 1 / 0\n", "failed"),
        (">>> await asyncio.sleep(0, 1)\n2\n", "Expected:\n    2"),
        (">>> 1\nTraceback (most recent call last):\nValueError: no\n", "did not raise"),
        (">>> {}['a']\nTraceback (most recent call last):\nKeyError: 'b'\n", "KeyError: 'a'"),
        (">>> task = asyncio.ensure_future(asyncio.sleep(9))\n", "leaves tasks running"),
    ],
)
def test_a_wrong_example_fails(wrong: str, complaint: str) -> None:
    with pytest.raises(AssertionError) as caught:
        run_docstring("wrong", wrong)
    assert complaint in str(caught.value)
