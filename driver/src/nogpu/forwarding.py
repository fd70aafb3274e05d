"""The forwarding driver: a `libcuda.so.1` before another one, which sees the calls that block.

It has to be the first `libcuda.so.1` of the process, because a process keeps the first one that it
loads. The simulator loads it before itself, and `aiostream.blocking` before a real driver. It needs
nothing of the simulator.

`load()` loads it. `connect()` shows it how to find a thread's Python frames, and from then on
`functions()` reports calls that take long (`forward/notes.c`).
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

_library: ctypes.CDLL | None = None  # written once; any thread may load it, and finds the same one

KINDS = ("waits", "copies", "stages", "allocates", "loads", "enqueues", "begins")
"""What the calls do, by the numbers of `enum kind` in forward/notes.c."""

NO_STREAM = 2**64 - 1
WAITING = 2
"""The kinds with lower numbers wait by their nature, and the others may."""

LIBRARY = Path(__file__).parent / "_forward.so"

_TOO_LATE = "{path} is loaded already, so its calls cannot be watched any more"
_NOT_FOUND = "No CUDA driver was found ({reason}), so there are no calls to watch"
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
        OSError: The driver's library, or this one, cannot be loaded.
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
    library = ctypes.CDLL(str(LIBRARY), mode=os.RTLD_LOCAL)
    ctypes.CDLL(path, mode=os.RTLD_LOCAL | os.RTLD_NOW)  # raises an OSError if it cannot be loaded
    if everywhere:
        ctypes.CDLL(str(LIBRARY), mode=os.RTLD_GLOBAL)
    library.nogpu_forward_bind(os.fsencode(path))
    library.nogpu_forward_limit.argtypes = [ctypes.c_int64, ctypes.c_int64]
    library.nogpu_forward_wrap.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    _library = library


def connect(is_python_thread: int, frames_here: int) -> int:
    """Lets the library, which is loaded, ask Python about the thread of a call.

    Args:
        is_python_thread: The address of `int f(void)`: whether the thread belongs to Python.
        frames_here: The address of `void *f(void)`: if the thread holds the GIL, a new reference to
            what it says of itself, or else NULL. Both are called without the GIL.

    Returns:
        The address of `function wrap(const char *name, function f)`, for a library that waits
        without a call of the driver: a function that calls `f` and is noted as `name`.
    """
    functions().nogpu_forward_connect(*map(ctypes.c_void_p, (is_python_thread, frames_here)))
    return ctypes.cast(functions().nogpu_forward_wrap, ctypes.c_void_p).value or 0


def functions() -> ctypes.CDLL:
    """Returns the library, which is loaded. Each of its functions is called without the GIL."""
    assert _library is not None
    return _library


def loaded_driver() -> str | None:
    """Returns the path of a CUDA driver that this process has loaded, or `None`."""
    try:
        return _driver_in(Path("/proc/self/maps").read_text())
    except OSError:  # there is no /proc
        return None


def _driver_in(maps: str) -> str | None:
    for line in maps.splitlines():
        path = line.split(maxsplit=5)[-1]
        if path.rpartition("/")[2].startswith("libcuda.so"):
            return path
    return None


def _real_driver() -> str:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _PROBE], capture_output=True, text=True, check=False
    )
    path = _driver_in(done.stdout)
    if path is None:
        reason = done.stderr.strip().splitlines()[-1:] or ["it is not in /proc/self/maps"]
        raise RuntimeError(_NOT_FOUND.format(reason=reason[0]))
    return path
