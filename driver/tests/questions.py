"""Questions to a CUDA driver. `questions.txt` has the simulator's answers of 2026-11-28, and
docs/driver.md says which of an H200's differ.

On a GPU: `python questions.py`. On the simulator: `python -m nogpu -- questions.py`. What differs between the two outputs is what the simulator does otherwise.
Words after the command choose questions by their names. Each question is a process of its own,
because some of them end it. AT_ONCE (8) of them run at a time, for some 20 s.
"""

# ruff: noqa: E501  (programs, kept on one line where they say one thing)

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
import time

PRELUDE = r'''
import ctypes, os, sys, time
if "NOGPU_DEVICES" in os.environ:  # of `python -m nogpu`
    import nogpu as simulator
    simulator.install()
import cuda.bindings.driver as cu
P = os.environ["QUESTION"]
def say(what, *answers): print(f"{P}: {what}: " + " ".join(str(a) for a in answers), flush=True)
def code(r): return int(r[0])
def ok(r):
    assert int(r[0]) == 0, r
    return r[1] if len(r) == 2 else r[1:] if len(r) > 2 else None
def val(r): return tuple(int(x) if not isinstance(x, bytes) else x for x in r)
def begin():
    ok(cu.cuInit(0)); c = ok(cu.cuDevicePrimaryCtxRetain(0)); ok(cu.cuCtxSetCurrent(c)); return c
HEAD = ".version 7.0\n.target sm_70\n.address_size 64\n"
SPIN = HEAD + """.visible .global .align 4 .u32 counter = 7;
.visible .entry empty(){ ret; }
.visible .entry two(.param .u32 a, .param .u64 b){ ret; }
.visible .entry spin(.param .u64 ns){ .reg .u64 %a<4>; .reg .pred %p; ld.param.u64 %a1,[ns]; mov.u64 %a2,%globaltimer; L: mov.u64 %a3,%globaltimer; sub.u64 %a3,%a3,%a2; setp.lt.u64 %p,%a3,%a1; @%p bra L; ret; }
"""
if "NOGPU_DEVICES" in os.environ:  # of `python -m nogpu`
    simulator.register_ptx(SPIN)
def load(text): return ok(cu.cuModuleLoadData(text.encode() + b"\0"))
def fn(m, n): return ok(cu.cuModuleGetFunction(m, n))
def go(f, s, shared=0, block=1): return code(cu.cuLaunchKernel(f, 1,1,1, block,1,1, shared, s, 0, 0))
def spin(m, s, sec): return code(cu.cuLaunchKernel(fn(m, b"spin"), 1,1,1, 1,1,1, 0, s, ((int(sec*1e9),), (ctypes.c_uint64,)), 0))
def took(f):
    t = time.perf_counter(); a = f(); return a, f"{(time.perf_counter()-t)*1e3:.1f} ms"
'''
Q: dict[str, str] = {}
Q["ptx"] = r"""
begin()
E = ".visible .entry empty(){ ret; }"
for name, text in {"hello": "hello world", "nothing": "", "space": " \n", "no version": ".target sm_70\n"+E, "no target": ".version 7.0\n"+E, "garbage body": HEAD+".visible .entry e(){ this is not ptx; }", "garbage opcode": HEAD+".visible .entry e(){ garbage; }", "no semicolon": HEAD+".visible .entry e(){ ret }", "no brace": HEAD+".visible .entry e(){ ret;", "version 99": HEAD.replace("7.0","99.0")+E, "version 9.1": HEAD.replace("7.0","9.1")+E, "version 9.9": HEAD.replace("7.0","9.9")+E, "version 1.0": HEAD.replace("7.0","1.0")+E, "no entry": HEAD+".visible .global .u32 x;", "target sm_100": HEAD.replace("7.0","8.6").replace("sm_70","sm_100")+E, "target sm_90a": HEAD.replace("7.0","8.0").replace("sm_70","sm_90a")+E, "ELF": "\x7fELF\x02\x01\x01", "undefined register": HEAD+".visible .entry e(){ mov.u32 %r1, %r2; ret; }"}.items():
    say(name, code(cu.cuModuleLoadData(text.encode("latin1") + b"\0" * 64)), code(cu.cuLibraryLoadData(text.encode("latin1") + b"\0" * 64, [], [], 0, [], [], 0)))
"""
Q["shared"] = r"""
begin(); m = load(SPIN); f = fn(m, b"empty"); s = ok(cu.cuStreamCreate(1)); A = cu.CUfunction_attribute
D = A.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
say("default", val(cu.cuFuncGetAttribute(D, f)))
for n in (49152, 49153, 232448, 232449, 10**9): say(f"launch {n}", go(f, s, n))
for v in (100000, 232448, 232449, -1): say(f"set {v}", code(cu.cuFuncSetAttribute(f, D, v)), val(cu.cuFuncGetAttribute(D, f)))
ok(cu.cuFuncSetAttribute(f, D, 100000))
for n in (100000, 100001): say(f"after 100000, launch {n}", go(f, s, n))
p = cu.CUDA_KERNEL_NODE_PARAMS(); p.func, p.sharedMemBytes = f, 100001
p.gridDimX = p.gridDimY = p.gridDimZ = p.blockDimX = p.blockDimY = p.blockDimZ = 1
g = ok(cu.cuGraphCreate(0)); say("add node with too much", code(cu.cuGraphAddKernelNode(g, [], 0, p))); say("instantiate it", code(cu.cuGraphInstantiate(g, 0)))
"""
Q["attributes"] = r"""
begin(); m = load(SPIN); f = fn(m, b"empty"); get = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(int(ok(cu.cuGetProcAddress(b"cuFuncGetAttribute", 12000, 0))[0]))
put = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)(int(ok(cu.cuGetProcAddress(b"cuFuncSetAttribute", 12000, 0))[0]))
out = []
for a in range(-1, 20):
    v = ctypes.c_int(-77); c = get(ctypes.addressof(v), a, int(f)); out.append((a, c, v.value))
say("get", out)
say("set x", [(a, v, put(int(f), a, v)) for a in range(-1, 20) for v in (-2, -1, 0, 1, 2, 3, 8, 9, 100, 101)])
"""
Q["names of NULL"] = r"""
begin(); say("cuFuncGetName, cuKernelGetName", code(cu.cuFuncGetName(cu.CUfunction(0))), code(cu.cuKernelGetName(cu.CUkernel(0))))
say("SetCacheConfig 4", code(cu.cuFuncSetCacheConfig(fn(load(SPIN), b"empty"), cu.CUfunc_cache(3))))
"""
for n, x in {
    "cuFuncGetAttribute NULL": "cu.cuFuncGetAttribute(cu.CUfunction_attribute(0), cu.CUfunction(0))",
    "cuFuncSetAttribute NULL": "cu.cuFuncSetAttribute(cu.CUfunction(0), cu.CUfunction_attribute(8), 1)",
    "occupancy NULL": "cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(cu.CUfunction(0), 32, 0)",
    "cuFuncGetParamInfo NULL": "cu.cuFuncGetParamInfo(cu.CUfunction(0), 0)",
    "cuModuleGetGlobal NULL module": "cu.cuModuleGetGlobal(cu.CUmodule(0), b'x')",
    "cuFuncSetCacheConfig NULL": "cu.cuFuncSetCacheConfig(cu.CUfunction(0), cu.CUfunc_cache(1))",
}.items():
    Q[n] = f"begin(); say('answers', code({x}))"
