"""What tests do to the driver: options, faults by call, seeds, adversaries, counters, look-ups by
name and version.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import nogpu as simulator
from simdriver import (
    HAS_GIL,
    ROOT,
    Gate,
    address,
    callback,
    code,
    cu,
    host,
    ok,
    raw,
    run_python,
    said_before_hanging,
    until,
)

# --- names and versions


@pytest.mark.parametrize(
    ("name", "version", "status"),
    [
        ("cuLaunchHostFunc", 10000, 0),
        ("cuLaunchHostFunc", 13000, 0),
        ("cuLaunchHostFunc", 13020, 1),  # newer than the driver
        (
            "cuLaunchHostFunc",
            9000,
            0,
        ),  # older than the function: no address, and the status says why
        ("cuGraphExecGetId", 13000, 500),  # came with 13.1
        ("cuNonsense", 12000, 500),
    ],
)
def test_functions_are_found_by_name_and_version(name: Any, version: Any, status: Any) -> None:
    assert code(cu.cuGetProcAddress(name.encode(), version, 0)) == status


def test_one_name_several_versions() -> None:
    for name, versions in {
        "cuStreamGetCtx": (9020, 12050),
        "cuStreamGetCaptureInfo": (10010, 11030, 12030),
        "cuCtxCreate": (3020, 11040, 12050),
        "cuEventElapsedTime": (2000, 12080),
        "cuGetProcAddress": (11030, 12000),
    }.items():
        found = [address(name, version) for version in versions]
        assert len(set(found)) == len(versions), name
        assert address(name, 13000) == found[-1]
    assert (
        address("cuStreamQuery", 12000, 2)
        != address("cuStreamQuery", 12000, 1)
        == address("cuStreamQuery", 12000, 0)
    )
    assert address("cuCtxGetCurrent", 12000, 2) == address("cuCtxGetCurrent", 12000, 1)


def known_functions() -> list[tuple[str, str, int, str, str]]:
    """The rows of the simulator's table: CALL or LACK, name, version, symbol, per-thread form."""
    folder = ROOT / "src/nogpu/simulator"
    table = "".join((folder / name).read_text() for name in ("functions.h", "lacking.h"))
    rows = re.findall(
        r"^(CALL|AGAIN|LACK|LACK_AGAIN)\((\w+),\s+(\d+),\s+(\w+),\s+(\w+)[,)]", table, re.MULTILINE
    )
    assert len(rows) > 500
    return [
        (kind, name, int(version), symbol, "ptsz" if form == "own" else form)
        for kind, name, version, symbol, form in rows
    ]


def test_every_function_is_a_symbol_too() -> None:
    # Itself: the first libcuda.so.1 is the library that forwards to it, which exports the same.
    library, forwarding = ctypes.CDLL(str(simulator.LIBRARY)), ctypes.CDLL("libcuda.so.1")

    def address(name: str, version: int, flags: int) -> int | None:
        found = ctypes.c_void_p()
        arguments = (version, ctypes.c_uint64(flags), None)
        assert library.cuGetProcAddress_v2(name.encode(), ctypes.byref(found), *arguments) == 0
        return found.value

    for _, name, version, symbol, form in known_functions():
        exported = ctypes.cast(library[symbol], ctypes.c_void_p).value
        per_thread = (
            ctypes.cast(library[f"{symbol}_{form}"], ctypes.c_void_p).value
            if form != "none"
            else exported
        )
        assert forwarding[symbol] is not None
        if version <= 13000:
            assert address(name, version, 0) == exported, symbol
            assert address(name, version, 2) == per_thread, symbol


