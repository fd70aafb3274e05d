"""A CUDA driver for machines without a GPU.

`install()` loads a shared library that calls itself `libcuda.so.1`. From then on the real `cuda.bindings`, and everything that
stands on it, runs on that library unchanged: streams, events, host functions, memory, capture, graphs and a handful of kernels
behave as they did on an H200, faults included. What is not simulated answers `CUDA_ERROR_NOT_SUPPORTED` (801) and is listed by
`unsupported_calls()`; nothing pretends. It is a driver and not a runtime: libraries built on libcudart do not run on it.

    from aiostream import simulator

    simulator.install()                                  # before anything else uses CUDA
    simulator.fail("cuEventCreate", 2, nth=3)            # the third cuEventCreate from now reports out of memory
    with simulator.adversary(shuffle_callbacks=True):    # a nastier driver, for this block
        ...

Kernels are known by name: `cuModuleLoadData` takes PTX text, and an `.entry` of the name `spin(.u64 nanoseconds)`, `trap()`,
`illegal_address()`, `saxpy(.f32 a, .u64 x, .u64 y, .u32 n)`, `fill32(.u64 pointer, .u32 value, .u32 n)`, `stamp(.u64 pointer)`,
`empty()`, or of one registered with `register_kernel`, runs. The PTX itself is not executed.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

__all__ = [
    "adversary",
    "break_context",
    "calls",
    "clear_faults",
    "fail",
    "install",
    "installed",
    "pending_work",
    "recover",
    "register_kernel",
    "register_ptx",
    "seed",
    "unsupported_calls",
]

_DEFAULT_MEMORY = 1 << 30

_lock = threading.Lock()
_library: ctypes.CDLL | None = None  # written once, under _lock
_options: tuple[int, int, int, bool] | None = None  # what it was installed with; under _lock
_adversary: tuple[bool, float, bool, float, bool] = (
    False,
    0.0,
    False,
    0.0,
    False,
)  # in force; under _lock


def install(
    *,
    devices: int | None = None,
    driver_version: int | None = None,
    memory: int | None = None,
    hardware_queues: bool | None = None,
) -> None:
    """Makes the simulator this process's CUDA driver.

    It must come before anything else loads a driver: the first `libcuda.so.1` of a process is its driver for good. Calling it
    again is fine as long as it asks for nothing else.

    Args:
        devices: How many GPUs there are, up to 16; by default `AIOSTREAM_SIMULATOR_DEVICES`, or 1.
        driver_version: The CUDA version that the driver plays, as in 13000 (the default) for 13.0. Functions that came later
            are not found.
        memory: Bytes of memory of each device, 1 GiB by default; an allocation beyond it answers 2.
        hardware_queues: Whether pending host functions and memory operations occupy the device's hardware queues as on an
            H200 (the default): `CUDA_DEVICE_MAX_CONNECTIONS` of them, 8 unless the environment says otherwise. While all are
            held, other streams wait.

    Raises:
        RuntimeError: Another driver is already loaded, the simulator is installed with other options, or its library was not
            built.
        ValueError: An option is out of range, or an environment variable is no number.
    """
    global _library, _options
    wanted = (devices, driver_version, memory, hardware_queues)
    with _lock:
        if _options is not None:
            if any(
                new is not None and new != old for new, old in zip(wanted, _options, strict=True)
            ):
                raise RuntimeError(
                    f"The simulator is already installed, with other options: {_describe(_options)}"
                )
            return
        options = (
            devices if devices is not None else _number_from("AIOSTREAM_SIMULATOR_DEVICES", 1),
            driver_version if driver_version is not None else 13000,
            memory if memory is not None else _DEFAULT_MEMORY,
            hardware_queues if hardware_queues is not None else True,
        )
        chosen_seed = _number_from("AIOSTREAM_SIMULATOR_SEED", None)
        if not 0 <= options[0] <= 16 or options[1] < 11000 or options[2] <= 0:
            raise ValueError(f"The simulator cannot be installed with {_describe(options)}")
        library = _load()
        code = library.aiostream_sim_configure(*options)
        if code != 0:
            raise RuntimeError("The simulator's library was initialised before it was installed")
        _library, _options = library, options
    if chosen_seed is not None:
        seed(chosen_seed)


N = TypeVar("N", int, None)


def _number_from(variable: str, default: N) -> int | N:
    """The number in an environment variable, which may be absent or blank."""
    said = os.environ.get(variable, "").strip()
    try:
        return int(said) if said else default
    except ValueError:
        raise ValueError(
            f"the environment variable {variable} is a whole number, not {said!r}"
        ) from None


def _describe(options: tuple[int, int, int, bool]) -> str:
    return "devices={}, driver_version={}, memory={}, hardware_queues={}".format(*options)


def _load() -> ctypes.CDLL:
    path = _library_path()
    other = _loaded_driver(path)
    if other is not None:
        raise RuntimeError(
            f"This process already uses another CUDA driver, {other}; install the simulator before anything uses CUDA"
        )
    # The SONAME is what makes the bindings take it; RTLD_GLOBAL lets a plain dlsym see it too, as
    # with the real driver.
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    library.aiostream_sim_configure.argtypes = [
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_size_t,
        ctypes.c_int,
    ]
    library.aiostream_sim_fail.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_ulong]
    library.aiostream_sim_seed.argtypes = [ctypes.c_uint64, ctypes.c_int]
    library.aiostream_sim_seed.restype = None
    library.aiostream_sim_adversary.argtypes = [
        ctypes.c_int,
        ctypes.c_uint64,
        ctypes.c_int,
        ctypes.c_uint64,
        ctypes.c_int,
    ]
    library.aiostream_sim_adversary.restype = None
    library.aiostream_sim_break.argtypes = [ctypes.c_int]
    library.aiostream_sim_break.restype = None
    library.aiostream_sim_calls.argtypes = [ctypes.c_char_p]
    library.aiostream_sim_calls.restype = ctypes.c_long
    library.aiostream_sim_known.argtypes = [
        ctypes.c_int,
        ctypes.POINTER(ctypes.c_char_p),
        ctypes.POINTER(ctypes.c_int),
        ctypes.POINTER(ctypes.c_ulong),
    ]
    library.aiostream_sim_pending.restype = ctypes.c_size_t
    library.aiostream_sim_register_kernel.argtypes = [
        ctypes.c_char_p,
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_uint),
        ctypes.POINTER(ctypes.c_uint),
        ctypes.c_uint,
    ]
    library.aiostream_sim_has_kernel.argtypes = [ctypes.c_char_p]
    return library


def _library_path() -> Path:
    override = os.environ.get("AIOSTREAM_SIMULATOR_LIBRARY")  # a sanitizer's build, say
    if override:
        return Path(override)
    here = Path(__file__).parent
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = here / f"_libcuda{suffix}"
        if path.exists():
            return path
    raise RuntimeError(
        f"The simulator's library is not in {here}: build the package with a C compiler, or install a wheel of it"
    )


def _loaded_driver(own: Path) -> str | None:
    """The path of a `libcuda.so.1` that is mapped into this process and is not ours."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:  # no /proc: nothing to go by
        return None
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        if (
            len(fields) == 6
            and Path(fields[5]).name.startswith("libcuda.so")
            and fields[5] != str(own)
        ):
            return fields[5]
    return None


