"""Every Python snippet of the documents runs as readers would run it; every link leads somewhere.

A comment before a snippet says how it runs. Without one, it is a program of its own. A block of
text right after it is what it prints.

    <!-- snippet: continues -->        it goes on from the snippet before it
    <!-- snippet: file conftest.py --> it is a file; pytest runs all files of the page together
    <!-- snippet: typed -->            its lines are typed into `python -m asyncio` or a notebook
    <!-- snippet: with torch -->       the same, with a model, a batch and a pool: see `_WITH_TORCH`
    <!-- snippet: shown: why -->       it cannot run by itself; it only has to be Python

A block of text that no snippet prints says what did, and a test runs it again.

    <!-- output: COMMAND -->           a command of this repository
    <!-- output: shown: why -->        it cannot run here, or is no output

Snippets that import cupy or numba.cuda need a GPU, because those libraries stand on the CUDA
runtime. So does torch: on the simulator, `stand_ins/torch.py` takes its place. The page about torch
has a test of its own, `test_torch_page.py`.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import json
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import aiostream
import servers
from aiostream import simulator
from commands import FIRST_IMPORTS, ROOT, STAND_INS, python
from installed import beside
from support import run_script

PAGES = [
    path
    for pattern in ("*.md", "docs/*.md", "benchmarks/**/*.md")
    for path in sorted(ROOT.glob(pattern))
]
# They stand on the CUDA runtime.
OF_THE_RUNTIME = ("torch", "cupy", "numba", "transformers", "diffusers")
# What the extra `test` brings, and JAX, which nothing here brings.
OPTIONAL = ("fastapi", "httpx", "jax", "prometheus_client", "starlette", "trio")
_SNIPPET = re.compile(
    r"(?:^[ ]*<!-- snippet: (?P<how>[^\n]*?) -->\n+)?"
    r"^(?P<indent>[ ]*)```python[^\n]*\n(?P<code>.*?)^[ ]*```$"
    r"(?:\n\n^```text\n(?P<prints>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
_TYPED = """
import ast as _ast, asyncio as _asyncio, inspect as _inspect
async def _type(source):
    names = {{"__name__": "__main__"}}
    for line in _ast.parse(source).body:
        kind = _ast.Interactive([line])
        code = compile(kind, "<typed>", "single", flags=_ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, names)
        if _inspect.iscoroutine(result):
            await result
