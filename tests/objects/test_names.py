"""The names that users give to streams and pools: where they are shown."""

from __future__ import annotations

import html
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest

from aiostream import (
    Device,
    PoolFullError,
    Stream,
    StreamClosedError,
    StreamPool,
    metrics,
    statistics,
    trace,
)
from support import Gate


def test_a_name_is_shown_in_repr_and_errors() -> None:
    stream = Stream(name="decode")
    assert stream.name == "decode"
    assert repr(stream) == f"<aiostream.Stream 'decode' {stream.handle:#x} on device 0>"
    stream.close()
    with pytest.raises(StreamClosedError, match=r"^stream 'decode' on device 0 is closed"):
        stream.query()


def test_a_name_may_be_any_text() -> None:
    makers: list[Any] = [Stream, partial(StreamPool, 1), partial(StreamPool.borrow, [])]
    for make in makers:
        with pytest.raises(TypeError, match="a name is a str, not int"):
            make(name=3)
    stream = Stream(name="None on None")
    assert repr(stream) == f"<aiostream.Stream 'None on None' {stream.handle:#x} on device 0>"
    stream.close()
    assert Stream(name="").name == ""


def test_a_borrowed_stream_has_its_owners_name() -> None:
    stream = Stream(name="decode")
    for borrowed in (stream.to_borrowed(), Stream.borrow(stream)):
        assert borrowed.name == "decode"
        assert repr(borrowed).startswith("<aiostream.Stream 'decode' 0x")
    other = Stream.borrow(stream, name="encode")
    of_handle = Stream.borrow(stream.handle, name="encode")
    assert (stream.name, other.name, of_handle.name) == ("decode", "encode", "encode")
    assert Stream.borrow(stream.handle).name is None
    for renamed in (other, of_handle):
        renamed.close()
        with pytest.raises(StreamClosedError, match=r"^stream 'encode' on device 0 is closed"):
            renamed.query()
    stream.close()


async def test_a_pool_names_its_streams() -> None:
    async with StreamPool(2, name="model", max_waiting=0) as pool:
        assert pool.name == "model"
        assert repr(pool).startswith("<aiostream.StreamPool 'model' of 2: ")
        async with pool.stream() as first, pool.stream() as second:
            assert {first.name, second.name} == {"model[0]", "model[1]"}
            with pytest.raises(PoolFullError, match="of 2 streams of the pool 'model' 2 are lent"):
                await pool.acquire()
    with pytest.raises(StreamClosedError, match="the pool 'model' is closed"):
        await pool.acquire()


async def test_a_pool_names_borrowed_streams() -> None:
    async with Stream(name="mine") as stream:
        async with StreamPool.borrow([stream]) as pool, pool.stream() as same:
            assert (pool.name, same.name) == (None, "mine")
        async with StreamPool.borrow([stream], name="model") as pool, pool.stream() as same:
            assert (pool.name, same.name) == ("model", "model[0]")


async def test_observers_see_the_names(waits: list[metrics.Wait]) -> None:
    with trace.record() as recording:
        async with StreamPool(1, name="model") as pool, pool.stream() as stream:
            await stream.enqueue_async(lambda stream: None)
        async with Stream() as unnamed:
            await unnamed.enqueue_async(lambda stream: None)
    calls = [each.stream for each in recording.awaits if "synchronize" not in each.call]
    assert [wait.name for wait in waits[:2]] == ["model", "model[0]"]
    assert waits[-1].name is None
    assert calls[:2] == ["pool 'model' of 1 streams", "stream 'model[0]' on device 0"]


# --------------------------------------------------------------------------- what other things show


@pytest.mark.parametrize("traced", [False, True])
async def test_a_pending_future_shows_its_function_and_stream(traced: bool) -> None:
    def forward(stream: Stream) -> None:
        gate.hold(stream)

    with Gate() as gate, trace.record() if traced else nullcontext():
        async with Stream(name="decode") as stream:
            future = stream.enqueue_async(forward)
            of_object = stream.enqueue_async(partial(forward))
            named = f"{forward.__qualname__}() on stream 'decode' on device 0"
            assert named in repr(future)
            assert "partial() on stream 'decode' on device 0" in repr(of_object)
            gate.open()
            await of_object
            assert "forward" not in repr(future)


def test_a_device_shows_its_name() -> None:
    assert repr(Device(0)) == f"<aiostream.Device 0: {Device(0).name}>"


def test_statistics_are_a_table() -> None:
    now = statistics()
    lines = repr(now).splitlines()
    assert lines[0] == "<aiostream.Statistics, balanced"
    assert lines[1].split()[:3] == ["points", str(now.points.armed), "armed,"]
    assert len(lines) == 7
    assert max(map(len, lines)) < 160


async def test_a_recording_shows_its_timeline_in_jupyter() -> None:
    with trace.record() as recording:
        async with Stream(name="<decode>") as stream:
            await stream.enqueue_async(lambda stream: None)
    assert repr(recording) == f"<aiostream.trace.Recording of {len(recording.awaits)} awaits>"
    shown = getattr(recording, "_repr_html_")()  # noqa: B009
    assert shown.startswith('<iframe srcdoc="')
    page = html.unescape(shown.split('"')[1])
    assert page.count("</html>") == 1
    assert "stream '\\u003cdecode" in page or "stream '<decode>'" in page
