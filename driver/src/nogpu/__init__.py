"""A CUDA driver for machines without a GPU.

`python -m nogpu -- -m pytest` runs a program on it. `install()` makes it the driver of the process
that calls it: a shared library with the SONAME `libcuda.so.1`. From then on the real
`cuda.bindings`, and every library that uses them, runs on it unchanged. Streams, events, host
functions, memory, capture, graphs and a few kernels behave as they do on an H200, including faults.

A call that is not simulated answers `CUDA_ERROR_NOT_SUPPORTED` (801), and `unsupported_calls()`
lists it. The simulator is a driver and not a runtime, so libraries that use libcudart, such as
torch, do not run on it.

Kernels are known by name. You pass PTX text to `cuModuleLoadData`, and these `.entry` names run:
`spin(.u64 nanoseconds)`, `trap()`, `illegal_address()`, `saxpy(.f32 a, .u64 x, .u64 y, .u32 n)`,
`fill32(.u64 pointer, .u32 value, .u32 n)`, `stamp(.u64 pointer)`, `empty()`, and the names that you
register with `register_kernel`. The simulator does not execute the PTX itself.

Example:
    >>> import nogpu
    >>> nogpu.install()  # before any other use of CUDA
    >>> from cuda.bindings import driver
    >>> driver.cuInit(0)
    (<CUresult.CUDA_SUCCESS: 0>,)
    >>> nogpu.fail("cuDeviceGetCount", 2)  # the next call is out of memory
    >>> driver.cuDeviceGetCount()[0]
    <CUresult.CUDA_ERROR_OUT_OF_MEMORY: 2>
    >>> with nogpu.adversary(shuffle_callbacks=True):  # a nastier driver, for this block
    ...     driver.cuInit(0)
    (<CUresult.CUDA_SUCCESS: 0>,)
"""

from __future__ import annotations

import ctypes
import difflib
import itertools
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from ctypes import POINTER, c_char_p, c_int, c_long, c_size_t, c_uint, c_uint64, c_ulong, c_void_p
from pathlib import Path
from typing import Any

from nogpu import _checks as checks
from nogpu import forwarding

__all__ = [
    "adversary",
    "around_recovery",
    "break_context",
    "calls",
    "clear_faults",
    "fail",
    "hang",
    "install",
    "installed",
    "pending_work",
    "recover",
    "register_kernel",
    "register_ptx",
    "seed",
    "unsupported_calls",
]

MOST_DEVICES = 16
OLDEST_DRIVER = 11000
_MOST_CODE = 2**31 - 1  # of C's int
_MOST_CALLS = 2**63 - 1
_MOST_SECONDS = 9e9  # in nanoseconds, they fit into C's int64_t
_FUNCTION = ctypes.CFUNCTYPE(None)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "adversary": (None, c_int, c_uint64, c_int, c_uint64, c_int),
    "break": (None, c_int),
    "calls": (c_long, c_char_p),
    "configure": (c_int, c_int, c_int, c_size_t, c_int),
    "fail": (c_int, c_char_p, c_int, c_ulong),
    "has_kernel": (c_int, c_char_p),
    "known": (c_int, c_int, POINTER(c_char_p), POINTER(c_int), POINTER(c_ulong)),
    "pending": (c_size_t,),
    "register_kernel": (c_int, c_char_p, c_void_p, POINTER(c_uint), POINTER(c_uint), c_uint),
    "seed": (None, c_uint64, c_int),
}
"""What the library's functions return, and then what they take."""

LIBRARY = Path(__file__).parent / "lib" / "libcuda.so.1"
"""The simulator's library. Its folder has nothing else, so it may come first on a search path."""

_lock = threading.Lock()
_library: ctypes.CDLL | None = None  # written once, under _lock
_options: tuple[int, ...] | None = None  # what it was installed with; under _lock
_is_preliminary = False  # installed by the environment; the program may still say otherwise
Modes = tuple[bool, float, bool, float, bool]
_adversary: Modes = (False, 0.0, False, 0.0, False)  # in force; under _lock


