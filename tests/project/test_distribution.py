"""What the distribution says of itself: version, dependencies, commands, floors of coverage."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import runpy
import shutil
import sys
import sysconfig
import tomllib
import types
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import aiostream
from commands import FIRST_IMPORTS, ROOT
from installed import beside, program
from support import succeed


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads(beside("pyproject.toml").read_text())


def test_version_is_written_once(project: dict[str, Any]) -> None:
    assert importlib.metadata.version("aiostream-cuda") == aiostream.__version__
    assert "version" not in project["project"]
    assert aiostream.__version__ not in (ROOT / "pyproject.toml").read_text()


def test_install_commands_agree_with_the_dependencies(project: dict[str, Any]) -> None:
    needs = project["project"]["dependencies"]
    assert [re.split(r"[<>=]", need)[0] for need in needs] == ["anyio", "cuda-bindings"]
    package = Path(aiostream.__file__).parent
    named = {
        requirement
        for path in package.rglob("*.py")
        for requirement in re.findall(r"pip install '([\w-]+[<>=][^']*)'", path.read_text())
    }
    assert named == {need for need in needs if need.startswith("cuda-bindings")}


# ------------------------------------------------------------------------- what an index would show


def test_metadata_has_the_projects_addresses(project: dict[str, Any]) -> None:
    urls = importlib.metadata.metadata("aiostream-cuda").get_all("Project-URL") or []
    names = {each.partition(", ")[0] for each in urls}
    assert names == {"Repository", "Documentation", "Changelog", "Issues"}
    root = project["project"]["urls"]["Repository"]
    assert all(each.partition(", ")[2].startswith(root) for each in urls)


@pytest.mark.parametrize(("distribution", "least"), [("aiostream-cuda", 20), ("nogpu", 4)])
def test_index_shows_the_readme_whole(
    project: dict[str, Any], distribution: str, least: int
) -> None:
    """On a package index a link to a file of the repository leads nowhere."""
    described = importlib.metadata.metadata(distribution)
    root = project["project"]["urls"]["Repository"]
    assert described["Description-Content-Type"] == "text/markdown"
    text = re.sub(r"```.*?```", "", str(described.json["description"]), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)]+)\)|(?:src|srcset|href)=\"([^\"]+)\"", text)
    assert len(targets) > least
    for target in filter(None, (target for pair in targets for target in pair)):
        assert target.startswith("https://"), target
        path = target.partition("#")[0].removeprefix(root)
        kind = re.match(r"/(blob|raw)/main/", path)
        if kind is not None:
            assert (ROOT / path[kind.end() :]).exists(), target
            assert (kind[1] == "raw") == path.endswith((".png", ".svg"))


def test_package_is_small() -> None:
    """A wheel's files are compressed one by one. Debug information made it 975 kB.

    The examples have 28 kB of it, and docstrings and comments 100 kB.
    """
    package = Path(aiostream.__file__).parent
    compiled = [path.read_bytes() for path in package.rglob("*.so")]
    if any(b".debug_info" in binary for binary in compiled) and os.environ.get("AIOSTREAM_DEBUG"):
        pytest.skip("AIOSTREAM_DEBUG=1 keeps the debug information")
    assert len(compiled) == 1
    assert not any(b".symtab" in binary for binary in compiled)
    others = [path.read_bytes() for path in package.rglob("*.py*") if path.suffix != ".pyc"]
    assert sum(len(zlib.compress(content)) for content in [*compiled, *others]) < 350 * 1000


def test_the_demo_imports_the_dependencies_alone(driver_kind: str) -> None:
    """What else lies in the environment, as the rest of cuda-python, is not needed."""
    script = """
        import sys
        def from_elsewhere():
            return {
                name for name, module in sys.modules.items()
                if "site-packages" in (getattr(module, "__file__", None) or "")
            }
        before = from_elsewhere()
        from aiostream.__main__ import main
        assert main(["demo"]) == 0
        new = from_elsewhere() - before
        cuda = {".".join(name.split(".")[:2]) for name in new if name.startswith("cuda.")}
        assert cuda <= {"cuda.bindings", "cuda.pathfinder"}, cuda
        others = {name.split(".")[0] for name in new} - {"aiostream", "cuda", "nogpu"}
        # What anyio needs, and what cython makes for the bindings.
        allowed = {"anyio", "idna", "sniffio", "typing_extensions"}
        assert {name for name in others if not name.startswith("_cython")} <= allowed, others
        """
    assert "balanced" in succeed(driver_kind, script)


@pytest.fixture
def folder() -> str:
    return "."


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, folder: str) -> dict[str, Any]:
    """What setup.py gives to `setup`."""
    setuptools = pytest.importorskip("setuptools")
    if folder == "driver":
        pytest.importorskip("setuptools.command.bdist_wheel")
    options: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **given: options.update(given))
    monkeypatch.chdir(beside(f"{folder}/setup.py").parent)
    runpy.run_path("setup.py")
    return options


@pytest.mark.parametrize("folder", [".", "driver"])
def test_a_wheel_has_nothing_of_an_earlier_build(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    build = given["cmdclass"]["build_py"]
    monkeypatch.setattr(build.__mro__[1], "run", lambda self: None)
    command = build(importlib.import_module("setuptools").Distribution())
    command.build_lib, command.editable_mode = str(tmp_path), False
    (tmp_path / "libcuda.so.1").touch()
    command.run()
    assert not [*tmp_path.rglob("*.*")]


def test_a_wheel_is_for_no_older_python_than_the_one_that_builds_it(given: dict[str, Any]) -> None:
    """From 3.12 on, Python.h makes code that breaks the reference counts of 3.11."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("this Python has no limited API")
    minor = sys.version_info.minor
    assert given["options"]["bdist_wheel"] == {"py_limited_api": f"cp3{minor}"}
    assert given["ext_modules"][0].define_macros == [("Py_LIMITED_API", f"0x03{minor:02x}0000")]


