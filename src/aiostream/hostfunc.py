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

from aiostream import _arguments, _driver, _loops, _native, _points, _process, errors, interop
from aiostream.device import Context
from aiostream.enums import HostFunctionSync
from aiostream.futures import Completion, KeepAlive, State, leak

_FunctionPointer = ctypes._CFuncPtr  # type: ignore[attr-defined]  # the one name that ctypes has for all of them
CALLS = {
    _native.KIND_HOST_FUNCTION: "cuLaunchHostFunc",
    _native.KIND_CALLBACK: "cuStreamAddCallback",
    _native.KIND_PYTHON_HOST: "cuLaunchHostFunc",
    _native.KIND_PYTHON_CALLBACK: "cuStreamAddCallback",
    _native.KIND_FOREIGN: "cuLaunchHostFunc",
}


LEFT_CAPTURING = "The function has left the stream capturing, and so nothing can wait for its work: let it end its capture"


def raise_for(result: int, call: str, stream: str, capturing: str | None = None) -> None:
    """Turns the answer of a native call into its exception; 0 is success.

    `call` is what the operation is for. If another driver call of the operation has failed, the exception names that one.
    `capturing` is the hint for a stream that captures.
    """
    if result == 0:
        return
    if result == _native.RESULT_CLOSED:
        raise errors.closed(stream)
    if result == _native.RESULT_NO_MEMORY:
        raise MemoryError(f"{call} for {stream}: there is no memory left for a wait")
    if result == _native.RESULT_QUARANTINED:
        hint = (
            "Another thread began or ended a capture of the stream during the call; what was enqueued may have become a node of "
            "the graph, and will do nothing"
        )
        raise _driver.error(900, call, stream, hint)
    if result <= _native.RESULT_CAPTURING:
        hint = capturing or "The stream is capturing; the call was refused and the capture goes on"
        raise _driver.error(-result, call, stream, hint)
    raise _driver.error(result, _native.failed_call(result) or call, stream)


def _arm(
    handle: _native.Handle, ticket: int, point: _points.PendingEntry, pinned: bool = False
) -> int:
    """Registers the point and enqueues its ticket; the answer is for `raise_for`.

    Afterwards the point is registered if, and only if, the driver was given the ticket, also when a KeyboardInterrupt struck.
    """
    _points.registry[ticket] = point
    result = -1
    try:
        result = _native.arm(handle, ticket, pinned)
    finally:
        if result != 0:
            _native.unreserve(ticket)
            if not _native.is_live(ticket):
                _points.registry.pop(ticket, None)
    return result


def require_ready(reference: interop.Reference) -> None:
    """Refuses what a completion behind a stream's work would be refused for, before that work is enqueued.

    Raises:
        RuntimeError: No loop runs here.
        StreamClosedError: The stream is closed.
        StreamCaptureError: It captures.
        ContextFailedError: Its context has failed.
    """
    _loops.current_bridge()
    require_healthy(reference)


def require_healthy(reference: interop.Reference, recent: bool = False) -> None:
    """The same for a caller that has its loop. With `recent`, a context may have failed within the last millisecond.

    Raises:
        StreamClosedError: The stream is closed.
        StreamCaptureError: It captures.
        ContextFailedError: Its context has failed.
    """
    raise_for(
        _native.health(reference.context._ensure_monitored(), recent),
        "cuStreamQuery",
        reference.name,
    )
    raise_for(_native.capture_refusal(reference.handle), "cuStreamIsCapturing", reference.name)


