"""PTX text, what is asked of kernels and set, occupancy, global variables, kernels that a PTX text
declares.
"""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any

import pytest

import nogpu as simulator
from simdriver import Kernels, code, cu, in_thread, keep, ok, raw, run_python, until

ATTRIBUTE = cu.CUfunction_attribute
HEAD = ".version 7.0\n.target sm_70\n.address_size 64\n"
COMPILED = (
    HEAD
    + """
    // .globl the_kernel: a comment may hold anything { ;
    .extern .func (.param .b32 func_retval0) vprintf (.param .b64 a, .param .b64 b);
    .visible .global .align 4 .u32 sim_counter = 7;
    .const .align 4 .f32 sim_table[3] = {0f3F800000, 0f40000000, 0f40400000};
    .global .align 1 .b8 $str[3] = {104, 105, 0};
    .visible .entry the_kernel(
        .param .f32 the_kernel_param_0,
        .param .u64 .ptr .global .align 4 the_kernel_param_1,
        .param .align 4 .b8 the_kernel_param_2[24],
        .param .u8 the_kernel_param_3
    )
    .maxntid 128, 1, 1
    {
        .reg .pred %p<2>;
        .reg .b32 %r<9>;
        .loc 1 5 3
        { // callseq 0, 0
        .param .b64 param0;
        call.uni (retval0), vprintf, (param0, param1);
        }
        mov.b64 {%r1, %r2}, %rd1; /* two at a time */
        .loc 1 6 3
        mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%r1, %r2}, {%r3}, {%r4}, {%r5};
        @!%p1 bra $L__BB0_2;
        ld.global.L1::no_allocate.L2::128B.u32 %r3, [%rd2+-4];
        bar.sync 0;
    $L__BB0_2: ret;
    }
    .entry other() { ret; }
    """
)


def load(text: str) -> int:
    return code(cu.cuModuleLoadData(text.encode() + b"\0"))


@pytest.fixture
def empty(kernels: Kernels) -> Any:
    return kernels.function("empty")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (COMPILED, 0),
        (HEAD + ".visible .global .u32 x;\n", 0),  # no kernel, and legal
        ("hello world", 200),
        ("", 200),
        (".target sm_70\n.visible .entry empty(){ret;}", 200),  # no version
        ("// .version 7.0\n.target sm_70\n.visible .entry empty(){ret;}", 200),
        (".version 7.0\n.visible .entry empty(){ret;}", 218),  # no target
        (HEAD + ".visible .entry empty(){ this is not ptx; }", 218),
        (HEAD + ".visible .entry empty(){ garbage; }", 218),
        (HEAD + ".visible .entry empty(){ ret }", 218),
        (HEAD + ".visible .entry empty(){ ret;", 218),
        (HEAD + "}", 218),
        (HEAD.replace("7.0", "1.0") + ".visible .entry empty(){ret;}", 218),  # had no sm_70
        (HEAD.replace("sm_70", "sm_90") + ".visible .entry empty(){ret;}", 218),  # nor sm_90
        (HEAD.replace("7.0", "99.0") + ".visible .entry empty(){ret;}", 222),
        (HEAD.replace("7.0", "9.1") + ".visible .entry empty(){ret;}", 222),  # of CUDA 13.1
        (
            HEAD.replace("7.0", "8.6").replace("sm_70", "sm_100") + ".visible .entry empty(){ret;}",
            218,
        ),  # a newer GPU
        (
            HEAD.replace("7.0", "8.0").replace("sm_70", "sm_90a") + ".visible .entry empty(){ret;}",
            0,
        ),
        (HEAD.replace("7.0", "9.0") + ".visible .entry empty(){ret;}", 0),
    ],
)
def test_texts_that_load_and_texts_that_do_not(text: Any, answer: Any) -> None:
    assert load(text) == answer


def test_ptx_of_the_version_that_is_played() -> None:
    program = """
        import nogpu as simulator
        simulator.install(driver_version=12060)
        from simdriver import *
        ok(cu.cuInit(0)); ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(0))))
        for version in (b"8.5", b"8.6"):
            text = b".version " + version + b"\\n.target sm_70\\n.entry empty(){ret;}\\0"
            print(code(cu.cuModuleLoadData(text)))
    """
    assert run_python(program).stdout == "0\n222\n"


