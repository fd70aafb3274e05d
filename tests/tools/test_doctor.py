"""`python -m aiostream doctor`, in processes of its own."""

from __future__ import annotations

import json
import os
import re
import sysconfig
from pathlib import Path
from typing import Any

import pytest

import aiostream
import internals
from commands import command, succeed
from installed import beside

SOURCE = Path(aiostream.__file__).parents[1]


def as_json(driver_kind: str, **environment: str) -> dict[str, Any]:
    """What `doctor --json` prints. It must end with 1 if there are problems."""
    done = command(driver_kind, "doctor", "--json", **environment)
    found: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (1 if found["problems"] else 0, "")
    return found


def test_doctor_finds_what_is_in_use_and_measures(driver_kind: str) -> None:
    out = succeed(driver_kind, "doctor")
    assert re.search(rf"^✓ aiostream-cuda +{re.escape(aiostream.__version__)}", out, re.MULTILINE)
    driver = "the simulator, as you asked" if driver_kind == "simulator" else "(the GPU's)"
    parts = ("cuda-bindings", "native part", "other libraries", "MIG", "MPS", "uvloop", "trio")
    for words in (driver, *parts, aiostream.Device(0).name, "No problems."):
        assert words in out
    assert max(len(line) for line in out.splitlines() if "/" not in line) <= 100
    assert re.search(r"measured await +-?\d+ us from the end of a 1 ms kernel to resumption", out)


def test_doctor_marks_its_lines_in_colour_or_plainly(driver_kind: str) -> None:
    wrong = {"CUDA_DEVICE_MAX_CONNECTIONS": "many"}
    out = command(driver_kind, "doctor", FORCE_COLOR="1", TERM="xterm", **wrong).stdout
    assert "\x1b[32m✓\x1b[0m aiostream-cuda" in out
    assert "\x1b[31m✗\x1b[0m CUDA_DEVICE_MAX_CONNECTIONS PROBLEM: 'many'" in out
    out = command(driver_kind, "doctor", PYTHONIOENCODING="ascii", **wrong).stdout
    assert "\n+ Python" in out
    assert "\nx CUDA_DEVICE_MAX_CONNECTIONS PROBLEM: 'many'" in out


@pytest.mark.parametrize(
    ("driver", "devices", "words"),
    [
        ("none", "-1", "AIOSTREAM_SIMULATOR=1"),
        ("simulator", "-1", "! CUDA_VISIBLE_DEVICES        '-1' hides all GPUs"),
        ("simulator", "0,0", "name each GPU once"),
    ],
    ids=["no driver", "no device is visible", "a device is named twice"],
)
def test_doctor_without_a_device_says_what_to_do(driver: str, devices: str, words: str) -> None:
    done = command(driver, "doctor", CUDA_VISIBLE_DEVICES=devices)
    assert (done.returncode, done.stderr) == (1, "")
    assert "✗ CUDA driver                 PROBLEM: no driver, or no GPU that" in done.stdout
    assert words in done.stdout
    remedy = done.stdout.split("What to do:")[1]
    assert ("AIOSTREAM_SIMULATOR=1" in remedy) == (driver == "none")
    assert ("CUDA_VISIBLE_DEVICES" in remedy) or driver == "none"


@pytest.mark.parametrize(
    ("variable", "value", "words", "code"),
    [
        ("CUDA_DEVICE_MAX_CONNECTIONS", "16", "16 hardware queues", 0),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "64", "PROBLEM: '64' is not a number from 1 to 32", 1),
        ("AIOSTREAM_WAIT", "spin", "spin, unless", 0),
        ("AIOSTREAM_WAIT", "fast", "PROBLEM: the environment", 1),
        ("CUDA_LAUNCH_BLOCKING", "1", "✗ CUDA_LAUNCH_BLOCKING", 1),
    ],
)
def test_doctor_explains_a_variable(
    driver_kind: str, variable: str, value: str, words: str, code: int
) -> None:
    done = command(driver_kind, "doctor", **{variable: value})
    assert done.returncode == code
    assert words in done.stdout


# ------------------------------------------------------------------------------------------ as data


@pytest.fixture(scope="module")
def found(driver_kind: str) -> dict[str, Any]:
    return as_json(driver_kind)


