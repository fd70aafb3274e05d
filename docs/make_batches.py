"""Draws `docs/batches.svg`, and `docs/batches-dark.svg` for dark pages.

    python docs/make_batches.py

The picture is of requests that come at random, at first few and then many, and of what `Batches`
makes of them on three streams. `tests/project/test_documents.py` fails if a picture is stale.
"""

from __future__ import annotations

import heapq
import random
from pathlib import Path

FOLDER = Path(__file__).parent
STREAMS, MOST = 3, 16
BASE, EACH = 3.5, 0.1  # ms of a batch, and of each of its items
LONG = 44.0  # ms that are drawn
RATES = ((0, 0.25), (12, 1.5), (20, 9.0), (34, 0.4))  # requests in a ms, from a time on
# Pixels.
LEFT, WIDE, ROW, GAP, TOP = 92, 868, 30, 12, 26
COLOURS = {
    "batches.svg": {"text": "#1f2328", "grey": "#6e7781", "ours": "#1a7f37", "on": "white"},
    "batches-dark.svg": {"text": "#e6edf3", "grey": "#8b949e", "ours": "#3fb950", "on": "#0d1117"},
}


def arrivals() -> list[float]:
    """When requests come, in ms."""
    chance, found, at = random.Random(5), list[float](), 0.0
    while at < LONG:
        rate = next(rate for since, rate in reversed(RATES) if at >= since)
        at += chance.expovariate(rate)
        found.append(at)
    return [at for at in found if at < LONG - 4]


def batches(came: list[float]) -> list[tuple[int, float, float, int]]:
    """Returns the stream of each batch, its begin and end in ms, and its size."""
    free = [(0.0, stream) for stream in range(STREAMS)]
    found, waiting, at = [], sorted(came), 0.0
    while waiting:
        ready, stream = heapq.heappop(free)
        at = max(ready, waiting[0])
        # Of several streams that are free the first is used.
        idle = [stream, *(other for when, other in free if when <= at)]
        for other in idle[1:]:
            free.remove(next(each for each in free if each[1] == other))
        for other in sorted(idle)[1:]:
            heapq.heappush(free, (at, other))
        size = min(sum(each <= at for each in waiting), MOST)
        waiting = waiting[size:]
        end = at + BASE + EACH * size
        found.append((min(idle), at, end, size))
        heapq.heappush(free, (end, min(idle)))
    return found


def picture(look: dict[str, str]) -> str:
    """The SVG."""
    came = arrivals()
    height = TOP + 34 + STREAMS * (ROW + GAP) + 34

    def x(at: float) -> float:
        return LEFT + WIDE * at / LONG

    def text(at: float, y: float, words: str, colour: str, more: str = "") -> str:
        return f'<text x="{at:.1f}" y="{y:.1f}" fill="{look[colour]}" {more}>{words}</text>'

    parts = [text(8, TOP + 14, "requests", "text")]
    for at in came:
        line = f"M{x(at):.1f} {TOP + 2}v16"
        parts.append(f'<path d="{line}" stroke="{look["text"]}" stroke-width="1.2"/>')
    top = TOP + 34
    for stream in range(STREAMS):
        y = top + stream * (ROW + GAP)
        parts.append(text(8, y + 20, f"stream {stream + 1}", "text"))
        line = f"M{LEFT} {y + ROW / 2}h{WIDE}"
        parts.append(f'<path d="{line}" stroke="{look["grey"]}" stroke-opacity="0.35"/>')
    for stream, begin, end, size in batches(came):
        y, wide = top + stream * (ROW + GAP), x(end) - x(begin) - 1.5
        parts.append(
            f'<rect x="{x(begin):.1f}" y="{y}" width="{wide:.1f}" height="{ROW}" rx="4" '
            f'fill="{look["ours"]}"/>'
        )
        centre = 'text-anchor="middle" font-weight="bold"'
        parts.append(text(x(begin) + wide / 2, y + 20, str(size), "on", centre))
    end = height - 14
    for at in range(0, int(LONG) + 1, 8):
        parts.append(text(x(at), end, f"{at} ms", "grey", 'text-anchor="middle"'))
    words = "What waits when a stream is free is its next batch. The number is how many."
    parts.append(text(LEFT, 16, words, "grey"))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDE + 30} {height}" '
        'font-family="system-ui, -apple-system, Segoe UI, sans-serif" font-size="14">\n'
        f"<title>Requests, and the batches that they become</title>\n{body}\n</svg>\n"
    )


if __name__ == "__main__":
    for name, look in COLOURS.items():
        (FOLDER / name).write_text(picture(look))