def test_kernels_of_a_text_become_known_and_do_nothing(stream: Any) -> None:
    assert simulator.register_ptx(COMPILED) == ["the_kernel", "other"]
    assert simulator.register_ptx(COMPILED.encode() + b"\0") == [], "they are known now"
    module = ok(cu.cuModuleLoadData(COMPILED.encode() + b"\0"))
    kernel = ok(cu.cuModuleGetFunction(module, b"the_kernel"))
    assert [ok(cu.cuFuncGetParamInfo(kernel, index)) for index in range(4)] == [
        (0, 4),
        (8, 8),
        (16, 24),
        (40, 1),
    ]
    assert (
        code(cu.cuFuncGetParamInfo(kernel, 4))
        == code(cu.cuFuncGetParamInfo(cu.CUfunction(0), 0))
        == 1
    )
    argument = (ctypes.c_char * 24)()
    values = (1.0, 0, ctypes.addressof(argument), 3)
    storage: list[Any] = [ctypes.c_float(1.0), ctypes.c_uint64(0), argument, ctypes.c_uint8(3)]
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(each) for each in storage))
    ok(cu.cuLaunchKernel(kernel, 1, 1, 1, 128, 1, 1, 0, stream, ctypes.addressof(pointers), 0))
    ok(
        cu.cuLaunchKernel(
            ok(cu.cuModuleGetFunction(module, b"other")), 1, 1, 1, 1, 1, 1, 0, stream, 0, 0
        )
    )
    ok(cu.cuStreamSynchronize(stream))
    with pytest.raises(ValueError, match="not understood"):
        simulator.register_ptx(".entry strange(.param .tensor x)")


def test_a_kernel_with_a_body_stays_as_it_is(stream: Any) -> None:
    ran = []
    native = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: ran.append(1))
    keep.append(native)
    simulator.register_kernel(
        "with_a_body", ctypes.cast(native, ctypes.c_void_p).value or 0, parameters=[]
    )
    text = HEAD + ".entry with_a_body() { ret; } .entry spin(.param .u64 ns) { ret; }"
    assert simulator.register_ptx(text) == []
    module = ok(cu.cuModuleLoadData(text.encode() + b"\0"))
    ok(
        cu.cuLaunchKernel(
            ok(cu.cuModuleGetFunction(module, b"with_a_body")), 1, 1, 1, 1, 1, 1, 0, stream, 0, 0
        )
    )
    ok(cu.cuStreamSynchronize(stream))
    assert ran == [1]


def test_global_variables() -> None:
    module = ok(cu.cuModuleLoadData(COMPILED.encode() + b"\0"))
    counter, size = ok(cu.cuModuleGetGlobal(module, b"sim_counter"))
    assert (size, ctypes.c_uint32.from_address(int(counter)).value) == (4, 7)
    table, size = ok(cu.cuModuleGetGlobal(module, b"sim_table"))
    assert (size, (ctypes.c_float * 3).from_address(int(table))[:]) == (12, [1.0, 2.0, 3.0])
    text, size = ok(cu.cuModuleGetGlobal(module, b"$str"))
    assert ctypes.string_at(int(text), size) == b"hi\0"
    ok(cu.cuMemsetD32(counter, 9, 1))
    ok(cu.cuCtxSynchronize())
    again, _ = ok(cu.cuModuleGetGlobal(module, b"sim_counter"))
    assert (int(again), ctypes.c_uint32.from_address(int(again)).value) == (int(counter), 9)
    assert code(cu.cuModuleGetGlobal(module, b"the_kernel")) == 1
    assert code(cu.cuModuleGetGlobal(module, b"")) == 1
    for name in (b"nothing", b"the_kernel_param_0", b"sim_count"):
        assert code(cu.cuModuleGetGlobal(module, name)) == 500, name
    before = ok(cu.cuMemGetInfo())[0]
    ok(cu.cuModuleUnload(module))
    assert ok(cu.cuMemGetInfo())[0] == before + 4 + 12 + 3
    library = ok(cu.cuLibraryLoadData(COMPILED.encode() + b"\0", [], [], 0, [], [], 0))
    assert ok(cu.cuLibraryGetGlobal(library, b"sim_counter"))[1] == 4
    ok(cu.cuLibraryUnload(library))
    assert ok(cu.cuMemGetInfo())[0] == before + 4 + 12 + 3


def test_the_functions_of_a_text() -> None:
    """In the order of the text, as many as there is room for."""
    module = ok(cu.cuModuleLoadData(COMPILED.encode() + b"\0"))
    assert ok(cu.cuModuleGetFunctionCount(module)) == 2
    simulator.register_ptx(COMPILED)
    names = [ok(cu.cuFuncGetName(f)) for f in ok(cu.cuModuleEnumerateFunctions(2, module))]
    assert names == [b"the_kernel", b"other"]
    (first,) = ok(cu.cuModuleEnumerateFunctions(1, module))
    assert int(first) == int(ok(cu.cuModuleGetFunction(module, b"the_kernel")))
    ok(cu.cuModuleUnload(module))
    library = ok(cu.cuLibraryLoadData(COMPILED.encode() + b"\0", [], [], 0, [], [], 0))
    assert ok(cu.cuLibraryGetKernelCount(library)) == 2
    kernels = ok(cu.cuLibraryEnumerateKernels(2, library))
    assert [ok(cu.cuKernelGetName(kernel)) for kernel in kernels] == names
    ok(cu.cuLibraryUnload(library))
    assert code(cu.cuModuleGetFunctionCount(0)) == 400
    text = f"{HEAD}.entry no_kernel_that_is_known() {{ ret; }}\0"
    module = ok(cu.cuModuleLoadData(text.encode()))
    assert code(cu.cuModuleEnumerateFunctions(1, module)) == 500