_asyncio.run(_type({source!r}))
"""

_WITH_TORCH = """
import asyncio, torch, aiostream
pool = aiostream.StreamPool(2)
model, event = torch.nn.Linear(512, 8).cuda(), torch.cuda.Event()
batch = torch.randn(32, 512)
pinned_batch, pinned_scores = batch.pin_memory(), torch.empty((32, 8), pin_memory=True)
{}
await pool.aclose()
"""


@dataclass
class Program:
    """Snippets of one page that run together."""

    name: str
    line: int
    how: str
    code: str
    prints: str | None = None
    files: dict[str, str] = field(default_factory=dict)

    @property
    def imported(self) -> set[str]:
        """The packages that the snippet imports."""
        text = self.code + "\n".join(self.files.values())
        return set(re.findall(r"^\s*(?:import|from) (\w+)", text, re.MULTILINE))

    @property
    def needs(self) -> list[str]:
        """Libraries that the snippet imports and that need a GPU."""
        needed = [name for name in OF_THE_RUNTIME if name in self.imported]
        return ["torch"] if self.how == "with torch" else needed


def programs_of(page: Path) -> list[Program]:
    found: list[Program] = []
    text = page.read_text()
    for match in _SNIPPET.finditer(text):
        how, code = match["how"] or "", textwrap.dedent(match["code"])
        line = text.count("\n", 0, match.start("code"))
        if how == "continues":
            found[-1].code += "\n\n" + code
            found[-1].prints = match["prints"]
        elif how.startswith("file "):
            files = next((each for each in found if each.how == "files"), None)
            if files is None:
                files = Program(f"{page.name}-files", line, "files", "")
                found.append(files)
            files.files[how.removeprefix("file ")] = code
        else:
            found.append(Program(f"{page.name}-{line}", line, how, code, match["prints"]))
    return found


PROGRAMS = [program for page in PAGES if page.name != "torch.md" for program in programs_of(page)]


def test_the_documents_have_snippets() -> None:
    beside("docs")
    assert len(PROGRAMS) >= 25
    assert len(programs_of(ROOT / "README.md")) >= 2
    shown = {program.name.partition(".md")[0] for program in PROGRAMS if "shown" in program.how}
    assert shown <= {"serving", "simulator", "models", "blocking"}, (
        "these need what no environment of the tests has"
    )


def test_whole_programs_show_what_they_print() -> None:
    silent = [
        program.name
        for program in PROGRAMS
        if re.search(r"^(asyncio|trio|anyio)\.run\(", program.code, re.MULTILINE)
        and program.prints is None
        and not said_to_print(program.code)
    ]
    assert not silent


def test_snippets_are_python() -> None:
    known = ("", "typed", "files", "with torch")
    for program in PROGRAMS:
        for code in (program.code, *program.files.values()):
            compile(code, program.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        is_known = program.how in known or re.fullmatch(r"shown: \w.{4,}", program.how)
        assert is_known, (program.name, program.how)


BEGINS = {"exit_on_context_failed", "on_context_failed", "on_stalled", "on_wait"}
# The engine ends their process, and offers nothing that is called before.
ENDS_WITH_ITS_PROCESS = {"needs Ray", "needs LitServe"}


def test_what_is_begun_is_ended() -> None:
    """Otherwise it goes on in a test process that has used an application."""
    kept = {p.name for p in PROGRAMS if p.how.partition(": ")[2] in ENDS_WITH_ITS_PROCESS}
    texts = {p.name: p.code for p in PROGRAMS if p.name not in kept}
    texts |= {path.name: path.read_text() for path in (ROOT / "examples").glob("*.py")}
    begun = {
        name: each.value.func.attr
        for name, text in texts.items()
        for each in ast.walk(ast.parse(text))
        if isinstance(each, ast.Expr)
        and isinstance(each.value, ast.Call)
        and isinstance(each.value.func, ast.Attribute)
        and each.value.func.attr in BEGINS
    }
    assert begun == {}


@pytest.mark.parametrize(
    "program",
    [program for program in PROGRAMS if not program.how.startswith("shown")],
    ids=lambda program: program.name,
)
def test_snippet_runs(driver_kind: str, program: Program, tmp_path: Path) -> None:
    has_stand_in = program.needs == ["torch"] and driver_kind != "gpu"
    if program.needs and driver_kind != "gpu" and not has_stand_in:
        pytest.skip(f"{' and '.join(program.needs)} needs a GPU")
    for name in (*OF_THE_RUNTIME, *OPTIONAL):
        if name in {*program.needs, *program.imported} and not has_stand_in:
            pytest.importorskip(name)
    if "from cuda.core" in program.code:
        pytest.importorskip("cuda.core")
    if "numba" in program.needs:
        # Some pairs of numba-cuda and numpy can be imported, and yet compile no kernel.
        trial = run_script(
            driver_kind, "from numba import cuda; cuda.jit(lambda: None)[1, 1]()", warnings="ignore"
        )
        if trial.returncode != 0:
            pytest.skip(f"numba compiles no kernel here: {trial.stderr.splitlines()[-1]}")
    if program.how == "files":
        run_files(driver_kind, program, tmp_path)
        return
    code = program.code
    if "jax" in program.imported and driver_kind == "gpu":  # it would compute on a simulated GPU
        code = code.replace("simulator.install()", "")
    if program.how == "typed":
        code = code.replace("spin(stream, 10)", "spin(stream, 1)")  # readers type more slowly
    # The long ones must not be over when the program looks, also on a busy machine.
    code = re.sub(r"spin\(stream, (0\.[2-9])\)", r"spin(stream, 3 * \1)", code)
    if program.how == "with torch":
        code = _WITH_TORCH.format(code)
    if program.how in ("typed", "with torch"):
        code = _TYPED.format(source=code)
    if has_stand_in:
        code = f"import sys; sys.path[:0] = {[str(STAND_INS), str(ROOT)]}\n{code}"
    warns = program.needs and not has_stand_in  # other libraries do
    options: dict[str, Any] = {"warnings": "ignore"} if warns else {"forked": FIRST_IMPORTS}
    done = run_script(driver_kind, code, folder=tmp_path, NO_COLOR="1", **options)
    assert done.returncode == 0, done.stderr
    assert program.needs or not done.stderr, done.stderr
    printed = iter(done.stdout.splitlines())
    for comment in said_to_print(program.code):  # in this order, among other lines
        assert any(line.endswith(comment) for line in printed), (comment, done.stdout)
    if program.prints is not None:
        assert done.stdout == program.prints


def said_to_print(code: str) -> list[str]:
    """The comments after `print(...)`: how the printed line ends."""
    return re.findall(r"^\s*print\(.*\)  # (.+)$", code, re.MULTILINE)


def run_files(driver_kind: str, program: Program, folder: Path) -> None:
    """Has pytest run the files of a page, in a folder of their own."""
    for name, code in program.files.items():
        (folder / name).write_text(code)
    options = ["-q", "-p", "no:cacheprovider", "-p", "aiostream_pytest", str(folder)]
    options += [f"--aiostream={driver_kind}"]
    done = python(driver_kind, "-m", "pytest", *options, folder=folder, PYTEST_ADDOPTS="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


# ------------------------------------------------------------------------------ what commands print

WITH_DRIVER = [*PAGES, *sorted(ROOT.glob("driver/*.md"))]
_OUTPUT = re.compile(
    r"(?:^<!-- output: (?P<how>[^\n]*) -->\n)?^```text\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_BLOCKED = "aiostream blocking -- embedding_server.py --simulator --way blocking --port PORT"
_LEFT_OPEN = """
import aiostream


