"""The one module that knows `cuda.bindings`: it loads the driver, calls it, and turns its codes into exceptions.

The bindings are imported at the first call and not before, because they take their time and the first `libcuda.so.1` that is
loaded is the process's driver for good.
"""

from __future__ import annotations

import importlib
import os
import threading
from types import ModuleType
from typing import Any

from aiostream import _native, errors

_lock = threading.Lock()
_bindings: ModuleType | None = None  # written once under _lock, after cuInit has succeeded

# What native code calls by raw address, with the cuGetProcAddress version that has the signature it knows.
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
}
_NO_DRIVER = (
    "No CUDA driver was found ({reason}). Install NVIDIA's driver, or run without a GPU on the simulator: set the environment "
    "variable AIOSTREAM_SIMULATOR=1, or call aiostream.simulator.install() before anything else uses CUDA."
)


def bindings() -> ModuleType:
    """`cuda.bindings.driver`, with the driver initialised.

    Raises:
        NoDriverError: There is no driver, or it has no device.
        RuntimeError: This is a forked child.
    """
    if _native.is_forked():
        _native.watcher_start()  # raises, and says what to do instead
    return _bindings if _bindings is not None else _load()


def _load() -> ModuleType:
    global _bindings
    if os.environ.get("AIOSTREAM_SIMULATOR", "") not in ("", "0"):
        importlib.import_module("aiostream.simulator").install()
    module = importlib.import_module("cuda.bindings.driver")
    try:
        (code,) = module.cuInit(0)  # two threads may both come here: it may be called any number of times
    except RuntimeError as error:  # the bindings' DynamicLibNotFoundError
        raise errors.NoDriverError(_NO_DRIVER.format(reason=str(error).splitlines()[0])) from error
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


def error(code: int, call: str, stream: str | None = None, hint: str | None = None) -> errors.CudaError:
    """The exception for a driver code: the one place where codes are translated."""
    return errors.class_for(code)(code, name_of(code), call, stream, hint)


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
    module = bindings()
    function = getattr(module, name, None)
    if function is None:
        raise errors.NotSupportedError(801, name_of(801), name, stream, "The installed cuda-bindings do not have it")
    try:
        code, *outputs = function(*args)
    except RuntimeError as problem:  # the bindings' FunctionNotFoundError: the driver is older than the function
        raise errors.NotSupportedError(801, name_of(801), name, stream, "The driver does not have it") from problem
    if int(code) != 0:
        raise error(int(code), name, stream)
    if not outputs:
        return None
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def driver_version() -> int:
    """The CUDA version that the driver supports, such as 13000."""
    return int(call("cuDriverGetVersion"))


def native_addresses() -> dict[str, int]:
    """The raw addresses that native code calls."""
    return {name: _address(name, version) for name, version in _NATIVE_CALLS.items()}


def _address(name: str, version: int) -> int:
    # 1, CU_GET_PROC_ADDRESS_LEGACY_STREAM: what stream 0 means to us does not depend on how the bindings were configured.
    found = call("cuGetProcAddress", name.encode(), version, 1)
    address = int(found[0] if isinstance(found, tuple) else found)
    if not address:
        raise errors.NotSupportedError(801, name_of(801), name, None, "aiostream needs a driver of CUDA 12 or newer")
    return address
