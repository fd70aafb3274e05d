"""Hints about managed memory: kept by range, and given back. They change nothing here."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest

from simdriver import Gate, code, cu, ok, raw

CPU, NOWHERE, PART = -1, -2, 1 << 16
READ_MOSTLY, PREFERRED, ACCESSED_BY, LAST_PREFETCH = 1, 2, 3, 4
SET_READ_MOSTLY, SET_PREFERRED, SET_ACCESSED_BY = 1, 3, 5
POINTER, SIZE, INT = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int


class Location(ctypes.Structure):
    _fields_ = [("type", INT), ("id", INT)]


DEVICE_1, HOST, NUMA_NODE = Location(1, 1), Location(2, 0), Location(3, 0)


@pytest.fixture
def memory(driver: Any) -> Iterator[Any]:
    made = int(ok(cu.cuMemAllocManaged(4 * PART, 1)))
    yield made
    ok(cu.cuMemFree(made))


def advise(address: Any, count: Any, advice: Any, place: Any) -> int:
    return raw("cuMemAdvise", 8000, POINTER, SIZE, INT, INT)(address, count, advice, place)


def prefetch(address: Any, count: Any, place: Any, stream: Any) -> int:
    call = raw("cuMemPrefetchAsync", 8000, POINTER, SIZE, INT, ctypes.c_void_p)
    return call(address, count, place, int(stream))


def ask(address: Any, count: Any, which: Any, room: Any = 1) -> list[int]:
    answer = (INT * room)()
    call = raw("cuMemRangeGetAttribute", 8000, ctypes.c_void_p, SIZE, INT, POINTER, SIZE)
    assert call(answer, ctypes.sizeof(answer), which, address, count) == 0
    return list(answer)


def test_a_range_answers_what_all_of_it_has(memory: Any) -> None:
    assert ask(memory, 4 * PART, READ_MOSTLY) == [0]
    assert ask(memory, 4 * PART, PREFERRED) == [NOWHERE]
    assert advise(memory, 2 * PART, SET_READ_MOSTLY, 0) == 0
    assert advise(memory, 2 * PART, SET_PREFERRED, 1) == 0
    assert advise(memory + 2 * PART, 2 * PART, SET_PREFERRED, CPU) == 0
    assert ask(memory, 2 * PART, READ_MOSTLY) == [1]
    assert ask(memory, 3 * PART, READ_MOSTLY) == [0]
    assert ask(memory, 2 * PART, PREFERRED) == [1]
    assert ask(memory + 2 * PART, 1, PREFERRED) == [CPU]
    assert ask(memory, 4 * PART, PREFERRED) == [NOWHERE]
    assert advise(memory, 4 * PART, SET_PREFERRED + 1, 0) == 0
    assert ask(memory, 2 * PART, PREFERRED) == [NOWHERE]


def test_readers_are_listed(memory: Any) -> None:
    assert advise(memory, 4 * PART, SET_ACCESSED_BY, 1) == 0
    assert advise(memory, PART, SET_ACCESSED_BY, CPU) == 0
    assert ask(memory, PART, ACCESSED_BY, 4) == [CPU, 1, NOWHERE, NOWHERE]
    assert ask(memory, 4 * PART, ACCESSED_BY, 2) == [1, NOWHERE]
    assert advise(memory, PART, SET_ACCESSED_BY + 1, 1) == 0
    assert ask(memory, PART, ACCESSED_BY, 1) == [CPU]


def test_prefetches_are_noted_in_stream_order(memory: Any, stream: Any, gate: Any) -> None:
    gate.hold(stream)
    assert prefetch(memory, 4 * PART, 1, stream) == 0
    assert code(cu.cuStreamQuery(stream)) == 600
    gate.open()
    ok(cu.cuStreamSynchronize(stream))
    assert ask(memory, 4 * PART, LAST_PREFETCH) == [1]
    assert prefetch(memory, 1, CPU, stream) == 0
    assert ask(memory, 1, LAST_PREFETCH) == [CPU]
    assert ask(memory, 4 * PART, LAST_PREFETCH) == [NOWHERE]
    ok(cu.cuStreamSynchronize(stream))


def test_newer_forms_take_locations(memory: Any, stream: Any) -> None:
    newer = raw("cuMemAdvise", 13000, POINTER, SIZE, INT, Location)
    fetch = raw("cuMemPrefetchAsync", 13000, POINTER, SIZE, Location, INT, ctypes.c_void_p)
    assert newer(memory, 4 * PART, SET_PREFERRED, DEVICE_1) == 0
    assert fetch(memory, 4 * PART, HOST, 0, int(stream)) == 0
    assert fetch(memory, 4 * PART, HOST, 1, int(stream)) == 1
    assert fetch(memory, 4 * PART, NUMA_NODE, 0, int(stream)) == 801
    assert newer(memory, 4 * PART, SET_PREFERRED, NUMA_NODE) == 801
    preferred_type, preferred_id, fetched_type, fetched_id = 5, 6, 7, 8
    assert ask(memory, PART, preferred_type) == [1]
    assert ask(memory, PART, preferred_id) == [1]
    assert ask(memory, PART, fetched_type) == [2]
    assert ask(memory, PART, fetched_id) == [0]
    ok(cu.cuStreamSynchronize(stream))


def test_several_questions_at_once(memory: Any) -> None:
    assert advise(memory, PART, SET_READ_MOSTLY, 0) == 0
    answers = [INT(7), INT(7)]
    data = (ctypes.c_void_p * 2)(*(ctypes.addressof(answer) for answer in answers))
    types = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, SIZE, POINTER, SIZE)
    call = raw("cuMemRangeGetAttributes", 8000, *types)
    assert call(data, (SIZE * 2)(4, 4), (INT * 2)(READ_MOSTLY, PREFERRED), 2, memory, PART) == 0
    assert [answer.value for answer in answers] == [1, NOWHERE]


def batch(name: str, ranges: Any, places: Any, stream: Any, flags: int = 0) -> int:
    """`ranges` are addresses and sizes, `places` where each of them goes from a range on."""
    arrays = [
        (POINTER * len(ranges))(*(address for address, _ in ranges)),
        (SIZE * len(ranges))(*(size for _, size in ranges)),
    ]
    arguments: list[Any] = [*arrays, len(ranges)]
    types: list[Any] = [ctypes.c_void_p, ctypes.c_void_p, SIZE]
    if places is not None:
        where = (Location * len(places))(*(place for _, place in places))
        starts = (SIZE * len(places))(*(start for start, _ in places))
        arguments += [where, starts, len(places)]
        types += [ctypes.c_void_p, ctypes.c_void_p, SIZE]
    call = raw(f"cuMem{name}BatchAsync", 13000, *types, POINTER, ctypes.c_void_p)
    return call(*arguments, flags, int(stream))


def test_batches(memory: Any, stream: Any, gate: Gate) -> None:
    parts = [(memory + i * PART, PART) for i in range(4)]
    gate.hold(stream)
    assert batch("Prefetch", parts, [(0, DEVICE_1), (2, HOST)], stream) == 0
    assert code(cu.cuStreamQuery(stream)) == 600
    gate.open()
    ok(cu.cuStreamSynchronize(stream))
    places = [ask(address, size, LAST_PREFETCH)[0] for address, size in parts]
    assert places == [1, 1, CPU, CPU]
    assert batch("Discard", parts[:1], None, stream) == 0
    assert batch("DiscardAndPrefetch", parts, [(0, HOST)], stream) == 0
    ok(cu.cuStreamSynchronize(stream))
    assert ask(memory, 4 * PART, LAST_PREFETCH) == [CPU]


def test_batches_that_are_refused(memory: Any, stream: Any) -> None:
    one, two = [(memory, PART)], [(memory, PART), (memory + PART, PART)]
    for ranges, places, expected in (
        (one, [(1, HOST)], 1),  # the first place is for the first range
        (two, [(0, HOST), (0, HOST)], 1),
        (two, [(0, HOST), (2, HOST)], 1),
        (one, [(0, HOST), (1, HOST)], 1),  # more places than ranges
        (one, [], 1),
        (one, [(0, Location(1, 9))], 101),
        (one, [(0, NUMA_NODE)], 801),
        ([(memory, 0)], [(0, HOST)], 1),
        ([(memory, 5 * PART)], [(0, HOST)], 1),
    ):
        assert batch("Prefetch", ranges, places, stream) == expected
    assert batch("Prefetch", one, [(0, HOST)], stream, flags=1) == 1
    assert batch("Discard", [], None, stream) == 1
    assert ask(memory, PART, LAST_PREFETCH) == [NOWHERE]


def test_what_is_refused(memory: Any, stream: Any) -> None:
    device = int(ok(cu.cuMemAlloc(64)))
    assert advise(device, 64, SET_READ_MOSTLY, 0) == 1  # it is not managed
    assert advise(memory, 4 * PART + 1, SET_READ_MOSTLY, 0) == 1
    assert advise(memory, 0, SET_READ_MOSTLY, 0) == 1
    assert advise(memory, 1, 7, 0) == 1
    assert advise(memory, 1, SET_PREFERRED, 2) == 101
    assert prefetch(memory, 1, -2, stream) == 101
    ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode(2)))
    assert prefetch(memory, 1, 0, stream) == 900
    assert code(cu.cuStreamEndCapture(stream)) == 901
    ok(cu.cuMemFree(device))
