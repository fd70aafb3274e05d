"""Objects that own a handle of the driver's, or borrow one: streams, events, graphs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar, Self

from aiostream import _native, errors
from aiostream._base import checks, development, driver
from aiostream._runtime import process


class Owned(checks.NotCopied):
    """An object that owns a handle of the driver's, or borrows one.

    A constructor stores `_handle` last. Until then it answers for the driver's object itself,
    because the finalizer does nothing without `_handle`. The other fields are written before, and
    never again, so any thread may read them.
    """

    _destructor: ClassVar[str]  # the driver's function
    _handle: _native.Handle
    _name: str  # what errors call it, such as "stream 0x55d0 on device 0"
    _label: str | None = None  # what its user calls it
    _owned: bool
    _made: tuple[float, str] | None = None  # when and where, if objects note it
    _source: Any = None  # the object from which the handle was borrowed; `close` drops it

    @property
    def handle(self) -> int:
        """The driver's handle, as an int. Do not use it after you close this object.

        Raises:
            StreamClosedError: It is closed already.
        """
        self._require_open()
        return self._handle.value

    @property
    def closed(self) -> bool:
        """Whether it was closed or given away."""
        return not self._handle.is_open

    def close(self) -> None:
        """Destroys it now. Work in flight finishes. You may call this again.

        A borrowed object is only let go of: its owner destroys it. If other threads are in a call
        on the object, the last of these calls destroys it.

        Raises:
            CudaError: The driver refused. The object is closed nevertheless.
        """
        code = self._handle.close()
        # No call can begin any more, but one of another thread may be under way. The source owns
        # the driver's stream, and destroys it when it dies. So it stays then, and dies with this
        # object, which that call holds.
        if not self._handle.is_used:
            self._source = None
        driver.raise_for(code, self._destructor, self._name)

    def _is_same(self, other: Owned) -> bool:
        """Whether both are open, and have the same handle."""
        mine, its = self._handle, other._handle
        # Another thread may close one of them meanwhile. Then the answer is of the moment before.
        # Only open ones, because the driver gives a handle that it has destroyed to the next one.
        return mine.value == its.value and mine.is_open and its.is_open

    def __int__(self) -> int:
        return self.handle

    def __repr__(self) -> str:
        kind = type(self)
        package = kind.__module__.partition(".")[0]
        if getattr(self, "_handle", None) is None:
            # A debugger shows it in its constructor, and a traceback after that has failed.
            return f"<{package}.{kind.__qualname__}, not made>"
        traits = "".join(f", {trait}" for trait in self._traits())
        called = f"{kind.__qualname__} {self._label!r}" if self._label else kind.__qualname__
        place = "".join(self._name.replace(repr(self._label), "", 1).partition(" on ")[1:])
        return f"<{package}.{called} {self._handle.value:#x}{place}{traits}>"

    def __del__(
        self, run_in_janitor: Callable[[Callable[[], Any]], None] = process.run_in_janitor
    ) -> None:
        # The janitor closes, because a finalizer may run anywhere, also inside a host function,
        # where a driver call would fail. Defaults bind what is called, because the interpreter's
        # end empties modules before the last objects die.
        handle = getattr(self, "_handle", None)
        if handle is not None and self._owned and handle.is_open:
            run_in_janitor(handle.drop)

    def _note_place(self) -> None:
        """A constructor calls it."""
        if development.notes_places:
            self._made = time.perf_counter(), development.caller()[0]

    def _traits(self) -> list[str]:
        """What `repr` says behind the handle."""
        traits = [] if self._owned else ["borrowed"]
        return traits if self._handle.is_open else [*traits, "closed"]

    def _require_open(self) -> None:
        if not self._handle.is_open:
            raise errors.closed(self._name)


class Transferable(Owned):
    """An object whose handle can be given away."""

    def into_raw(self) -> int:
        """Gives the handle away. From then on you have to destroy it, or to pass it to `from_raw`.

        Returns:
            The driver's handle, as an int.

        Raises:
            StreamClosedError: It was closed before.
            ValueError: It is borrowed, so it is not yours to give.
            RuntimeError: It is in use, in this thread or another one.
        """
        if not self._owned:
            raise ValueError(
                f"{self._name} is borrowed, and its owner destroys it: read the handle with .handle"
            )
        if not self._handle.release():
            self._require_open()
            raise self._in_use()
        return self._handle.value

    def _in_use(self) -> RuntimeError:
        return RuntimeError(f"{self._name} is in use: give it away when the calls on it have ended")


class WithBlock(Owned):
    """An object that the end of a `with` block closes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