def install(
    *,
    devices: int | None = None,
    driver_version: int | None = None,
    memory: int | None = None,
    hardware_queues: bool | None = None,
    library: str | None = None,
    final: bool = True,
) -> None:
    """Makes the simulator this process's CUDA driver.

    Call it before any other library loads a driver, because a process keeps the first
    `libcuda.so.1` that it loads. You may call it again with the same options, or without options.

    Args:
        devices: How many GPUs there are, 0 to 16. The default is 1, or what `python -m nogpu` says.
        driver_version: The CUDA version of the driver. The default is 13000, for 13.0. Functions of
            later versions are not found.
        memory: Bytes of memory per device. The default is 1 GiB. A larger allocation fails with
            code 2.
        hardware_queues: Whether pending host functions and memory operations occupy hardware queues
            of the device, as on an H200. This is the default. There are
            `CUDA_DEVICE_MAX_CONNECTIONS` queues, or else 8. While all are occupied, other streams
            wait.
        library: The path of another build of the simulator, such as one with a sanitizer.
        final: Whether a later call may no longer have other options.

    Threads: any.

    Raises:
        RuntimeError: Another driver is already loaded, or the simulator is installed with other
            options.
        ValueError: An option is out of range.
        OSError: The library cannot be loaded.

    Example:
        >>> import nogpu
        >>> nogpu.install(devices=2)
        >>> nogpu.installed()
        True
    """
    global _library, _options, _is_preliminary
    wanted = (devices, driver_version, memory, hardware_queues)
    with _lock:
        before = _options or _options_of_start()
        options = tuple(
            old if new is None else new for new, old in zip(wanted, before, strict=True)
        )
        if options == _options:
            return
        if not 0 <= options[0] <= MOST_DEVICES or options[1] < OLDEST_DRIVER or options[2] <= 0:
            raise ValueError(f"The simulator cannot be installed with {_describe(options)}")
        loaded = _load(str(library or LIBRARY))
        may_change = _options is None or _is_preliminary
        code = loaded.nogpu_configure(*options) if may_change else 1
        if code != 0 and options != before:
            raise RuntimeError(
                f"The simulator is already installed, with other options: {_describe(before)}. "
                "Install it once, before the first use of CUDA"
            )
        _library, _options, _is_preliminary = loaded, options, not final


def _options_of_start() -> tuple[int, ...]:
    """The defaults, and what `python -m nogpu` says."""
    said = os.environ.get
    return int(said("NOGPU_DEVICES", 1)), int(said("NOGPU_DRIVER_VERSION", 13000)), 1 << 30, True


def _describe(options: tuple[int, ...]) -> str:
    return "devices={}, driver_version={}, memory={}, hardware_queues={}".format(*options)


