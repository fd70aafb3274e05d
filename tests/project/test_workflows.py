"""The workflows for GitHub: what they run is pinned, and no job escapes the check for a merge."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

GITHUB = Path(__file__).parents[2] / ".github"


@pytest.fixture(scope="module", autouse=True)
def _only_beside_the_workflows() -> None:
    if not GITHUB.is_dir():
        pytest.skip("the workflows are not beside the tests")


def test_actions_are_pinned_by_hash() -> None:
    """A tag can be moved to other code, a hash cannot."""
    pins: dict[str, set[str]] = {}
    for path in [*GITHUB.glob("workflows/*.yml"), *GITHUB.glob("actions/*/action.yml")]:
        for used in re.findall(r"\buses: *(.*)", path.read_text()):
            if used.startswith("./"):
                assert (GITHUB.parent / used).exists(), used
                continue
            pinned = re.fullmatch(r"([\w./-]+)@([0-9a-f]{40} # v\d+\.\d+\.\d+)", used)
            assert pinned, f"{path.name}: {used}"
            pins.setdefault(pinned[1], set()).add(pinned[2])
    assert "actions/checkout" in pins
    assert not {name: found for name, found in pins.items() if len(found) > 1}


def test_the_check_for_a_merge_needs_all_jobs() -> None:
    jobs = (GITHUB / "workflows" / "ci.yml").read_text().partition("\njobs:\n")[2]
    names = re.findall(r"^  ([\w-]+):$", jobs, re.MULTILINE)
    needed = re.findall(r"^      - ([\w-]+)$", jobs, re.MULTILINE)
    assert names == [*needed, "passed"]
