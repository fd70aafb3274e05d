"""The clients of `proof --steps`, in a process of their own.

    python -m benchmarks.step_load uvloop

`clients.py` starts it. It reads a JSON request a line from standard input, each a window of load on
a server of this host, and answers each with a JSON line. Each client has a connection, and asks
again when its answer has ended. All tokens are compared with those that are right.
"""

from __future__ import annotations

import asyncio
import re
from time import perf_counter_ns, process_time_ns
from typing import Any, cast

from benchmarks import clients
from benchmarks.step_model import VOCABULARY, expected

Found = dict[str, Any]
TOKEN = re.compile(rb'"token": ?(\d+)')
MARK = b"}"  # a token has one, and the head of an answer has none
GOOD = b"HTTP/1.1 200 "
END = b"0\r\n\r\n"  # of an answer in chunks
APART = 97  # prompts


def request_of(prompt: int, tokens: int) -> bytes:
    """The bytes of a request."""
    return clients.post(prompt=prompt, tokens=tokens)


def problem_of(answer: bytes, prompt: int, tokens: int) -> str:
    """What is wrong with a whole answer, or ""."""
    if not answer.startswith(GOOD):
        return f"answered with {answer[:200].decode(errors='replace')}"
    found, right = [int(token) for token in TOKEN.findall(answer)], expected(prompt, tokens)
    if found == right:
        return ""
    if len(found) != len(right):
        return f"prompt {prompt} got {len(found)} tokens, and not {len(right)}"
    place = next(place for place in range(tokens) if found[place] != right[place])
    return f"token {place} of prompt {prompt} is {found[place]}, and not {right[place]}"


class Window:
    """A window of load.

    Args:
        settings: The `port`, how many `clients`, the `tokens` of an answer, the number of this
            process and how many there are, and when the window begins and ends, in
            `perf_counter_ns`.
    """

    def __init__(self, settings: Found) -> None:
        self._settings = settings
        self.begin, self.end = settings["begin"], settings["end"]
        self.tokens = settings["tokens"]
        self._prompt = APART * settings["first"]
        self._left = settings["clients"]
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # What is found, in ns:
        self.first: list[tuple[int, int]] = []  # when a first token came, and after how long
        self.gaps: list[int] = []
        self.count = self.checked = 0

    async def run(self) -> Found:
        """Applies the load until all answers have ended.

        Raises:
            RuntimeError: A token was wrong or is missing, a connection broke, or it took too long.
        """
        settings, loop = self._settings, asyncio.get_running_loop()
        clients: list[Client] = []
        cpu, began = process_time_ns(), perf_counter_ns()
        try:
            async with asyncio.timeout(settings["limit"]):
                for _ in range(settings["clients"]):
                    _, client = await loop.create_connection(
                        lambda: Client(self), "127.0.0.1", settings["port"]
                    )
                    clients.append(client)
                await self.over
        except TimeoutError:
            raise RuntimeError(f"answers have not ended within {settings['limit']:g} s") from None
        finally:
            for client in clients:
                client.close()
        cpu, took = process_time_ns() - cpu, perf_counter_ns() - began
        within = [after for at, after in self.first if at >= self.begin]
        return {
            "count": self.count,
            "checked": self.checked,
            "first_ns": within or [after for _, after in self.first],  # of answers that are longer
            "gap_ns": self.gaps,
            "client_percent": 100 * cpu / took,
        }

    def next_prompt(self) -> int:
        """The prompt of the next request. No other client has it at the same time."""
        self._prompt += APART * self._settings["apart"]
        return int(self._prompt) % VOCABULARY

    def ended(self) -> None:
        """A client has ended."""
        self._left -= 1
        if not self._left and not self.over.done():
            self.over.set_result(None)

    def failed(self, problem: str) -> None:
        """A client did not get what is right."""
        if not self.over.done():
            self.over.set_exception(RuntimeError(problem))


class Client(asyncio.Protocol):
    """A connection that is kept alive, with one request at a time."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._prompt = self._asked = self._last = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast(asyncio.Transport, transport)
        self._ask()

    def _ask(self) -> None:
        assert self._transport is not None
        self._received.clear()
        self._prompt, self._last = self._window.next_prompt(), 0
        self._asked = perf_counter_ns()
        self._transport.write(request_of(self._prompt, self._window.tokens))

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        now, window = perf_counter_ns(), self._window
        self._received += data
        if came := data.count(MARK):
            is_within = window.begin <= now < window.end
            if not self._last:
                window.first.append((now, now - self._asked))
            elif is_within:
                window.gaps.append(now - self._last)
            self._last = now
            window.count += came * is_within
        is_bad = not self._last and not GOOD.startswith(self._received[: len(GOOD)])
        if is_bad or self._received.endswith(END):
            self._ended(now)

    def _ended(self, now: int) -> None:
        window, answer = self._window, bytes(self._received)
        if problem := problem_of(answer, self._prompt, window.tokens):
            window.failed(problem)
            return
        window.checked += window.tokens
        if now < window.end and not window.over.done():
            self._ask()
        else:
            self.close()
            window.ended()

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the loop."""
        if self._transport is not None:
            got = f"prompt {self._prompt} got {len(TOKEN.findall(self._received))} tokens"
            self._window.failed(f"the connection broke: {error or 'the server closed it'}; {got}")

    def close(self) -> None:
        """Closes it at once."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()


if __name__ == "__main__":
    clients.serve(lambda request: Window(request).run())
