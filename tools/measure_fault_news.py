"""Measures which part of the driver has the news of a fault first, and what it costs to listen.

    python tools/measure_fault_news.py [--runs 10]

It needs a GPU, for NVML `pip install nvidia-ml-py` too, and each run is a process of its own.
A kernel faults. The figures are ms from its launch until each source has the news (lower is
better):

- query: a thread queries a private idle stream every 0.2 ms, as the library does every 15 ms
- log: the callback of `cuLogsRegisterCallback` (CUDA 12.9)
- dump begins, dump ends: the callbacks of `cuCoredumpRegisterStartCallback` and its like (13.0)
- xid: an event of NVML

In each mode one of these listens in addition to the query. The first mode has the query alone: if
the query comes later in another mode, listening has a price. So does a launch that takes longer.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver as cuda

import aiostream
from aiostream.testing import launch, load_kernels, spin

MODES = ["query", "log", "core dump", "core dump, log only", "xid"]
FAULTS = {"illegal_address": 700, "trap": 719}
SKIPPED = "nonrelocated_elf_images global_memory shared_memory local_memory constbank_memory abort"
DUMP = ",".join(f"skip_{what}" for what in SKIPPED.split())

seen: dict[str, float] = {}
kept: list[Any] = []  # what the driver may still call


def note(source: str) -> None:
    """Notes the first time at which a source has news."""
    seen.setdefault(source, time.monotonic())


def register(name: str, prototype: Any, wrap: str, function: Callable[..., None]) -> None:
    """Registers a callback, or notes why that does not work."""
    callback = prototype(function)
    kept.append(callback)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    try:
        code, *_ = getattr(cuda, name)(getattr(cuda, wrap)(address), 0)
    except Exception as error:  # the bindings or the driver are too old
        code = f"{type(error).__name__}: {error}"
    if str(code) not in ("0", "CUresult.CUDA_SUCCESS"):
        print(f"{name}: {code}", file=sys.stderr)


def listen_to_xid(ready: threading.Event) -> None:
    """Waits for an Xid of device 0."""
    try:
        pynvml = importlib.import_module("pynvml")
        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        events = pynvml.nvmlEventSetCreate()
        pynvml.nvmlDeviceRegisterEvents(device, pynvml.nvmlEventTypeXidCriticalError, events)
    except Exception as error:
        print(f"NVML: {type(error).__name__}: {error}", file=sys.stderr)
        return
    finally:
        ready.set()
    while "xid" not in seen:
        try:
            event = pynvml.nvmlEventSetWait_v2(events, 1000)
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_TIMEOUT:
                print(f"NVML: {error}", file=sys.stderr)
                return
        else:
            note("xid")
            print("Xid", event.eventData, file=sys.stderr)


def listen(mode: str) -> None:
    """Begins to listen to what the mode says."""
    pointer = ctypes.c_void_p
    if mode == "log":
        prototype = ctypes.CFUNCTYPE(None, pointer, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
        register("cuLogsRegisterCallback", prototype, "CUlogsCallback", lambda *_: note("log"))
    if mode.startswith("core dump"):
        prototype = ctypes.CFUNCTYPE(None, pointer, ctypes.c_int, ctypes.c_int)
        for when, source in (("Start", "dump begins"), ("Complete", "dump ends")):
            register(
                f"cuCoredumpRegister{when}Callback",
                prototype,
                "CUcoredumpStatusCallback",
                lambda *_, source=source: note(source),
            )
    if mode == "xid":
        ready = threading.Event()
        threading.Thread(target=listen_to_xid, args=(ready,), daemon=True).start()
        ready.wait()


def child(mode: str, fault: str) -> None:
    """Prints, as JSON, when each source had the news, in ms after the launch."""
    stream = aiostream.Stream()
    load_kernels(stream.context)
    with stream.context.as_current():
        _, private = cuda.cuStreamCreate(1)
        listen(mode)
        times = []
        for _ in range(2000):
            began = time.perf_counter()
            spin(stream, 0)
            times.append(time.perf_counter() - began)
            stream.synchronize()

        def ask() -> None:
            while int(cuda.cuStreamQuery(private)[0]) in (0, 600):
                time.sleep(0.0002)
            note("query")

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        began = time.monotonic()
        launch(stream, fault)
        asking.join(30)
        time.sleep(0.5)
    found = {source: (at - began) * 1e3 for source, at in seen.items()}
    found["launch, us"] = statistics.median(times) * 1e6
    print(json.dumps(found), flush=True)
    os._exit(0)


def run(mode: str, fault: str, folder: str) -> tuple[dict[str, float], str]:
    """Runs one fault in a process. Returns what it printed, and what it complained of."""
    environment = dict(os.environ)
    if mode.startswith("core dump"):
        flags = "log_only" if mode.endswith("log only") else DUMP
        environment |= {
            "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1",
            "CUDA_COREDUMP_GENERATION_FLAGS": flags,
            "CUDA_COREDUMP_FILE": f"{folder}/core.%p",
        }
    done = subprocess.run(
        [sys.executable, __file__, "--child", mode, fault],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = done.stdout.strip().splitlines()
    complaint = done.stderr.strip()[-300:]
    if not lines:
        return {}, complaint or f"it ended with {done.returncode}"
    return json.loads(lines[-1]), complaint


def main() -> None:
    """Prints a table for each fault."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--child", nargs=2)
    args = parser.parse_args()
    if args.child:
        child(*args.child)
    print(aiostream.Device(0).name, "driver", cuda.cuDriverGetVersion()[1])
    for fault in FAULTS:
        print(f"\n{fault}: median (least, most) of {args.runs} runs, ms after the launch")
        for mode in MODES:
            with tempfile.TemporaryDirectory() as folder:
                runs = [run(mode, fault, folder) for _ in range(args.runs)]
            sources = sorted({source for found, _ in runs for source in found})
            cells = []
            for source in sources:
                values = [found[source] for found, _ in runs if source in found]
                middle = statistics.median(values)
                cells.append(f"{source} {middle:.1f} ({min(values):.1f}, {max(values):.1f})")
                if len(values) < args.runs:
                    cells[-1] += f" in {len(values)} runs"
            print(f"  {mode:20}", "; ".join(cells))
            for complaint in sorted({complaint for _, complaint in runs if complaint}):
                print("    ", complaint.replace("\n", "\n     "))


if __name__ == "__main__":
    main()