def test_doctor_gives_one_json_object(found: dict[str, Any], driver_kind: str) -> None:
    assert found["problems"] == []
    assert found["aiostream"]["version"] == aiostream.__version__
    assert found["driver"]["simulator"] == (driver_kind == "simulator")
    assert found["devices"][0]["name"] == aiostream.Device(0).name
    assert found["devices"][0]["mps"] in (0, 1)
    assert found["await"]["awaits"] == 20
    assert found["await"]["median_us"] <= found["await"]["worst_us"]
    assert found["packages"]["cuda.bindings"]
    assert found["packages"].keys() >= {"torch", "cupy", "cuda.core", "trio", "uvloop", "anyio"}


def test_doctor_gives_the_variables_that_the_documents_name() -> None:
    page = beside("docs/servers.md").read_text()
    named = set(re.findall(r"^\| `(\w+)` ", page, re.MULTILINE))
    assert "AIOSTREAM_TRACE" in named
    empty = dict.fromkeys(named - {"AIOSTREAM_SIMULATOR", "CUDA_VISIBLE_DEVICES"}, "")
    done = command("simulator", "doctor", "--json", **empty)
    environment = json.loads(done.stdout)["environment"]
    assert {**environment, **empty} == environment


def test_doctor_gives_the_same_keys_without_a_driver(found: dict[str, Any]) -> None:
    without = as_json("none", CUDA_VISIBLE_DEVICES="-1")
    assert without.keys() == found.keys()
    assert (without["driver"], without["devices"], without["await"]) == (None, [], None)
    (problem,) = without["problems"]
    assert problem["what"] == "CUDA driver"
    assert "AIOSTREAM_SIMULATOR=1" in problem["remedy"]


# --------------------------------------------------------------------------------- what it looks at


def test_doctor_names_other_libraries_without_importing_them(
    driver_kind: str, tmp_path: Path
) -> None:
    # On a machine with a GPU a real one may be installed, under any name but the first.
    cupy = "cupy" if driver_kind == "gpu" else "cupy-cuda12x"
    installed = {"torch": "9.1.0", cupy: "15.0.0", "cuda_core": "7.7.0"}
    for name, version in installed.items():
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
    for module in ("torch", "cupy"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit('it was imported')")
    paths = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(SOURCE)])}
    packages = as_json(driver_kind, **paths)["packages"]
    found = [packages[name] for name in ("torch", "cupy", "cuda.core")]
    assert found == ["9.1.0", "15.0.0", "7.7.0"]
    assert "torch 9.1.0, cupy 15.0.0" in succeed(driver_kind, "doctor", **paths)


@pytest.mark.parametrize(("value", "words"), [("0", "'0': CUDA sees these"), (None, "not set")])
def test_doctor_says_which_devices_cuda_sees(
    driver_kind: str, value: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    environment = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    assert f"CUDA_VISIBLE_DEVICES        {words}" in succeed(driver_kind, "doctor", **environment)
    found = as_json(driver_kind, **environment)["environment"]
    assert found.get("CUDA_VISIBLE_DEVICES") == value


def test_parts_of_gpus_are_known_by_their_names() -> None:
    for part in ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb"):
        assert internals.is_mig(part)
    for whole in ("NVIDIA H200", "nogpu simulator"):
        assert not internals.is_mig(whole)


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ({"mig": True}, "MIG +device 0: a part of a GPU"),
        ({"mps": 1}, "MPS +in use: other processes run on device 0, too"),
    ],
)
def test_doctor_says_how_a_device_is_shared(
    device: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = {"ordinal": 0, "mig": False, "mps": 0}
    internals.report_sharing([{**plain, **device}])
    assert re.search(f"^✓ {words}", capsys.readouterr().out, re.MULTILINE)
    internals.report_sharing([plain])
    assert not re.search(f"^✓ {words}", capsys.readouterr().out, re.MULTILINE)


def test_commands_in_remedies_are_not_broken(capsys: pytest.CaptureFixture[str]) -> None:
    command = "`pip install 'one>=1' 'another>=2'`"
    internals.report_problem("thing", "is missing", "a word " * 12 + command)
    printed = capsys.readouterr().out
    assert command in printed
    assert max(map(len, printed.splitlines())) <= 100


FREE = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def test_doctor_says_whether_the_gil_is_on() -> None:
    found = as_json("simulator", **({"PYTHON_GIL": "0"} if FREE else {}))
    assert found["gil"] == {"free_threaded": FREE, "on": not FREE}
