"""The project's checks by one command: `nox`, or `nox -s lint` for one of them.

`nox --no-venv` runs them in the environment that is active. It needs `.[test]` and the
group `dev` there.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2025.2"
nox.options.sessions = ["tests", "lint", "types"]
nox.options.error_on_missing_interpreters = True

PROJECT = nox.project.load_toml("pyproject.toml")
FREE_THREADED = ("python3.14t", "python3.13t")


def install(session: nox.Session, *packages: str) -> None:
    """Installs packages, except with `--no-venv`, which takes what is there."""
    if session.venv_backend != "none":
        ours = ["./driver"] if packages[0].startswith((".", "-")) else []  # what `.[test]` needs
        session.install(*ours, *packages)


@nox.session
def tests(session: nox.Session) -> None:
    """Runs the suite on the package as users install it: about three minutes on two cores."""
    install(session, ".[test]")
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session
def full(session: nox.Session) -> None:
    """Runs all tests in their large form: half an hour on two cores. `full -- 1/4` runs a quarter.

    What follows the part is for pytest.
    """
    install(session, ".[test]")
    part, *rest = session.posargs or ["1/1"]
    session.run(
        *("python", "-m", "pytest", "--run-slow", f"--part={part}", *rest),
        env={
            "AIOSTREAM_EXITS": "300",
            "AIOSTREAM_INTERRUPTS": "all",
            "AIOSTREAM_SOAK_SECONDS": "300",
            "AIOSTREAM_TEST_FULL": "1",
            "AIOSTREAM_TEST_SECONDS": "60",
        },
    )


@nox.session(python="3.11")
def lowest(session: nox.Session) -> None:
    """Runs the suite with the lowest version of each dependency that pyproject.toml names."""
    if session.venv_backend == "none":
        session.error("it installs old versions, so it needs an environment of its own")
    project = PROJECT["project"]
    needs = project["dependencies"] + project["optional-dependencies"]["test"]
    # The first bound is the lower one.
    install(session, ".", *(need.split(",")[0].replace(">=", "==") for need in needs))
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session
def asyncio_alone(session: nox.Session) -> None:
    """Runs the suite where neither trio nor uvloop is installed."""
    if session.venv_backend == "none":
        session.error("it removes packages, so it needs an environment of its own")
    install(session, ".[test]")
    session.run("python", "-m", "pip", "uninstall", "--quiet", "--yes", "trio", "uvloop")
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session
def driver(session: nox.Session) -> None:
    """Runs the tests of nogpu without aiostream: half a minute."""
    if session.venv_backend == "none":
        session.error("aiostream may not be there, so it needs an environment of its own")
    session.install("./driver[test]", "cuda-core")
    session.run("python", "-m", "pytest", "driver/tests", *session.posargs)


@nox.session(name="free-threaded", python=next(filter(shutil.which, FREE_THREADED), None))
def free_threaded(session: nox.Session) -> None:
    """Runs the suite without the GIL, on the first of python3.14t and python3.13t that is there."""
    command = "import sysconfig; print(sysconfig.get_config_var('Py_GIL_DISABLED'))"
    if str(session.run("python", "-c", command, silent=True)).strip() != "1":
        session.error(
            f"none of {', '.join(FREE_THREADED)} is on PATH: `uv python install 3.14t` installs one"
        )
    needs = PROJECT["project"]["optional-dependencies"]["test"]
    if python_version(session) < (3, 14):  # for which these have no wheels
        needs = [need for need in needs if not need.startswith(("cuda-core", "fastapi"))]
    # The latest that have a wheel for it: to build these takes long, or needs Rust.
    install(session, "--only-binary=granian,hypothesis,numpy", ".", *needs)
    session.run("python", "-m", "pytest", *session.posargs, env={"PYTHON_GIL": "0"})


@nox.session
def engines(session: nox.Session) -> None:
    """Runs the tests of serving engines, with all engines installed: about five minutes."""
    install(session, ".[test,engines]")
    files = (
        "tests/servers/test_engines.py",
        "tests/servers/test_ray_serve.py",
        "tests/servers/test_replaced_workers.py",
    )
    # They are skipped where an engine is missing, and here none may be.
    for module in ("bentoml", "distributed", "litserve", "ray.serve"):
        session.run("python", "-c", f"import {module}")
    session.run("python", "-m", "pytest", "--run-slow", *files, *session.posargs)


@nox.session
def outside(session: nox.Session) -> None:
    """Runs NVRTC and numba-cuda's tests on the simulator: about two minutes."""
    install(session, ".[test]", "nvidia-cuda-nvrtc>=13,<14")
    # The test is skipped where NVRTC is missing, and here it may not be.
    session.run("python", "-c", "from cuda.bindings import nvrtc; print(nvrtc.nvrtcVersion())")
    session.run("python", "-m", "pytest", "driver/tests/test_sim_control.py", "-k", "nvrtc")
    # numba-cuda's tests need an older pytest than the others.
    needs = ("pytest<9", "pytest-timeout", "filecheck", "cffi", "psutil")
    install(session, "numba-cuda[cu13]", *needs)
    session.run("python", "driver/tests/outside/run.py")


