"""The forwarding library: a `libcuda.so.1` before the real one, which sees the calls that block.

It has to be the first `libcuda.so.1` of the process, because a process keeps the first one that it
loads. Without `aiostream.blocking` nothing is loaded, except that the simulator always lies behind
it. This module loads it and knows its functions (`src/aiostream/forward/`).
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import os
import subprocess
import sys
from pathlib import Path

from aiostream import _native

_library: ctypes.CDLL | None = None  # written once; any thread may load it, and finds the same one

KINDS = ("waits", "copies", "stages", "allocates", "loads", "enqueues", "begins")
"""What the calls do, by the numbers of `enum kind` in forward/notes.c."""

NO_STREAM = 2**64 - 1
WAITING = 2
"""The kinds with lower numbers wait by their nature, and the others may."""

_TOO_LATE = (
    "{path} is loaded already, so its calls cannot be watched any more. Start the program with "
    "`python -m aiostream blocking -- PROGRAM`, or set the environment variable "
    "AIOSTREAM_BLOCKING=warn and import aiostream before any library that uses CUDA, or call "
    "`aiostream.blocking.install()` before. For tests use `pytest --aiostream=gpu`"
)
_NOT_FOUND = (
    "No CUDA driver was found ({reason}), so there are no calls to watch. Without a GPU, set the "
    "environment variable AIOSTREAM_SIMULATOR=1"
)
# This asks a process of its own, because to load it in this one would make it the first one for
# good.
_PROBE = "import ctypes; ctypes.CDLL('libcuda.so.1'); print(open('/proc/self/maps').read())"


class Call(ctypes.Structure):
    """`struct call` of forward/notes.c: a call that goes on, or that has ended."""

    _fields_ = (
        ("note", ctypes.c_void_p),
        ("number", ctypes.c_uint64),
        ("thread", ctypes.c_uint64),
        ("stream", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("began", ctypes.c_int64),
        ("ended", ctypes.c_int64),
        ("frames", ctypes.c_void_p),
        ("kind", ctypes.c_int),
    )


def load(real: str | None = None, *, everywhere: bool = False) -> None:
    """Loads the library in front of a driver. If it is loaded, nothing happens.

    Args:
        real: The path of the driver's library. The default is the one that a program would get.
        everywhere: Whether a plain `dlsym` finds its functions too, as those of a real driver that
            the bindings have loaded.

    Raises:
        RuntimeError: A driver is loaded already, or none was found.
        OSError: The driver's library cannot be loaded.
    """
    global _library
    if _library is not None:
        return
    loaded = loaded_driver()
    if loaded is not None:
        raise RuntimeError(_TOO_LATE.format(path=loaded))
    path = real if real is not None else _real_driver()
    # RTLD_LOCAL: globally, it would divert the real library's calls of its own exports, which are
    # bound in the second line. Afterwards it may become global: the bindings make it so.
    library = ctypes.CDLL(str(_path()), mode=os.RTLD_LOCAL)
    ctypes.CDLL(path, mode=os.RTLD_LOCAL | os.RTLD_NOW)  # raises an OSError if it cannot be loaded
    if everywhere:
        ctypes.CDLL(str(_path()), mode=os.RTLD_GLOBAL)
    hooks = (_native.IS_PYTHON_THREAD, _native.FRAMES_HERE)
    library.aiostream_forward_set_up(*map(ctypes.c_void_p, hooks))
    library.aiostream_forward_bind(os.fsencode(path))
    # Of the library's own waits, which make no call of the driver that waits.
    _native.wrap_blocking(ctypes.cast(library.aiostream_forward_wrap, ctypes.c_void_p).value or 0)
    library.aiostream_forward_limit.argtypes = [ctypes.c_int64, ctypes.c_int64]
    _library = library


def functions() -> ctypes.CDLL:
    """Returns the library, which is loaded. Each of its functions is called without the GIL."""
    assert _library is not None
    return _library


def loaded_driver(besides: Path | None = None) -> str | None:
    """Returns the path of a CUDA driver that this process has loaded, or `None`.

    Args:
        besides: A driver that does not count.
    """
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:  # there is no /proc
        return None
    return _driver_in(maps, str(besides))


def _driver_in(maps: str, besides: str = "") -> str | None:
    for line in maps.splitlines():
        path = line.split(maxsplit=5)[-1]
        name = path.rpartition("/")[2]
        if name.startswith(("libcuda.so", "_libcuda.")) and path != besides:
            return path
    return None


def compiled(folder: Path, name: str, what: str) -> Path:
    """Returns the path of a library that the package's build has put into a folder.

    Raises:
        RuntimeError: It is not there. `what` says what the library is.
    """
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = folder / f"{name}{suffix}"
        if path.exists():
            return path
    raise RuntimeError(
        f"{what} is not in {folder}. Build the package with a C compiler, or install a wheel of it"
    )


def _path() -> Path:
    return compiled(Path(__file__).parent, "_forward", "The forwarding library")


def _real_driver() -> str:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _PROBE], capture_output=True, text=True, check=False
    )
    path = _driver_in(done.stdout)
    if path is None:
        reason = done.stderr.strip().splitlines()[-1:] or ["it is not in /proc/self/maps"]
        raise RuntimeError(_NOT_FOUND.format(reason=reason[0]))
    return path
