"""What the tests of the benchmark share: its command line, and wheels of this very version as an older one."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import aiostream

__all__ = ["OLDER", "command", "pack_wheel"]

OLDER = {"older auto", "older event"}


def command(
    driver_kind: str, *arguments: str, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs `python -m aiostream bench`, with a folder that comes first among those of modules if one is given."""
    variables = {**os.environ, "AIOSTREAM_SIMULATOR": "1" if driver_kind == "simulator" else ""}
    if path is not None:
        variables["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(path), os.environ.get("PYTHONPATH")))
        )
    return subprocess.run(
        [sys.executable, "-m", "aiostream", "bench", *arguments],
        capture_output=True,
        text=True,
        env=variables,
        check=False,
    )


def pack_wheel(folder: Path, more_of_stream: str = "") -> Path:
    """Packs this very version as an older one, with some more lines at the end of `aiostream/stream.py`."""
    path = folder / "aiostream_cuda-0.0.1-py3-none-any.whl"
    package = Path(str(aiostream.__file__)).parent
    with zipfile.ZipFile(path, "w") as archive:
        for file in package.rglob("*"):
            if file.suffix not in (".py", ".so") or "bench" in file.parts:
                continue
            name = file.relative_to(package.parent)
            if name == Path("aiostream/stream.py"):
                archive.writestr(str(name), f"{file.read_text()}\n{more_of_stream}\n")
            else:
                archive.write(file, name)
    return path