def installed() -> bool:
    """Whether the simulator is this process's driver."""
    return _library is not None


def _driver() -> ctypes.CDLL:
    if _library is None:
        raise RuntimeError(
            "The simulator is not installed: call aiostream.simulator.install() first"
        )
    return _library


def _base_name(call: str) -> str:
    """`cuStreamDestroy` for `cuStreamDestroy_v2`: all versions of a function count as one."""
    name = call.removesuffix("_ptsz").removesuffix("_ptds")
    head, _, tail = name.rpartition("_v")
    return head if head and tail.isdigit() else name


def fail(call: str, code: int, *, nth: int = 1) -> None:
    """Lets a driver call answer an error without doing its work.

    Args:
        call: The driver function, such as `"cuEventCreate"`; its versions are not told apart.
        code: The `CUresult` to answer. It is answered once, and is not sticky: see `break_context`.
        nth: Which of the coming calls, counted from 1.

    Raises:
        ValueError: No such function, or `nth` is not positive.
    """
    if nth < 1:
        raise ValueError(f"nth counts from 1, not {nth}")
    if _driver().aiostream_sim_fail(_base_name(call).encode(), int(code), nth) != 0:
        raise ValueError(f"There is no driver function {call}")


def clear_faults() -> int:
    """Forgets what `fail` arranged and has not happened yet; returns how many these were."""
    return int(_driver().aiostream_sim_clear_faults())


def seed(value: int | None) -> None:
    """Shuffles the order in which independent streams that could move do move.

    Args:
        value: The same value gives the same order, as long as the work was all enqueued behind a gate; `None`, as at the
            start, moves streams in the order in which they became able to.
    """
    _driver().aiostream_sim_seed((value or 0) & (2**64 - 1), value is not None)