def arm_completion(
    handle: _native.Handle,
    context: Context,
    stream: str,
    kind: int = _native.KIND_HOST_FUNCTION,
    *,
    result: Any = None,
    keepalive: Any = None,
    pinned: bool = False,
    answered_for: list[bool] | None = None,
    make: Callable[..., Completion] = Completion,
    capturing: str | None = None,
) -> Completion:
    """Marks the stream's current end for the loop that runs in this thread.

    Args:
        handle: The stream.
        context: Its context, whose failure fails the completion.
        stream: What the stream is called in errors.
        kind: By host function, or by stream callback with its status.
        result: What the future will return.
        keepalive: Stays alive until the GPU has passed the point; if it cannot be armed, for ever.
        pinned: The caller has pinned the handle, so that it serves even if it was closed meanwhile.
        answered_for: Gets an item as soon as this function sees to `keepalive`, also if it fails.
        make: The class of the completion.
        capturing: The hint of the error if it captures.

    Raises:
        RuntimeError: No loop runs here.
        StreamClosedError: The stream is closed.
        StreamCaptureError: It captures.
        CudaError: The driver refused.
    """
    bridge = _loops.current_bridge()
    context_id = context._ensure_monitored()
    completion = make(bridge.new_future(), stream, CALLS[kind], context_id, result, keepalive)
    ticket = 0
    try:
        if answered_for is not None:
            answered_for.append(True)
        _native.set_state(completion, State.PENDING, _native.FUTURES_CREATED)
        reserved = _native.reserve(bridge.queue, context_id, kind)
        ticket = reserved.number
        raise_for(_arm(handle, ticket, completion, pinned), CALLS[kind], stream, capturing)
    except BaseException as problem:
        # The future is given to nobody.
        completion.cancel()
        if keepalive is not None and ticket not in _points.registry:
            if isinstance(problem, Exception):  # the driver has refused
                leak((keepalive, result))
            else:
                keep_until_passed(handle, context, stream, (keepalive, result))
        raise
    return completion


def enqueue(
    reference: interop.Reference, call: Callable[[], Any], keepalive: Any = None
) -> Completion:
    """Calls `call`, which enqueues work on a pinned stream, and gives the completion of what it enqueued, by a host function.

    Raises:
        RuntimeError: No loop runs here.
        StreamCaptureError: `call` has left the stream capturing.
        CudaError: The driver refused.
    """
    results: list[Any] = []
    answered_for: list[bool] = []
    refusal = 0
    try:
        refusal = interop.call_with(reference, call, results)
        raise_for(refusal, "cuCtxPushCurrent", reference.name)
        handle, context, name = reference.handle, reference.context, reference.name
        return arm_completion(
            handle,
            context,
            name,
            result=results[0],
            keepalive=keepalive,
            pinned=True,
            answered_for=answered_for,
            capturing=LEFT_CAPTURING,
        )
    except BaseException:
        if (
            refusal == 0 and not answered_for
        ):  # an error of `call`, or an interrupt: what was enqueued may be in flight
            keep_until_passed(
                reference.handle, reference.context, reference.name, (keepalive, results)
            )
        raise


def keep_until_passed(
    handle: _native.Handle, context: Context, stream: str, keepalive: Any
) -> bool:
    """Keeps objects alive until the GPU has passed the current end of a pinned stream; nobody waits.

    Returns:
        `False` if the driver could not be asked: the objects then stay alive for ever, and are counted as leaked.
    """
    context_id = context._ensure_monitored()
    reserved = _native.reserve(_process.ORPHANS, context_id, _native.KIND_HOST_FUNCTION)
    ticket = reserved.number
    result = _arm(handle, ticket, KeepAlive(keepalive, context_id), pinned=True)
    if result not in (0, _native.RESULT_QUARANTINED):
        leak(keepalive)
    return result == 0


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
        self.context_id = context_id
        self.function = function
        self.arguments = arguments
        self.takes_status = takes_status
        self.stream = stream

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


