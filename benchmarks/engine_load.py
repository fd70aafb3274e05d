"""The clients of `proof --peers`, in a process of their own.

    python -m benchmarks.engine_load uvloop

`clients.py` starts it. It reads a JSON request a line from standard input, each a window of load on
a server of this host, and answers each with a JSON line. Each client has a connection, and asks
again when it is answered. All answers are compared with those that are right.
"""

from __future__ import annotations

import asyncio
import functools
import json
from time import perf_counter_ns, process_time_ns

from benchmarks import clients
from benchmarks.load import Connection
from benchmarks.measure import Row

MOST = 1 << 20  # answers that are remembered, over all items and their scores in batches
APART = 37  # items
CLOSE = 0.1  # how near two scores must be: bfloat16, and kernels that depend on the batch's size


@functools.cache
def request_of(item: int) -> bytes:
    """The bytes of a request."""
    return clients.post(item=item)


@functools.lru_cache(MOST)  # to parse each anew would take longer than some servers do
def is_right(body: bytes, expected: float) -> bool:
    """Whether an answer is that of an item."""
    try:
        found = float(json.loads(body)["score"])
    except (ValueError, KeyError, TypeError):
        return False
    return abs(found - expected) <= CLOSE * max(1.0, abs(expected))


async def connect(port: int) -> Connection:
    """A connection that is kept alive."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(Connection, "127.0.0.1", port)
    return connection


async def load(settings: Row) -> Row:
    """A window of load.

    Args:
        settings: The `port`, how many `clients`, the right scores, the number of this process and
            how many there are, and when the window begins and ends, in `perf_counter_ns`.

    Raises:
        RuntimeError: An answer was wrong, or there was none.
    """
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    begin, end, scores = settings["begin"], settings["end"], settings["scores"]
    took, asked, left = list[int](), settings["first"], settings["clients"]
    cpu, since = process_time_ns(), perf_counter_ns()
    opened = [await connect(settings["port"]) for _ in range(left)]

    def ask(connection: Connection) -> None:
        nonlocal asked
        asked += settings["apart"]
        item, at = APART * asked % len(scores), perf_counter_ns()

        def answered(connection: Connection, problem: str, body: bytes) -> None:
            nonlocal left
            now = perf_counter_ns()
            if not problem and not is_right(body, scores[item]):
                problem = f"item {item} was answered with {body!r}"
            if problem:  # the connection may be closed, and must not be asked again
                if not over.done():
                    over.set_exception(RuntimeError(problem))
                return
            if now < end:
                if at > begin:
                    took.append(now - at)
                ask(connection)
                return
            left -= 1
            if not left and not over.done():
                over.set_result(None)

        connection.ask(request_of(item), answered)

    try:
        for each in opened:
            ask(each)
        async with asyncio.timeout(settings["limit"]):
            await over
    except TimeoutError:
        raise RuntimeError("requests are not answered") from None
    finally:
        for each in opened:
            each.close()
    cpu, since = process_time_ns() - cpu, perf_counter_ns() - since
    return {"took_ns": took, "client_percent": 100 * cpu / since}


if __name__ == "__main__":
    clients.serve(load)