def test_what_a_text_says_of_its_functions() -> None:
    simulator.register_ptx(COMPILED)
    module = ok(cu.cuModuleLoadData(COMPILED.encode() + b"\0"))
    function = ok(cu.cuModuleGetFunction(module, b"other"))
    constants, target = ATTRIBUTE.CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES, ATTRIBUTE(5)
    assert ok(cu.cuFuncGetAttribute(constants, function)) == 12
    assert ok(cu.cuFuncGetAttribute(target, function)) == 70
    ok(cu.cuModuleUnload(module))


@pytest.mark.parametrize("call", ["cuModuleUnload", "cuLibraryUnload"])
def test_unloading_waits_for_the_work(stream: Any, gate: Any, call: str) -> None:
    left, before, text = list[int](), simulator.calls(call), f"{HEAD}.entry empty(){{ ret; }}\0"
    if call == "cuModuleUnload":
        loaded = ok(cu.cuModuleLoadData(text.encode()))
        function = ok(cu.cuModuleGetFunction(loaded, b"empty"))
    else:
        loaded = ok(cu.cuLibraryLoadData(text.encode(), [], [], 0, [], [], 0))
        function = ok(cu.cuKernelGetFunction(ok(cu.cuLibraryGetKernel(loaded, b"empty"))))
    gate.hold(stream)
    ok(cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0))

    def unload() -> None:
        ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(0))))
        left.append(code(getattr(cu, call)(loaded)))
        ok(cu.cuDevicePrimaryCtxRelease(0))

    thread = threading.Thread(target=unload)
    thread.start()
    until(lambda: simulator.calls(call) > before)
    thread.join(0.1)
    assert thread.is_alive()
    gate.open()
    thread.join(10)
    assert left == [0]


# --- kernels and functions


def test_shared_memory_has_its_bound(stream: Any, empty: Any) -> None:
    def launch(shared: int) -> int:
        return code(cu.cuLaunchKernel(empty, 1, 1, 1, 1, 1, 1, shared, stream, 0, 0))

    most = ATTRIBUTE.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert ok(cu.cuFuncGetAttribute(most, empty)) == 49152
    assert [launch(49152), launch(49153), launch(10**9)] == [0, 1, 1]
    ok(cu.cuFuncSetAttribute(empty, most, 100000))
    assert ok(cu.cuFuncGetAttribute(most, empty)) == 100000
    assert [launch(100000), launch(100001)] == [0, 1]
    assert code(cu.cuFuncSetAttribute(empty, most, 232449)) == 1
    assert code(cu.cuFuncSetAttribute(empty, most, -1)) == 1
    params = cu.CUDA_KERNEL_NODE_PARAMS()
    params.func, params.sharedMemBytes = empty, 100001
    params.gridDimX = params.gridDimY = params.gridDimZ = params.blockDimX = params.blockDimY = (
        params.blockDimZ
    ) = 1
    assert code(cu.cuGraphAddKernelNode(ok(cu.cuGraphCreate(0)), [], 0, params)) == 1
    ok(cu.cuStreamSynchronize(stream))


def test_attributes_of_kernels(empty: Any) -> None:
    for attribute in ATTRIBUTE:
        if int(attribute) <= 15:  # what CUDA 13.0 knows
            assert (attribute, code(cu.cuFuncGetAttribute(attribute, empty))) == (attribute, 0)
            ok(cu.cuKernelGetAttribute(attribute, cu.CUkernel(int(empty)), 0))
    carveout, threads = (
        ATTRIBUTE.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
        ATTRIBUTE.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
    )
    ok(cu.cuFuncSetAttribute(empty, carveout, 50))
    assert ok(cu.cuFuncGetAttribute(carveout, empty)) == 50
    assert code(cu.cuFuncSetAttribute(empty, carveout, 101)) == 1
    assert code(cu.cuFuncSetAttribute(empty, threads, 256)) == 1, "it follows from the code"
    assert code(cu.cuFuncSetAttribute(cu.CUfunction(64), carveout, 50)) == 400
    kernel = cu.CUkernel(int(empty))
    ok(cu.cuKernelSetAttribute(carveout, 10, kernel, 1))
    assert code(cu.cuKernelSetAttribute(carveout, 10, kernel, 2)) == 101
    ok(cu.cuFuncSetCacheConfig(empty, cu.CUfunc_cache.CU_FUNC_CACHE_PREFER_L1))
    ok(cu.cuKernelSetCacheConfig(kernel, cu.CUfunc_cache.CU_FUNC_CACHE_PREFER_L1, 0))


