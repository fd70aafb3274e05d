"""The workflows for GitHub: what they run is pinned, and no job escapes the check for a merge."""

from __future__ import annotations

import re

from installed import beside


def test_actions_are_pinned_by_hash() -> None:
    """A tag can be moved to other code, a hash cannot."""
    github = beside(".github")
    pins: dict[str, set[str]] = {}
    for path in [*github.glob("workflows/*.yml"), *github.glob("actions/*/action.yml")]:
        for used in re.findall(r"\buses: *(.*)", path.read_text()):
            if used.startswith("./"):
                assert (github.parent / used).exists(), used
                continue
            pinned = re.fullmatch(r"([\w./-]+)@([0-9a-f]{40} # v\d+\.\d+\.\d+)", used)
            assert pinned, f"{path.name}: {used}"
            pins.setdefault(pinned[1], set()).add(pinned[2])
    assert "actions/checkout" in pins
    assert not {name: found for name, found in pins.items() if len(found) > 1}


def test_the_check_for_a_merge_needs_all_jobs() -> None:
    jobs = beside(".github/workflows/ci.yml").read_text().partition("\njobs:\n")[2]
    names = re.findall(r"^  ([\w-]+):$", jobs, re.MULTILINE)
    needed = re.findall(r"^      - ([\w-]+)$", jobs, re.MULTILINE)
    assert names == [*needed, "passed"]
