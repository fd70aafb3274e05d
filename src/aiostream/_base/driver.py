"""The way to the driver, and the one module that knows `cuda.bindings`.

It loads the driver, calls it, and turns its codes into exceptions. It imports the bindings at the
first call and not before, because they take long, and because the first `libcuda.so.1` that is
loaded is this process's driver for good.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from aiostream import _native, errors
from aiostream._base import hints, stand_ins

# It is written after cuInit has succeeded. Two threads may do so, with the same module.
_bindings: ModuleType | None = None

# What came after CUDA 12.0, each with the version of the driver that brought it. The error of an
# older driver names that version.
MINIMUM = {
    "cuStreamBeginCaptureToGraph": 12030,
    # The bindings' form that has the edges' data, as in the next three.
    "cuStreamGetCaptureInfo": 12030,
    "cuStreamUpdateCaptureDependencies": 12030,
    "cuGraphNodeGetDependencies": 12030,
    "cuGraphNodeGetDependentNodes": 12030,
    "cuStreamGetCtx_v2": 12050,
    "cuStreamGetDevResource": 13010,
    "cuLaunchHostFunc_v2": 13020,
    "cuStreamBeginRecaptureToGraph": 13030,
}
_OLDEST = 12000  # the CUDA version of the oldest driver that the library accepts
_CONTEXT_IS_DESTROYED = 709
_NOT_INITIALIZED, _NO_DEVICE, _INVALID_DEVICE, _NOT_SUPPORTED, NOT_READY = 3, 100, 101, 801, 600
_ASKED = "AIOSTREAM_SIMULATOR=1"
_ADVICE = hints.ADVICE["driver"]
_ADVICE |= dict.fromkeys(
    map(str, {*_native.FATAL_CODES} - {_CONTEXT_IS_DESTROYED}), _ADVICE["lost"]
)


def bindings() -> ModuleType:
    """Returns `cuda.bindings.driver`. The first call loads the driver and initializes it.

    Raises:
        NoDriverError: There is no driver, or it finds no GPU.
        RuntimeError: This is a forked child of a process that has used CUDA.
    """
    refuse_forked()
    return _bindings if _bindings is not None else _load()


def refuse_forked() -> None:
    """Refuses to go on in a forked child of a process that has used CUDA.

    Raises:
        RuntimeError: This is such a child.
    """
    if _native.is_forked():
        _native.watcher_start()  # raises, with the advice


def prepare_simulator() -> None:
    """Loads the simulator, if the environment asks for it, before another library loads a driver.

    It does not start the driver. What is wrong with the environment is said at the first use.
    """
    with contextlib.suppress(ValueError, RuntimeError, OSError, ModuleNotFoundError):
        if stand_ins.simulator_is_wanted():
            stand_ins.install_simulator(_ASKED, final=False)


def _load() -> ModuleType:
    wanted = stand_ins.simulator_is_wanted()
    # Noted before the driver is loaded, because a child that another thread forks meanwhile has
    # half of it, and locks that no thread opens. So there is no lock here.
    _loading.append(None)
    try:
        if not _marks_forks:
            # Each registration stays for the life of the process. A second one, by another thread
            # or after an interrupt, does no harm.
            os.register_at_fork(after_in_child=_mark_fork)
            _marks_forks.append(None)
        return _initialize(wanted)
    finally:
        _loading.pop()


# An item for each thread that loads the driver just now. Any thread, single list operations.
_loading: list[None] = []
_marks_forks: list[None] = []  # has an item once forks are marked


def _mark_fork() -> None:
    if _loading or _bindings is not None:
        _native.set_forked()


def _initialize(with_simulator: bool) -> ModuleType:
    global _bindings
    if with_simulator:
        stand_ins.install_simulator(_ASKED)
        stand_ins.warn()
    module = importlib.import_module("cuda.bindings.driver")
    try:
        # This takes no lock, because the driver may call back or wait. Two threads may both come
        # here, and that is safe: a process may call cuInit any number of times.
        (code,) = module.cuInit(0)
    except RuntimeError as error:  # the bindings' DynamicLibNotFoundError
        reason = str(error).splitlines()[0]
        raise errors.NoDriverError(_ADVICE["no-driver"].format(reason=reason)) from None
    is_simulated = stand_ins.is_simulated()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if int(code) == _NOT_INITIALIZED:
        raise RuntimeError(f"cuInit reported CUDA_ERROR_NOT_INITIALIZED (3). {_ADVICE['3']}")
    if int(code) == _NO_DEVICE and is_simulated and stand_ins.simulator().has_no_devices():
        raise errors.NoDriverError(_ADVICE["no-simulated-device"])
    if int(code) in (_NO_DEVICE, _INVALID_DEVICE) and visible is not None:
        advice = "" if is_simulated else stand_ins.WITHOUT_DRIVER
        said = _ADVICE["no-device-seen"].format(code=code, visible=visible)
        raise errors.NoDriverError(said + advice)
    if int(code) != 0:
        raise errors.NoDriverError(
            _ADVICE["no-driver"].format(reason=f"cuInit reported {code.name}")
        )
    _bindings = module
    return module


def _described(code: int) -> tuple[str, str | None]:
    """The driver's name of an error code, and its sentence about it."""
    module = bindings()
    try:
        result = module.CUresult(code)
    except ValueError:
        return "CUDA_ERROR_UNRECOGNIZED", None  # newer than the bindings
    status, text = module.cuGetErrorString(result)
    return str(result.name), str(text.decode()) if int(status) == 0 and text else None