def test_names_of_nothing() -> None:
    assert code(cu.cuFuncGetName(cu.CUfunction(0))) == 1
    assert code(cu.cuKernelGetName(cu.CUkernel(0))) == 1


def test_the_parameters_of_a_librarys_kernel_need_a_context(kernels: Kernels) -> None:
    kernel = cu.CUkernel(int(kernels.function("spin")))
    assert ok(cu.cuKernelGetParamInfo(kernel, 0)) == (0, 8)
    assert in_thread(lambda: code(cu.cuKernelGetParamInfo(kernel, 0))) == 201


def test_occupancy(empty: Any) -> None:
    def blocks(size: int, shared: int) -> int:
        return int(ok(cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(empty, size, shared)))

    assert blocks(1024, 0) == 2, "2,048 threads"
    assert blocks(100, 0) == 16, "whole warps"
    assert blocks(32, 0) == 32, "blocks"
    assert blocks(128, 40000) == 5, "shared memory, and 1 KiB more for each block"
    assert blocks(1025, 0) == 0
    assert (
        in_thread(lambda: code(cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(empty, 32, 0))) == 201
    )
    assert (blocks(128, 49152), blocks(128, 49153)) == (4, 0), "no more than a launch may ask for"
    assert blocks(128, 300000) == 0
    assert code(cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(empty, 0, 0)) == 1
    assert ok(cu.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(empty, 1024, 0, 1)) == 2
    assert ok(cu.cuOccupancyMaxPotentialBlockSize(empty, None, 0, 0)) == (264, 1024)
    assert ok(cu.cuOccupancyMaxPotentialBlockSize(empty, None, 0, 200)) == (132 * 16, 128)
    assert ok(cu.cuOccupancyAvailableDynamicSMemPerBlock(empty, 8, 128)) == 233472 // 8
    assert code(cu.cuOccupancyAvailableDynamicSMemPerBlock(empty, 33, 128)) == 1


def test_what_a_block_of_a_size_needs_may_call_the_driver(empty: Any) -> None:
    sizes = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int)(
        lambda threads: code(cu.cuCtxSynchronize()) + threads * 200
    )
    keep.append(sizes)
    best = raw(
        "cuOccupancyMaxPotentialBlockSize",
        6050,
        *[ctypes.c_void_p] * 4,
        ctypes.c_size_t,
        ctypes.c_int,
    )
    grid, block = ctypes.c_int(), ctypes.c_int()
    assert (
        best(
            ctypes.addressof(grid),
            ctypes.addressof(block),
            int(empty),
            ctypes.cast(sizes, ctypes.c_void_p),
            0,
            0,
        )
        == 0
    )
    assert (grid.value, block.value) == (132 * 5, 224), (
        "the next larger ones ask for more than a launch may"
    )


def test_profilers_are_not_missed() -> None:
    ok(cu.cuProfilerStart())
    ok(cu.cuProfilerStop())
    assert in_thread(lambda: code(cu.cuProfilerStart())) == 201


def test_launches_that_block() -> None:
    program = """
        import nogpu as simulator
        simulator.install()
        from simdriver import *
        ok(cu.cuInit(0)); ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(0))))
        kernels, stream = Kernels(), ok(cu.cuStreamCreate(1))

        def answer_behind(launch):  # on a busy machine the work may be over before the query
            for _ in range(5):
                launch()
                answer = code(cu.cuStreamQuery(stream))
                ok(cu.cuStreamSynchronize(stream))
                if answer == 600:
                    break
            return answer

        kernels.spin(stream, 0)
        ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode(2)))
        kernels.spin(stream, 0.05)
        executable = ok(cu.cuGraphInstantiate(ok(cu.cuStreamEndCapture(stream)), 0))
        print(answer_behind(lambda: kernels.spin(stream, 0.05)),
              answer_behind(lambda: ok(cu.cuGraphLaunch(executable, stream))))
        ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode(2)))
        kernels.spin(stream, 30)
        ok(cu.cuStreamEndCapture(stream))
    """
    for value, answer in (("1", "0 0\n"), ("0", "600 600\n"), ("2", "600 600\n")):
        start = time.monotonic()
        done = run_python(program, CUDA_LAUNCH_BLOCKING=value)
        assert done.stdout == answer, done.stderr
        assert time.monotonic() - start < 25