@nox.session
def lint(session: nox.Session) -> None:
    """Looks at the form of Python, C and workflows; changes nothing."""
    tools = ("ruff", "clang-format", "zizmor")
    install(session, *(need for need in group("dev") if need.startswith(tools)))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    if Path(".clang-format").exists():
        c_files = [str(path) for path in sorted(Path().glob("*/**/*.[ch]")) if is_source(path)]
        session.run("clang-format", "--dry-run", "-Werror", *c_files)
    if Path(".github").exists():
        session.run("zizmor", "--offline", "--quiet", "--min-severity", "medium", ".github")


@nox.session
def types(session: nox.Session) -> None:
    """Checks the types of everything, and that each public name has one."""
    install(session, ".[test]", *group("dev"))
    session.run("mypy")
    # mypy takes one module of a name, and tests/conftest.py is in the run above. nox is no
    # dependency of the tests, so the run above does without this file too.
    session.run("mypy", "driver/tests/conftest.py", "noxfile.py")
    for package in ("aiostream", "nogpu"):
        session.run("pyright", "--verifytypes", package, "--ignoreexternal")


@nox.session
def coverage(session: nox.Session) -> None:
    """Runs the suite under branch coverage, and compares each module with its floor."""
    install(session, ".[test]", *(need for need in group("dev") if need.startswith("coverage")))
    # coverage starts in each interpreter, and its C part refuses subinterpreters on stderr.
    selected = "not subinterpreters"
    # sys.monitoring sees branches from 3.14 on. coverage takes sys.settrace before that.
    core = "sysmon" if python_version(session) >= (3, 14) else "ctrace"
    if python_version(session) < (3, 12):
        selected += " and not interrupt"  # these tests need sys.settrace for themselves there
    data = Path(session.create_tmp()).resolve()
    environment = {"COVERAGE_CORE": core, "COVERAGE_FILE": str(data / ".coverage")}
    session.run("coverage", "erase", env=environment)
    session.run(
        *("coverage", "run", "-m", "pytest", "-k", selected, *session.posargs), env=environment
    )
    session.run("coverage", "combine", "--quiet", env=environment)
    report = str(data / "coverage.json")
    session.run("coverage", "json", "--quiet", "-o", report, env=environment)
    session.run("python", "tools/check_coverage.py", report)


@nox.session
def mutants(session: nox.Session) -> None:
    """Changes 120 places of the source, one by one, and asks whether a test notices. Hours long.

    `mutants -- --count 20 --rounds 1` looks at fewer ones, and only with the tests of their part.
    """
    install(session, "-e", ".[test]", *group("mutants"))
    session.run("python", "tools/mutants.py", *session.posargs)


@nox.session
def sanitizers(session: nox.Session) -> None:
    """Runs the native threads and the simulator under the sanitizers, a minute each."""
    install(session, ".[test]")
    files = ("tests/runtime/test_native.py", "driver/tests/test_sim_process.py")
    selected = "sanitizer or pause or race or policy or model"
    session.run(
        *("python", "-m", "pytest", "--run-slow", "-k", selected, *files, *session.posargs),
        env={"AIOSTREAM_TEST_SECONDS": "60"},
    )


@nox.session
def docs(session: nox.Session) -> None:
    """Builds the documentation into site/, with warnings as errors, and tests it."""
    install(session, ".[test]", *group("docs"))
    session.run("mkdocs", "build", "--strict", env={"NO_MKDOCS_2_WARNING": "1"})
    session.run("python", "-m", "pytest", "tests/project/test_site.py", *session.posargs)


@nox.session(python="3.11")
def wheels(session: nox.Session) -> None:
    """Builds the sdists and the portable wheels into dist/, checks them and tries them."""
    session.install(*group("wheels"))
    session.run("python", "tools/build_wheels.py", *session.posargs)


@nox.session
def news(session: nox.Session) -> None:
    """Asks for a news fragment if a src/ differs from a branch: `news -- origin/main`."""
    install(session, *(need for need in group("dev") if need.startswith("towncrier")))
    (branch,) = session.posargs or ["origin/main"]
    changed = ("git", "diff", "--name-only", f"{branch}...", "src", "driver/src")
    if session.run(*changed, external=True, silent=True):
        session.run("towncrier", "check", "--compare-with", branch)
    session.run("towncrier", "build", "--draft", "--version", "next")


@nox.session
def release(session: nox.Session) -> None:
    """Checks that dist/ can be published as a tag: `release -- v0.1.0`. Without it, a dry run."""
    install(session, *(need for need in group("wheels") if need.startswith("twine")))
    session.run("python", "tools/release.py", *session.posargs)


def group(name: str) -> tuple[str, ...]:
    """What a dependency group names. A `pip` before 25.1 does not know groups."""
    return nox.project.dependency_groups(PROJECT, name)


def is_source(path: Path) -> bool:
    """Whether it is a file of this project. An environment in a folder such as .nox has others."""
    return path.parts[0] in {"driver", "src", "tests"}


def python_version(session: nox.Session) -> tuple[int, ...]:
    """The version of the Python that the session runs, which may be another than nox's own."""
    if session.venv_backend == "none":
        return sys.version_info[:2]
    command = "import sys; print(*sys.version_info[:2])"
    printed = session.run("python", "-c", command, silent=True)
    return tuple(int(part) for part in str(printed).split())