def error(
    code: int, call: str, stream: str | None = None, hint: str | None = None
) -> errors.CudaError:
    """Makes the exception for a driver code. All codes are translated here.

    It also notes that there was a sticky error (`latest_failure`), and reports it to the
    `failure_listener`.
    """
    global latest_failure
    if hint is None:
        hint = _ADVICE.get(str(code)) or _ADVICE.get(f"{code}-{call.partition('_v')[0]}")
    name, meaning = _described(code)
    kind = errors.CLASSES.get(code, errors.CudaError)
    problem = kind(code, name, call, stream, hint, meaning)
    if isinstance(problem, errors.ContextFailedError):
        _native.failure_note(code, call)
        latest_failure = object()
        if failure_listener is not None:
            failure_listener(problem)
    return problem


# Another object after each sticky error. What remembers that its contexts are healthy, such as a
# pool, asks again once this is another one than it has seen. Any thread, one assignment.
latest_failure = object()


def raise_for(result: int, call: str, stream: str, capturing: str = "capturing") -> None:
    """Raises the exception for the answer of a native call. 0 is success and raises nothing.

    Args:
        result: The answer: 0, one of `_native.RESULT_...`, or a driver code.
        call: The driver call that the operation consists of. If another call of the operation has
            failed, the exception names that one.
        stream: What errors call the stream, event or graph.
        capturing: The hint of the error if the stream is capturing, by its name in `hints.txt`.

    Raises:
        StreamClosedError: The handle was closed or given away.
        StreamCaptureError: The stream is capturing, or a capture came in between.
        MemoryError: There was no memory in native code.
        CudaError: The driver refused.
    """
    if result == 0:
        return
    if result == _native.RESULT_CLOSED:
        raise errors.closed(stream)
    if result == _native.RESULT_NO_MEMORY:
        raise MemoryError(f"{call} for {stream}: there is no memory left for a wait")
    if result == _native.RESULT_QUARANTINED:
        raise error(900, call, stream, _ADVICE["quarantined"])
    if result <= _native.RESULT_CAPTURING:
        raise error(-result, call, stream, _ADVICE[capturing])
    raise error(result, _native.failed_call(result) or call, stream)


def is_done(result: int, call: str, name: str) -> bool:
    """Whether the GPU has passed a stream's end or an event, by the answer of a native query.

    Raises:
        StreamClosedError, StreamCaptureError, CudaError: As `raise_for` says.
    """
    if result and result != NOT_READY:
        raise_for(result, call, name)
    return result != NOT_READY


# Called with each sticky error for which an exception is made. It runs in the thread that makes it,
# which may hold the caller's locks, so it must not call the user's code. Any thread reads this. One
# assignment, by `_ends.health`.
failure_listener: Callable[[errors.ContextFailedError], None] | None = None


def report_failures() -> None:
    """Reports the sticky errors that native code has met.

    Without this, an error that no Python call raises would never reach the listener.
    """
    if failure_listener is None:
        return  # native code keeps them until there is a listener
    while (met := _native.failure_take()) is not None:
        error(*met)