def _load(path: str) -> ctypes.CDLL:
    other = forwarding.loaded_driver()
    if other not in (None, os.path.realpath(path)):
        raise RuntimeError(
            f"This process already uses another CUDA driver, {other}. Install the simulator before "
            "the first use of CUDA"
        )
    if other is None:
        # Behind the library that sees the calls that block, so that they can be watched at any
        # time. The bindings take that one, because of its SONAME.
        forwarding.load(path, everywhere=True)
    library = ctypes.CDLL(path)
    for name, (result, *arguments) in _SIGNATURES.items():
        function = getattr(library, f"nogpu_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def installed() -> bool:
    """Returns whether the simulator is this process's driver, or will be the one that it loads."""
    first = os.environ.get("LD_LIBRARY_PATH", "").partition(":")[0]  # from `python -m nogpu`
    found = forwarding.loaded_driver() or os.path.join(first, LIBRARY.name)
    return _library is not None or os.path.realpath(found) == os.path.realpath(LIBRARY)


def has_no_devices() -> bool:
    """Whether the simulator is this process's driver, and was installed with 0 devices."""
    return installed() and (_options or _options_of_start())[0] == 0


def _driver() -> ctypes.CDLL:
    global _library
    if _library is None and not installed():
        raise RuntimeError("The simulator is not installed: call install() first")
    if _library is None:  # `python -m nogpu` has installed it
        _library = _load(str(LIBRARY))
    return _library


def _base_name(call: str) -> str:
    """`cuStreamDestroy` for `cuStreamDestroy_v2`, because all versions count as one function.

    Raises:
        TypeError: It is not a name.
    """
    if not isinstance(call, str):
        raise TypeError(
            "a driver function is given by its name, such as 'cuStreamQuery', not as "
            f"{type(call).__name__}"
        )
    name = call.removesuffix("_ptsz").removesuffix("_ptds")
    head, _, tail = name.rpartition("_v")
    return head if head and tail.isdigit() else name


def fail(call: str, code: int, *, nth: int = 1) -> None:
    """Has one call of a driver function answer an error, without doing its work.

    The error is not sticky. For a sticky one use `break_context`.

    Args:
        call: The driver function, such as `"cuEventCreate"`. All its versions count.
        code: The `CUresult` that it answers, which is an error.
        nth: Which of the next calls, counted from 1.

    Raises:
        TypeError: `call` is not a str, or a number is not an int.
        ValueError: There is no such function, or `code` or `nth` is out of range.

    Example:
        >>> nogpu.fail("cuCtxSynchronize", 1)
        >>> driver.cuCtxSynchronize()
        (<CUresult.CUDA_ERROR_INVALID_VALUE: 1>,)
    """
    __tracebackhide__ = True  # of pytest
    # 0 is success. Such a call would do its work, and count as a failure that has happened.
    if not 0 < checks.integer("a code", code) <= _MOST_CODE:
        raise ValueError(f"the code of an error is 1 or more, such as 2 for no memory, not {code}")
    _inject(call, int(code), nth)


def _inject(call: str, code: int, nth: int) -> None:
    __tracebackhide__ = True
    name = _base_name(call).encode()
    nth = checks.integer("nth", nth, 1, "nth counts from 1")
    if nth > _MOST_CALLS:
        raise ValueError(f"nth is at most {_MOST_CALLS}, not {nth}")
    if _driver().nogpu_fail(name, code, nth) != 0:
        raise _unknown(call)


_HANGS = -1  # as in control.c


def hang(call: str, *, nth: int = 1) -> None:
    """Has one call of a driver function not return until `clear_faults`. Then it does its work.

    Args:
        call: As `fail` takes it.
        nth: Which of the next calls, counted from 1.

    Raises:
        TypeError, ValueError: As `fail` raises them.
    """
    __tracebackhide__ = True
    _inject(call, _HANGS, nth)


def clear_faults() -> int:
    """Cancels what you asked for with `fail` or `hang` and has not happened yet.

    Calls that hang go on.

    Returns:
        How many these were.
    """
    return int(_driver().nogpu_clear_faults())


def seed(value: int | None) -> None:
    """Shuffles the order in which independent streams proceed.

    Args:
        value: The same value gives the same order, if you enqueue all work behind a gate. With
            `None`, as at the start, streams proceed in the order in which they became able to.

    Raises:
        TypeError: `value` is neither an int nor `None`.
    """
    number = 0 if value is None else checks.integer("a seed", value)
    _driver().nogpu_seed(number & (2**64 - 1), value is not None)


class adversary:  # noqa: N801  (you call it like a function; the context manager is optional)
    """Makes the driver nastier than an H200, in ways that other drivers are or might be.

    It takes effect at once, and holds until the next call. `adversary()` makes the driver
    well-behaved again. If you use it in a `with` block, the end of the block restores the previous
    modes.

    Args:
        driver_lock: The driver holds one lock while a host function or callback runs, and calls of
            other threads wait for it. So a Python host function and a caller that keeps the GIL
            deadlock, as they can with a real driver.
        blocking_enqueue: How many seconds every call that enqueues work blocks. `True` stands for
            0.002.
        shuffle_callbacks: Host functions of different streams run in shuffled order.
        late_faults: Seconds from a faulty kernel until its error shows. On an H200 these are 0.1 to
            0.6.
        fire_after_fault: Host functions that were pending at a fault run nevertheless, without a
            status.

    Raises:
        TypeError: A mode is not a bool, or a time is not a number.
        ValueError: A time is negative, or longer than 9e9 seconds.

    Example:
        >>> with nogpu.adversary(blocking_enqueue=0.001, shuffle_callbacks=True):
        ...     driver.cuInit(0)
        (<CUresult.CUDA_SUCCESS: 0>,)
    """

    def __init__(
        self,
        *,
        driver_lock: bool = False,
        blocking_enqueue: float = 0.0,
        shuffle_callbacks: bool = False,
        late_faults: float = 0.0,
        fire_after_fault: bool = False,
    ) -> None:
        delay = 0.002 * blocking_enqueue if type(blocking_enqueue) is bool else blocking_enqueue
        modes = (
            checks.flag("driver_lock", driver_lock),
            checks.seconds("blocking_enqueue", delay, _MOST_SECONDS),
            checks.flag("shuffle_callbacks", shuffle_callbacks),
            checks.seconds("late_faults", late_faults, _MOST_SECONDS),
            checks.flag("fire_after_fault", fire_after_fault),
        )
        self._before = _set_adversary(modes)

    def __enter__(self) -> adversary:
        return self

    def __exit__(self, *_: object) -> None:
        _set_adversary(self._before)


def _set_adversary(modes: Modes) -> Modes:
    global _adversary
    driver = _driver()
    lock, enqueue, shuffle, late, fire = modes
    with _lock:
        before, _adversary = _adversary, modes
        driver.nogpu_adversary(lock, int(enqueue * 1e9), shuffle, int(late * 1e9), fire)
    return before


# After which a context is lost, and what a GPU answers that has fallen off the bus.
_LOSES = (214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911)
_OFF_THE_BUS = (46, 999)


def break_context(code: int = 700) -> None:
    """Causes a sticky error now, as if a kernel had failed. All contexts of the process are lost.

    Pending host functions are dropped. Pending stream callbacks are called with the code. Every
    later call answers the code. If a copy, a fill or a registered kernel is running, it ends first,
    and only then do blocked calls return.

    Args:
        code: The `CUresult`: a code after which a GPU's context is lost, such as 214, 700 or 719.
            The default is `CUDA_ERROR_ILLEGAL_ADDRESS`. A GPU that has fallen off the bus answers
            46, 719 or 999. Waits fail with each of them, but the library does not take 46 and 999
            for the end of a context.

    Raises:
        TypeError: `code` is not an int.
        ValueError: The code loses no context. Use `fail` to have one call answer any code.

    Example:
        >>> nogpu.break_context()
        >>> driver.cuCtxSynchronize()
        (<CUresult.CUDA_ERROR_ILLEGAL_ADDRESS: 700>,)
        >>> nogpu.recover()
    """
    # After another code every call of the driver would fail, and awaits might hang.
    if checks.integer("a code", code) not in (*_LOSES, *_OFF_THE_BUS):
        raise ValueError(
            f"{code} is not a code that loses a context, as {', '.join(map(str, _LOSES[:-1]))} and "
            f"{_LOSES[-1]} are. To have one call answer it, use simulator.fail()"
        )
    _driver().nogpu_break(int(code))


_recovering: list[Callable[[], Callable[[], object]]] = []


def around_recovery(begin: Callable[[], Callable[[], object]]) -> None:
    """Registers what a library that waits for the driver does while `recover` fails pending work.

    Args:
        begin: Called while every call of the driver answers the error. It returns what is called
            when the driver is healthy again.
    """
    _recovering.append(begin)


def recover() -> None:
    """Makes the contexts healthy again after a sticky error. No GPU can do this.

    All pending work is dropped, and captures in progress end. Streams and memory stay. The pending
    work fails first: with the sticky error, or with code 719 if there was none. So does what waits
    for it. The call waits for host functions and callbacks that are due, and for the kernel that is
    running.

    Use it between the tests of a process, so that each begins with a healthy driver.

    Raises:
        RuntimeError: Called inside a host function or a kernel, or in a forked child.
    """
    ends: list[Callable[[], object]] = []

    def fail_pending() -> None:
        ends.extend(begin() for begin in _recovering)

    try:
        if _driver().nogpu_recover(_FUNCTION(fail_pending)) != 0:
            raise RuntimeError(
                "recover() cannot be called inside a host function or a kernel, nor in a forked "
                "child"
            )
    finally:
        for end in ends:
            end()


def calls(name: str) -> int:
    """Returns how often a driver function was called in this process, whatever it answered.

    Args:
        name: The driver function. Calls of all its versions count.

    Raises:
        TypeError: `name` is not a str.
        ValueError: There is no such function.

    Example:
        >>> before = nogpu.calls("cuInit")
        >>> driver.cuInit(0)
        (<CUresult.CUDA_SUCCESS: 0>,)
        >>> nogpu.calls("cuInit") - before
        1
    """
    count: int = _driver().nogpu_calls(_base_name(name).encode())
    if count < 0:
        raise _unknown(name)
    return count


def _known() -> Iterator[tuple[str, bool, int]]:
    """The driver functions: the name, whether the simulator lacks it, how often it was called."""
    driver = _driver()
    name, lacking, count = c_char_p(), c_int(), c_ulong()
    out = ctypes.byref(name), ctypes.byref(lacking), ctypes.byref(count)
    for index in itertools.count():
        if not driver.nogpu_known(index, *out):
            return
        yield (name.value or b"").decode(), bool(lacking.value), count.value


def _unknown(call: str) -> ValueError:
    near = difflib.get_close_matches(call, [_base_name(name) for name, *_ in _known()], 1)
    advice = f": do you mean {near[0]}?" if near else ""
    return ValueError(f"There is no driver function {call}{advice}")


def unsupported_calls() -> dict[str, int]:
    """Returns the functions that the simulator lacks and that were called, and how often.

    Look here first if your program fails with code 801 on the simulator.
    """
    return {name: count for name, is_lacking, count in _known() if is_lacking and count}


def register_kernel(name: str, address: int, *, parameters: Sequence[int]) -> None:
    """Adds a kernel. A launch of an `.entry` with this name runs your function.

    Args:
        name: The kernel's name.
        address: The address of a native function `void (void **parameters)`, as `ctypes.cast` gives
            it. `parameters[i]` points to a copy of the argument with number i. The function runs on
            the simulator's engine thread, in stream order. No stream proceeds meanwhile. Keep the
            function until the process ends.
        parameters: The sizes of the arguments in bytes, at most 64.

    Raises:
        TypeError: The name is not a str, or the address or a size is not an int.
        ValueError: The address is 0, a size is not positive, or there are too many.
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of a kernel is a str, not {type(name).__name__}")
    sizes = [checks.integer("the size of a parameter", size) for size in parameters]
    address = checks.integer("the address of a kernel", address)
    if not address or len(sizes) > 64 or any(size < 1 for size in sizes):
        raise ValueError(
            "A kernel needs an address and at most 64 parameters of a positive size: "
            f"{name}, {address:#x}, {sizes}"
        )
    _register(name, address, sizes, None)


def _register(
    name: str, address: int | None, sizes: Sequence[int], alignments: Sequence[int] | None
) -> None:
    numbers = c_uint * max(len(sizes), 1)
    aligned = numbers(*alignments) if alignments is not None else None
    kernel = (name.encode(), address, numbers(*sizes), aligned, len(sizes))
    if _driver().nogpu_register_kernel(*kernel) != 0:
        raise ValueError(f"The kernel {name} could not be registered")


_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*(?:\(([^)]*)\))?")
_PARAMETER = re.compile(
    r"\.param\b(?:\s*\.align\s+(\d+))?.*?\.[bsuf](\d+)\b"
    r".*?[\s\]]([\w$%]+)\s*(?:\[\s*(\d+)\s*\])?\s*$",
    re.DOTALL,
)


def register_ptx(ptx: str | bytes) -> list[str]:
    """Registers the kernels of a PTX text as kernels that do nothing.

    So a program that compiles its own kernels, such as with NVRTC, can launch them on the
    simulator. Their parameters have the sizes that the text declares. With cuda.core, pass
    `program.compile("ptx").code`. A cubin is refused.

    Args:
        ptx: The text. Load it as a module after this call.

    Returns:
        The names of the new kernels. Kernels that are built in, or that you have registered before,
        do not change.

    Raises:
        TypeError: It is not a text.
        ValueError: A parameter's declaration was not understood, or a kernel has more than 64
            parameters.

    Example:
        >>> nogpu.register_ptx(".visible .entry my_kernel(.param .u64 pointer) { ret; }")
        ['my_kernel']
    """
    text = ptx.decode() if isinstance(ptx, bytes) else ptx
    if not isinstance(text, str):
        raise TypeError(f"PTX is a text, as a str or bytes, not {type(ptx).__name__}")
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text.rstrip("\0"), flags=re.DOTALL)
    new = []
    for name, declared in _ENTRY.findall(text):
        if _driver().nogpu_has_kernel(name.encode()):
            continue
        sizes, alignments = [], []
        for parameter in filter(None, map(str.strip, declared.split(","))):
            found = _PARAMETER.match(parameter)
            if found is None:
                raise ValueError(
                    f"This parameter of the kernel {name} was not understood: {parameter}"
                )
            align, bits, _, count = found.groups()
            sizes.append(int(bits) // 8 * int(count or 1))
            alignments.append(max(int(align or 1), int(bits) // 8))
        _register(name, None, sizes, alignments)
        new.append(name)
    return new


def pending_work() -> int:
    """Returns how many operations are queued or running, on all streams and host threads.

    Destructors of user objects count, too. Use it in a test to check that your program leaves no
    work behind.

    Example:
        >>> driver.cuInit(0)
        (<CUresult.CUDA_SUCCESS: 0>,)
        >>> nogpu.pending_work()
        0
    """
    count: int = _driver().nogpu_pending()
    return count
