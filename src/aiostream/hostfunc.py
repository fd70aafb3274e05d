"""The user's own host functions: Python callables that run on the driver's thread.

When the GPU reaches that point, the driver's thread calls native code. Native code takes the GIL,
unless Python ends, and `HostFunction.run` calls the user's function. The ticket then goes to the
janitor, and the releaser drops the function and its arguments, because their destructors may block.

On a capturing stream a host function becomes a node of the graph and runs at every launch. Native
code gives the graph a user object. The driver destroys that object when no graph, clone, executable
or launch in flight can call the function any more, and then the ticket goes to the janitor.
"""

from __future__ import annotations

import contextvars
import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiostream import _native
from aiostream._base import checks, driver
from aiostream._handles.operand import Operand, WithOperand
from aiostream._runtime import process
from aiostream.enums import HostFunctionSync

# The one class that ctypes has for all function pointers.
_FunctionPointer = ctypes._CFuncPtr  # type: ignore[attr-defined]


@dataclass(slots=True, eq=False, repr=False)
class HostFunction:
    """A user's function on its way through the stream.

    Threads: the driver's thread reads `function` and `arguments`, once, or at each launch of a
    graph. The janitor drops them after the ticket has arrived, when no call can come any more.
    """

    function: Any
    arguments: tuple[Any, ...]
    takes_status: bool
    stream: str
    context: Any  # that of the caller; a `contextvars.Context`

    def run(self, code: int) -> None:
        """Calls the function. Its exception goes to `sys.unraisablehook`, and the stream goes on.

        Threads: the driver's.
        """
        # This runs with the GIL, before Python ends. While it runs, the stream waits, and so do
        # all other host functions of the context, because the driver has one thread for them.
        try:
            error = driver.error(code, "cuStreamAddCallback", self.stream) if code else None
            first = (error,) if self.takes_status else ()
            # A copy, because launches of a graph may be under way in several contexts at once.
            run = self.context.copy().run
            _native.plain_result(run(self.function, *first, *self.arguments), False)
        except BaseException as error:
            # SystemExit too, because only the driver's own code is above this frame. An exception
            # that left it could be raised to no caller.
            _native.write_unraisable(error, self.function)

    def complete(self, code: int, orphaned: bool) -> None:
        """Drops everything, because the function has run for the last time."""
        # This runs in the janitor's thread. The releaser drops them, because a destructor may
        # block, and the janitor serves everything else.
        held: list[Any] = [self.function, self.arguments, self.context]
        self.function, self.arguments, self.context = None, (), None
        process.release_in_thread(held)


def _launch(
    stream: Operand,
    kind: int,
    function: Any,
    arguments: tuple[Any, ...],
    sync_mode: int = -1,
    address: int = 0,
    data: int = 0,
) -> None:
    # The point keeps a function pointer and its data object alive. The driver has only addresses.
    takes_status = kind == _native.KIND_PYTHON_CALLBACK
    context = contextvars.copy_context()
    point = HostFunction(function, arguments, takes_status, stream.name, context)
    context_id = stream.context._ensure_monitored()
    answer = _native.arm(stream.handle, context_id, kind, point, sync_mode, address, data)
    call = "cuStreamAddCallback" if takes_status else "cuLaunchHostFunc"
    driver.raise_for(answer, call, stream.name)


def _plain(name: str, function: Callable[..., object], keywords: dict[str, Any]) -> Any:
    checks.plain_function(
        function, name, "pass a function that starts it, for example with loop.call_soon_threadsafe"
    )
    return partial(function, **keywords) if keywords else function


def _address_of(data: Any) -> int:
    if data is None:
        return 0
    if checks.is_integer(data):
        return checks.address(int(data))
    if isinstance(data, (ctypes.c_void_p, ctypes.c_char_p, ctypes._Pointer)):
        return ctypes.cast(data, ctypes.c_void_p).value or 0
    if isinstance(data, (ctypes.Structure, ctypes.Union, ctypes.Array, ctypes._SimpleCData)):
        return ctypes.addressof(data)
    raise TypeError(
        "the data of a native host function is an address or a ctypes object, not "
        f"{type(data).__name__}"
    )


# ---------------------------------------------------------------------------- the methods of Stream


class HostFunctionMethods(WithOperand):
    """The host functions and callbacks of a `Stream`, which inherits them from here."""

    def launch_host_func(
        self,
        fn: Callable[..., object],
        /,
        *args: Any,
        sync_mode: HostFunctionSync | None = None,
        **kwargs: Any,
    ) -> None:
        """Enqueues a function that the driver calls in stream order (`cuLaunchHostFunc`).

        The driver calls it in a thread of its own, in a copy of your context variables. The stream
        waits until it returns, and no other host function of the context runs meanwhile. A Python
        function also waits for the GIL: if one of your threads keeps the GIL in a blocking CUDA
        call, the two wait for each other forever. So prefer `completion_future` and ordinary code.

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
        mode, operand = -1, self._operand
        if sync_mode is not None:
            mode = int(checks.member(HostFunctionSync, sync_mode, "sync_mode"))
            driver.require("cuLaunchHostFunc_v2", operand.name)
        if not isinstance(fn, _FunctionPointer):
            fn = _plain("launch_host_func", fn, kwargs)
            _launch(operand, _native.KIND_PYTHON_HOST, fn, args, mode)
            return
        if kwargs:
            raise TypeError(
                "a native host function takes no keyword arguments: pass the address of its data"
            )
        address = ctypes.cast(fn, ctypes.c_void_p).value
        if not address:
            raise ValueError("the ctypes function pointer is NULL")
        if len(args) > 1:
            raise TypeError(
                "a native host function takes one argument, the address of its data: "
                "void f(void *data)"
            )
        data = _address_of(args[0]) if args else 0
        _launch(operand, _native.KIND_FOREIGN, fn, args, mode, address, data)

    def add_callback(self, fn: Callable[..., object], /, *args: Any, **kwargs: Any) -> None:
        """Enqueues `fn(error, *args, **kwargs)` as a callback (`cuStreamAddCallback`).

        The driver calls it after a failure too. `error` is `None` or a `CudaError`. In all else it
        is as `launch_host_func`, except that a stream that captures refuses it.
        """
        fn = _plain("add_callback", fn, kwargs)
        _launch(self._operand, _native.KIND_PYTHON_CALLBACK, fn, args)
