"""The one module that knows `cuda.bindings`: it loads the driver, calls it, and turns its codes into exceptions.

The bindings are imported at the first call and not before, because they take their time and the first `libcuda.so.1` that is
loaded is the process's driver for good.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from aiostream import _native, errors

_lock = threading.RLock()  # a signal handler may come to bindings() in the thread that holds it
_bindings: ModuleType | None = None  # written once under _lock, after cuInit has succeeded

# What native code calls by raw address, with the cuGetProcAddress version that has the signature it
# knows.
_NATIVE_CALLS = {
    "cuLaunchHostFunc": 10000,
    "cuStreamAddCallback": 5000,
    "cuStreamQuery": 2000,
    "cuStreamSynchronize": 2000,
    "cuStreamIsCapturing": 10000,
    "cuStreamDestroy": 4000,
    "cuThreadExchangeStreamCaptureMode": 10010,
    "cuEventQuery": 2000,
    "cuEventRecordWithFlags": 11010,
    "cuEventSynchronize": 2000,
    "cuEventDestroy": 4000,
    "cuEventCreate": 2000,
    "cuStreamCreate": 2000,
    "cuStreamWaitEvent": 3020,
    "cuCtxPushCurrent": 4000,
    "cuCtxPopCurrent": 4000,
    "cuCtxGetId": 12000,
    "cuStreamGetCaptureInfo": 11030,
    "cuUserObjectCreate": 11030,
    "cuUserObjectRelease": 11030,
    "cuGraphRetainUserObject": 11030,
    "cuGraphReleaseUserObject": 11030,
    "cuGraphLaunch": 10000,
    "cuGraphUpload": 11010,
    "cuGraphExecUpdate": 12000,
    "cuGraphDestroy": 10000,
    "cuGraphExecDestroy": 10000,
}
# What came after CUDA 12.0, with the version whose driver has it, for the error of an older one.
MINIMUM = {
    "cuStreamBeginCaptureToGraph": 12030,
    "cuStreamGetCaptureInfo": 12030,  # in the form that tells the data of edges; so the next three
    "cuStreamUpdateCaptureDependencies": 12030,
    "cuGraphNodeGetDependencies": 12030,
    "cuGraphNodeGetDependentNodes": 12030,
    "cuStreamGetCtx_v2": 12050,
    "cuStreamGetDevResource": 13010,
    "cuLaunchHostFunc_v2": 13020,
    "cuStreamBeginRecaptureToGraph": 13030,
}
_EDGE_DATA_FORMS = {
    "cuStreamGetCaptureInfo": "_v3",
    "cuStreamUpdateCaptureDependencies": "_v2",
    "cuGraphNodeGetDependencies": "_v2",
    "cuGraphNodeGetDependentNodes": "_v2",
}
# The same as _NATIVE_CALLS, but only newer drivers have it.
_NEWER_NATIVE_CALLS = {"cuLaunchHostFunc_v2": ("cuLaunchHostFunc", MINIMUM["cuLaunchHostFunc_v2"])}
_NO_DRIVER = (
    "No CUDA driver was found ({reason}). Install NVIDIA's driver, or run without a GPU on the simulator: set the environment "
    "variable AIOSTREAM_SIMULATOR=1, or call aiostream.simulator.install() before anything else uses CUDA."
)


_CONTEXT_IS_DESTROYED = 709
_LOST = (
    "Work that was enqueued before has failed, perhaps of another stream or library; this call only reports it. The context is "
    "lost: CUDA works again only in a new process"
)
_DESTROYED = "The context was destroyed or reset, so its streams, events and memory are gone"
_NOT_INITIALIZED, _NO_DEVICE, _NOT_PERMITTED, _CAPTURED_EVENT = 3, 100, 800, 907
_IN_HOST_FUNCTION = (
    "A host function or callback must not call CUDA: let it set an event or a flag, "
    "and call CUDA in another thread"
)
_HINTS = {
    (400, "cuEventElapsedTime"): "One of the two events was never recorded",
    (
        600,
        "cuEventElapsedTime",
    ): "The GPU has not passed both events yet: await the later one first",
    (401, "cuStreamBeginCapture"): "The stream captures already",
    (401, "cuStreamBeginCaptureToGraph"): "The stream captures already",
    (401, "cuStreamBeginRecaptureToGraph"): "The stream captures already",
    (401, "cuStreamEndCapture"): "The stream does not capture",
    (401, "cuStreamUpdateCaptureDependencies"): "The stream does not capture",
}
_TAKEN = "A capture, perhaps another thread's, took in what was recorded to wait for. Nothing can be waited for in a capture"
_FORKED = (
    "Most likely this process was forked from one that had used CUDA already, perhaps through another library. The CUDA driver "
    "does not survive fork(). Start worker processes with multiprocessing's 'spawn' or 'forkserver' method, or use CUDA only "
    "after the fork, not in the parent"
)
_NO_DEVICE_SEEN = (
    "cuInit reported CUDA_ERROR_NO_DEVICE (100): the driver sees no GPU, and the environment variable CUDA_VISIBLE_DEVICES is "
    "{visible!r}, which hides those that it does not name, simulated ones too. Unset it, or name a GPU. Without a GPU, set "
    "AIOSTREAM_SIMULATOR=1"
)


def bindings() -> ModuleType:
    """`cuda.bindings.driver`, with the driver initialised.

    Raises:
        NoDriverError: There is no driver, or it has no device.
        RuntimeError: This is a forked child, also of a process in which another library has used CUDA.
    """
    if _native.is_forked():
        _native.watcher_start()  # raises, and says what to do instead
    return _bindings if _bindings is not None else _load()


_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


def simulator_is_wanted() -> bool:
    """Whether the environment variable `AIOSTREAM_SIMULATOR` asks for the simulator.

    Raises:
        ValueError: It says neither yes nor no.
    """
    said = os.environ.get("AIOSTREAM_SIMULATOR", "")
    if said.strip().lower() in _YES:
        return True
    if said.strip().lower() in _NO:
        return False
    raise ValueError(
        f"the environment variable AIOSTREAM_SIMULATOR is 1 (yes, true, on) or 0 (no, false, off), not {said!r}"
    )


def _load() -> ModuleType:
    global _bindings
    if simulator_is_wanted():
        importlib.import_module("aiostream.simulator").install()
    module = importlib.import_module("cuda.bindings.driver")
    try:
        (code,) = module.cuInit(
            0
        )  # two threads may both come here: it may be called any number of times
    except RuntimeError as error:  # the bindings' DynamicLibNotFoundError
        raise errors.NoDriverError(_NO_DRIVER.format(reason=str(error).splitlines()[0])) from error
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if int(code) == _NOT_INITIALIZED:
        raise RuntimeError(f"cuInit reported CUDA_ERROR_NOT_INITIALIZED (3). {_FORKED}")
    if int(code) == _NO_DEVICE and visible is not None:
        raise errors.NoDriverError(_NO_DEVICE_SEEN.format(visible=visible))
    if int(code) != 0:
        raise errors.NoDriverError(_NO_DRIVER.format(reason=f"cuInit reported {code.name}"))
    with _lock:
        if _bindings is None:
            os.register_at_fork(after_in_child=_native.set_forked)
            _bindings = module
    return module


def name_of(code: int) -> str:
    """The driver's name of a result code."""
    try:
        return str(bindings().CUresult(code).name)
    except ValueError:
        return "CUDA_ERROR_UNRECOGNIZED"  # newer than the bindings


