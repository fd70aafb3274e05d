"""The files of a trace: what the page shows, and how a file is written."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import anyio
import pytest

import internals
from aiostream import Stream, StreamPool, trace
from aiostream.testing import spin
from support import run_on


async def test_html_is_one_file_that_holds_the_data(tmp_path: Path) -> None:
    path = tmp_path / "trace.html"
    with trace.record(path) as recording:
        async with Stream() as stream, anyio.create_task_group() as group:
            group.start_soon(stream.synchronize_async, name="</script><b>")
    page = path.read_text()
    assert not re.search(r"https?:|//\w+\.|src=|@import|<link|fetch\(", page), "it asks a network"
    found = re.search(r"^const data = (\{.*\});$", page, re.MULTILINE)
    assert found is not None
    assert "</script><b>" not in page
    data = json.loads(found[1])
    assert [data["names"][row[0]] for row in data["awaits"]] == [
        each.call for each in recording.awaits
    ]
    assert any("</script><b>" in name for name in data["names"])
    assert page.count("</script>") == 1


PROBE = """<script>{
drawNow();
const [left, right, top] = hits.find((hit) => hit[3].call === "Stream.enqueue_async");
const box = canvas.getBoundingClientRect();
const at = { clientX: box.left + (left + right) / 2, clientY: box.top + top + 2 };
canvas.dispatchEvent(new PointerEvent("pointermove", at));
const whole = to - from;
canvas.dispatchEvent(new WheelEvent("wheel", { deltaY: -1, cancelable: true }));
const wheeled = to - from;
$("closer").click();
$("tasks").click();
const facts = { tip: $("tip").textContent, zoom: whole / wheeled, button: wheeled / (to - from),
  rows: rows.length, timeline: 1 - LABEL / width,
  overflow: document.body.scrollWidth - innerWidth };
document.body.dataset.probe = JSON.stringify(facts);
}</script>"""


async def write_page(path: Path) -> None:
    with trace.record(path):
        async with StreamPool(2) as pool, pool.stream() as stream:
            await stream.enqueue_async(spin, 0.005)


@pytest.mark.parametrize("width", [1400, 500])
def test_the_page_draws_zooms_and_shows_times_in_a_browser(tmp_path: Path, width: int) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium is installed")
    page = tmp_path / "trace.html"
    run_on("asyncio", write_page, page)
    page.write_text(page.read_text().replace("</html>", PROBE + "</html>"))
    switches = (
        "headless no-sandbox no-first-run disable-gpu disable-quic disable-sync dump-dom "
        "disable-background-networking disable-component-update "
        f"window-size={width},800 user-data-dir={tmp_path / 'profile'}"
    )
    command = [browser, *(f"--{each}" for each in switches.split(" ")), page.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout
    found = re.search(r'data-probe="([^"]*)"', shown)
    assert found is not None, "the script has failed"
    facts = json.loads(html.unescape(found[1]))
    assert facts["tip"].startswith("Stream.enqueue_async")
    for name in ("launched", "the GPU began", "the GPU was done", "noticed", "resumed"):
        assert name in facts["tip"]
    assert facts["zoom"] > 1.1
    assert facts["button"] > 1.1
    assert facts["timeline"] > 0.75, "the names leave room for the timeline"
    assert facts["overflow"] <= 0
    assert facts["rows"] == 1, "by loop"


def test_what_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.json or \.html"):
        trace.record(tmp_path / "trace.txt")
    with pytest.raises(ValueError, match="limit"):
        trace.record(limit=0)
    with pytest.raises(FileNotFoundError):
        trace.record(tmp_path / "none" / "trace.json").__enter__()
    (folder := tmp_path / "trace.json").mkdir()
    with pytest.raises(IsADirectoryError):
        trace.record(folder).__enter__()
    assert not internals.observers()
    with trace.record() as recording:
        pass
    with pytest.raises(ValueError, match=r"\.json or \.html"):
        recording.write("trace")


def test_a_block_that_fails_writes_its_trace(tmp_path: Path) -> None:
    """If it cannot be written, the block's own error wins."""
    with pytest.raises(KeyError), trace.record(tmp_path / "{pid}.json"):
        raise KeyError
    written = tmp_path / f"{os.getpid()}.json"
    assert json.loads(written.read_text())["otherData"]["awaits"] == 0
    (folder := tmp_path / "folder").mkdir()
    with pytest.raises(KeyError), trace.record(folder / "trace.json"):
        shutil.rmtree(folder)
        raise KeyError


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "target.json")
    with trace.record(tmp_path / "link.json"):
        pass
    assert (tmp_path / "link.json").is_symlink()
    assert "traceEvents" in (tmp_path / "target.json").read_text()