def call(name: str, *args: Any, stream: str | None = None) -> Any:
    """Calls the driver through the bindings, and raises its error.

    Args:
        name: The driver function.
        *args: Its arguments, as the bindings take them.
        stream: What errors call the object of the call.

    Returns:
        `None`, the one output, or a tuple of the outputs.

    Raises:
        CudaError: The driver refused.
        NotSupportedError: The bindings or the driver do not have the function.
    """
    function = getattr(bindings(), name, None)
    if function is None:
        raise not_there(name, stream, "the installed cuda-bindings do not have it")
    try:
        code, *outputs = function(*args)
    except RuntimeError as problem:
        # It is not known by its type, because old bindings have none of its own for a missing
        # function.
        if "not found" not in str(problem):
            raise
        raise too_old(name, stream) from problem
    if int(code) != 0:
        _native.failure_note(code, name)
        raise error(int(code), name, stream)
    return unpacked(tuple(outputs))


def unpacked(outputs: tuple[Any, ...]) -> Any:
    """Returns `None`, the one output of a call, or all of them."""
    return outputs[0] if len(outputs) == 1 else outputs or None


def owned_handle(kind: int, value: int, context: int, destroy: str) -> _native.Handle:
    """Returns the native handle of an object that the library has just made."""
    try:
        return _native.Handle(kind, value, context, True, True)
    except MemoryError:
        with contextlib.suppress(errors.CudaError):
            call(destroy, value)  # nothing else answers for it
        raise


def annotated(name: str) -> str:
    """Returns the bindings' name for the form of a function that has the edges' data.

    The bindings of CUDA 12 add a number to it, and those of 13 do not.
    """
    numbered = name + ("_v3" if name == "cuStreamGetCaptureInfo" else "_v2")
    return numbered if hasattr(bindings(), numbered) else name


def not_there(name: str, stream: str | None, why: str) -> errors.CudaError:
    """Makes the error for a function that the driver or the bindings are too old for."""
    needed = MINIMUM.get(name) or MINIMUM.get(name.rpartition("_v")[0])
    hint = (
        f"It needs a driver of CUDA {spelled(needed)} or newer, and {why}"
        if needed
        else f"The driver may be too old: {why}"
    )
    return error(_NOT_SUPPORTED, name, stream, hint)


def require(name: str, stream: str) -> None:
    """Raises a `NotSupportedError` if this driver is too old for a function of `MINIMUM`."""
    if driver_version() < MINIMUM[name]:
        raise too_old(name, stream)


def too_old(name: str, stream: str | None) -> errors.CudaError:
    """Makes the error for a function that this driver does not have."""
    return not_there(name, stream, f"this one is of CUDA {spelled(driver_version())}")


def spelled(version: int) -> str:
    """Returns a CUDA version as people write it, such as `13.0` for 13000."""
    return f"{version // 1000}.{version % 1000 // 10}"


@contextlib.contextmanager
def capture_mode(mode: Any) -> Iterator[Any]:
    """Sets this thread's capture mode for a `with` block, and gives the mode before."""
    before = call("cuThreadExchangeStreamCaptureMode", mode)
    try:
        yield before
    finally:
        call("cuThreadExchangeStreamCaptureMode", before)


def relaxed() -> contextlib.AbstractContextManager[Any]:
    """Sets this thread's capture mode to RELAXED for a `with` block.

    Otherwise some calls would invalidate a capture of this thread, or a GLOBAL one of any thread.
    """
    return capture_mode(bindings().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)


def driver_version() -> int:
    """Returns the CUDA version that the driver supports, such as 13000."""
    return int(call("cuDriverGetVersion"))


def native_addresses() -> dict[str, int]:
    """Returns the addresses that native code calls: the rows of `native/engine/driver_calls.h`.

    0 stands for what only newer drivers have.
    """
    addresses, latest = {}, max(_OLDEST, driver_version())
    for name, version in _native.DRIVER_CALLS:
        address = 0
        if version <= latest:
            # 1 is CU_GET_PROC_ADDRESS_LEGACY_STREAM. Without it, the meaning of stream 0 would
            # depend on how the bindings were configured.
            plain = name.removesuffix("_v2").encode()
            address, _ = call("cuGetProcAddress", plain, version, 1)
        if not address and version <= _OLDEST:
            needed = "aiostream needs a driver of CUDA 12 or newer"
            raise error(_NOT_SUPPORTED, name, hint=needed)
        addresses[name] = int(address)
    return addresses
