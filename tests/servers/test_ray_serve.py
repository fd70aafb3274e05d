"""`examples/ray_serve.py`: batches, a replica that lost its context or hangs, and the end."""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from aiostream import Device
from servers import ROOT, TESTS, environment, free_port, http_client, running
from support import settle

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None,
        reason="ray is not installed: pip install '.[engines]'",
    ),
    # ray takes 10 s to start on an idle machine, and a minute on a busy one
    pytest.mark.timeout(400),
]


@pytest.mark.parametrize("fault", ["fault", "hang"])
def test_replicas_batch_and_one_that_lost_its_context_or_hangs_is_replaced(
    driver_kind: str, fault: str, tmp_path: Path
) -> None:
    if driver_kind == "gpu" and Device.count() < 2:
        pytest.skip("needs two GPUs")
    port, ends = free_port(), tmp_path / "ends"
    variables = {
        "AIOSTREAM_SIMULATOR_DEVICES": "2",
        "SERVED_RAY_FILE": str(ends),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else ray warns
    }
    log, command = tmp_path / "log", [str(TESTS / "served_ray.py"), str(port)]
    env = environment(driver_kind, ROOT / "examples", TESTS, **variables)
    with running(command, log, stdin=subprocess.PIPE, env=env) as process:
        assert settle(lambda: "ready" in log.read_text() or process.poll() is not None, 240)
        assert process.poll() is None, log.read_text()
        talk(port, fault)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0, log.read_text()
        # Both replicas have awaited their work and destroyed their streams.
        lines = ends.read_text().splitlines()
        assert len(lines) == 2, lines
        assert all(line.endswith("ended with 0 handles open") for line in lines)


def talk(port: int, fault: str) -> None:
    url = f"http://127.0.0.1:{port}/"
    with http_client(url, fresh=True) as client, ThreadPoolExecutor(16) as pool:

        def ask(x: int) -> tuple[int, Any]:
            answer = client.get("/", params={"x": x})
            return answer.status_code, answer.json() if answer.status_code == 200 else answer.text

        answers = list(pool.map(ask, range(64)))
        found = [(status, body["y"]) for status, body in answers]
        assert found == [(200, 2.0 * x) for x in range(64)]
        before = {body["pid"] for _, body in answers}
        assert len(before) == 2
        assert max(body["batch"] for _, body in answers) > 1

        def stream(prompt: int) -> list[int]:
            answer = client.get("/tokens", params={"prompt": prompt, "count": 5})
            return [*map(int, answer.text.split())]

        assert [*pool.map(stream, range(32))] == [[*range(n + 1, n + 6)] for n in range(32)]

        with contextlib.suppress(httpx.TransportError):
            client.get("/", params={fault: 1})  # its replica may end before it has answered
        faulted = time.monotonic()

        def replaced() -> bool:
            now = [body["pid"] for status, body in pool.map(ask, range(16)) if status == 200]
            return len(now) == 16 and len(set(now)) == 2 and len(set(now) & before) == 1

        assert settle(replaced, 120)
        print(f"ray {fault}: {time.monotonic() - faulted:.1f} s until another one serves")
        assert [status for status, _ in pool.map(ask, range(64))] == [200] * 64