def _launch_python(
    stream: interop.Reference,
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
    context_id = stream.context._ensure_monitored()
    reserved = _native.reserve(_process.ORPHANS, context_id, kind)
    ticket = reserved.number
    _native.set_sync_mode(ticket, sync_mode)
    _native.set_dispatcher(_run)
    point = HostFunction(
        function, arguments, kind == _native.KIND_PYTHON_CALLBACK, stream.name, context_id
    )
    raise_for(_arm(stream.handle, ticket, point), CALLS[kind], stream.name)


def _launch_foreign(
    stream: interop.Reference, function: Any, arguments: tuple[Any, ...], sync_mode: int
) -> None:
    address = ctypes.cast(function, ctypes.c_void_p).value
    if not address:
        raise ValueError("the ctypes function pointer is NULL")
    if len(arguments) > 1:
        raise TypeError(
            "a native host function takes one argument, the address of its data: void f(void *data)"
        )
    data = _address_of(arguments[0]) if arguments else 0
    context_id = stream.context._ensure_monitored()
    reserved = _native.reserve(_process.ORPHANS, context_id, _native.KIND_FOREIGN)
    ticket = reserved.number
    _native.set_foreign(ticket, address, data)
    _native.set_sync_mode(ticket, sync_mode)
    point = HostFunction(function, arguments, False, stream.name, context_id)
    raise_for(_arm(stream.handle, ticket, point), CALLS[_native.KIND_FOREIGN], stream.name)


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


# ---------------------------------------------------------------------------- the methods of Stream


class HostFunctionMethods:
    """The host functions and callbacks of a `Stream`, which inherits them from here."""

    _reference: interop.Reference  # set by `Stream`

    def launch_host_func(
        self,
        fn: Callable[..., object],
        /,
        *args: Any,
        sync_mode: HostFunctionSync | None = None,
        **kwargs: Any,
    ) -> None:
        """Enqueues a function that the driver calls when the GPU gets there (`cuLaunchHostFunc`).

        The driver calls it in a thread of its own. The stream stands still until it returns, and no
        other host function of the context runs meanwhile. A Python function also waits for the GIL:
        if one of your threads keeps the GIL in a blocking CUDA call, the two wait for each other
        forever. So prefer `completion_future` and ordinary code.

        The function must not call CUDA, nor wait for anything that does. The driver answers 800
        there, also to `close()`. Its exception goes to `sys.unraisablehook`, and the stream goes
        on. It is not called if the context fails first, or if the interpreter ends.

        A ctypes function pointer is called without Python. Its one argument is `args[0]`, an
        address or a ctypes object.

        If the stream captures, the function becomes a node of the graph, and each launch calls it.
        Callable and arguments then live as long as the graph, its clones and executables, and their
        launches. Otherwise a thread of the library drops them when the function has run. If it has
        run before this call returns, your own references may be the last.

        If the stream is full, the call blocks its thread until there is room.

        Args:
            fn: A callable, or a ctypes function pointer.
            *args: What it is called with.
            sync_mode: How the GPU waits for it. This needs a driver of CUDA 13.2.
            **kwargs: What else it is called with.

        Raises:
            TypeError: `fn` is not callable, or is a coroutine or generator function.
            ValueError: There is no such `sync_mode`.
            StreamClosedError: The stream is closed.
            StreamCaptureError: Its capture was invalidated. Or it is the legacy stream while
                another stream captures.
            NotSupportedError: The driver is too old for `sync_mode`.
            CudaError: The driver refused.

        Example:
            >>> async with aiostream.Stream() as stream:
            ...     steps = []
            ...     stream.launch_host_func(steps.append, "the GPU was here")
            ...     await stream.synchronize_async()
            ...     print(steps)
            ['the GPU was here']
        """
        mode = (
            -1
            if sync_mode is None
            else int(_arguments.member(HostFunctionSync, sync_mode, "sync_mode"))
        )
        reference = self._reference
        if mode >= 0 and not _driver.supports("cuLaunchHostFunc_v2"):
            raise _driver.too_old("cuLaunchHostFunc_v2", reference.name)
        if not isinstance(fn, _FunctionPointer):
            _launch_python(reference, fn, args, kwargs, _native.KIND_PYTHON_HOST, mode)
        elif kwargs:
            raise TypeError("a native host function takes no keyword arguments")
        else:
            _launch_foreign(reference, fn, args, mode)

    def add_callback(self, fn: Callable[..., object], /, *args: Any, **kwargs: Any) -> None:
        """Enqueues `fn(error, *args, **kwargs)` as a callback (`cuStreamAddCallback`).

        The driver calls it after a failure too. `error` is `None` or a `CudaError`. In all else it
        is as `launch_host_func`, except that a stream that captures refuses it.
        """
        _launch_python(self._reference, fn, args, kwargs, _native.KIND_PYTHON_CALLBACK)
