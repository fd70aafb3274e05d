"""Several GPUs: one loop for all of them against a process for each. A program of its own.

    python -m benchmarks.devices                        # some 70 seconds on two GPUs
    python -m benchmarks.devices --only completions
    python -m benchmarks.devices --share 2              # two processes on the first GPU
    AIOSTREAM_SIMULATOR=1 python -m benchmarks.devices --gpus 2 --quick

Completions: tasks that take a stream of a `StreamPool`, launch one kernel and await it. Requests:
`examples/workers.py`, asked by a client process for each GPU, with kernels of 2 ms. Each figure is
the median of the rounds, with the smallest and the largest in brackets. All ways take turns in each
round.

The same file is the process that completes, and the one that asks.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from benchmarks import child, lanes
from benchmarks.child import Child
from benchmarks.load import Connection, fetch

Found = dict[str, Any]
Launch = Callable[[Any, int], None]

LOADS = ((64, 0.005), (32, 0.001))  # tasks for each GPU, and seconds of their kernels
CONNECTIONS, KERNEL = 16, 0.002  # for each GPU, and seconds, of the requests
WARM = 0.3  # seconds before each window
LIMIT = 60.0  # seconds in which a process answers
LONGEST = 15.0  # seconds of a window
LATE = "p50, p99 and maximum beyond the kernel, ms"
WORKERS = Path(__file__).parents[1] / "examples" / "workers.py"


# ---------------------------------------------------------------------------- what a process does


def _run(window: Callable[[Found], Coroutine[Any, Any, Found]], asked: Found) -> Found:
    """Runs a window in a uvloop of its own."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(window(asked))


def complete() -> tuple[str, Callable[[Found], Found]]:
    """A process that completes work on the GPUs that each request names."""
    import aiostream

    pools: dict[tuple[int, int], tuple[aiostream.StreamPool, Launch]] = {}

    def pool(ordinal: int, tasks: int) -> tuple[aiostream.StreamPool, Launch]:
        if (ordinal, tasks) not in pools:
            with aiostream.Device(ordinal).primary_context.as_current():
                kernels = lanes.load()
            known: dict[int, lanes.Lane] = {}  # by the stream's handle

            def launch(stream: aiostream.Stream, nanoseconds: int) -> None:
                handle = stream.handle
                lane = known.get(handle) or known.setdefault(handle, lanes.Lane(stream, kernels))
                lane.spin(nanoseconds)

            pools[ordinal, tasks] = aiostream.StreamPool(tasks, ordinal), launch
        return pools[ordinal, tasks]

    async def window(asked: Found) -> Found:
        seconds, beyond = asked["kernel"], list[float]()
        nanoseconds = round(seconds * 1e9)

        async def once(streams: aiostream.StreamPool, launch: Launch) -> None:
            async with streams.stream() as stream:
                await stream.enqueue_async(launch, nanoseconds)

        async def task(streams: aiostream.StreamPool, launch: Launch) -> None:
            while (began := perf_counter()) < end:
                await once(streams, launch)
                if begin <= (now := perf_counter()) < end:
                    beyond.append(now - began - seconds)

        used = [pool(ordinal, asked["tasks"]) for ordinal in asked["devices"]]
        every = [each for each in used for _ in range(asked["tasks"])]
        # The first launches make streams and load kernels, which takes long on a busy GPU.
        await asyncio.gather(*(once(*each) for each in every))
        begin = perf_counter() + WARM
        end = begin + asked["window"]
        async with asyncio.TaskGroup() as group:
            for each in every:
                group.create_task(task(*each))
            await asyncio.sleep(WARM)
            cpu = process_time()
            await asyncio.sleep(asked["window"])
            cpu = process_time() - cpu
        return {"beyond": beyond, "cpu": cpu}

    return "ready", partial(_run, window)


def ask() -> tuple[str, Callable[[Found], Found]]:
    """A process that asks a server, each connection again as soon as it is answered."""

    async def window(asked: Found) -> Found:
        loop = asyncio.get_running_loop()
        begin = perf_counter() + WARM
        end = begin + asked["window"]
        beyond, answers = list[float](), Counter[bytes]()

        async def client() -> None:
            connection = (await loop.create_connection(Connection, "127.0.0.1", asked["port"]))[1]
            while (began := perf_counter()) < end:
                answer = await fetch(connection, asked["path"])
                if begin <= (now := perf_counter()) < end:
                    beyond.append(now - began - KERNEL)
                    answers[answer] += 1
            connection.close()

        async with asyncio.TaskGroup() as group:
            for _ in range(asked["connections"]):
                group.create_task(client())
        workers = Counter[int]()
        for answer, count in answers.items():
            workers[json.loads(answer)["pid"]] += count
        return {"beyond": beyond, "workers": workers}

    return "ready", partial(_run, window)