def test_console_script_is_the_command_line(driver_kind: str, project: dict[str, Any]) -> None:
    (name, target), *others = project["project"]["scripts"].items()
    assert (name, others) == ("aiostream-cuda", [])
    module, _, function = target.partition(":")
    assert callable(getattr(importlib.import_module(module), function))
    for path, usage in (
        (f"/usr/bin/{name}", f"usage: {name} "),
        ("/lib/aiostream/__main__.py", "usage: python -m aiostream "),
    ):
        script = f"""
            import sys
            sys.argv = [{path!r}, "--help"]
            from {module} import {function}
            {function}()
            """
        assert succeed(driver_kind, script, forked=FIRST_IMPORTS).startswith(usage)


def test_tested_pythons_are_the_ones_that_are_named(project: dict[str, Any]) -> None:
    listed = re.search(r"python: \[(.*)\]", beside(".github/workflows/ci.yml").read_text())
    assert listed is not None
    tested = set(re.findall(r'"(3\.\d+)"', listed[1]))
    start = "Programming Language :: Python :: 3."
    classifiers = project["project"]["classifiers"]
    named = {f"3.{line.removeprefix(start)}" for line in classifiers if line.startswith(start)}
    assert named == tested
    oldest = min(tested, key=lambda version: int(version.partition(".")[2]))
    assert project["project"]["requires-python"] == f">={oldest}"


# ------------------------------------------------------------------------------------------ floors


def test_module_below_its_floor_is_named() -> None:
    check_coverage = program("tools/check_coverage.py")
    report = {
        "files": {
            f"/anywhere/aiostream/{name}": {"summary": {"percent_covered": percent}}
            for name, percent in (("pool.py", 94.9), ("_loops/bridge.py", 91.0), ("new.py", 89.9))
        }
    }
    covered = check_coverage.modules(report)
    assert covered == {"pool": 94.9, "_loops.bridge": 91.0, "new": 89.9}
    wrong = check_coverage.complaints(covered, {"default": 90, "pool": 95, "gone": 80})
    assert [line.partition(":")[0] for line in wrong] == ["new", "pool", "gone"]
    assert check_coverage.complaints(covered, {"default": 89}) == []


