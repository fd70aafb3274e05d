"""Draws `docs/trace.png`, and `docs/trace-dark.png` for dark pages.

    python docs/make_trace.py

The picture is of `examples/model_server.py` on the simulator: six streams, and twelve clients, some
of which leave. Each request has its number in the picture. It needs Chromium and Pillow.

A picture of a timeline keeps the words of its legend. `tests/project/test_pictures.py` compares
them with the page's. `--name PICTURE` writes them into a picture that was made by hand.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import runpy
import shutil
import struct
import subprocess
import tempfile
import zlib
from itertools import count
from pathlib import Path
from typing import Any

from aiostream import simulator, trace

FOLDER = Path(__file__).parent
PAGE = FOLDER.parent / "src/aiostream/_observers/timeline.html"
CLIENTS, STREAMS, SECONDS = 12, 6, 0.15
RUNS = 20
WIDE, HIGH = 1240, 480
HIDDEN = "h1, #facts, details { display: none !important; }"
SHOWN = "#0,85"  # milliseconds, as the page reads them
DARK = "(prefers-color-scheme: dark)"


def legend() -> str:
    """What the page's legend says."""
    return " | ".join(re.findall(r'class="key">.*?</i>([^<]*)<', PAGE.read_text()))


async def load(path: Path) -> int:
    """Serves the clients, and writes their timeline. Returns how many awaits ended."""
    import httpx

    numbers, chance = count(1), random.Random(7)
    app = runpy.run_path(str(FOLDER.parent / "examples/model_server.py"))["application"](
        streams=STREAMS
    )

    async def client(http: Any) -> None:
        end = asyncio.get_running_loop().time() + SECONDS
        while asyncio.get_running_loop().time() < end:
            body = {"x": [1, 2], "y": [3, 4], "milliseconds": chance.uniform(3, 20)}
            request = asyncio.create_task(
                http.post("/infer", json=body), name=f"request {next(numbers)}"
            )
            leaves = chance.random() < 0.08
            await asyncio.wait([request], timeout=0.015 if leaves else None)
            request.cancel()

    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://server") as http,
    ):
        await http.post("/infer", json={"x": [1], "y": [1]})  # first calls take longer
        with trace.record(str(path)) as recording:
            await asyncio.gather(*(client(http) for _ in range(CLIENTS)))
    # A run in which another program had the cores has few requests.
    return sum(each.outcome == "done" for each in recording.awaits)


def named(picture: bytes) -> bytes:
    """Returns a PNG with the words of its legend."""
    words = b"tEXtLegend\0" + legend().encode()
    end = picture.rindex(b"IEND") - 4
    chunk = struct.pack(">I", len(words) - 4) + words + struct.pack(">I", zlib.crc32(words))
    return picture[:end] + chunk + picture[end:]


def main() -> None:
    """Draws both pictures, or names one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", type=Path, metavar="PICTURE")
    if picture := parser.parse_args().name:
        picture.write_bytes(named(picture.read_bytes()))
        return
    from PIL import Image  # here, because the tests only ask for the legend

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("install Chromium")
    simulator.install()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "trace.html"
        # Of several runs the best, because other programs on this machine come between.
        found = [(asyncio.run(load(page)), page.read_text()) for _ in range(RUNS)]
        text = max(found)[1].replace("</style>", f"{HIDDEN}</style>")
        for target, scheme in (("trace.png", "print"), ("trace-dark.png", "all")):
            page.write_text(text.replace(f"@media {DARK}", f"@media {scheme}"))
            shot = Path(folder) / target
            size = (f"--window-size={WIDE},{HIGH}", f"--screenshot={shot}")
            options = ("--headless", "--no-sandbox", "--hide-scrollbars", *size)
            subprocess.run(
                [chromium, *options, page.as_uri() + SHOWN], check=True, capture_output=True
            )
            with Image.open(shot) as image:  # a palette makes it a third as large
                image.convert("RGB").quantize(dither=Image.Dither.NONE).save(shot, optimize=True)
            (FOLDER / target).write_bytes(named(shot.read_bytes()))


if __name__ == "__main__":
    main()