def test_leaves_a_stream(request):
    request.config.kept = aiostream.Stream(name="decode")
"""


def outputs_of(page: Path) -> list[tuple[str, str]]:
    """The blocks of text that no snippet prints, each with the comment before it."""
    text = page.read_text()
    printed = {match.start("prints") for match in _SNIPPET.finditer(text)}
    found = [match for match in _OUTPUT.finditer(text) if match.start("text") not in printed]
    return [(match["how"] or "", match["text"]) for match in found]


def shape(line: str) -> str:
    """A line without drawings, folders, addresses and numbers, but for that of a program's line."""
    line = re.sub(r"(?<= )/\S*/(?=\w+\.py:)", "", line)
    line = re.sub(r"[^\x00-\x7f]", "", line)
    line = re.sub(r"0x[0-9a-f]+|(?<!\.py:)(?<![\w.])\d+(?:\.\d+)?", "0", line)
    return re.sub(r"\b0(?: 0)+\b", "0", " ".join(line.split()))


def pytest_report(folder: Path) -> str:
    """The report of a suite that leaves a stream open in its line 24."""
    suite = "\n" * (24 - _LEFT_OPEN.count("\n")) + _LEFT_OPEN
    (folder / "test_service.py").write_text(suite)
    options = ["-p", "no:cacheprovider", "-p", "aiostream_pytest", "--aiostream=simulator"]
    return python("none", "-m", "pytest", *options, folder=folder, PYTEST_ADDOPTS="").stdout


def blocked_server(folder: Path) -> str:
    shutil.copy(ROOT / "examples" / "embedding_server.py", folder)
    with (
        contextlib.chdir(folder),
        servers.started(Path("-m"), "simulator", *_BLOCKED.split(), alive="/health") as server,
    ):
        for number in range(40):
            server.client.get("/embed", params={"text": number})
        _, out, err = server.stop()
    return out + err


# The commands that need more than to be run.
PREPARED: dict[str, Callable[[Path], str]] = {
    "pytest --aiostream=simulator": pytest_report,
    "aiostream blocking -- embedding_server.py --simulator --way blocking": blocked_server,
}
OUTPUTS = [(page.name, *each) for page in WITH_DRIVER for each in outputs_of(page)]


def test_each_output_says_what_printed_it() -> None:
    known = re.compile(r"shown: \w.{4,}|(?:aiostream|nogpu|pytest)\b.*")
    assert not [(page, how) for page, how, _ in OUTPUTS if not known.fullmatch(how)]
    assert {how for _, how, _ in OUTPUTS} >= PREPARED.keys()


@pytest.mark.simulator_only("the pages show what the simulator prints")
@pytest.mark.parametrize(
    ("how", "text"), [(how, text) for _, how, text in OUTPUTS if not how.startswith("shown")]
)
def test_commands_print_what_the_pages_show(how: str, text: str, tmp_path: Path) -> None:
    """Line by line, but for numbers. A page may shorten a line by `[...]`."""
    prepared = PREPARED.get(how)
    output = prepared(tmp_path) if prepared else python("none", "-m", *shlex.split(how)).stdout
    printed = [shape(line) for line in output.splitlines()]
    wanted = [shape(line.removesuffix("[...]")) for line in text.splitlines()]
    missing = [line for line in wanted if not any(other.startswith(line) for other in printed)]
    assert not missing, "\n".join(printed)