# ---------------------------------------------------------------------------------------- a release


@pytest.fixture(scope="module")
def release() -> ModuleType:
    return program("tools/release.py")


@pytest.fixture
def releasable(release: ModuleType, tmp_path: Path) -> Path:
    """A tree of version 1.2.3, in which nothing stands in the way of a release."""
    for name, text in {
        "src/aiostream/__init__.py": '__version__ = "1.2.3"\n',
        "pyproject.toml": 'Repository = "https://github.com/aiostream/aiostream-cuda"\n',
        "CHANGELOG.md": "## 1.2.3 (2026-12-01)\n",
        "newsfragments/README.md": "",
        "dist/aiostream_cuda-1.2.3.tar.gz": "",
        **{f"dist/aiostream_cuda-1.2.3-{name.replace('*', 'x')}": "" for name in release.WHEELS},
        "driver/pyproject.toml": '[project]\nversion = "0.5"\n',
        "dist/nogpu-0.5.tar.gz": "",
        **{f"dist/nogpu-0.5-{name.replace('*', 'x')}": "" for name in release.NOGPU_WHEELS},
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("newsfragments/README.md", "", ""),
        ("src/aiostream/__init__.py", '__version__ = "1.2.4"\n', "the tag is v1.2.3"),
        ("pyproject.toml", "https://github.example/", "placeholder github.example"),
        ("CHANGELOG.md", "## 1.2.3 (not yet released)\n", "no heading `## 1.2.3 "),
        ("newsfragments/7.fixed.md", "", "7.fixed.md"),
        ("dist/aiostream_cuda-1.2.2.tar.gz", "", "no file of this version"),
        ("dist/aiostream_cuda-1.2.3.tar.gz", None, "has no aiostream_cuda-1.2.3.tar.gz"),
        ("dist/nogpu-0.5.tar.gz", None, "has no nogpu-0.5.tar.gz"),
        (
            "driver/pyproject.toml",
            '# github.example\n[project]\nversion = "0.5"\n',
            "[project.urls] of driver/pyproject.toml has the placeholder",
        ),
    ],
)
def test_what_stands_in_the_way_of_a_release_is_named(
    release: ModuleType, releasable: Path, name: str, text: str | None, complaint: str
) -> None:
    if text is None:
        (releasable / name).unlink()
    else:
        (releasable / name).write_text(text)
    found = release.complaints(releasable, releasable / "dist", "v1.2.3")
    if not complaint:
        assert found == release.complaints(releasable, releasable / "dist", None) == []
        return
    assert complaint in found[0]
    assert len(found) == 1 or name.startswith("src/")  # another version needs other files too


def test_a_dry_run_warns_where_a_release_fails(
    release: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(release, "complaints", lambda *_: ["there is a reason"])
    ended = types.SimpleNamespace(returncode=0)
    monkeypatch.setattr(release.subprocess, "run", lambda *_, **__: ended)
    assert release.main(["v1.2.3"]) == 1
    assert capsys.readouterr().err == "error: there is a reason\n"
    assert release.main(["--dist", str(ROOT / "tools")]) == 0
    assert capsys.readouterr().err == "warning: there is a reason\n"


def test_the_package_can_be_renamed(tmp_path: Path) -> None:
    """Sources are copied, and what Git ignores is not."""
    tool = program("tools/rename_package.py")
    ignored = shutil.ignore_patterns("build", "lib", "*.egg-info", "__pycache__", "*.so*")
    for name in ("src", "driver", "tests", "tools", "examples"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    files = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    tool.rename(tmp_path, files, "gpu_waits", "gpu-waits-x")
    for path in filter(Path.is_file, tmp_path.rglob("*")):
        text = f"{path.relative_to(tmp_path)} {path.read_text()}"
        assert tool.PACKAGE not in text.lower(), path
    made = tomllib.loads((tmp_path / "pyproject.toml").read_text())
    assert made["project"]["name"] == "gpu-waits-x"
    assert made["project"]["scripts"] == {"gpu-waits-x": "gpu_waits.__main__:main"}
    assert (tmp_path / "src/gpu_waits/stream.py").exists()
