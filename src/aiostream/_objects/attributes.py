"""What the driver knows of a stream: its properties, and its attributes as Python values."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from aiostream import _native, errors
from aiostream._base import checks, driver
from aiostream._handles import interop
from aiostream._handles.operand import PER_THREAD, WithOperand, call_on, pinned
from aiostream.enums import (
    AccessProperty,
    MemSyncDomain,
    StreamAttribute,
    StreamFlags,
    SynchronizationPolicy,
)

__all__ = ["AccessPolicyWindow", "MemSyncDomainMap"]


@dataclass(frozen=True, slots=True)
class AccessPolicyWindow:
    """A window of memory, and how the L2 cache treats accesses to it (`CUaccessPolicyWindow`).

    Args:
        base: Its address.
        size: Its size in bytes. 0 means no window. The driver may align the window, and limits its
            size.
        hit_ratio: Which part of the window gets `hit`, from 0 to 1. The rest gets `miss`.
        hit: For example `PERSISTING`.
        miss: `NORMAL` or `STREAMING`.
    """

    base: int = 0
    size: int = 0
    hit_ratio: float = 1.0
    hit: AccessProperty = AccessProperty.NORMAL
    miss: AccessProperty = AccessProperty.NORMAL

    def __post_init__(self) -> None:
        """Refuses what no driver takes.

        Raises:
            TypeError: A value is not a number.
            ValueError: A number is out of range.
        """
        checks.address(checks.integer("base", self.base))
        checks.address(checks.integer("size", self.size))
        if not 0.0 <= checks.real(self.hit_ratio, "hit_ratio is a number from 0 to 1") <= 1.0:
            raise ValueError(f"a window's hit_ratio is from 0 to 1, not {self.hit_ratio}")


@dataclass(frozen=True, slots=True)
class MemSyncDomainMap:
    """The numbers of the two memory synchronization domains (`CUlaunchMemSyncDomainMap`)."""

    default: int = 0
    remote: int = 1

    def __post_init__(self) -> None:
        """Refuses what no driver takes.

        Raises:
            TypeError: A number is not an int.
            ValueError: A number is not from 0 to 255.
        """
        checks.byte("default", self.default)
        checks.byte("remote", self.remote)


def _window(raw: Any) -> AccessPolicyWindow:
    return AccessPolicyWindow(
        int(raw.base_ptr or 0),
        int(raw.num_bytes),
        raw.hitRatio,
        AccessProperty(int(raw.hitProp)),
        AccessProperty(int(raw.missProp)),
    )


def _raw_window(value: Any) -> Any:
    value = checks.instance(AccessPolicyWindow, value, "an AccessPolicyWindow is needed, not")
    cuda = driver.bindings()
    raw = cuda.CUaccessPolicyWindow()
    raw.base_ptr, raw.num_bytes, raw.hitRatio = value.base, value.size, value.hit_ratio
    raw.hitProp = cuda.CUaccessProperty(int(checks.member(AccessProperty, value.hit, "hit")))
    raw.missProp = cuda.CUaccessProperty(int(checks.member(AccessProperty, value.miss, "miss")))
    return raw


def _raw_map(value: Any) -> Any:
    value = checks.instance(MemSyncDomainMap, value, "a MemSyncDomainMap is needed, not")
    raw = driver.bindings().CUlaunchMemSyncDomainMap()
    raw.default_, raw.remote = value.default, value.remote
    return raw


def _policy(number: int) -> SynchronizationPolicy | None:
    return None if number == _NEVER_SET else SynchronizationPolicy(number)


def _as_enum(name: str, kind: type[IntEnum]) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        return getattr(driver.bindings(), name)(int(checks.member(kind, value, "the value")))

    return convert


_NEVER_SET = -1


class _Form(NamedTuple):
    field: str  # of the driver's union
    from_driver: Callable[[Any], Any]  # is given a plain number where the driver has one
    to_driver: Callable[[Any], Any]


_FORMS = {
    StreamAttribute.ACCESS_POLICY_WINDOW: _Form("accessPolicyWindow", _window, _raw_window),
    StreamAttribute.SYNCHRONIZATION_POLICY: _Form(
        "syncPolicy", _policy, _as_enum("CUsynchronizationPolicy", SynchronizationPolicy)
    ),
    StreamAttribute.PRIORITY: _Form("priority", int, checks.priority),
    StreamAttribute.MEM_SYNC_DOMAIN_MAP: _Form(
        "memSyncDomainMap",
        lambda raw: MemSyncDomainMap(int(raw.default_), int(raw.remote)),
        _raw_map,
    ),
    StreamAttribute.MEM_SYNC_DOMAIN: _Form(
        "memSyncDomain", MemSyncDomain, _as_enum("CUlaunchMemSyncDomain", MemSyncDomain)
    ),
}


class AttributeMethods(WithOperand):
    """What the driver knows of a `Stream`, which inherits this from here."""

    @property
    def green_context(self) -> int | None:
        """The green context in which it was created, a `CUgreenCtx`, or `None`.

        (`cuStreamGetCtx_v2`.)

        Raises:
            NotSupportedError: The driver is older than CUDA 12.5.
        """
        _, green = call_on(self._operand, "cuStreamGetCtx_v2")
        return int(green) or None

    @property
    def flags(self) -> StreamFlags:
        """How it was created (`cuStreamGetFlags`)."""
        return StreamFlags(self._constant("cuStreamGetFlags"))

    @property
    def priority(self) -> int:
        """Its priority, after clamping (`cuStreamGetPriority`)."""
        # Asked each time, because `set_attribute` changes it. This does not disturb a capture.
        return int(call_on(self._operand, "cuStreamGetPriority"))

    @property
    def id(self) -> int:
        """A number that no other stream of the driver ever has (`cuStreamGetId`).

        A `Stream` that uses a retired stream again has that stream's number (see `core`).
        """
        return self._constant("cuStreamGetId")

    def _constant(self, name: str) -> int:
        """A number that never changes, of which the driver is asked once.

        Not while the stream captures, because the question would end its capture.
        """
        operand = self._operand
        if not operand.handle.is_open:
            raise errors.closed(operand.name)
        known = operand.shared.constants.get(name)
        if known is None:
            driver.raise_for(_native.capture_refusal(operand.handle), name, operand.name)
            known = int(call_on(operand, name))
            if operand.handle.value != PER_THREAD:  # because each thread has its own
                operand.shared.constants[name] = known
        return known

    def get_attribute(self, attribute: StreamAttribute) -> Any:
        """Returns the value of an attribute (`cuStreamGetAttribute`).

        `StreamAttribute` says which type it has. The question does not disturb a capture.

        Raises:
            ValueError: There is no such attribute.
            StreamClosedError: The stream is closed.
            CudaError: The driver refused.

        Example:
            >>> async with aiostream.Stream(priority=-1) as stream:
            ...     print(stream.get_attribute(aiostream.StreamAttribute.PRIORITY))
            -1
        """
        attribute = checks.member(StreamAttribute, attribute, "attribute")
        number = driver.bindings().CUstreamAttrID(int(attribute))
        raw = call_on(self._operand, "cuStreamGetAttribute", number)
        form = _FORMS[attribute]
        if form.field in ("syncPolicy", "memSyncDomain", "priority"):
            # Read from the union itself, because the bindings' enumerations raise on a value that
            # they do not know, such as that of a policy that was never set.
            return form.from_driver(ctypes.c_int.from_address(int(raw.getPtr())).value)
        return form.from_driver(getattr(raw, form.field))

    def set_attribute(self, attribute: StreamAttribute, value: Any) -> None:
        """Sets an attribute for the work that you enqueue from now on (`cuStreamSetAttribute`).

        Raises:
            TypeError: The value does not have the type that `StreamAttribute` says.
            ValueError: There is no such attribute or value.
            StreamClosedError: The stream is closed.
            CudaError: The driver refused.
        """
        attribute = checks.member(StreamAttribute, attribute, "attribute")
        form = _FORMS[attribute]
        cuda = driver.bindings()
        raw = cuda.CUstreamAttrValue()
        setattr(raw, form.field, form.to_driver(value))
        number = cuda.CUstreamAttrID(int(attribute))
        self._operand.shared.make.clear()  # because no other `Stream` may get the attribute
        call_on(self._operand, "cuStreamSetAttribute", number, raw)

    def copy_attributes(self, source: Any) -> None:
        """Copies all attributes from another stream of the same context (`cuStreamCopyAttributes`).

        Args:
            source: A `Stream`, or another library's.

        Raises:
            TypeError: `source` names no CUDA stream.
            StreamClosedError: One of the two is closed.
            CudaError: The driver refused.
        """
        with pinned(interop.operand_of(source)) as value:
            other = driver.bindings().CUstream(value)
            self._operand.shared.make.clear()  # as in `set_attribute`
            call_on(self._operand, "cuStreamCopyAttributes", other)
