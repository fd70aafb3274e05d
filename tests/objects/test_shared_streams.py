"""Streams that other libraries use too, and the names of devices."""

from __future__ import annotations

import gc
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import internals
from aiostream import CaptureMode, Device, Stream, StreamClosedError, StreamPool, statistics
from captures import in_thread
from foreign import TheirDevice, install_libraries
from support import settle, succeed
from waiters import until


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for the libraries, whose own streams do not destroy the handle either."""
    install_libraries(monkeypatch)


LIBRARIES = {"torch": (TheirDevice("cuda", 0),), "cupy": (0,), "numba": ()}


def retired() -> int:
    return statistics().handles.retired


@pytest.mark.parametrize("library", ["torch", "cupy", "numba"])
def test_stream_of_another_library_is_on_the_same_handle(libraries: None, library: str) -> None:
    before = retired()
    stream = Stream(0)
    theirs = getattr(stream, library)()
    assert (theirs.handle, theirs.where) == (stream.handle, LIBRARIES[library])
    stream.close()
    assert retired() == before + 1


@pytest.mark.parametrize("mark", [Stream.torch, int], ids=["shared", "read"])
@pytest.mark.parametrize("end", ["close", "shutdown", "finalizer", "aclose", "pool"])
async def test_each_end_retires_a_shared_stream(
    libraries: None, end: str, mark: Callable[[Stream], Any]
) -> None:
    """Also one whose handle was read while torch is loaded. A later stream uses it again."""
    before = retired()
    if end == "pool":
        async with StreamPool(1) as pool:
            async with pool.stream() as taken:
                handle = taken.handle
                mark(taken)
            assert retired() == before
    else:
        stream = Stream()
        handle = stream.handle
        mark(stream)
        if end == "aclose":
            await stream.aclose()
        elif end != "finalizer":
            getattr(stream, end)()
        del stream
        gc.collect()
    await until(lambda: retired() == before + 1)
    assert settle(internals.janitor_is_idle)
    async with Stream(0) as later:
        assert later.handle == handle


@pytest.mark.parametrize("end", ["close", "finalizer"])
def test_retired_stream_leaves_no_capture_open(libraries: None, end: str) -> None:
    """A GLOBAL capture would refuse allocations of every thread, and nothing could end it."""
    before = retired()
    stream = Stream()
    stream.torch()
    stream.begin_capture(CaptureMode.GLOBAL)
    if end == "close":
        stream.close()
    del stream
    gc.collect()
    assert settle(lambda: retired() == before + 1)

    def allocate() -> None:
        internals.driver_call("cuMemFree", internals.driver_call("cuMemAlloc", 16))

    with Device(0).primary_context.as_current(), Stream().sync_scope() as other:
        assert in_thread(allocate, other) is None
    other.close()


def test_closed_stream_is_not_shared(stream: Stream, libraries: None) -> None:
    pytest.importorskip("cuda.core")
    stream.close()
    for library in ("core", *LIBRARIES):
        with pytest.raises(StreamClosedError):
            getattr(stream, library)()


@pytest.mark.parametrize("library", LIBRARIES)
def test_library_that_is_not_installed_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setitem(sys.modules, f"{library}.cuda", None)
    before = retired()
    stream = Stream()
    with pytest.raises(ImportError, match="is not installed: pip install"):
        getattr(stream, library)()
    stream.close()
    assert retired() == before


def test_no_library_is_imported_unasked() -> None:
    loaded = "{'torch', 'cupy', 'numba'} & set(sys.modules)"
    succeed("simulator", f"import sys, aiostream; aiostream.Stream(); assert not {loaded}")


def test_owner_of_a_shared_stream_is_retired(stream: Stream, libraries: None) -> None:
    before = retired()
    mine = stream.to_borrowed()
    mine.torch()
    mine.close()
    assert retired() == before
    stream.close()
    assert retired() == before + 1


def test_borrowed_stream_of_theirs_is_kept_alive_by_the_shared_one(
    stream: Stream, libraries: None
) -> None:
    class Source:
        __slots__ = ("__weakref__",)

        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, stream.handle

    source = Source()
    watched = weakref.ref(source)
    theirs = Stream.borrow(source).torch()
    del source
    gc.collect()
    assert watched() is not None
    del theirs
    gc.collect()
    assert watched() is None


# ------------------------------------------------------------------------------------------ devices


def numbered(module: str, **attributes: int) -> Any:
    """A device of cuda.core, cupy or numba, as far as it is looked at."""
    return type("Device", (), {**attributes, "__module__": module})()


@pytest.mark.parametrize(
    "device",
    [
        0,
        "cuda",
        "cuda:0",
        TheirDevice("cuda"),
        TheirDevice("cuda", 0),
        numbered("cuda.core", device_id=0),
        numbered("cupy.cuda", id=0),
        type("Index", (), {"__index__": lambda _: 0})(),
        Device(0),
    ],
    ids=["int", "cuda", "cuda:0", "torch", "torch 0", "cuda.core", "cupy", "numpy", "ours"],
)
def test_device_by_the_names_of_other_libraries(device: Any) -> None:
    assert Device(device) == Device(0)
    stream = Stream(device)
    assert stream.context.device == Device(0)
    stream.close()


def test_device_without_a_number_is_the_current_one() -> None:
    if Device.count() < 2:
        pytest.skip("there is one device")
    with Device(1).primary_context.as_current():
        assert Device("cuda") == Device(TheirDevice("cuda")) == Device(1)
    assert Device("cuda") == Device(0)


@pytest.mark.parametrize(
    ("device", "error", "says"),
    [
        ("cpu", ValueError, '"cuda" or "cuda:0", not'),
        ("cuda:", ValueError, "not 'cuda:'"),
        ("cuda:x", ValueError, "not 'cuda:x'"),
        ("cuda:99", ValueError, "there is no device 99"),
        (TheirDevice("cpu"), ValueError, "not 'cpu'"),
        (TheirDevice("cuda", 99), ValueError, "there is no device 99"),
        (True, TypeError, "not bool"),
        (None, TypeError, "not NoneType"),
        (1.0, TypeError, "not float"),
        (-1, ValueError, "there is no device -1"),
        (TheirDevice("cuda", 0.9), TypeError, "as an integer"),  # type: ignore[arg-type]
        (types.SimpleNamespace(type="cuda"), TypeError, "not SimpleNamespace"),
        (numbered("jax", id=0), TypeError, "not Device"),
    ],
)
def test_wrong_device_is_refused(device: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Device(device)