def _meaning_of(code: int) -> str | None:
    module = bindings()
    try:
        status, text = module.cuGetErrorString(module.CUresult(code))
    except ValueError:
        return None  # newer than the bindings
    return str(text.decode()) if int(status) == 0 and text else None


def error(
    code: int, call: str, stream: str | None = None, hint: str | None = None
) -> errors.CudaError:
    """The exception for a driver code: the one place where codes are translated."""
    if hint is None and code in _native.FATAL_CODES:
        hint = _DESTROYED if code == _CONTEXT_IS_DESTROYED else _LOST
    elif hint is None and code == _NOT_INITIALIZED:
        hint = _FORKED
    elif hint is None and code == _NOT_PERMITTED:
        hint = _IN_HOST_FUNCTION
    elif hint is None and code == _CAPTURED_EVENT:
        hint = _TAKEN
    elif hint is None:
        hint = _HINTS.get((code, call.partition("_v")[0]))
    problem = errors.class_for(code)(code, name_of(code), call, stream, hint, _meaning_of(code))
    if isinstance(problem, errors.ContextFailedError):
        _native.failure_note(code, call)
        if _failure_listener is not None:
            _failure_listener(problem)
    return problem


def raise_for(result: int, call: str, stream: str, capturing: str | None = None) -> None:
    """Turns the answer of a native call into its exception; 0 is success.

    `call` is what the operation is for. If another driver call of the operation has failed, the exception names that one.
    `capturing` is the hint for a stream that captures.
    """
    if result == 0:
        return
    if result == _native.RESULT_CLOSED:
        raise errors.StreamClosedError(
            f"{stream} is closed: its handle was destroyed or given away"
        )
    if result == _native.RESULT_NO_MEMORY:
        raise MemoryError(f"{call} for {stream}: there is no memory left for a wait")
    if result == _native.RESULT_QUARANTINED:
        hint = (
            "Another thread began or ended a capture of the stream during the call; what was enqueued may have become a node of "
            "the graph, and will do nothing"
        )
        raise error(900, call, stream, hint)
    if result <= _native.RESULT_CAPTURING:
        hint = capturing or "The stream is capturing; the call was refused and the capture goes on"
        raise error(-result, call, stream, hint)
    raise error(result, _native.failed_call(result) or call, stream)


