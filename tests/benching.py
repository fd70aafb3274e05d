"""What the tests of the benchmark share: its command line, workers, and an older wheel."""

from __future__ import annotations

import json
import subprocess
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiostream
from aiostream import simulator
from benchmarks import results as files
from benchmarks.child import reason
from benchmarks.runner import Runner
from benchmarks.worker import Worker
from commands import ROOT, python

RESULTS = "results.json"


def command(
    driver_kind: str, *arguments: str, path: Sequence[Path] = ()
) -> subprocess.CompletedProcess[str]:
    """Runs `python -m benchmarks`, with folders that come first on the path."""
    return python(driver_kind, "-m", "benchmarks", *arguments, folder=ROOT, path=path)


def quick_run(
    driver_kind: str, folder: Path, *arguments: str, path: Sequence[Path] = ()
) -> tuple[str, dict[str, Any]]:
    """What `python -m benchmarks --quick` prints, and its results, which are left in a folder."""
    file = folder / RESULTS
    done = command(driver_kind, "--quick", *arguments, "--json", str(file), path=path)
    assert done.returncode == 0, done.stderr
    return done.stdout, files.read(file)


def new_runner(driver_kind: str, loop: str, names: Sequence[str] = (), **options: Any) -> Runner:
    """A runner of the driver under test that says nothing."""
    simulator = driver_kind == "simulator"
    return Runner([loop], names, simulator=simulator, say=lambda line: None, **options)


def results_of(rows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A file of results that has these rows."""
    keys = ("gpu", "driver", "cuda", "cores", "python")
    known = {"environment": dict.fromkeys(keys), "date": "2026-11-21T00:00:00+00:00"}
    return {**known, "simulator": False, "rows": rows, **more}


class Local:
    """A worker in this process, so that a test can change what it does."""

    ended = False

    def __init__(self) -> None:
        self.worker = Worker(aiostream)

    def answer(self, limit: float) -> Any:
        hello = {"library": aiostream.__version__, "environment": {}}
        return {**hello, "simulator": simulator.installed()}

    def ask(self, request: dict[str, Any], limit: float) -> Any:
        try:
            return json.loads(json.dumps(self.worker.answer(json.loads(json.dumps(request)))))
        except Exception as error:
            raise RuntimeError(reason(error)) from error

    def close(self) -> None:
        self.worker.close()


class LocalRunner(Runner):
    """A runner whose worker is `local`."""

    local: Local

    def new_worker(self) -> Any:
        self.local = Local()
        return self.local


@contextmanager
def running(runner: Runner) -> Iterator[Runner]:
    """Tries the peers out, and ends the workers after the block."""
    try:
        runner.try_out()
        yield runner
    finally:
        runner.close()


def pack_wheel(folder: Path, more_of_stream: str = "") -> Path:
    """Packs this very version as an older one, with more lines at the end of `stream.py`."""
    path = folder / "aiostream_cuda-0.0.1-py3-none-any.whl"
    package = Path(str(aiostream.__file__)).parent
    with zipfile.ZipFile(path, "w") as archive:
        for file in package.rglob("*"):
            if file.suffix not in (".py", ".so", ".txt"):
                continue
            name = file.relative_to(package.parent)
            if name == Path("aiostream/stream.py"):
                archive.writestr(str(name), f"{file.read_text()}\n{more_of_stream}\n")
            else:
                archive.write(file, name)
    return path
