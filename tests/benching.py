"""What the tests of the benchmark share: its command line, workers, and an older wheel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiostream
from aiostream import simulator
from benchmarks.child import reason
from benchmarks.runner import Runner
from benchmarks.worker import Worker

__all__ = ["ROOT", "LocalRunner", "command", "pack_wheel", "running"]

ROOT = Path(__file__).parents[1]


def command(
    driver_kind: str, *arguments: str, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs `python -m benchmarks`, with a folder that comes first on the path if one is given."""
    variables = {**os.environ, "AIOSTREAM_SIMULATOR": "1" if driver_kind == "simulator" else ""}
    if path is not None:
        known = (str(path), os.environ.get("PYTHONPATH"))
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, known))
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=variables,
        check=False,
    )


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
            if file.suffix not in (".py", ".so"):
                continue
            name = file.relative_to(package.parent)
            if name == Path("aiostream/stream.py"):
                archive.writestr(str(name), f"{file.read_text()}\n{more_of_stream}\n")
            else:
                archive.write(file, name)
    return path