Q["without a context"] = r"""
begin(); m = load(SPIN); f = fn(m, b"two"); l = ok(cu.cuLibraryLoadData(SPIN.encode() + b"\0", [], [], 0, [], [], 0)); k = ok(cu.cuLibraryGetKernel(l, b"two"))
for i in range(3): say(f"with one, parameter {i}", val(cu.cuFuncGetParamInfo(f, i)) if code(cu.cuFuncGetParamInfo(f, i)) == 0 else code(cu.cuFuncGetParamInfo(f, i)), code(cu.cuKernelGetParamInfo(k, i)))
ok(cu.cuCtxSetCurrent(cu.CUcontext(0)))
say("cuKernelGetParamInfo", code(cu.cuKernelGetParamInfo(k, 0))); say("cuFuncGetParamInfo", code(cu.cuFuncGetParamInfo(f, 0))); say("cuKernelGetName", code(cu.cuKernelGetName(k))); say("cuFuncGetName", code(cu.cuFuncGetName(f)))
say("cuFuncGetAttribute", code(cu.cuFuncGetAttribute(cu.CUfunction_attribute(0), f))); say("cuFuncSetAttribute", code(cu.cuFuncSetAttribute(f, cu.CUfunction_attribute(8), 1000))); say("cuProfilerStart", code(cu.cuProfilerStart())); say("cuModuleGetGlobal", code(cu.cuModuleGetGlobal(m, b"counter")))
say("occupancy", code(cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(f, 32, 0)))
say("cuDeviceGetDefaultMemPool, cuMemPoolCreate", code(cu.cuDeviceGetDefaultMemPool(0)))
"""
for n, v in {
    "unset": None,
    "empty": "",
    "-1": "-1",
    "0": "0",
    "0,0": "0,0",
    "0,5": "0,5",
    "5,0": "5,0",
    "space 0": " 0 ",
    "0abc": "0abc",
    "0x0": "0x0",
    "0.5": "0.5",
    "abc": "abc",
    "GPU-": "GPU-",
    "full": "@UUID",
    "first 8": "@UUID12",
    "lower": "@uuid",
    "bare uuid": "@BARE",
    "full twice": "@TWICE",
    "0 and full": "@BOTH",
    ",0": ",0",
    "0,,": "0,,",
}.items():
    Q[f"CUDA_VISIBLE_DEVICES {n}"] = (
        f"V = {v!r}"
        + r"""
if V is not None and V.startswith("@"):
    import subprocess
    env = {k: x for k, x in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    u = subprocess.run([sys.executable, "-c", "import os; 'NOGPU_DEVICES' in os.environ and __import__('nogpu').install(); import cuda.bindings.driver as cu; cu.cuInit(0); b = bytes(cu.cuDeviceGetUuid(0)[1].bytes).hex(); print('GPU-%s-%s-%s-%s-%s' % (b[:8], b[8:12], b[12:16], b[16:20], b[20:]))"], capture_output=True, text=True, env=env).stdout.strip()
    V = {"@UUID": u, "@UUID12": u[:12], "@uuid": u.lower(), "@BARE": u[4:], "@TWICE": u + "," + u, "@BOTH": "0," + u}[V]
os.environ.pop("CUDA_VISIBLE_DEVICES", None)
if V is not None: os.environ["CUDA_VISIBLE_DEVICES"] = V
a = code(cu.cuInit(0)); n = cu.cuDeviceGetCount(); say("cuInit, cuDeviceGetCount, again", a, [int(x) if x is not None else None for x in n], code(cu.cuInit(0)), "cuDriverGetVersion", code(cu.cuDriverGetVersion()), "cuDeviceGet", code(cu.cuDeviceGet(0)))
"""
    )