def test_the_page_lists_every_function() -> None:
    spec = importlib.util.spec_from_file_location("make_functions", ROOT / "make_functions.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.PAGE.read_text() == script.page(), "run python make_functions.py"
    listed = [name for group in script.functions().values() for names in group for name in names]
    assert sorted(listed) == sorted({name for _, name, _, _, _ in known_functions()})


def test_what_is_lacking_answers_by_its_symbol(driver: None) -> None:
    # NVRTC finds this one by dlsym and does not check what it got: without the symbol it crashes.
    library, before = (
        ctypes.CDLL("libcuda.so.1"),
        simulator.unsupported_calls().get("cuGetExportTable", 0),
    )
    table = ctypes.c_void_p()
    assert library.cuGetExportTable(ctypes.byref(table), ctypes.create_string_buffer(16)) == 801
    assert simulator.unsupported_calls()["cuGetExportTable"] == before + 1
    simulator.fail("cuGetExportTable", 3)
    assert library.cuGetExportTable(ctypes.byref(table), ctypes.create_string_buffer(16)) == 3


def test_nvrtc_compiles_next_to_the_simulator() -> None:
    program = """
        import nogpu as simulator
        simulator.install()
        from cuda.bindings import nvrtc
        try: nvrtc.nvrtcVersion()
        except RuntimeError: print("no NVRTC"); raise SystemExit
        made = nvrtc.nvrtcCreateProgram(b'extern "C" __global__ void k(int *p) { *p = 1; }',
            b"k.cu", 0, None, None)[1]
        print(int(nvrtc.nvrtcCompileProgram(made, 0, None)[0]))
    """
    done = run_python(program, seconds=60)
    if done.stdout == "no NVRTC\n":
        pytest.skip("NVRTC is not installed")
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_why_a_function_was_not_found() -> None:
    look_up = raw(
        "cuGetProcAddress",
        12000,
        ctypes.c_char_p,
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_uint64,
        ctypes.c_void_p,
    )
    pointer, status = ctypes.c_void_p(), ctypes.c_int(-1)

    def ask(name: bytes, version: int) -> tuple[int, int]:
        return look_up(name, ctypes.byref(pointer), version, 0, ctypes.byref(status)), status.value

    assert ask(b"cuStreamQuery", 12000) == (0, 0)
    assert pointer.value
    assert ask(b"cuLaunchHostFunc", 9000) == (0, 2)
    assert not pointer.value
    assert ask(b"cuNonsense", 12000) == (500, 1)
    assert ask(b"cuLaunchHostFunc", 13020)[0] == 1


def test_stream_0_is_the_threads_own_for_the_per_thread_forms(gate: Gate) -> None:
    query = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(address("cuStreamQuery", 12000, 2))
    gate.hold(cu.CUstream(2))
    assert query(0) == 600
    free = ok(cu.cuStreamCreate(1))
    assert query(int(free)) == 0
    gate.open()
    ok(cu.cuStreamSynchronize(cu.CUstream(2)))
    assert query(0) == 0


def test_another_driver_version() -> None:
    program = """
        import nogpu as simulator
        simulator.install(driver_version=12040)
        from simdriver import *
        ok(cu.cuInit(0))
        assert ok(cu.cuDriverGetVersion()) == 12040
        assert code(cu.cuGetProcAddress(b"cuStreamGetCtx", 12050, 0)) == 1
        assert code(cu.cuGetProcAddress(b"cuStreamGetCtx", 12000, 0)) == 0
        ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(0))))
        stream = ok(cu.cuStreamCreate(0))
        try:
            cu.cuStreamGetDevice(stream)  # came with 12.8
        except RuntimeError:
            print("not found")
    """
    done = run_python(program)
    assert done.stdout == "not found\n", done.stderr


def test_what_is_lacking_names_itself() -> None:
    before = simulator.unsupported_calls().get("cuGraphConditionalHandleCreate", 0)
    graph = ok(cu.cuGraphCreate(0))
    assert code(cu.cuGraphConditionalHandleCreate(graph, ok(cu.cuCtxGetCurrent()), 0, 0)) == 801
    assert simulator.unsupported_calls()["cuGraphConditionalHandleCreate"] == before + 1
    assert simulator.calls("cuGraphConditionalHandleCreate") == before + 1


def test_every_code_has_a_name() -> None:
    for known in cu.CUresult:
        assert ok(cu.cuGetErrorName(known)) == known.name.encode()
        assert ok(cu.cuGetErrorString(known))
    name = ctypes.c_char_p(b"x")
    look_up = raw("cuGetErrorName", 6000, ctypes.c_int, ctypes.c_void_p)
    assert look_up(12345, ctypes.addressof(name)) == 1
    assert name.value is None


def test_device_attributes() -> None:
    names = cu.CUdevice_attribute
    assert ok(cu.cuDeviceGetName(32, 0)).split(b"\0")[0].strip() == b"nogpu simulator"
    assert ok(cu.cuDeviceGetCount()) == 2
    assert code(cu.cuDeviceGet(2)) == 101
    assert ok(cu.cuDeviceComputeCapability(0)) == (9, 0)
    for attribute, value in {
        names.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: 132,
        names.CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: 1,
        names.CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED: 1,
        names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: 9,
        names.CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS: 1,
        names.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: 1,
        names.CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS: 0,
    }.items():
        assert ok(cu.cuDeviceGetAttribute(attribute, 0)) == value
    found, ask = (
        ctypes.c_int(),
        raw("cuDeviceGetAttribute", 2000, ctypes.c_void_p, ctypes.c_int, ctypes.c_int),
    )
    assert [ask(ctypes.addressof(found), attribute, 0) for attribute in (0, 1, 147, 148)] == [
        1,
        0,
        0,
        1,
    ]


def test_a_context_has_one_way_of_scheduling() -> None:
    make = raw("cuCtxCreate", 3020, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)
    made, answers = ctypes.c_void_p(), []
    for flags in (0, 1, 2, 3, 4, 5, 6, 7, 8, 128, 255, 256):
        answers.append(make(ctypes.addressof(made), flags, 0))
        if answers[-1] == 0:
            ok(cu.cuCtxDestroy(cu.CUcontext(made.value)))
    assert answers == [0, 0, 0, 1, 0, 1, 1, 1, 0, 0, 1, 1]


# --- faults by call, counters


def test_the_nth_call_fails_once() -> None:
    simulator.fail("cuEventCreate", 2, nth=2)
    simulator.fail("cuEventDestroy_v2", 999)
    event = ok(cu.cuEventCreate(0))
    assert code(cu.cuEventCreate(0)) == 2
    ok(cu.cuEventCreate(0))
    assert code(cu.cuEventDestroy(event)) == 999
    ok(cu.cuEventDestroy(event))
    simulator.fail("cuEventCreate", 2)
    simulator.clear_faults()
    ok(cu.cuEventCreate(0))


def test_a_failed_call_has_done_nothing(stream: Any) -> None:
    fired = []
    simulator.fail("cuLaunchHostFunc", 719)
    with pytest.raises(AssertionError):
        host(stream, lambda: fired.append(1))
    ok(cu.cuStreamSynchronize(stream))
    assert fired == []


@pytest.mark.parametrize(
    ("name", "nth"), [("cuNonsense", 1), ("cuEventCreate", 0), ("cuEventCreate", 2**63)]
)
def test_faults_that_cannot_happen(name: Any, nth: int) -> None:
    with pytest.raises(ValueError, match=r"no driver function|counts from 1|nth is at most"):
        simulator.fail(name, 2, nth=nth)


def test_calls_are_counted(stream: Any) -> None:
    before = simulator.calls("cuStreamQuery")
    for _ in range(5):
        cu.cuStreamQuery(stream)
    assert simulator.calls("cuStreamQuery") - before == 5
    assert simulator.calls("cuStreamDestroy_v2") == simulator.calls("cuStreamDestroy")
    with pytest.raises(ValueError, match="no driver function"):
        simulator.calls("cuNonsense")


# --- seeds


def order_with(seed: int | None) -> list[int]:
    simulator.seed(seed)
    gate, order = Gate(), []
    streams = [ok(cu.cuStreamCreate(1)) for _ in range(6)]
    for number, stream in enumerate(streams):
        gate.hold(stream)
        host(stream, lambda number=number: order.append(number))
    gate.open()
    for stream in streams:
        ok(cu.cuStreamSynchronize(stream))
        ok(cu.cuStreamDestroy(stream))
    return order


def test_a_seed_reproduces_an_order() -> None:
    assert order_with(None) == order_with(None) == list(range(6))
    orders = {seed: order_with(seed) for seed in range(8)}
    assert len({tuple(order) for order in orders.values()}) > 4
    for seed in (1, 5):
        assert order_with(seed) == orders[seed]


# --- adversaries


def test_shuffled_callbacks_keep_each_streams_order() -> None:
    simulator.seed(3)
    with simulator.adversary(shuffle_callbacks=True):
        gate, order = Gate(), []
        streams = [ok(cu.cuStreamCreate(1)) for _ in range(6)]
        for number, stream in enumerate(streams):
            gate.hold(stream)
            for turn in range(3):
                host(stream, lambda number=number, turn=turn: order.append((number, turn)))
        gate.open()
        for stream in streams:
            ok(cu.cuStreamSynchronize(stream))
    for number in range(6):
        assert [turn for which, turn in order if which == number] == [0, 1, 2]
    assert order != sorted(order, key=lambda item: (item[1], item[0]))


def test_enqueues_that_block(stream: Any) -> None:
    def seconds(call: Callable[[], Any]) -> float:
        start = time.monotonic()
        call()
        return time.monotonic() - start

    def enqueue() -> None:
        host(stream, lambda: None)

    def query() -> None:
        cu.cuStreamQuery(stream)

    # What does not block may be slow on a busy machine, but not each time.
    with simulator.adversary(blocking_enqueue=0.3):
        assert seconds(enqueue) >= 0.3
        assert any(seconds(query) < 0.15 for _ in range(8))
    assert any(seconds(enqueue) < 0.15 for _ in range(8))
    ok(cu.cuStreamSynchronize(stream))


def test_the_drivers_lock(stream: Any) -> None:
    started, release, answers = threading.Event(), threading.Event(), []
    with simulator.adversary(driver_lock=True):
        host(stream, lambda: (started.set(), release.wait(10)))
        assert started.wait(10)
        thread = threading.Thread(target=lambda: answers.append(code(cu.cuStreamQuery(stream))))
        thread.start()
        thread.join(0.05)
        assert answers == []
        release.set()
        thread.join(10)
        assert answers
    ok(cu.cuStreamSynchronize(stream))


@pytest.mark.skipif(not HAS_GIL, reason="needs the GIL: a call keeps it")
def test_a_gil_kept_across_a_call_deadlocks_with_the_drivers_lock() -> None:
    program = """
        import nogpu as simulator
        simulator.install()
        from simdriver import *
        ok(cu.cuInit(0)); ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(0))))
        stream, gate = ok(cu.cuStreamCreate(1)), Gate()
        simulator.adversary(driver_lock=True)
        started, before = threading.Event(), simulator.calls("cuStreamQuery")

        def function():  # until the call below has begun
            started.set()
            while simulator.calls("cuStreamQuery") == before:
                time.sleep(0.001)

        host(stream, function)
        started.wait(10)
        print("calling", flush=True)
        raw("cuStreamQuery", 2000, ctypes.c_void_p, gil=True)(int(stream))
        print("returned", flush=True)
    """
    assert said_before_hanging(program, seconds=0.9) == "calling\n"


@pytest.mark.parametrize(
    ("control", "arguments", "error", "words"),
    [
        ("adversary", {"blocking_enqueue": -0.001}, ValueError, "blocking_enqueue is 0 to 9e"),
        ("adversary", {"late_faults": -1}, ValueError, "late_faults is 0 to 9e"),
        ("adversary", {"late_faults": 1e10}, ValueError, "late_faults is 0 to 9e"),
        ("adversary", {"late_faults": float("nan")}, ValueError, "late_faults is a number"),
        ("adversary", {"late_faults": "1"}, TypeError, "late_faults is a number"),
        ("adversary", {"driver_lock": 1}, TypeError, "driver_lock is True or False"),
        ("seed", {"value": "x"}, TypeError, "a seed is an int"),
        ("register_ptx", {"ptx": 5}, TypeError, "PTX is a text"),
        ("register_kernel", {"name": 5, "address": 1, "parameters": []}, TypeError, "the name of"),
        ("register_kernel", {"name": "k", "address": "1", "parameters": []}, TypeError, "address"),
        ("register_kernel", {"name": "k", "address": 1, "parameters": ["8"]}, TypeError, "size"),
    ],
)
def test_wrong_arguments_are_refused(
    control: str, arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        getattr(simulator, control)(**arguments)
    assert simulator._adversary == (False, 0.0, False, 0.0, False)


def test_adversaries_are_put_back(stream: Any) -> None:
    simulator.adversary(late_faults=0.5)
    with simulator.adversary(blocking_enqueue=True), simulator.adversary():
        pass
    assert simulator._adversary[3] == 0.5
    simulator.adversary()
    assert simulator._adversary == (False, 0.0, False, 0.0, False)


def test_recovering_without_a_fault_fails_what_is_pending(stream: Any, gate: Gate) -> None:
    statuses: list[int] = []
    gate.hold(stream)
    callback(stream, statuses.append)
    simulator.recover()
    until(lambda: statuses)
    assert statuses == [719]
    assert code(cu.cuStreamQuery(stream)) == 0


def test_no_recovery_inside_a_host_function(stream: Any) -> None:
    seen = []

    def recover() -> None:
        try:
            simulator.recover()
        except RuntimeError as error:
            seen.append(str(error))

    host(stream, recover)
    ok(cu.cuStreamSynchronize(stream))
    assert len(seen) == 1


def test_flags_and_caches_of_contexts() -> None:
    before = ok(cu.cuCtxGetFlags())
    ok(cu.cuCtxSetFlags(4))
    assert ok(cu.cuCtxGetFlags()) == 4
    assert code(cu.cuCtxSetFlags(3)) == 1, "one way of scheduling"
    ok(cu.cuCtxSetFlags(before))
    assert int(ok(cu.cuCtxGetCacheConfig())) == 0
    ok(cu.cuCtxSetCacheConfig(cu.CUfunc_cache.CU_FUNC_CACHE_PREFER_L1))
    assert int(ok(cu.cuCtxGetCacheConfig())) == 2
    ok(cu.cuCtxSetCacheConfig(cu.CUfunc_cache.CU_FUNC_CACHE_PREFER_NONE))


def test_an_event_of_all_work_of_a_context(stream: Any, gate: Gate) -> None:
    """It is complete once the work of each stream is that was there when it was recorded."""
    later, context = ok(cu.cuStreamCreate(1)), ok(cu.cuCtxGetCurrent())
    event = ok(cu.cuEventCreate(0))
    ok(cu.cuCtxRecordEvent(context, event))
    ok(cu.cuEventSynchronize(event))
    gate.hold(stream)
    ok(cu.cuCtxRecordEvent(context, event))
    assert code(cu.cuEventQuery(event)) == 600
    after = Gate()
    after.hold(later)
    gate.open()
    ok(cu.cuEventSynchronize(event))
    assert code(cu.cuStreamQuery(later)) == 600
    after.open()
    ok(cu.cuStreamSynchronize(later))
    ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode(2)))
    assert code(cu.cuCtxRecordEvent(context, event)) == 900, "not while a stream captures"
    assert code(cu.cuStreamEndCapture(stream)) == 901
    assert code(cu.cuCtxRecordEvent(context, 0)) == 400
    ok(cu.cuStreamDestroy(later))


@pytest.mark.parametrize("wrong", [-1, 0, 2**31, 2**40])
def test_codes_that_are_no_errors(wrong: int) -> None:
    with pytest.raises(ValueError, match=rf"the code of an error .*, not {wrong}$"):
        simulator.fail("cuEventCreate", wrong)
    assert simulator.clear_faults() == 0


def test_functions_are_given_by_their_names() -> None:
    calls: list[Any] = [
        lambda: simulator.calls(cu.cuStreamQuery),
        lambda: simulator.fail(cu.cuStreamQuery, 2),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="given by its name, such as 'cuStreamQuery'"):
            call()
    for numbers in ({"code": "2"}, {"code": 2, "nth": 1.5}):
        with pytest.raises(TypeError, match="is an int"):
            simulator.fail("cuStreamQuery", **numbers)
