"""Changes one place of the source at a time, and asks whether a test notices: `nox -s mutants`.

A *mutant* is a copy of the source with one small change, such as `<` in place of `<=`. One that no
test finds shows a promise without a test, or a line that could go. The mutants of C come from
universalmutator, and those of Python from cosmic-ray. A seed draws the same ones each time.

Each mutant meets up to three rounds of tests: those of its part, the whole suite, and their large
forms. It is found as soon as one fails. What came out stands in a file, a line for each mutant, so
a run that was stopped continues where it was.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.mutating import mutate_code
from universalmutator import mutator

NATIVE, PACKAGE = Path("src/aiostream/native"), Path("src/aiostream")
# The parts, their tests, and their files.
PARTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "policy": (("tests/runtime/test_native.py", "tests/waits"), ("native/engine/policy.c",)),
    "points": (
        ("tests/runtime", "tests/waits"),
        ("native/engine/points.c", "native/engine/queues.c"),
    ),
    "completion": (
        ("tests/waits", "tests/runtime", "tests/objects", "tests/handles/test_releases.py"),
        (
            *("native/python/completions.c", "native/python/enqueue.c", "native/python/drain.c"),
            *("futures.py", "_runtime/completion.py"),
        ),
    ),
    "waits": (
        ("tests/waits", "tests/runtime"),
        (*("native/engine/*wait*.c", "native/python/waits.c", "_waits/*.py"),),
    ),
    "pool": (
        ("tests/servers", "tests/waits", "tests/runtime/test_fair_turns.py"),
        ("_pools/*.py", "pool.py", "serving/*.py"),
    ),
}
LARGE = {"AIOSTREAM_TEST_FULL": "1", "AIOSTREAM_INTERRUPTS": "all", "AIOSTREAM_TEST_SECONDS": "20"}


def mutants_of(path: Path) -> list[tuple[int, Callable[[], str]]]:
    """Returns the line number of each mutant of a file, and what makes its text."""
    text = path.read_text()
    if path.suffix == ".py":
        nodes = list(ast_nodes(get_ast_from_path(path)))
        found: list[tuple[int, Callable[[], str]]] = []
        for name in cosmic_ray.plugins.operator_names():
            kind = cosmic_ray.plugins.get_operator(name)
            if not kind.arguments():
                places = [place for node in nodes for place in kind().mutation_positions(node)]
                for number, ((line, _), _) in enumerate(places):
                    found.append((line, partial(mutate_code, text, kind(), number)))
        return found
    lines = text.splitlines(keepends=True)
    with redirect_stdout(io.StringIO()):
        rules = ["universal.rules", "c_like.rules", "c.rules"]
        made = mutator.mutants_regexp(lines, rules, ignorePatterns=[])
    return [
        (number, partial("".join, [*lines[: number - 1], line, *lines[number:]]))
        for number, line, *_ in made
        if not lines[number - 1].lstrip().startswith(("/*", "*", "#", "//"))
    ]


def is_other_python(before: str, after: str) -> bool:
    """Whether the mutant is Python, and more than an annotation or a text has changed."""

    def bare(text: str) -> str:
        tree = ast.parse(text)
        for node in ast.walk(tree):
            for name in ("annotation", "returns"):
                if hasattr(node, name):
                    setattr(node, name, None)
        return ast.dump(tree)

    try:
        compile(after, "mutant", "exec")
    except SyntaxError:
        return False
    return bare(before) != bare(after)


def draw(
    count: int, seed: int, is_other: Callable[[Path, str], bool]
) -> Iterator[tuple[str, Path, int, str]]:
    """Draws as many of each part, half of them of C if it has both, from those that differ."""
    for part, (_, patterns) in PARTS.items():
        # A seed of its own, so that a change of one file draws new ones of its part alone.
        rng = random.Random(f"{seed} {part}")
        files = sorted(file for pattern in patterns for file in PACKAGE.glob(pattern))
        kinds = [[file for file in files if file.suffix == kind] for kind in (".c", ".py")]
        kinds = [kind for kind in kinds if kind]
        for kind in kinds:
            every = [(file, *mutant) for file in kind for mutant in mutants_of(file)]
            rng.shuffle(every)
            others = (
                (part, file, line, text)
                for file, line, made in every
                if is_other(file, text := made())
            )
            yield from islice(others, count // len(PARTS) // len(kinds))


def build(copy: Path, changed: Path | None) -> bytes | None:
    """Builds the native part in a copy of the source. `None` if it does not compile."""
    objects = copy / "objects"
    objects.mkdir(exist_ok=True)
    flags = ("-std=c11", "-O1", "-g0", "-fPIC", "-pthread", "-DPy_LIMITED_API=0x030b0000")
    include = sysconfig.get_paths()["include"]
    sources = [copy / changed] if changed else sorted((copy / NATIVE).glob("*/*.c"))
    for source in sources:
        target = objects / f"{source.parent.name}_{source.stem}.o"
        command = ("cc", *flags, f"-I{include}", "-c", source, "-o", target)
        if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode:
            return None
    library = copy / PACKAGE / "_native.abi3.so"
    linked = map(str, sorted(objects.glob("*.o")))
    subprocess.run(("cc", "-shared", "-pthread", "-Wl,-s", "-o", library, *linked), check=True)
    return library.read_bytes()


COUNTS, OF_CALLS = "tests/waits/test_counts.py", "test_an_operation_takes_no_more_than_in_the_table"


def is_found(
    copy: Path, seconds: float, arguments: Sequence[str], variables: dict[str, str]
) -> bool:
    """Runs tests on a copy. Whether one fails, crashes or hangs."""
    path = {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = (sys.executable, "-m", "pytest", "-q", "-x", "-n", "2", "-p", "no:cacheprovider")
    with subprocess.Popen(
        # The counts of calls would find mutants that break no promise.
        [*command, "--deselect", f"{COUNTS}::{OF_CALLS}", *arguments],
        cwd=copy,
        env={**os.environ, **path, **variables},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            return process.wait(seconds) != 0
        except subprocess.TimeoutExpired:
            return True
        finally:
            subprocess.run(["pkill", "-KILL", "-s", str(process.pid)], check=False)


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3, choices=(1, 2, 3))
    parser.add_argument("--results", type=Path, default=Path("mutants.jsonl"))
    options = parser.parse_args()
    lines = options.results.read_text().splitlines() if options.results.exists() else []
    known = {(one["file"], one["change"]): one for one in map(json.loads, lines)}
    with tempfile.TemporaryDirectory(prefix="aiostream-mutants-") as folder:
        copy = Path(folder)
        subprocess.run(f"git ls-files -z | xargs -0 cp --parents -t {copy}", shell=True, check=True)
        for library in PACKAGE.rglob("*.so"):
            (copy / library).write_bytes(library.read_bytes())
        plain = build(copy, None)

        def is_other(file: Path, text: str) -> bool:
            if file.suffix == ".py":
                return is_other_python(file.read_text(), text)
            (copy / file).write_text(text)
            built = build(copy, file)
            (copy / file).write_bytes(file.read_bytes())
            build(copy, file)
            return built not in (None, plain)

        for part, file, line, text in draw(options.count, options.seed, is_other):
            before = file.read_text()
            pairs = zip_longest(before.splitlines(), text.splitlines(), fillvalue="")
            change = next(f"{old.strip()} -> {new.strip()}" for old, new in pairs if old != new)
            fresh = {"part": part, "file": str(file), "line": line, "change": change, "rounds": 0}
            one: dict[str, Any] = known.get((str(file), change), fresh)
            tests = PARTS[part][0]
            rounds: list[tuple[float, Sequence[str], dict[str, str]]] = [
                (240, tests, {}),
                (600, ("tests", "--ignore=tests/project"), {}),
                (3600, ("--run-slow", *tests), LARGE),
            ]
            is_known = one.get("found") or one["rounds"] >= options.rounds
            if not is_known:
                (copy / file).write_text(text)
                if file.suffix == ".c":
                    build(copy, file)
                while not one.get("found") and one["rounds"] < options.rounds:
                    seconds, arguments, variables = rounds[one["rounds"]]
                    one["rounds"] += 1
                    if is_found(copy, seconds, arguments, variables):
                        one["found"] = f"in round {one['rounds']}"
                (copy / file).write_text(before)
                if file.suffix == ".c":
                    build(copy, file)
                with options.results.open("a") as results:
                    print(json.dumps(one), file=results)
            print(f"{one.get('found', 'LIVES'):12}{file}:{line}: {change}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