Q["CUDA_LAUNCH_BLOCKING=1"] = r"""
os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
begin(); m = load(SPIN); fn(m, b"spin"); s = ok(cu.cuStreamCreate(1)); t = ok(cu.cuStreamCreate(1)); d = ok(cu.cuMemAlloc(1 << 28)); h = int(ok(cu.cuMemHostAlloc(1 << 28, 0))); e = ok(cu.cuEventCreate(0))
go(fn(m, b"empty"), s)
say("kernel of 100 ms", *took(lambda: spin(m, s, .1)))
ok(cu.cuStreamBeginCapture(s, cu.CUstreamCaptureMode(2))); spin(m, s, .1); g = ok(cu.cuGraphInstantiate(ok(cu.cuStreamEndCapture(s)), 0))
say("graph of 100 ms", *took(lambda: code(cu.cuGraphLaunch(g, s))))
ok(cu.cuStreamSynchronize(s))
say("copy of 256 MiB to pinned memory (some 5 to 10 ms)", *took(lambda: code(cu.cuMemcpyDtoHAsync(h, d, 1 << 28, s))), "then query", code(cu.cuStreamQuery(s)))
ok(cu.cuStreamSynchronize(s))
w = ok(cu.cuMemHostAlloc(64, 0)); word = ctypes.c_uint32.from_address(int(w)); word.value = 0
ok(cu.cuStreamWaitValue32(s, int(w), 1, 0)); say("fill behind a gate", *took(lambda: code(cu.cuMemsetD8Async(d, 1, 64, s)))); say("record behind a gate", *took(lambda: code(cu.cuEventRecord(e, s)))); word.value = 1; ok(cu.cuStreamSynchronize(s))
"""
Q["CUDA_LAUNCH_BLOCKING=0 and 2"] = r"""
os.environ["CUDA_LAUNCH_BLOCKING"] = "2"
begin(); m = load(SPIN); s = ok(cu.cuStreamCreate(1)); spin(m, s, .001); ok(cu.cuStreamSynchronize(s)); say("2: kernel of 100 ms", *took(lambda: spin(m, s, .1)))
"""
Q["fork"] = r"""
begin(); s = ok(cu.cuStreamCreate(1)); e = ok(cu.cuEventCreate(0)); import warnings; warnings.simplefilter("ignore")
for n, f in {"cuInit": lambda: cu.cuInit(0), "cuDriverGetVersion": lambda: cu.cuDriverGetVersion(), "cuDeviceGetCount": lambda: cu.cuDeviceGetCount(), "cuStreamQuery": lambda: cu.cuStreamQuery(s), "cuMemAlloc": lambda: cu.cuMemAlloc(64), "cuEventQuery": lambda: cu.cuEventQuery(e), "cuCtxGetCurrent": lambda: cu.cuCtxGetCurrent(), "cuStreamCreate": lambda: cu.cuStreamCreate(1), "cuStreamSynchronize": lambda: cu.cuStreamSynchronize(s), "cuCtxSynchronize": lambda: cu.cuCtxSynchronize(), "cuDevicePrimaryCtxRetain": lambda: cu.cuDevicePrimaryCtxRetain(0), "cuGetErrorName": lambda: cu.cuGetErrorName(cu.CUresult(1))}.items():
    pid = os.fork()
    if pid == 0:
        import signal; signal.alarm(5)
        say(n + " in the child", code(f())); os._exit(0)
    r = os.waitpid(pid, 0)[1]
    if r: say(n + " in the child died, status", r)
"""
Q["cuCtxCreate flags"] = r"""
ok(cu.cuInit(0)); ok(cu.cuDriverGetVersion())
make = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)(int(ok(cu.cuGetProcAddress(b"cuCtxCreate", 3020, 0))[0]))
c = ctypes.c_void_p(); out = []
for f in (0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 32, 64, 128, 256, 255):
    r = make(ctypes.addressof(c), f, 0); out.append((f, r))
    if r == 0: cu.cuCtxDestroy(cu.CUcontext(c.value))
say("flag, code", out)
"""
Q["registering"] = r"""
begin(); h, d = int(ok(cu.cuMemHostAlloc(100, 0))), int(ok(cu.cuMemAlloc(100))); d2, h2 = int(ok(cu.cuMemAlloc(100))), int(ok(cu.cuMemHostAlloc(100, 0)))
say("pinned % 4096, next one; device % 512, next one", h % 4096, h2 - h, d % 512, d2 - d)
b = ctypes.create_string_buffer(3 * 4096); p = ctypes.addressof(b)
say("unaligned 16 bytes", code(cu.cuMemHostRegister(p + 5, 16, 0))); say("neighbours on its page", code(cu.cuMemHostRegister(p + 40, 16, 0))); say("its two pages", code(cu.cuMemHostRegister(p & ~4095, 8192, 0)))
say("part of pinned memory", code(cu.cuMemHostRegister(h, 100, 0))); say("unregister inside", code(cu.cuMemHostUnregister(p + 6)))
"""
Q["device attributes"] = r"""
ok(cu.cuInit(0)); get = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)(int(ok(cu.cuGetProcAddress(b"cuDeviceGetAttribute", 12000, 0))[0])); out = {}; bad = []
for a in range(0, 210):
    v = ctypes.c_int(-77); c = get(ctypes.addressof(v), a, 0)
    if c: bad.append((a, c))
    elif v.value: out[a] = v.value
say("not 0", out); say("refused", bad); say("name", ok(cu.cuDeviceGetName(64, 0)).rstrip(b"\0"))
"""
Q["occupancy"] = r"""
begin(); f = fn(load(SPIN), b"empty"); A = cu.CUfunction_attribute
say("registers", val(cu.cuFuncGetAttribute(A.CU_FUNC_ATTRIBUTE_NUM_REGS, f)))
for b, s in ((1, 0), (32, 0), (33, 0), (100, 0), (128, 0), (1024, 0), (1025, 0), (128, 40000), (128, 49152), (128, 49153), (128, 300000), (0, 0), (-1, 0)):
    r = cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(f, b, s); say(f"blocks of {b} with {s}", code(r), r[1])
say("flags 1, 2", code(cu.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(f, 32, 0, 1)), code(cu.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(f, 32, 0, 2)))
for s, l in ((0, 0), (0, 200), (40000, 0), (0, 5000), (300000, 0), (0, -1)): r = cu.cuOccupancyMaxPotentialBlockSize(f, None, s, l); say(f"best with {s}, at most {l}", code(r), r[1:])
for n, b in ((1, 128), (2, 128), (8, 128), (32, 32), (33, 32), (0, 32), (16, 128), (17, 128)): r = cu.cuOccupancyAvailableDynamicSMemPerBlock(f, n, b); say(f"shared memory for {n} blocks of {b}", code(r), r[1])
"""
Q["cuGetExportTable"] = r"""
begin(); f = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(int(ok(cu.cuGetProcAddress(b"cuGetExportTable", 3000, 0))[0])); t = ctypes.c_void_p(77); say("unknown id", f(ctypes.addressof(t), b"0123456789abcdef"), t.value)
for n in (b"cuMemAlloc", b"cuMemcpyHtoD", b"cuCtxCreate", b"cuGraphInstantiate"):
    for v in (2000, 3020, 11000, 12000, 13000): say(f"{n.decode()} of {v}", cu.cuGetProcAddress(n, v, 0))
"""
Q["error texts"] = r"""
ok(cu.cuInit(0))
for c in (47, 202, 226, 721, 916, 917, 918, 919, 12345):
    f = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)(int(ok(cu.cuGetProcAddress(b"cuGetErrorString", 12000, 0))[0])); p = ctypes.c_char_p(b"?"); say(c, f(c, ctypes.addressof(p)), p.value)
"""
Q["globals"] = r"""
begin(); m = load(SPIN); say("counter", cu.cuModuleGetGlobal(m, b"counter")[1:], "unknown", code(cu.cuModuleGetGlobal(m, b"nope")), "a kernel", code(cu.cuModuleGetGlobal(m, b"empty")))
f = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(int(ok(cu.cuGetProcAddress(b"cuModuleGetGlobal", 12000, 0))[0])); v = ctypes.c_uint64()
say("no outs, only size, only address", f(None, None, int(m), b"counter"), f(None, ctypes.addressof(v), int(m), b"counter"), f(ctypes.addressof(v), None, int(m), b"counter"))
"""
Q["pitch"] = r"""
begin()
for a in ((100, 3, 4), (512, 1, 4), (513, 2, 16), (64, 4, 3), (0, 4, 4), (64, 0, 4), (64, 4, 8), (64, 4, 0)): r = cu.cuMemAllocPitch(*a); say(f"cuMemAllocPitch{a}", code(r), r[2])
d, p = ok(cu.cuMemAllocPitch(64, 4, 4)); s = ok(cu.cuStreamCreate(1))
for a in ((p, 1, 64, 4), (p, 1, 0, 4), (p, 1, 64, 0), (32, 1, 64, 2), (0, 1, 64, 1), (32, 1, 64, 1), (p, 1, p + 1, 2), (p, 1, p, 5)): say(f"cuMemsetD2D8 pitch, value, width, height {a}", code(cu.cuMemsetD2D8(d, *a)))
say("cuMemsetD2D32 at +2, of pitch 6", code(cu.cuMemsetD2D32(int(d) + 2, p, 1, 4, 2)), code(cu.cuMemsetD2D32(d, 6, 1, 1, 2)))
h = ctypes.create_string_buffer(4096)
def c2(**k):
    c = cu.CUDA_MEMCPY2D(); c.srcMemoryType = c.dstMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_DEVICE; c.srcDevice = c.dstDevice = d; c.srcPitch = c.dstPitch = p; c.WidthInBytes, c.Height, c.srcY = 16, 2, 2
    for n, v in k.items(): setattr(c, n, v)
    return c
U = cu.CUmemorytype.CU_MEMORYTYPE_UNIFIED
for n, k in {"plain": {}, "width 0": dict(WidthInBytes=0), "height 0": dict(Height=0), "source pitch 8": dict(srcPitch=8), "source pitch 8, height 1": dict(srcPitch=8, Height=1), "pitch 0, height 1": dict(srcPitch=0, dstPitch=0, Height=1), "pitch 0": dict(srcPitch=0, dstPitch=0), "x beyond pitch": dict(srcXInBytes=p), "beyond the memory": dict(srcY=4), "unified": dict(srcMemoryType=U, dstMemoryType=U), "type 0": None}.items():
    if k is not None: say("cuMemcpy2D " + n, code(cu.cuMemcpy2D(c2(**k))), "Unaligned", code(cu.cuMemcpy2DUnaligned(c2(**k))), "Async", code(cu.cuMemcpy2DAsync(c2(**k), s)))
"""
Q["peers"] = r"""
c = begin(); say("itself: can, enable, disable", val(cu.cuDeviceCanAccessPeer(0, 0)), code(cu.cuCtxEnablePeerAccess(c, 0)), code(cu.cuCtxDisablePeerAccess(c)), "flags 1", code(cu.cuCtxEnablePeerAccess(c, 1)))
say("P2P attributes of itself", [val(cu.cuDeviceGetP2PAttribute(a, 0, 0)) if code(cu.cuDeviceGetP2PAttribute(a, 0, 0)) == 0 else code(cu.cuDeviceGetP2PAttribute(a, 0, 0)) for a in cu.CUdevice_P2PAttribute])
c2 = ok(cu.cuCtxCreate(None, 0, 0)) if len(cu.cuCtxCreate.__doc__ or "") else None
say("another context of the same device: enable, again, disable, again", code(cu.cuCtxEnablePeerAccess(c, 0)), code(cu.cuCtxEnablePeerAccess(c, 0)), code(cu.cuCtxDisablePeerAccess(c)), code(cu.cuCtxDisablePeerAccess(c)))
"""
POOL = r"""
c = begin(); s = ok(cu.cuStreamCreate(1)); A = cu.CUmemPool_attribute
def props(**k):
    p = cu.CUmemPoolProps(); p.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED; p.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE; p.location.id = 0
    for n, v in k.items(): setattr(p, n, v)
    return p
def ats(pool):
    out = {}
    for a in list(A)[:8]:  # bindings newer than the driver know more, and refuse to ask for them
        r = cu.cuMemPoolGetAttribute(pool, a); out[int(a)] = int(r[1]) if code(r) == 0 and r[1] is not None else ("code", code(r))
    return out
"""
Q["pools"] = (
    POOL
    + r"""
d = ok(cu.cuDeviceGetDefaultMemPool(0)); say("default is current", int(d) == int(ok(cu.cuDeviceGetMemPool(0)))); say("attributes of the default pool at first", ats(d))
free0 = ok(cu.cuMemGetInfo())[0]
a = ok(cu.cuMemAllocAsync(1000, s)); say("after 1000 bytes", ats(d), "address % 512", int(a) % 512, "free memory less by", free0 - ok(cu.cuMemGetInfo())[0]); b = ok(cu.cuMemAllocAsync(1000, s)); say("distance of the next", int(b) - int(a))
r = cu.cuMemGetAddressRange(a); say("address range", code(r), int(r[1]) - int(a) if code(r) == 0 else "", r[2])
ok(cu.cuMemFreeAsync(a, s)); say("freed, not synchronised", ats(d)); ok(cu.cuMemFreeAsync(b, s)); say("both freed", ats(d)); ok(cu.cuStreamSynchronize(s)); say("both freed and synchronised", ats(d), "free memory less by", free0 - ok(cu.cuMemGetInfo())[0])
ok(cu.cuMemPoolSetAttribute(d, A.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, cu.cuuint64_t(1 << 30))); a = ok(cu.cuMemAllocAsync(1000, s)); ok(cu.cuMemFreeAsync(a, s)); ok(cu.cuStreamSynchronize(s)); say("with a threshold", ats(d))
say("trim to 1", code(cu.cuMemPoolTrimTo(d, 1)), ats(d)); say("trim to 0", code(cu.cuMemPoolTrimTo(d, 0)), ats(d))
say("set high to 1 / 0", code(cu.cuMemPoolSetAttribute(d, A.CU_MEMPOOL_ATTR_USED_MEM_HIGH, cu.cuuint64_t(1))), code(cu.cuMemPoolSetAttribute(d, A.CU_MEMPOOL_ATTR_USED_MEM_HIGH, cu.cuuint64_t(0))), "set current", code(cu.cuMemPoolSetAttribute(d, A.CU_MEMPOOL_ATTR_USED_MEM_CURRENT, cu.cuuint64_t(0))))
say("destroy the default pool", code(cu.cuMemPoolDestroy(d)))
say("alloc of 0, of 2^60", code(cu.cuMemAllocAsync(0, s)), code(cu.cuMemAllocAsync(1 << 60, s))); say("free async of NULL, of cuMemAlloc's, of nonsense", code(cu.cuMemFreeAsync(0, s)), code(cu.cuMemFreeAsync(ok(cu.cuMemAlloc(64)), s)), code(cu.cuMemFreeAsync(cu.CUdeviceptr(12345 << 12), s)))
a = ok(cu.cuMemAllocAsync(64, s)); say("cuMemFree of cuMemAllocAsync's", code(cu.cuMemFree(a)))
a = ok(cu.cuMemAllocAsync(64, s)); ok(cu.cuMemFreeAsync(a, s)); say("free async twice", code(cu.cuMemFreeAsync(a, s)))
"""
)
Q["own pools"] = (
    POOL
    + r"""
p = ok(cu.cuMemPoolCreate(props())); say("attributes", ats(p))
for n, k in {"allocType 0": dict(allocType=cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_INVALID), "maxSize 4 MiB": dict(maxSize=4 << 20), "fd handles": dict(handleTypes=cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)}.items(): r = cu.cuMemPoolCreate(props(**k)); say("create with " + n, code(r), ats(r[1]) if code(r) == 0 else "")
q = props(); q.location.id = 9; say("location 9", code(cu.cuMemPoolCreate(q))); q = props(); q.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST; q.location.id = 0; r = cu.cuMemPoolCreate(q); say("host location", code(r))
small = ok(cu.cuMemPoolCreate(props(maxSize=4 << 20))); r = cu.cuMemAllocFromPoolAsync(5 << 20, small, s); say("5 MiB of a pool of 4", code(r)); r = cu.cuMemAllocFromPoolAsync(64 << 20, small, s); say("64 MiB of a pool of 4", code(r))
a = ok(cu.cuMemAllocFromPoolAsync(3 << 20, p, s)); say("3 MiB of the pool", ats(p)); K = cu.CUpointer_attribute
r = cu.cuPointerGetAttribute(K.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, a); say("pool of the pointer is it", code(r), int(r[1]) == int(p) if code(r) == 0 else "")
r = cu.cuPointerGetAttribute(K.CU_POINTER_ATTRIBUTE_CONTEXT, a); say("its context is the current", code(r), int(r[1]) == int(c) if code(r) == 0 and r[1] is not None else r[1:])
l = cu.CUmemLocation(); l.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE; l.id = 0; say("access", cu.cuMemPoolGetAccess(p, l)); l.id = 9; say("access of 9", cu.cuMemPoolGetAccess(p, l)); l.id = 0
for f in (0, 1, 3): m = cu.CUmemAccessDesc(); m.location = l; m.flags = cu.CUmemAccess_flags(f); say(f"set own access to {f}", code(cu.cuMemPoolSetAccess(p, [m], 1)))
say("set as the device's", code(cu.cuDeviceSetMemPool(0, p)), int(ok(cu.cuDeviceGetMemPool(0))) == int(p)); b = ok(cu.cuMemAllocAsync(64, s)); say("then cuMemAllocAsync is of it", int(ok(cu.cuPointerGetAttribute(K.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, b))) == int(p))
say("destroy with memory out", code(cu.cuMemPoolDestroy(p)), "device's pool is the default", int(ok(cu.cuDeviceGetMemPool(0))) == int(ok(cu.cuDeviceGetDefaultMemPool(0)))); say("the memory still works", code(cu.cuMemsetD8Async(a, 1, 64, s)), code(cu.cuMemFreeAsync(a, s)), code(cu.cuMemFreeAsync(b, s)), code(cu.cuStreamSynchronize(s)))
"""
)
Q["a pool that is gone"] = (
    POOL
    + "p = ok(cu.cuMemPoolCreate(props())); ok(cu.cuMemPoolDestroy(p)); say('attribute of it', code(cu.cuMemPoolGetAttribute(p, A.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)))\nsay('destroy again', code(cu.cuMemPoolDestroy(p)))"
)
Q["reuse"] = (
    POOL
    + r"""
t = ok(cu.cuStreamCreate(1)); e = ok(cu.cuEventCreate(2)); m = load(SPIN); spin(m, s, .001); ok(cu.cuStreamSynchronize(s)); w = ok(cu.cuMemHostAlloc(64, 0)); word = ctypes.c_uint32.from_address(int(w)); word.value = 0
a = ok(cu.cuMemAllocAsync(1 << 20, s)); ok(cu.cuMemFreeAsync(a, s)); b = ok(cu.cuMemAllocAsync(1 << 20, s)); say("same stream reuses", int(a) == int(b)); ok(cu.cuMemFreeAsync(b, s)); ok(cu.cuStreamSynchronize(s))
a = ok(cu.cuMemAllocAsync(1 << 20, s)); ok(cu.cuStreamWaitValue32(s, int(w), 1, 0)); ok(cu.cuMemFreeAsync(a, s)); r = took(lambda: ok(cu.cuMemAllocAsync(1 << 20, t))); say("other stream, free pending behind a gate: reuses, took", int(a) == int(r[0]), r[1]); word.value = 1; ok(cu.cuCtxSynchronize())
"""
)
Q["graph memory"] = (
    POOL
    + r"""
g = ok(cu.cuGraphCreate(0)); n = cu.CUDA_MEM_ALLOC_NODE_PARAMS(); n.poolProps = props(); n.bytesize = 4096; node, n2 = (lambda r: (r[0], r[1]) if isinstance(r, tuple) else (r, n))(ok(cu.cuGraphAddMemAllocNode(g, [], 0, n)))
addr = int(n2.dptr); say("alloc node: type, address % 512", int(ok(cu.cuGraphNodeGetType(node))), addr % 512); r = cu.cuPointerGetAttribute(cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, addr); say("pointer before launch", code(r))
f = ok(cu.cuGraphAddMemFreeNode(g, [node], 1, addr)); say("free node type", int(ok(cu.cuGraphNodeGetType(f)))); say("second free node", code(cu.cuGraphAddMemFreeNode(g, [node], 1, addr))); say("clone", code(cu.cuGraphClone(g))); say("destroy a node", code(cu.cuGraphDestroyNode(f)))
x = cu.cuGraphInstantiate(g, 0); say("instantiate, again", code(x), code(cu.cuGraphInstantiate(g, 0)))
if code(x) == 0:
    say("launch, launch again", code(cu.cuGraphLaunch(x[1], s)), code(cu.cuGraphLaunch(x[1], s))); ok(cu.cuStreamSynchronize(s))
say("graph memory", [val(cu.cuDeviceGetGraphMemAttribute(0, a))[1:] for a in cu.CUgraphMem_attribute]); say("trim", code(cu.cuDeviceGraphMemTrim(0)), [val(cu.cuDeviceGetGraphMemAttribute(0, a))[1:] for a in cu.CUgraphMem_attribute])
"""
)
Q["graph memory without free"] = (
    POOL
    + r"""
ok(cu.cuStreamBeginCapture(s, cu.CUstreamCaptureMode(2))); a = ok(cu.cuMemAllocAsync(4096, s)); say("set inside capture", code(cu.cuMemsetD8Async(a, 7, 4096, s))); g = ok(cu.cuStreamEndCapture(s)); ns = ok(cu.cuGraphGetNodes(g, 5)); say("types", [int(ok(cu.cuGraphNodeGetType(n))) for n in ns[0][:ns[1]]])
x = ok(cu.cuGraphInstantiate(g, 0)); say("launch", code(cu.cuGraphLaunch(x, s))); say("launch again without a free", code(cu.cuGraphLaunch(x, s))); r = cu.cuMemFreeAsync(a, s); say("free outside, launch again", code(r), code(cu.cuGraphLaunch(x, s))); say("cuMemFree of it", code(cu.cuMemFree(a))); say("exec destroy", code(cu.cuGraphExecDestroy(x)))
y = ok(cu.cuGraphInstantiate(g, 1)); say("AUTO_FREE: launch twice", code(cu.cuGraphLaunch(y, s)), code(cu.cuGraphLaunch(y, s)), code(cu.cuStreamSynchronize(s)))
"""
)
Q["free in capture of memory from outside"] = (
    POOL
    + "a = ok(cu.cuMemAllocAsync(64, s)); ok(cu.cuStreamBeginCapture(s, cu.CUstreamCaptureMode(2))); say('cuMemFreeAsync', code(cu.cuMemFreeAsync(a, s))); r = cu.cuStreamEndCapture(s); say('end', code(r))"
)
Q["legacy waits"] = r"""
begin(); m = load(SPIN); a, b = ok(cu.cuStreamCreate(0)), ok(cu.cuStreamCreate(0)); nb = ok(cu.cuStreamCreate(1)); spin(m, a, .001); ok(cu.cuCtxSynchronize()); L = cu.CUstream(1)
def ask(name, prepare):
    e = ok(cu.cuEventCreate(2)); prepare(e); spin(m, a, .1); f = ok(cu.cuEventCreate(0)); t = time.perf_counter(); c = code(cu.cuStreamWaitEvent(L, e, 0)); go(fn(m, b"empty"), b); ok(cu.cuStreamSynchronize(b)); say(name, c, f"b done after {(time.perf_counter()-t)*1e3:.1f} ms of 100"); ok(cu.cuCtxSynchronize())
def rec(s): return lambda e: (ok(cu.cuEventRecord(e, s)), ok(cu.cuEventSynchronize(e)))
ask("complete, of a blocking stream", rec(b)); ask("complete, of a nonblocking stream", rec(nb)); ask("complete, of the legacy stream", rec(L)); ask("never recorded", lambda e: None)
e = ok(cu.cuEventCreate(2)); spin(m, a, .1); t = time.perf_counter(); ok(cu.cuEventRecord(e, L)); go(fn(m, b"empty"), b); ok(cu.cuStreamSynchronize(b)); say("an event record on legacy is a barrier:", f"{(time.perf_counter()-t)*1e3:.1f} ms of 100"); ok(cu.cuCtxSynchronize())
w = ok(cu.cuMemHostAlloc(64, 0)); ctypes.c_uint32.from_address(int(w)).value = 1
spin(m, a, .1); t = time.perf_counter(); ok(cu.cuMemFreeAsync(0, L)); go(fn(m, b"empty"), b); ok(cu.cuStreamSynchronize(b)); say("cuMemFreeAsync(NULL) on legacy:", f"{(time.perf_counter()-t)*1e3:.1f} ms of 100"); ok(cu.cuCtxSynchronize())
p = ok(cu.cuMemAllocAsync(64, nb)); ok(cu.cuStreamSynchronize(nb)); spin(m, a, .1); t = time.perf_counter(); q = ok(cu.cuMemAllocAsync(64, L)); go(fn(m, b"empty"), b); ok(cu.cuStreamSynchronize(b)); say("cuMemAllocAsync on legacy:", f"{(time.perf_counter()-t)*1e3:.1f} ms of 100"); ok(cu.cuCtxSynchronize())
spin(m, a, .1); t = time.perf_counter(); ok(cu.cuMemFreeAsync(q, L)); go(fn(m, b"empty"), b); ok(cu.cuStreamSynchronize(b)); say("cuMemFreeAsync on legacy:", f"{(time.perf_counter()-t)*1e3:.1f} ms of 100"); ok(cu.cuCtxSynchronize())
d = ok(cu.cuMemAlloc(64)); spin(m, a, .1); t = time.perf_counter(); say("copy of 0 bytes", code(cu.cuMemcpyDtoDAsync(d, d, 0, L))); go(fn(m, b"empty"), b); ok(cu.cuStreamSynchronize(b)); say("copy of 0 bytes on legacy:", f"{(time.perf_counter()-t)*1e3:.1f} ms of 100"); ok(cu.cuCtxSynchronize())
spin(m, a, .1); t = time.perf_counter(); say("record of b: query", code(cu.cuStreamQuery(L))); go(fn(m, b"empty"), b); ok(cu.cuStreamSynchronize(b)); say("cuStreamQuery on legacy:", f"{(time.perf_counter()-t)*1e3:.1f} ms of 100"); ok(cu.cuCtxSynchronize())
"""