# ------------------------------------------------------------------------------- links and pictures


def without_code_blocks(text: str) -> str:
    return re.sub(r"^[ ]*```.*?^[ ]*```$", "", text, flags=re.MULTILINE | re.DOTALL)


@functools.cache
def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and mkdocs both make them."""
    headings = re.findall(r"^#+ +(.*)$", without_code_blocks(page.read_text()), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    return {re.sub(r"-+", "-", anchor) for anchor in plain} | set(plain)


def test_links_lead_somewhere() -> None:
    """Links within the repository: the file is there, and the heading too."""
    wrong = []
    for page in WITH_DRIVER:
        for target in re.findall(r"\]\(([^)\s]+)\)", without_code_blocks(page.read_text())):
            if "://" in target or target.startswith("mailto:"):
                continue
            name, _, anchor = target.partition("#")
            other = (page.parent / name).resolve() if name else page
            if not other.exists() or (anchor and anchor not in anchors_of(other)):
                wrong.append((page.name, target))
    assert not wrong


# ------------------------------------------------------------------------------- what pages name


def inline_code(page: Path) -> list[str]:
    """What stands between backticks outside of code blocks."""
    return re.findall(r"`([^`\n]+)`", without_code_blocks(page.read_text()))


def test_named_files_are_there() -> None:
    """Files of the repository, by their path or by their name alone."""
    folders = ("src", "driver", "tests", "tools", "docs", "examples", "benchmarks")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.*")]
    files = "".join(f"/{path.relative_to(ROOT)}\n" for path in [*paths, *ROOT.glob("*.*")])
    named = [(page.name, code) for page in WITH_DRIVER for code in inline_code(page)]
    named = [each for each in named if re.fullmatch(r"[\w./-]+\.(?:py|c|h|sh)", each[1])]
    assert not [(page, name) for page, name in named if f"/{name}\n" not in files]


def test_named_attributes_are_there() -> None:
    """`Stream.query`, `aiostream.drain` and `simulator.fail` exist, if a page names them."""
    owners: dict[str, Any] = {
        name: getattr(aiostream, name) for name in aiostream.__all__ if name[0].isupper()
    }
    owners |= {"aiostream": aiostream, "simulator": simulator, "pool": aiostream.StreamPool}
    missing = [
        (page.name, f"{owner}.{name}")
        for page in PAGES
        for code in inline_code(page)
        for owner, name in re.findall(r"(?<![\w.])(\w+)\.(\w+)(?![\w/])", code)
        if owner in owners and not hasattr(owners[owner], name)
        if not importlib.util.find_spec(f"aiostream.{name}")
    ]
    assert not missing


def test_pages_of_the_site_are_linked() -> None:
    """Each page of `docs/` can be reached from the first one."""
    docs = beside("docs")
    linked = set(re.findall(r"\]\((\w[\w/-]*\.md)", (docs / "index.md").read_text()))
    pages = {str(path.relative_to(docs)) for path in docs.rglob("*.md")}
    assert pages - linked == {"index.md"}


def test_each_page_says_for_whom_it_is_and_where_to_go_next() -> None:
    lists = ("index.md", "glossary.md")
    pages = [page for page in beside("docs").glob("*.md") if page.name not in lists]
    for page in pages:
        lines = page.read_text().splitlines()
        assert any("This page is for " in line for line in lines[:8]), page.name
        assert lines[-1].startswith("Next: "), page.name


def test_the_readme_is_short_and_keeps_its_set_up_commands() -> None:
    """One installs and runs the demo. `.ci/run` does the other, in a fresh environment."""
    command = re.compile(r"^python3 -m venv .venv && .*$", re.MULTILINE)
    readme = (ROOT / "README.md").read_text()
    assert readme.count("\n") <= 130
    assert len(readme.split()) <= 1000
    commands = command.findall(readme)
    script = ROOT / ".ci" / "run"
    if script.exists():  # it is not in the sdist
        assert command.findall(script.read_text()) == commands[1:]
    start = "python3 -m venv .venv && .venv/bin/pip install"
    assert commands == [
        f"{start} . ./driver && .venv/bin/python -m aiostream demo",
        f"{start} ./driver '.[test]' && .venv/bin/python -m pytest",
    ]


# mypy does not read `__all__ += module.__all__`.
EACH_NAME = "from aiostream import *\n" + "".join(f"print({name})\n" for name in aiostream.__all__)

A_SUBCLASS_WITH_AN_END_OF_ITS_OWN = """
from types import TracebackType