_failure_listener: Callable[[errors.ContextFailedError], None] | None = None


def notice_failures(listener: Callable[[errors.ContextFailedError], None]) -> None:
    """From now on, tells `listener`, which must not call anybody, of each sticky error for which an exception is made."""
    global _failure_listener
    _failure_listener = listener


def tell_failures() -> None:
    """Tells the listener of sticky errors that native code has met since, for which nobody may ever make an exception."""
    if _failure_listener is None:
        return  # native code keeps them until there is one
    while (met := _native.failure_take()) is not None:
        error(*met)


def answer(name: str, *args: Any, stream: str | None = None) -> tuple[int, tuple[Any, ...]]:
    """Calls the driver through the bindings, and gives what it answers: its code, and the outputs.

    Raises:
        NotSupportedError: The bindings or the driver do not have the function.
    """
    function = getattr(bindings(), name, None)
    if function is None:
        raise not_there(name, stream, "the installed cuda-bindings do not have it")
    try:
        code, *outputs = function(*args)
    except RuntimeError as problem:  # the bindings' FunctionNotFoundError
        raise too_old(name, stream) from problem
    if code:
        _native.failure_note(code, name)
    return int(code), tuple(outputs)


def call(name: str, *args: Any, stream: str | None = None) -> Any:
    """Calls the driver through the bindings.

    Args:
        name: The driver function.
        *args: Its arguments, as the bindings take them.
        stream: What the call is for, for the error's text.

    Returns:
        Nothing, the one output, or a tuple of the outputs.

    Raises:
        CudaError: The driver refused.
        NotSupportedError: The bindings or the driver do not have the function.
    """
    code, outputs = answer(name, *args, stream=stream)
    if code != 0:
        raise error(code, name, stream)
    if not outputs:
        return None
    return outputs[0] if len(outputs) == 1 else outputs


@contextlib.contextmanager
def unless_owned(destroy: str) -> Iterator[list[Any]]:
    """What the driver makes in the block, and the block appends to the list, is destroyed if the block raises.

    For the steps between a call that makes an object and the `Handle` that owns it: any of them may fail. A KeyboardInterrupt
    destroys nothing, because it may come when the handle owns the object already, and a second destruction would crash.
    """
    made: list[Any] = []
    try:
        yield made
    except Exception:
        for each in made:
            answer(destroy, each)  # if this fails too, the first error says what went wrong
        raise


def annotated(name: str) -> str:
    """The bindings' name for the form of a function that knows the data of edges: those of 12 number it, those of 13 do not."""
    numbered = name + _EDGE_DATA_FORMS[name]
    return numbered if hasattr(bindings(), numbered) else name


def not_there(name: str, stream: str | None, why: str) -> errors.NotSupportedError:
    """The error for a function that this driver, or these bindings, are too old for."""
    needed = MINIMUM.get(name) or MINIMUM.get(name.rpartition("_v")[0])
    hint = (
        f"It needs a driver of CUDA {_spelled(needed)} or newer; {why}"
        if needed
        else f"The driver may be too old: {why}"
    )
    return errors.NotSupportedError(801, name_of(801), name, stream, hint)


def supports(name: str) -> bool:
    """Whether this driver is new enough for a function of `MINIMUM`."""
    return driver_version() >= MINIMUM[name]


def too_old(name: str, stream: str | None) -> errors.NotSupportedError:
    """The error for a function that this driver does not have."""
    return not_there(name, stream, f"this one is of CUDA {_spelled(driver_version())}")


def _spelled(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


@contextlib.contextmanager
def relaxed() -> Iterator[None]:
    """Lets this thread do, for a `with` block, what might end a capture of its own or, GLOBAL, of another thread."""
    mode = call(
        "cuThreadExchangeStreamCaptureMode",
        bindings().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED,
    )
    try:
        yield
    finally:
        call("cuThreadExchangeStreamCaptureMode", mode)


def driver_version() -> int:
    """The CUDA version that the driver supports, such as 13000."""
    return int(call("cuDriverGetVersion"))


def native_addresses() -> dict[str, int]:
    """The raw addresses that native code calls."""
    addresses = {name: _address(name, version) for name, version in _NATIVE_CALLS.items()}
    for name, (plain, version) in _NEWER_NATIVE_CALLS.items():
        addresses[name] = _find(plain, version) if driver_version() >= version else 0
    return addresses


def _find(name: str, version: int) -> int:
    # 1, CU_GET_PROC_ADDRESS_LEGACY_STREAM: what stream 0 means to us does not depend on how the bindings were configured.
    found = call("cuGetProcAddress", name.encode(), version, 1)
    return int(found[0] if isinstance(found, tuple) else found)


def _address(name: str, version: int) -> int:
    address = _find(name, version)
    if not address:
        raise errors.NotSupportedError(
            801, name_of(801), name, None, "aiostream needs a driver of CUDA 12 or newer"
        )
    return address