# Open: no GPU was asked these yet. docs/driver.md has what the simulator does.

HOST = """
begin(); m = load(SPIN); s, idle = ok(cu.cuStreamCreate(1)), ok(cu.cuStreamCreate(1)); e = ok(cu.cuEventCreate(2))
seen, F = [], ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def inside(function):
    native = F(lambda _: seen.append(function()))
    ok(cu.cuLaunchHostFunc(s, cu.CUhostFn(ctypes.cast(native, ctypes.c_void_p).value), 0))
    spin(m, s, .01); ok(cu.cuEventRecord(e, s)); end = time.monotonic() + 5
    while not seen and time.monotonic() < end: time.sleep(.001)
    return seen
"""
Q["open: host function"] = (
    HOST
    + """
say("query of an idle stream, of a pending event", inside(lambda: [code(cu.cuStreamQuery(idle)), code(cu.cuEventQuery(e))]))
"""
)
Q["open: host function that waits"] = (
    HOST
    + """
say("synchronize its own stream", inside(lambda: code(cu.cuStreamSynchronize(s))))
"""
)
Q["open: GLOBAL capture"] = """
begin(); m = load(SPIN); s = ok(cu.cuStreamCreate(1)); d, to = ok(cu.cuMemAlloc(64)), ok(cu.cuMemAlloc(64)); host = ctypes.create_string_buffer(64); at = ctypes.addressof(host)
TEXT = (HEAD + ".visible .entry empty(){ ret; }").encode() + b"\\0"
library, module = ok(cu.cuLibraryLoadData(TEXT, [], [], 0, [], [], 0)), ok(cu.cuModuleLoadData(TEXT))
rows = cu.CUDA_MEMCPY2D(); rows.srcMemoryType = rows.dstMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_DEVICE; rows.srcDevice, rows.dstDevice, rows.WidthInBytes, rows.Height = d, to, 8, 1
for name, call in {"cuMemcpyDtoH": lambda: cu.cuMemcpyDtoH(at, d, 64), "cuMemcpyDtoD": lambda: cu.cuMemcpyDtoD(to, d, 64), "cuMemcpy": lambda: cu.cuMemcpy(to, d, 64), "cuMemsetD8": lambda: cu.cuMemsetD8(d, 1, 64), "cuMemcpy2D": lambda: cu.cuMemcpy2D(rows), "cuLibraryLoadData": lambda: cu.cuLibraryLoadData(TEXT, [], [], 0, [], [], 0), "cuLibraryUnload": lambda: cu.cuLibraryUnload(library), "cuModuleUnload": lambda: cu.cuModuleUnload(module)}.items():
    ok(cu.cuStreamBeginCapture(s, cu.CUstreamCaptureMode(0))); answer = code(call()); say(name, answer, int(ok(cu.cuStreamIsCapturing(s))), code(cu.cuStreamEndCapture(s)))
"""
Q["open: unloading a library"] = """
begin(); s = ok(cu.cuStreamCreate(1)); library = ok(cu.cuLibraryLoadData(SPIN.encode() + b"\\0", [], [], 0, [], [], 0)); f = ok(cu.cuKernelGetFunction(ok(cu.cuLibraryGetKernel(library, b"spin"))))
ok(cu.cuLaunchKernel(f, 1,1,1, 1,1,1, 0, s, ((10**6,), (ctypes.c_uint64,)), 0)); ok(cu.cuStreamSynchronize(s))
ok(cu.cuLaunchKernel(f, 1,1,1, 1,1,1, 0, s, ((3 * 10**8,), (ctypes.c_uint64,)), 0)); say("with a launch of 300 ms pending", *took(lambda: code(cu.cuLibraryUnload(library))))
"""
Q["open: filling"] = """
begin(); m = load(SPIN); s = ok(cu.cuStreamCreate(0)); d, pinned = ok(cu.cuMemAlloc(64)), ok(cu.cuMemHostAlloc(64, 0)); ok(cu.cuMemsetD8(d, 1, 64)); spin(m, s, .001); ok(cu.cuCtxSynchronize())
for name, memory in {"device": d, "pinned": int(pinned)}.items(): spin(m, s, .3); say(f"{name} memory, with a kernel of 300 ms on a blocking stream", *took(lambda: code(cu.cuMemsetD8(memory, 1, 64)))); ok(cu.cuCtxSynchronize())
"""
Q["open: clusters"] = """
begin(); f = fn(load(SPIN), b"empty")
for threads in (32, 128, 256, 512, 1024):
    for size in (1, 2, 4, 8):
        config, one = cu.CUlaunchConfig(), cu.CUlaunchAttribute(); config.gridDimX, config.gridDimY, config.gridDimZ = 64, 1, 1; config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        one.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION; d = one.value.clusterDim; d.x, d.y, d.z = size, 1, 1; config.attrs, config.numAttrs = [one], 1
        say(f"{size} blocks of {threads} threads", *val(cu.cuOccupancyMaxActiveClusters(f, config)))
"""
Q["open: two devices"] = """
first = begin()
if int(ok(cu.cuDeviceGetCount())) < 2: say("needs two devices"); sys.exit()
second = ok(cu.cuDevicePrimaryCtxRetain(1)); s = ok(cu.cuStreamCreate(1)); d = ok(cu.cuMemAlloc(4096)); ok(cu.cuCtxPushCurrent(second)); far = ok(cu.cuMemAlloc(4096)); A = cu.CUpointer_attribute
ORDINAL = A.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
say("ordinal, where device 1 is current", val(cu.cuPointerGetAttribute(ORDINAL, far)), val(cu.cuPointerGetAttribute(ORDINAL, d))); ok(cu.cuCtxPopCurrent())
say("ordinal, where device 0 is current", val(cu.cuPointerGetAttribute(ORDINAL, far)), val(cu.cuPointerGetAttribute(ORDINAL, d)))
seen = ctypes.create_string_buffer(4096)
for value in (5, 6, 7):
    ok(cu.cuMemsetD8(d, value, 4096)); ok(cu.cuMemcpyPeerAsync(far, second, d, first, 4096, s)); ok(cu.cuStreamSynchronize(s)); ok(cu.cuMemcpyDtoH(ctypes.addressof(seen), far, 4096)); say(f"filled with {value}, copied at once", seen.raw[0], seen.raw[4095])
ok(cu.cuMemsetD8(d, 8, 4096)); ok(cu.cuCtxSynchronize()); ok(cu.cuMemcpyPeerAsync(far, second, d, first, 4096, s)); ok(cu.cuStreamSynchronize(s)); ok(cu.cuMemcpyDtoH(ctypes.addressof(seen), far, 4096)); say("filled with 8, copied when that was done", seen.raw[0], seen.raw[4095])
p = cu.CUmemPoolProps(); p.allocType = cu.CUmemAllocationType(1); p.location.type, p.location.id = cu.CUmemLocationType(1), 0; pool, access = ok(cu.cuMemPoolCreate(p)), cu.CUmemAccessDesc(); access.location.type, access.location.id = cu.CUmemLocationType(1), 1
for flags in (1, 3, 0): access.flags = cu.CUmemAccess_flags(flags); say(f"device 1's access to a pool of device 0: {flags}", code(cu.cuMemPoolSetAccess(pool, [access], 1)))
"""