import aiostream


class Stream(aiostream.Stream):
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await super().__aexit__(kind, error, traceback)
"""

BATCHES = """
from collections.abc import Generator, Sequence
from typing import assert_type

import aiostream
from aiostream import serving


class Replica:
    def __init__(self, stream: aiostream.Stream) -> None: ...

    def plain(self, items: list[int]) -> list[str]:
        return []

    def halves(self, items: list[int]) -> Generator[None, None, list[str]]:
        yield
        return []

    def choosy(self, items: list[int]) -> list[str | ValueError]:
        return []

    def broad(self, items: list[int]) -> Sequence[str | Exception]:
        return []

    def choosy_halves(self, items: list[int]) -> Generator[None, None, list[str | KeyError]]:
        yield
        return []

    def tensor(self, items: list[int]) -> "Tensor":
        return Tensor()


class Tensor:  # torch's has these types
    def __len__(self) -> int:
        return 0

    def __getitem__(self, indices: None | int | slice | list[int]) -> "Tensor":
        return self


async def ask(pool: aiostream.StreamPool[Replica]) -> None:
    assert_type(await serving.Batches(pool, Replica.plain, most=2)(1), str)
    assert_type(await serving.Batches(pool, Replica.halves, most=2, in_thread=True)(1), str)
    assert_type(await serving.Batches(pool, Replica.choosy, most=2)(1), str)
    assert_type(await serving.Batches(pool, Replica.broad, most=2)(1), str)
    assert_type(await serving.Batches(pool, Replica.choosy_halves, most=2)(1), str)
    assert_type(await serving.Batches(pool, Replica.tensor, most=2)(1), Tensor)
"""

BATCHES_OF_NUMPY = """
from collections.abc import Generator
from typing import Any, assert_type

import aiostream
import numpy as np
import numpy.typing as npt
from aiostream import serving


def plain(items: list[int]) -> npt.NDArray[np.float32]:
    return np.zeros((len(items), 8), np.float32)


def halves(items: list[int]) -> Generator[None, None, npt.NDArray[np.float32]]:
    yield
    return np.zeros((len(items), 8), np.float32)


async def ask(pool: aiostream.StreamPool) -> None:
    assert_type(await serving.Batches(pool, plain, most=2)(1), Any)
    assert_type(await serving.Batches(pool, halves, most=2)(1), Any)
"""

A_METHOD_THAT_A_POOL_DOES_NOT_HAVE = """
import aiostream


async def wait(pool: aiostream.StreamPool) -> None:
    await pool.synchronize_async()
"""


WHAT_A_STREAM_OWNS = """
from typing import assert_type

import aiostream


class Decoder:
    def __init__(self, stream: aiostream.Stream) -> None:
        self.stream = stream


async def follow(stream: aiostream.Stream[Decoder]) -> None:
    assert_type(stream.own, Decoder)
    await stream.own.stream.synchronize_async()


def wait(streams: list[aiostream.Stream]) -> None:
    for stream in streams:
        stream.synchronize()


async def main() -> None:
    pool = aiostream.StreamPool(2, each=Decoder)
    async with pool.stream() as stream:
        await follow(stream)
        wait([stream, aiostream.Stream.borrow(stream)])
    assert_type((await pool.acquire()).own, Decoder)
    async with aiostream.StreamPool(2).stream() as plain:
        wait([plain])
    borrowed = aiostream.StreamPool.borrow([], each=Decoder)
    assert_type(borrowed.acquire_nowait().own, Decoder)
