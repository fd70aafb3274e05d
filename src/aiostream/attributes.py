"""Stream attributes: Python values for what the driver keeps in a union."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from aiostream import _arguments, _driver, interop
from aiostream._reference import Reference, call_on, pinned
from aiostream.enums import AccessProperty, MemSyncDomain, StreamAttribute, SynchronizationPolicy

__all__ = ["AccessPolicyWindow", "MemSyncDomainMap"]


@dataclass(frozen=True, slots=True)
class AccessPolicyWindow:
    """A window of memory, and how the L2 cache treats accesses to it (`CUaccessPolicyWindow`).

    Args:
        base: Its address.
        size: Its size in bytes; 0 for no window. The driver may align it and limits its size.
        hit_ratio: Which part of the window gets `hit`, from 0 to 1; the rest gets `miss`.
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
            TypeError: One is no number.
            ValueError: A number is out of range.
        """
        _arguments.address(_arguments.integer("base", self.base))
        _arguments.address(_arguments.integer("size", self.size))
        if not hasattr(self.hit_ratio, "__float__"):
            raise TypeError(
                f"hit_ratio is a number from 0 to 1, not {type(self.hit_ratio).__name__}"
            )
        if not 0.0 <= self.hit_ratio <= 1.0:
            raise ValueError(f"a window's hit_ratio is from 0 to 1, not {self.hit_ratio}")


@dataclass(frozen=True, slots=True)
class MemSyncDomainMap:
    """Which domain numbers the two domains have (`CUlaunchMemSyncDomainMap`)."""

    default: int = 0
    remote: int = 1

    def __post_init__(self) -> None:
        """Refuses what no driver takes.

        Raises:
            TypeError: A number is no int.
            ValueError: A number is not from 0 to 255.
        """
        _arguments.byte("default", self.default)
        _arguments.byte("remote", self.remote)


def _window(raw: Any) -> AccessPolicyWindow:
    return AccessPolicyWindow(
        int(raw.base_ptr or 0),
        int(raw.num_bytes),
        raw.hitRatio,
        AccessProperty(int(raw.hitProp)),
        AccessProperty(int(raw.missProp)),
    )


def _raw_window(value: Any) -> Any:
    if not isinstance(value, AccessPolicyWindow):
        raise TypeError(f"an AccessPolicyWindow is needed, not {type(value).__name__}")
    driver = _driver.bindings()
    raw = driver.CUaccessPolicyWindow()
    raw.base_ptr, raw.num_bytes, raw.hitRatio = value.base, value.size, value.hit_ratio
    raw.hitProp = driver.CUaccessProperty(int(_arguments.member(AccessProperty, value.hit, "hit")))
    raw.missProp = driver.CUaccessProperty(
        int(_arguments.member(AccessProperty, value.miss, "miss"))
    )
    return raw


def _raw_map(value: Any) -> Any:
    if not isinstance(value, MemSyncDomainMap):
        raise TypeError(f"a MemSyncDomainMap is needed, not {type(value).__name__}")
    raw = _driver.bindings().CUlaunchMemSyncDomainMap()
    raw.default_, raw.remote = value.default, value.remote
    return raw


def _policy(number: int) -> SynchronizationPolicy | None:
    return None if number == _NEVER_SET else SynchronizationPolicy(number)


_NEVER_SET = -1


class _Form(NamedTuple):
    field: str  # of the driver's union
    from_driver: Callable[[Any], Any]  # is given a plain number where the driver has one
    to_driver: Callable[[Any], Any]


_FORMS = {
    StreamAttribute.ACCESS_POLICY_WINDOW: _Form("accessPolicyWindow", _window, _raw_window),
    StreamAttribute.SYNCHRONIZATION_POLICY: _Form(
        "syncPolicy",
        _policy,
        lambda value: _driver.bindings().CUsynchronizationPolicy(
            int(_arguments.member(SynchronizationPolicy, value, "the value"))
        ),
    ),
    StreamAttribute.PRIORITY: _Form("priority", int, _arguments.priority),
    StreamAttribute.MEM_SYNC_DOMAIN_MAP: _Form(
        "memSyncDomainMap",
        lambda raw: MemSyncDomainMap(int(raw.default_), int(raw.remote)),
        _raw_map,
    ),
    StreamAttribute.MEM_SYNC_DOMAIN: _Form(
        "memSyncDomain",
        MemSyncDomain,
        lambda value: _driver.bindings().CUlaunchMemSyncDomain(
            int(_arguments.member(MemSyncDomain, value, "the value"))
        ),
    ),
}


def _get(stream: Reference, attribute: StreamAttribute) -> Any:
    attribute = _arguments.member(StreamAttribute, attribute, "attribute")
    raw = call_on(stream, "cuStreamGetAttribute", _driver.bindings().CUstreamAttrID(int(attribute)))
    form = _FORMS[attribute]
    if form.field in ("syncPolicy", "memSyncDomain", "priority"):
        # Straight from the union: the bindings' enumerations raise on what they do not know, such
        # as a policy never set.
        return form.from_driver(ctypes.c_int.from_address(int(raw.getPtr())).value)
    return form.from_driver(getattr(raw, form.field))


def _set_to(stream: Reference, attribute: StreamAttribute, value: Any) -> None:
    attribute = _arguments.member(StreamAttribute, attribute, "attribute")
    form = _FORMS[attribute]
    driver = _driver.bindings()
    raw = driver.CUstreamAttrValue()
    setattr(raw, form.field, form.to_driver(value))
    call_on(stream, "cuStreamSetAttribute", driver.CUstreamAttrID(int(attribute)), raw)


def _copy(target: Reference, source: Reference) -> None:
    with pinned(source) as value:
        call_on(target, "cuStreamCopyAttributes", _driver.bindings().CUstream(value))


class AttributedStream:
    """The attributes of a `Stream`, which inherits them from here."""

    _reference: Reference  # set by `Stream`

    def get_attribute(self, attribute: StreamAttribute) -> Any:
        """The value of an attribute (`cuStreamGetAttribute`), in the type that `StreamAttribute` says; harmless under capture.

        Raises:
            StreamClosedError: The stream is closed.
            CudaError: The driver refused.
        """
        return _get(self._reference, attribute)

    def set_attribute(self, attribute: StreamAttribute, value: Any) -> None:
        """Sets an attribute for the work that is enqueued from now on (`cuStreamSetAttribute`).

        Raises:
            TypeError: The value is not of the type that `StreamAttribute` says.
            ValueError: There is no such value.
            StreamClosedError: The stream is closed.
            CudaError: The driver refused.
        """
        _set_to(self._reference, attribute, value)

    def copy_attributes(self, source: Any) -> None:
        """Takes over all attributes of another stream of the same context (`cuStreamCopyAttributes`).

        Args:
            source: A `Stream`, or another library's.

        Raises:
            TypeError: `source` names no CUDA stream.
            StreamClosedError: One of the two is closed.
            CudaError: The driver refused.
        """
        _copy(self._reference, interop.reference_to(source))