RAW = """
begin(); s = ok(cu.cuStreamCreate(1)); m = ok(cu.cuMemAllocManaged(64, 1)); words = (ctypes.c_uint64 * 1600)()
def raw(name, *arguments): return ctypes.CFUNCTYPE(ctypes.c_int)(int(ok(cu.cuGetProcAddress(name.encode(), 12000, 0))[0]))(*[ctypes.c_void_p(one) if one is None else ctypes.c_int64(int(one)) if not isinstance(one, ctypes.Array) else one for one in arguments])
p = cu.CUmemPoolProps(); p.allocType = cu.CUmemAllocationType(1); p.location.type = cu.CUmemLocationType(1)
"""
"""What ended the process as one of several calls, each by itself."""

for name, call in {
    "attach with flags 0": "raw('cuStreamAttachMemAsync', s, m, 0, 0)",
    "attach with flags 3": "raw('cuStreamAttachMemAsync', s, m, 0, 3)",
    "attach NULL": "raw('cuStreamAttachMemAsync', s, 0, 0, 1)",
    "capture mode 3": "raw('cuThreadExchangeStreamCaptureMode', (ctypes.c_int * 1)(3))",
    "capture mode NULL": "raw('cuThreadExchangeStreamCaptureMode', None)",
    "257 memory operations": "raw('cuStreamBatchMemOp', s, 257, words, 0)",
    "flags of memory operations": "raw('cuStreamBatchMemOp', s, 0, words, 1)",
    "a memory operation that is NULL": "raw('cuStreamBatchMemOp', s, 1, None, 0)",
    "set the device's pool and destroy it": "[code(cu.cuDeviceSetMemPool(0, pool := ok(cu.cuMemPoolCreate(p)))), code(cu.cuMemPoolDestroy(pool)), val(cu.cuDeviceGetMemPool(0))[0]]",
    "set the device's pool and destroy it in use": "[code(cu.cuDeviceSetMemPool(0, pool := ok(cu.cuMemPoolCreate(p)))), ok(cu.cuMemAllocAsync(64, s)) is not None, code(cu.cuMemPoolDestroy(pool)), val(cu.cuDeviceGetMemPool(0))[0]]",
}.items():
    Q[f"open: {name}"] = f"{RAW}say('code', {call})"
