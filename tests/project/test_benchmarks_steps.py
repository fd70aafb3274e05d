"""`python -m benchmarks proof --steps`: that it runs, checks tokens, and names what it left out.
Never how fast anything is.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import pytest

from benching import command
from benchmarks import results, step_load, step_model, step_ways, steps

TOKENS = 4
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
SERVERS = ("Steps", "one ahead by hand", "Steps, FastAPI", "one after another", "blocking thread")


def chunks(tokens: list[int]) -> bytes:
    """An answer with a chunk for each token."""
    parts = [b'data: {"token": %d}\n\n' % token for token in tokens]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in [*parts, b""])


def asked(request: bytes) -> int:
    """The prompt of a request."""
    return int(request.rpartition(b'"prompt": ')[2].partition(b",")[0])


def right(prompt: int) -> bytes:
    return HEAD + chunks(step_model.expected(prompt, TOKENS))


def in_order(prompt: int) -> list[int]:
    return step_model.expected(prompt, TOKENS)


async def loaded(answer: Any, seconds: float = 0.05) -> Any:
    """What a window finds at a server that answers each request with the bytes for its prompt."""
    handlers: list[Any] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.append(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.rpartition(b"Content-Length: ")[2])
                sent = answer(asked(await reader.readexactly(length)))
                for place in range(0, len(sent), 7):  # so that no read has a whole answer
                    writer.write(sent[place : place + 7])
                    await asyncio.sleep(0)
                if not sent.endswith(step_load.END):
                    break
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        begin = perf_counter_ns()
        settings = {"port": server.sockets[0].getsockname()[1], "clients": 2, "limit": 20}
        settings |= {"tokens": TOKENS, "first": 1, "apart": 2}
        settings |= {"begin": begin, "end": begin + int(seconds * 1e9)}
        try:
            return await step_load.Window(settings).run()
        finally:
            await asyncio.gather(*handlers)


def test_tokens_follow_their_prompt() -> None:
    assert step_model.expected(4000, 3) == [1141, 2378, 3615]
    assert step_load.problem_of(right(7), 7, TOKENS) == ""
    assert "token 0 of prompt 8" in step_load.problem_of(right(7), 8, TOKENS)


def test_clients_check_and_count_all_tokens() -> None:
    found = asyncio.run(loaded(right))
    assert found["checked"] >= found["count"] > 0
    assert found["checked"] % TOKENS == 0
    assert len(found["first_ns"]) >= 2
    assert min(found["first_ns"]) > 0


WRONG: dict[str, tuple[Any, str]] = {
    "a hole": (lambda prompt: HEAD + chunks(in_order(prompt)[1:]), "got 3 tokens, and not 4"),
    "of another": (lambda prompt: HEAD + chunks(in_order(prompt + 1)), "token 0 of prompt .* is"),
    "one more": (lambda prompt: HEAD + chunks([*in_order(prompt), 9]), "got 5 tokens, and not 4"),
    "broken": (lambda prompt: right(prompt)[:-50], "connection broke.* got [23] tokens"),
    "refused": (
        lambda prompt: b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n",
        "answered with HTTP/1.1 503",
    ),
}


@pytest.mark.parametrize(("answer", "problem"), WRONG.values(), ids=WRONG)
def test_wrong_answers_end_a_window(answer: Any, problem: str) -> None:
    with pytest.raises(RuntimeError, match=problem):
        asyncio.run(loaded(answer))


def test_each_way_hands_out_the_right_tokens(
    driver_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIOSTREAM_SIMULATOR", "1" if driver_kind == "simulator" else "")
    amount = dataclasses.replace(steps.QUICK, readers=70, steps=5)  # both graphs
    with contextlib.closing(steps.Alone(step_model.Settings(0.2))) as alone:
        for way in step_ways.WAYS:
            found = alone.round(way, amount, 0.05)
            assert found["step_ms"] > 0.2
            assert found["idle_ms"] == found["step_ms"] - found["alone_ms"]
            assert found["tokens_per_second"] > 0


def test_the_table_has_a_line_for_each_way() -> None:
    windows = [{"tokens_per_second": 10.0 * number, "idle_ms": 0.5} for number in (1, 2, 4)]
    known = {"alone_ms": 2.0, "checked": 100}
    rows = [
        steps.row(way, {"load": load}, [{**each, **known} for each in windows])
        for load in ("1 stream", "64 streams")
        for way in ("Steps", "by hand")
    ]
    lines = steps.table(rows, {"LitServe": "litserve is not installed"}).splitlines()
    assert lines[1].split() == ["1", "stream", "tokens/s", "GPU", "idle,", "ms"]
    assert " ".join(lines[2].split()) == "Steps 20 (10 to 40) 0.500 (0.500 to 0.500)"
    assert lines[4] == "(a step takes the GPU 2.000 ms alone)"
    assert [line for line in lines if line.startswith("64")]
    assert "1,200 tokens of clients checked, all right" in lines
    assert lines[-1] == "left out: LitServe: litserve is not installed"


def test_what_cannot_be_measured_is_named(driver_kind: str) -> None:
    done = command(driver_kind, "proof", "--steps", "--ways", "nonsense")
    assert done.returncode == 2
    assert "'nonsense' is none of Steps, one ahead by hand, " in done.stderr
    done = command(driver_kind, "proof", "--steps", "--parts", "servers", "--ways", "LitServe",
                   "--for", "0", "--spin")  # fmt: skip
    assert done.returncode == 1
    assert "left out: LitServe: " in done.stdout


@pytest.mark.slow
def test_servers_are_measured_and_checked(driver_kind: str, tmp_path: Path) -> None:
    for name in ("fastapi", "uvicorn"):
        pytest.importorskip(name)
    path = tmp_path / "steps.json"
    options = ("--quick", "--ways", "|".join(SERVERS), "--json", str(path), "--spin")
    for _ in range(3):  # on a busy machine no token may come in so short a window
        done = command(driver_kind, "proof", "--steps", *options)
        assert done.returncode == 0, done.stdout + done.stderr
        found = results.read(path)
        if set(found["left_out"].values()) != {steps.NONE_CAME}:
            break
    assert found["left_out"] == {}, done.stdout + done.stderr
    rows = found["rows"]
    assert [row["peer"] for row in rows if row["measure"] == "loops"] == list(step_ways.WAYS)
    assert {(row["peer"], row["clients"]) for row in rows if row["measure"] == "servers"} == {
        (way, clients) for way in SERVERS for clients in steps.QUICK.clients
    }
    assert all(row["tokens_per_second"] > 0 for row in rows)
    assert "checked, all right" in done.stdout
    assert found["model"]["spins"]
