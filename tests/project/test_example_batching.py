"""`examples/continuous_batching.py`: requests join and leave a batch, and no tokens are mixed up.

On the simulator it runs with kernels of its own. On a GPU it runs its decoder, if torch is there.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from commands import torch_path
from installed import program
from servers import ROOT, Server, end_under_load, started
from support import settle
from waiters import until

PROGRAM = ROOT / "examples" / "continuous_batching.py"
VOCABULARY = 1024
LONG = 150  # tokens, of answers that a test is to catch while they run


@pytest.fixture
def engine(driver_kind: str, tmp_path: Path) -> Iterator[Server]:
    if driver_kind == "gpu" and torch_path(driver_kind):
        pytest.skip("torch is not installed")
    arguments = ("--port", "PORT", "--slots", "3", *["--simulator"] * (driver_kind == "simulator"))
    variables = {"AIOSTREAM_TRACE": str(tmp_path / "trace.json")}
    with started(PROGRAM, driver_kind, *arguments, alive="/health", **variables) as server:
        yield server


def tokens_of(client: httpx.Client, prompt: int, count: int) -> list[int]:
    answer = client.get("/generate", params={"prompt": prompt, "tokens": count})
    return [int(event.removeprefix("data: ")) for event in answer.text.split("\n\n")[:-1]]


class Right:
    """What each prompt gives: alone in the batch, or, on the simulator, by a sum."""

    def __init__(self, server: Server, driver_kind: str, most: int) -> None:
        self._server, self._most = server, most
        self._simulated = driver_kind == "simulator"
        self._known: dict[int, list[int]] = {}

    def of(self, prompt: int) -> list[int]:
        if prompt not in self._known and self._simulated:
            events = events_of(prompt, self._most).split("\n\n")[:-1]
            self._known[prompt] = [int(event.removeprefix("data: ")) for event in events]
        elif prompt not in self._known:
            self._known[prompt] = tokens_of(self._server.client, prompt, self._most)
        return self._known[prompt]


def begin(client: httpx.Client, count: int) -> tuple[httpx.Response, Iterator[str]]:
    """A request whose first tokens have come."""
    request = client.build_request("GET", f"/generate?prompt=1&tokens={count}")
    answer = client.send(request, stream=True)
    lines = (line for line in answer.iter_lines() if line)
    for _ in range(3):
        if next(lines, None) is None:
            raise httpx.ReadError("the server ends")
    return answer, lines


def busy(server: Server) -> int:
    found: int = server.client.get("/health").json()["busy"]
    return found


def test_requests_join_a_batch_that_runs_and_leave_it(engine: Server, driver_kind: str) -> None:
    expected = Right(engine, driver_kind, 30).of(5)
    long, lines = begin(engine.client, 1000)
    assert tokens_of(engine.client, 5, 30) == expected  # while the long one goes on
    assert busy(engine) == 1
    assert next(lines).startswith("data: ")
    long.close()  # the client leaves
    assert settle(lambda: busy(engine) == 0)
    steps = engine.client.get("/health").json()["steps"]
    assert 33 <= steps < 900  # the rest of the long one was not computed
    assert engine.stop()[::2] == (0, "")


def test_client_that_leaves_gives_its_slot_to_the_next(engine: Server, driver_kind: str) -> None:
    expected = Right(engine, driver_kind, 5).of(9)
    held = [begin(engine.client, 1000) for _ in range(3)]  # all slots
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(tokens_of, engine.client, 9, 5)
        assert busy(engine) == 3
        held.pop()[0].close()
        assert waits.result(30) == expected
    for answer, _ in held:
        answer.close()
    assert settle(lambda: busy(engine) == 0)


def test_no_token_is_wrong_under_load_until_the_end(
    engine: Server, driver_kind: str, tmp_path: Path
) -> None:
    right = Right(engine, driver_kind, 20)
    prompts = range(100, 112)
    for prompt in prompts:
        right.of(prompt)

    def request(connection: httpx.Client, client: int, number: int) -> bool:
        prompt = prompts[(client + number) % len(prompts)]
        count = 1 + (7 * client + number) % 20
        if client == 0 and number % 3 == 0:
            begin(connection, 200)[0].close()  # it leaves in the middle
        found = tokens_of(connection, prompt, count)
        assert found == right.of(prompt)[: len(found)]
        return len(found) == count  # else 503, or ended early

    end_under_load(engine, request, 30)
    # The trace has each step, under the stream's name, and when the GPU worked on it.
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    steps = [each for each in events if each["name"].startswith("Steps.step")]
    steps = [each["args"] for each in steps if "gpu_ended_us" in each.get("args", {})]
    assert len(steps) > 30
    assert all("decode" in each["stream"] for each in steps)


def test_nonsense_is_a_bad_request_and_a_signal_ends_long_requests(engine: Server) -> None:
    for wrong in ("", "?prompt=x", "?prompt=-1", "?prompt=1024", "?prompt=1&tokens=0"):
        assert engine.client.get(f"/generate{wrong}").status_code == 400
    answer, lines = begin(engine.client, 1000)
    engine.process.send_signal(signal.SIGTERM)
    assert len(list(lines)) < 990  # it ends, and not after all of its tokens
    answer.close()
    assert engine.process.wait(30) == 0


def events_of(prompt: int, count: int) -> str:
    """What the simulated decoder answers."""
    tokens = [prompt]
    for place in range(count):
        tokens.append((tokens[-1] + place) % VOCABULARY)
    return "".join(f"data: {token}\n\n" for token in tokens[1:])


async def test_a_failed_step_ends_its_requests_and_no_other(breakable: Any) -> None:
    app = program("examples/continuous_batching.py").application(slots=2, simulated=True)
    answers: dict[int, str] = {}
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client,
    ):

        async def ask(prompt: int) -> None:
            answer = await client.get("/generate", params={"prompt": prompt, "tokens": LONG})
            assert answer.status_code == 200
            answers[prompt] = answer.text

        async with anyio.create_task_group() as group:
            for prompt in range(4):  # two of them wait for a slot
                group.start_soon(ask, prompt)
            await until(lambda: app.state.steps.running == 2)
            breakable.fail("cuLaunchKernel", 2)
        failed = [each for each in answers if "event: error" in answers[each]]
        assert len(failed) == 2
        for each in failed:
            tokens, _, error = answers[each].partition("event: error")
            assert events_of(each, LONG).startswith(tokens)
            assert "CUDA_ERROR_OUT_OF_MEMORY" in error
        assert all(answers[each] == events_of(each, LONG) for each in answers.keys() - failed)
        await ask(9)
    assert answers[9] == events_of(9, LONG)