class adversary:  # noqa: N801  (called like a function, and a context manager only where one wants it restored)
    """Makes the driver nastier than an H200, in ways that other drivers are or might be.

    Takes effect at once and holds until the next call; `adversary()` makes the driver well-behaved again. As a context manager
    it puts back at the end what was in force before.

    Args:
        driver_lock: The driver holds one lock while a host function or callback runs, and every call of other threads needs it.
            A Python host function and a caller that keeps the GIL deadlock then: that is the point.
        blocking_enqueue: Seconds that every enqueuing call blocks; `True` stands for 0.002.
        shuffle_callbacks: Host functions of different streams run in shuffled order and not as their streams arrived.
        late_faults: Seconds from the faulting kernel until its error shows; 0.1 to 0.6 on an H200.
        fire_after_fault: Host functions that were pending at a fault run all the same, without a status.
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
        delay = 0.002 if blocking_enqueue is True else float(blocking_enqueue)
        self._before = _set_adversary(
            (driver_lock, delay, shuffle_callbacks, late_faults, fire_after_fault)
        )

    def __enter__(self) -> adversary:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _set_adversary(self._before)


def _set_adversary(
    modes: tuple[bool, float, bool, float, bool],
) -> tuple[bool, float, bool, float, bool]:
    global _adversary
    driver = _driver()
    lock, enqueue, shuffle, late, fire = modes
    with _lock:
        before, _adversary = _adversary, modes
        driver.aiostream_sim_adversary(lock, int(enqueue * 1e9), shuffle, int(late * 1e9), fire)
    return before


def break_context(code: int = 700) -> None:
    """A sticky error now, as if a kernel had failed: every device and context of the process is lost.

    Pending host functions are dropped, pending stream callbacks called with the status, and every later call answers it. A copy,
    a fill or a registered kernel that is running runs to its end first; calls that were blocked return only then.
    """
    _driver().aiostream_sim_break(int(code))


def recover() -> None:
    """Goes on after a sticky error, which no GPU can: all pending work is abandoned, streams and memory are kept.

    Without a sticky error the pending work fails first, with 719: callbacks are called with it, host functions dropped. Waits for
    the host functions and callbacks that are due, and for the kernel that is running. Captures in progress end.

    Raises:
        RuntimeError: Called inside a host function or a kernel, or in a forked child.
    """
    if _driver().aiostream_sim_recover() != 0:
        raise RuntimeError(
            "recover() cannot be called inside a host function or a kernel, nor in a forked child"
        )


def calls(name: str) -> int:
    """How often a driver function was called since the process began, whatever it answered.

    Args:
        name: The driver function; its versions are counted together.

    Raises:
        ValueError: No such function.
    """
    count: int = _driver().aiostream_sim_calls(_base_name(name).encode())
    if count < 0:
        raise ValueError(f"There is no driver function {name}")
    return count


def unsupported_calls() -> dict[str, int]:
    """The functions that were called although the simulator lacks them, and how often."""
    driver = _driver()
    name, lacking, count = ctypes.c_char_p(), ctypes.c_int(), ctypes.c_ulong()
    found: dict[str, int] = {}
    index = 0
    while driver.aiostream_sim_known(
        index, ctypes.byref(name), ctypes.byref(lacking), ctypes.byref(count)
    ):
        if lacking.value and count.value and name.value is not None:
            found[name.value.decode()] = count.value
        index += 1
    return found


def register_kernel(name: str, address: int, *, parameters: Sequence[int]) -> None:
    """Adds a kernel: PTX with an `.entry` of this name then runs it.

    Args:
        name: The kernel's name.
        address: A native function `void (void **parameters)`, as `ctypes.cast` gives it. It runs on the engine's thread, in
            stream order, and holds up all streams meanwhile; `parameters[i]` points to a copy of the i-th argument. It must
            live as long as the process.
        parameters: The arguments' sizes in bytes, 64 of them at most.

    Raises:
        ValueError: The kernel cannot be called like that.
    """
    sizes = [int(size) for size in parameters]
    if not address or len(sizes) > 64 or any(size < 1 for size in sizes):
        raise ValueError(
            f"A kernel needs an address and at most 64 parameters of a positive size: {name}, {address:#x}, {sizes}"
        )
    _register(name, address, sizes, None)


def _register(
    name: str, address: int | None, sizes: Sequence[int], alignments: Sequence[int] | None
) -> None:
    numbers = ctypes.c_uint * max(len(sizes), 1)
    aligned = numbers(*alignments) if alignments is not None else None
    if (
        _driver().aiostream_sim_register_kernel(
            name.encode(), address, numbers(*sizes), aligned, len(sizes)
        )
        != 0
    ):
        raise ValueError(f"The kernel {name} could not be registered")


_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*(?:\(([^)]*)\))?")
_PARAMETER = re.compile(
    r"\.param\b(?:\s*\.align\s+(\d+))?.*?\.[bsuf](\d+)\b.*?[\s\]]([\w$%]+)\s*(?:\[\s*(\d+)\s*\])?\s*$",
    re.DOTALL,
)


def register_ptx(ptx: str | bytes) -> list[str]:
    """Registers the kernels of a PTX text that there are none of yet, as kernels that do nothing.

    So a program that compiles its kernels, with NVRTC say, launches them. Their parameters have the sizes that the text declares.

        simulator.register_ptx(program.compile("ptx").code)  # of cuda.core; a cubin is refused

    Args:
        ptx: The text. Load it as a module after this call.

    Returns:
        The names of the kernels that were registered: those that are built in, or that `register_kernel` added, stay as they are.

    Raises:
        ValueError: A parameter's declaration was not understood, or a kernel has more than 64 parameters.
    """
    text = ptx.decode() if isinstance(ptx, bytes) else ptx
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text.rstrip("\0"), flags=re.DOTALL)
    new = []
    for name, declared in _ENTRY.findall(text):
        if _driver().aiostream_sim_has_kernel(name.encode()):
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
    """How many items are queued on all streams or running, on the devices and on the host threads, destructors included."""
    count: int = _driver().aiostream_sim_pending()
    return count