for name in ("cuStreamQuery", "cuStreamSynchronize", "cuStreamDestroy"):
    Q[f"open: fork with a busy stream: {name}"] = f"""
begin(); s = ok(cu.cuStreamCreate(1)); spin(load(SPIN), s, .5); child = os.fork()
if child == 0: say("{name}", code(cu.{name}(s))); os._exit(0)
say("the child ended with", os.waitpid(child, 0)[1])
"""


def ask(item: tuple[str, str]) -> str:
    name, text = item
    start = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-c", PRELUDE + text],
            capture_output=True,
            text=True,
            check=False,
            timeout=25,
            env={**os.environ, "QUESTION": name},
        )
    except subprocess.TimeoutExpired as error:
        said = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        return f"{said}{name}: DID NOT END in {time.monotonic() - start:.0f} s"
    tail = done.stderr.strip().splitlines()
    return done.stdout.rstrip() + (
        f"\n{name}: ENDED WITH {done.returncode}: {tail[-1] if tail else ''}"
        if done.returncode
        else ""
    )


if __name__ == "__main__":
    only = sys.argv[1:]
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("AT_ONCE", "8"))) as pool:
        for answer in pool.map(
            ask, [(n, t) for n, t in Q.items() if not only or any(o in n for o in only)]
        ):
            print(answer, flush=True)
    print(f"took {time.monotonic() - start:.0f} s")