# -------------------------------------------------------------------------------------- the parent


@contextlib.contextmanager
def children(role: str, count: int) -> Iterator[list[Child]]:
    """So many processes that do the same."""
    started = [Child(f"{role} {number}", "devices", role) for number in range(count)]
    try:
        for process in started:
            process.answer(LIMIT)
        yield started
    finally:
        for process in started:
            process.close()


def all_at_once(processes: Sequence[Child], requests: Sequence[Found]) -> list[Found]:
    """Sends each process its request at the same time, and returns the answers."""
    with ThreadPoolExecutor(len(processes)) as threads:
        return list(threads.map(lambda each, asked: each.ask(asked, LIMIT), processes, requests))


def measure(processes: Sequence[Child], requests: Sequence[Found]) -> Found:
    """The row of one window. A window in which nothing ended is repeated, four times as long."""
    seconds = requests[0]["window"]
    while True:
        found = all_at_once(processes, [{**each, "window": seconds} for each in requests])
        if any(each["beyond"] for each in found):
            return row(found, seconds)
        if seconds > LONGEST / 4:
            raise SystemExit(f"nothing ended in {seconds:g} s: is the GPU in other use?")
        seconds *= 4


def row(found: Sequence[Found], seconds: float) -> Found:
    """What the processes of one window found together."""
    beyond = sorted(late for each in found for late in each["beyond"])
    return {
        "rate": len(beyond) / seconds,
        "p50_ms": beyond[len(beyond) // 2] * 1e3,
        "p99_ms": beyond[len(beyond) * 99 // 100] * 1e3,
        "max_ms": beyond[-1] * 1e3,
        "cores": None if "workers" in found[0] else sum(each["cpu"] for each in found) / seconds,
        "workers": _answers_of_each(found),
    }


def _answers_of_each(found: Sequence[Found]) -> list[int]:
    """How many requests each worker of a server answered, the most first."""
    every = Counter[str]()
    for each in found:
        every.update(each.get("workers", {}))
    return [count for _, count in every.most_common()]


def completions(counts: Sequence[int], rounds: int, seconds: float) -> Iterator[Found]:
    """One row for each window."""
    with children("complete", max(counts)) as processes:
        for turn in range(rounds):
            for tasks, kernel in LOADS:
                for count in counts:
                    same = {"tasks": tasks, "kernel": kernel, "window": seconds}
                    every = list(range(count))
                    ways: dict[str, list[Found]] = {"one loop": [{**same, "devices": every}]}
                    if count > 1:
                        ways["a process each"] = [{**same, "devices": [each]} for each in every]
                    for way, requests in ways.items():
                        load = f"{tasks} tasks for each GPU, kernels of {kernel * 1e3:g} ms"
                        head = {"load": load, "gpus": count, "way": way, "round": turn}
                        yield {**head, **measure(processes[: len(requests)], requests)}


def shared(most: int, rounds: int, seconds: float) -> Iterator[Found]:
    """One row for each window: the tasks in one process, and spread over several on one GPU."""
    with children("complete", most) as processes:
        for turn in range(rounds):
            for tasks, kernel in LOADS:
                each = tasks // most
                load = f"{each * most} tasks in all, kernels of {kernel * 1e3:g} ms"
                for count in (1, most):
                    own = {"tasks": each * most // count, "kernel": kernel, "window": seconds}
                    found = measure(processes[:count], [{**own, "devices": [0]}] * count)
                    way = f"{count} on this GPU"
                    yield {
                        "load": load,
                        "gpus": 1,
                        "way": way,
                        "round": turn,
                        **found,
                    }


@contextlib.contextmanager
def server(count: int, one_process: bool) -> Iterator[int]:
    """`examples/workers.py`, and the port on which it listens."""
    with socket.create_server(("127.0.0.1", 0)) as finder:
        port = int(finder.getsockname()[1])
    arguments = ["--gpus", str(count), "--port", str(port)]
    arguments += ["--one-process"] if one_process else []
    arguments += ["--simulator"] if os.environ.get("AIOSTREAM_SIMULATOR") == "1" else []
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        [sys.executable, str(WORKERS), *arguments],
        stdout=subprocess.DEVNULL,
        env=variables,
        start_new_session=True,
    )
    try:
        asyncio.run(_until_up(process, port, 1 if one_process else count))
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def _until_up(process: subprocess.Popen[bytes], port: int, workers: int) -> None:
    """Returns when so many workers have answered."""
    loop, seen, end = asyncio.get_running_loop(), set[int](), time.monotonic() + LIMIT
    while len(seen) < workers:
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"the server has not started: exit code {process.poll()}")
        try:
            connection = (await loop.create_connection(Connection, "127.0.0.1", port))[1]
            seen.add(json.loads(await fetch(connection, "/infer?milliseconds=20"))["pid"])
            connection.close()
        except (OSError, RuntimeError):
            await asyncio.sleep(0.1)


def requests(counts: Sequence[int], rounds: int, seconds: float) -> Iterator[Found]:
    """One row for each window."""
    with children("ask", max(counts)) as clients:
        for turn in range(rounds):
            for count in counts:
                for way in ("one loop", "a process each")[: min(count, 2)]:
                    with server(count, way == "one loop") as port:
                        asked = {
                            "port": port,
                            "path": f"/infer?milliseconds={KERNEL * 1e3:g}",
                            "connections": CONNECTIONS,
                            "window": seconds,
                        }
                        found = measure(clients[:count], [asked] * count)
                    load = (
                        f"requests on {CONNECTIONS} connections for each GPU, "
                        f"kernels of {KERNEL * 1e3:g} ms"
                    )
                    head = {"load": load, "gpus": count, "way": way, "round": turn}
                    yield {**head, **found}


def table(rows: Sequence[Found]) -> str:
    """The rows as a table, rounds taken together."""
    lines = []
    for load in dict.fromkeys(each["load"] for each in rows):
        lines += ["", load, f"{'GPUs':>4}  {'way':16}{'per second':>26}  {LATE}"]
        of_load = [each for each in rows if each["load"] == load]
        for key in dict.fromkeys((each["gpus"], each["way"]) for each in of_load):
            same = [each for each in of_load if (each["gpus"], each["way"]) == key]
            rates = sorted(each["rate"] for each in same)
            rate = f"{statistics.median(rates):,.0f} ({rates[0]:,.0f} to {rates[-1]:,.0f})"
            late = [
                f"{statistics.median(each[name] for each in same):.2f}"
                for name in ("p50_ms", "p99_ms", "max_ms")
            ]
            workers = " + ".join(f"{count:,}" for count in same[0]["workers"])
            answered = f"; the workers' answers in round 0: {workers}" if workers else ""
            lines.append(f"{key[0]:>4}  {key[1]:16}{rate:>26}  {', '.join(late)}{answered}")
    return "\n".join(lines[1:])


def counts_of(gpus: int) -> list[int]:
    """1, 2, 4, ... and all."""
    powers = [1 << power for power in range(gpus.bit_length()) if 1 << power <= gpus]
    return sorted({*powers, gpus})


def main() -> None:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.devices")
    parser.add_argument("--gpus", type=int, default=0, help="how many (default: all)")
    parser.add_argument("--only", choices=("completions", "requests"), help="measure only these")
    parser.add_argument("--share", type=int, metavar="N", help="so many processes on one GPU")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--quick", action="store_true", help="one round of 0.2 s: shows it works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the rows go, if anywhere")
    options = parser.parse_args()
    most = LOADS[-1][0]
    if options.share is not None and not 2 <= options.share <= most:
        parser.error(f"--share takes 2 to {most} processes")
    if options.share and (options.only or options.gpus):
        parser.error("--share measures completions on the first GPU: leave out --only and --gpus")
    if options.gpus < 0 or options.rounds < 1:
        parser.error("--gpus is at least 0, and --rounds at least 1")
    if os.environ.get("AIOSTREAM_SIMULATOR") == "1" and options.gpus:
        os.environ["AIOSTREAM_SIMULATOR_DEVICES"] = str(options.gpus)
    import aiostream

    names = [aiostream.Device(ordinal).name for ordinal in range(aiostream.Device.count())]
    gpus = options.gpus or len(names)
    if gpus > len(names):
        parser.error(f"there are {len(names)} GPUs")
    print(f"{gpus} of {len(names)} GPUs: {', '.join(sorted(set(names)))}", flush=True)
    rounds, seconds = (1, 0.2) if options.quick else (options.rounds, 1.5)
    counts = counts_of(gpus)
    if options.share:
        measures = [shared(options.share, rounds, seconds)]
    else:
        every = {"completions": completions, "requests": requests}
        chosen = [options.only] if options.only else list(every)
        measures = [every[name](counts, rounds, seconds) for name in chosen]
    rows: list[Found] = []
    for found in itertools.chain.from_iterable(measures):
        rows.append(found)
        if options.json:  # after each window, so that what was measured is never lost
            options.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    if sys.argv[1:] in (["complete"], ["ask"]):
        child.serve(complete if sys.argv[1] == "complete" else ask)
    else:
        main()
