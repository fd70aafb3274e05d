"""Host functions: how a point is armed, and Python callables that run on the driver's thread.

A completion's host function is native and only pushes its ticket. A user's own host function is Python: native code enters the
interpreter for it behind the exit gate, `_run` calls it, and its ticket then goes to the janitor, which has the callable and its
arguments dropped where destructors may block.

On a capturing stream a user's host function becomes a node of the graph. Native code gives the graph a user object, and the
ticket goes to the janitor when the driver destroys that: when no graph, clone, executable or launch in flight can call the
function any more.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

from aiostream import _arguments, _arming, _driver, _native, _points, _process
from aiostream.device import Context
from aiostream.enums import HostFunctionSync

_FunctionPointer = ctypes._CFuncPtr  # type: ignore[attr-defined]  # the one name that ctypes has for all of them


# ------------------------------------------------------------------------------------------------ Python on the driver's thread


class HostFunction:
    """A user's callable on its way through the stream.

    `function` and `arguments` are read by the driver's thread, once or, in a graph, at each launch; and dropped by the releaser
    after the ticket has arrived.
    """

    __slots__ = ("arguments", "context_id", "function", "stream", "takes_status")

    def __init__(
        self,
        function: Any,
        arguments: tuple[Any, ...],
        takes_status: bool,
        stream: str,
        context_id: int,
    ) -> None:
        self.context_id: int = context_id
        self.function: Any = function
        self.arguments: tuple[Any, ...] = arguments
        self.takes_status: bool = takes_status
        self.stream: str = stream

    def run(self, code: int) -> None:
        """Calls the function, on the driver's thread. Its exception goes to `sys.unraisablehook`; the stream goes on."""
        try:
            if self.takes_status:
                error = _driver.error(code, "cuStreamAddCallback", self.stream) if code else None
                self.function(error, *self.arguments)
            else:
                self.function(*self.arguments)
        except BaseException as error:  # SystemExit too: there is nobody above but the driver
            _process.report_unraisable(error, self.function)

    def complete(self, code: int, orphaned: bool) -> None:
        """It has run for the last time (or the interpreter is ending): drops everything."""
        _process.release_in_thread(self.function, self.arguments)
        self.function = None
        self.arguments = ()

    def abandon(self, code: int, orphaned: bool) -> None:
        """The context has failed: the driver will not call it, but nothing proves that; everything is kept."""


def _run(ticket: int, code: int) -> None:
    point = _points.registry.get(ticket)
    if isinstance(point, HostFunction):
        point.run(code)


def launch(
    handle: _native.Handle,
    context: Context,
    stream: str,
    function: Callable[..., object],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    sync_mode: HostFunctionSync | None = None,
) -> None:
    """Enqueues a Python callable, or a ctypes function pointer with at most one argument, as a host function."""
    mode = (
        -1
        if sync_mode is None
        else int(_arguments.member(HostFunctionSync, sync_mode, "sync_mode"))
    )
    if mode >= 0 and not _driver.supports("cuLaunchHostFunc_v2"):
        raise _driver.too_old("cuLaunchHostFunc_v2", stream)
    if isinstance(function, _FunctionPointer):
        if keywords:
            raise TypeError("a native host function takes no keyword arguments")
        _launch_foreign(handle, context, stream, function, arguments, mode)
    else:
        _launch_python(
            handle, context, stream, function, arguments, keywords, _native.KIND_PYTHON_HOST, mode
        )


def add_callback(
    handle: _native.Handle,
    context: Context,
    stream: str,
    function: Callable[..., object],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
) -> None:
    """Enqueues a Python callable as a stream callback, which is called with an error or `None` first."""
    _launch_python(
        handle, context, stream, function, arguments, keywords, _native.KIND_PYTHON_CALLBACK
    )


def _launch_python(
    handle: _native.Handle,
    context: Context,
    stream: str,
    function: Callable[..., object],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    kind: int,
    sync_mode: int = -1,
) -> None:
    name = "add_callback" if kind == _native.KIND_PYTHON_CALLBACK else "launch_host_func"
    _arguments.plain_function(
        function, name, "have it call a function that begins the rest, as loop.call_soon_threadsafe"
    )
    if keywords:
        function = partial(function, **keywords)
    context_id = context._ensure_monitored()
    reserved = _native.reserve(_process.ORPHANS, context_id, kind)
    ticket = reserved.number
    _native.set_sync_mode(ticket, sync_mode)
    _native.set_dispatcher(_run)
    point = HostFunction(
        function, arguments, kind == _native.KIND_PYTHON_CALLBACK, stream, context_id
    )
    _driver.raise_for(_arming.arm(handle, ticket, point), _arming.CALLS[kind], stream)


def _launch_foreign(
    handle: _native.Handle,
    context: Context,
    stream: str,
    function: Any,
    arguments: tuple[Any, ...],
    sync_mode: int,
) -> None:
    address = ctypes.cast(function, ctypes.c_void_p).value
    if not address:
        raise ValueError("the ctypes function pointer is NULL")
    if len(arguments) > 1:
        raise TypeError(
            "a native host function takes one argument, the address of its data: void f(void *data)"
        )
    data = _address_of(arguments[0]) if arguments else 0
    context_id = context._ensure_monitored()
    reserved = _native.reserve(_process.ORPHANS, context_id, _native.KIND_FOREIGN)
    ticket = reserved.number
    _native.set_foreign(ticket, address, data)
    _native.set_sync_mode(ticket, sync_mode)
    point = HostFunction(function, arguments, False, stream, context_id)
    _driver.raise_for(
        _arming.arm(handle, ticket, point), _arming.CALLS[_native.KIND_FOREIGN], stream
    )


def _address_of(data: Any) -> int:
    if data is None:
        return 0
    if _arguments.is_integer(data):
        return _arguments.address(int(data))
    if isinstance(
        data, (ctypes.Structure, ctypes.Union, ctypes.Array, ctypes._SimpleCData)
    ) and not isinstance(data, (ctypes.c_void_p, ctypes.c_char_p)):
        return ctypes.addressof(data)
    if isinstance(data, (ctypes.c_void_p, ctypes.c_char_p, ctypes._Pointer)):
        return ctypes.cast(data, ctypes.c_void_p).value or 0
    raise TypeError(
        f"the data of a native host function is an address or a ctypes object, not {type(data).__name__}"
    )
