"""`python -m aiostream doctor`, in processes of its own."""

from __future__ import annotations

import os
import re
import sysconfig
from pathlib import Path

import pytest

import aiostream
import internals
from commands import command, succeed

SOURCE = Path(aiostream.__file__).parents[1]


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
    assert "\n? Python" in out
    assert "\n? CUDA_DEVICE_MAX_CONNECTIONS PROBLEM: 'many'" in out


@pytest.mark.parametrize(
    ("driver", "devices", "words"),
    [
        ("none", "-1", "AIOSTREAM_SIMULATOR=1"),
        ("simulator", "-1", "CUDA_VISIBLE_DEVICES is '-1'"),
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
    out = " ".join(succeed(driver_kind, "doctor", **paths).split())
    assert "torch 9.1.0, cupy 15.0.0, cuda.core 7.7.0" in out


@pytest.mark.parametrize(("value", "words"), [("0", "'0': CUDA sees these"), (None, "not set")])
def test_doctor_says_which_devices_cuda_sees(
    driver_kind: str, value: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    environment = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    assert f"CUDA_VISIBLE_DEVICES        {words}" in succeed(driver_kind, "doctor", **environment)


def test_doctor_says_how_a_device_is_shared() -> None:
    for part in ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb"):
        assert "; MIG on, so this is a part of a GPU" in internals.doctor_device(part, mps=False)
    for whole in ("NVIDIA H200", "nogpu simulator"):
        assert internals.doctor_device(whole, mps=False) == f"{whole}; MIG off; MPS off"
    assert internals.doctor_device("NVIDIA H200", mps=True).endswith(
        "; MIG off; MPS on: other processes run here, too"
    )


def test_commands_in_remedies_are_not_broken(capsys: pytest.CaptureFixture[str]) -> None:
    command = "`pip install 'one>=1' 'another>=2'`"
    internals.report_problem("thing", "is missing", "a word " * 12 + command)
    printed = capsys.readouterr().out
    assert command in printed
    assert max(map(len, printed.splitlines())) <= 100


FREE = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def test_doctor_says_whether_the_gil_is_on() -> None:
    out = succeed("simulator", "doctor", **({"PYTHON_GIL": "0"} if FREE else {}))
    assert re.search(f"GIL +{'off' if FREE else 'on: this is no'}", out)