"""


@pytest.mark.parametrize("checker", ["mypy --strict --config-file=", "pyright"])
def test_type_checkers_accept_what_is_right_and_refuse_what_is_wrong(
    checker: str, tmp_path: Path
) -> None:
    """All in one run, because a run takes seconds. The errors name their files."""
    # README's programs need torch, which is installed nowhere here.
    shown = [each.code for each in programs_of(ROOT / "docs/batches.md") if not each.needs]
    assert shown
    right = [*shown, EACH_NAME, BATCHES, A_SUBCLASS_WITH_AN_END_OF_ITS_OWN, WHAT_A_STREAM_OWNS]
    if importlib.util.find_spec("numpy"):
        right.append(BATCHES_OF_NUMPY)
    files = {f"right_{number}.py": program for number, program in enumerate(right)}
    files["wrong.py"] = A_METHOD_THAT_A_POOL_DOES_NOT_HAVE
    output = check_types(checker, tmp_path, files)
    errors = re.findall(r"(\w+\.py):\d+.* error: (.*)", output)
    assert {file for file, _ in errors} == {"wrong.py"}, output
    assert all("synchronize_async" in said for _, said in errors)


def check_types(checker: str, folder: Path, files: dict[str, str]) -> str:
    name, *options = checker.split()
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    for file, program in files.items():
        (folder / file).write_text(program)
    if name == "pyright":
        settings = {"typeCheckingMode": "strict", "pythonVersion": "3.11"}
        # A star import is one of what is checked.
        settings["reportWildcardImportFromLibrary"] = "none"
        (folder / "pyrightconfig.json").write_text(json.dumps(settings))
        options = ["--pythonpath", sys.executable, "--project", str(folder)]
    else:
        options += files
    done = python("none", "-m", name, *options, folder=folder)
    return done.stdout + done.stderr


def server_of_the_readme(name: str) -> str:
    """The program that uses this class."""
    for package in ("fastapi", "httpx"):
        pytest.importorskip(package)
    (program,) = [each for each in programs_of(ROOT / "README.md") if f"{name}(" in each.code]
    lines = [line for line in program.code.splitlines() if line.strip()]
    assert len([line for line in lines if not re.match("import |from ", line)]) <= 25
    return program.code


CLIENT = """
    import httpx
    from itertools import repeat

    def client():
        transport = httpx.ASGITransport(app=app)
        return httpx.AsyncClient(transport=transport, base_url="http://here")
    """


def test_the_server_of_the_readme_answers(driver_kind: str, tmp_path: Path) -> None:
    """Each of many requests gets its own scores. The stand-in's model returns its input."""
    code = server_of_the_readme("Batches")
    if driver_kind == "gpu":
        pytest.importorskip("torch")
    check = """
        async def main():
            async with app.router.lifespan_context(app), client() as http:
                rows = [[float(number)] * 512 for number in range(40)]
                answers = await asyncio.gather(*(http.post("/score", json=row) for row in rows))
                assert [answer.status_code for answer in answers] == [200] * 40
                wrong = await http.post("/score", json=[0.0] * 511)
                assert wrong.status_code == 422  # and it was in no batch with others
                found = [answer.json() for answer in answers]
                assert all(len(scores) == 8 for scores in found)
                print(len({tuple(scores) for scores in found}), app.state.score.sizes.total())

                async def refuses(row):
                    raise error

                app.state.score = refuses
                for error, status in (aiostream.PoolFullError("full"), 503), (TimeoutError(), 504):
                    assert (await http.post("/score", json=rows[0])).status_code == status

        asyncio.run(main())
        """
    code += textwrap.dedent(CLIENT) + textwrap.dedent(check)
    if driver_kind != "gpu":
        code = f"import sys; sys.path[:0] = {[str(STAND_INS), str(ROOT)]}\n{code}"
    done = run_script(driver_kind, code, folder=tmp_path, warnings="ignore")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "40"


def test_the_token_server_of_the_readme_answers(driver_kind: str, tmp_path: Path) -> None:
    """It streams to many at once. While all slots are taken, it answers 504, and then 503."""
    check = """
        async def main():
            async with app.router.lifespan_context(app), client() as http:
                urls = [f"/generate?prompt={number}&count=3" for number in range(40)]
                answers = await asyncio.gather(*map(http.get, urls))
                for number, answer in enumerate(answers):
                    events = [f"data: {number + more}" for more in range(3)]
                    assert answer.text.split("\\n\\n") == [*events, ""], answer.text
                assert (await http.get("/generate?prompt=1&count=0")).text == ""
                async with contextlib.AsyncExitStack() as taken:
                    for _ in range(16):
                        await taken.enter_async_context(app.state.steps(repeat(0)))
                    assert (await http.get(urls[0])).status_code == 504
                    waiting = [app.state.steps(repeat(0)) for _ in range(64)]
                    assert (await http.get(urls[0])).status_code == 503
                    del waiting
                assert (await http.get(urls[0])).text == answers[0].text

        asyncio.run(main())
        """
    code = server_of_the_readme("Steps") + textwrap.dedent(CLIENT) + textwrap.dedent(check)
    done = run_script(driver_kind, code, folder=tmp_path, warnings="ignore")
    assert done.returncode == 0, done.stderr
