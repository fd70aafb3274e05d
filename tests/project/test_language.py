"""The words and the layout of what people read: docstrings, comments, messages and documents.

A failure names each file and line, and what to write instead. The rules hold for all sources and
all Markdown.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from docstrings import public_docstrings

ROOT = Path(__file__).parents[2]

# Words and constructions that a reader with another first language stumbles on, and what to write
# instead. Regular expressions, for whole words, in any case.
STOP_LIST = {
    # Words.
    r"nobody": "no task, no caller; or say who does it",
    r"somebody|someone|anybody": "name the actor: you, a task, another thread",
    r"whoever|whomever|whosoever": "the task that, the caller that",
    r"likewise": "also, in the same way; or repeat the words",
    r"for ever|forevermore": "until the process ends; without end",
    r"all the same": "nevertheless; or drop it",
    r"(?:of|than|as) (?:ours|theirs)": "the library's; of the other library",
    r"beside": "next to, in addition to, at the same time as",
    r"tells?|told|telling": "say, report, raise, call, notify",
    r"foretells?|foretold": "predict",
    r"befalls?|befell": "happen to",
    r"doz(?:e|es|ed|ing)": "waits on a timer",
    r"hush(?:es|ed)?": "suppress",
    r"linger(?:s|ed|ing)?": "stay, remain",
    r"lend(?:s|ing)?": "give, hand out",
    r"thereof|wherein|whereof|hither|thither|henceforth": "say it with a subject and a verb",
    # Constructions.
    r"belongs? into": "belongs in; must be called from",
    r"the caller's care": "you must; do not",
    r"harms (?:nobody|nothing|no one)": "is harmless; may be repeated",
    r"on the spot": "is polling already",
    r"refuses? company": "fails if both are installed",
    r"not a touch": "do not use it",
    r"falls? into step": "avoid phase locking",
    r"drops itself": "is dropped",
    r"puts? the task to sleep": "suspends the task",
    r"the GPU itself wakes": "the loop resumes the task when the GPU is done",
    r"woken by the GPU itself": "resumed when the GPU is done",
    r"pass(?:es)? on the duty": "transfers ownership",
    r"(?:have|has) the watcher look": "the watcher polls",
    r"(?:stands?|stood) still": "is idle",
    r"gets? there": "reaches that point",
    r"is (?:no|none) of (?:its|our|your) business": "does not concern",
    r"as ever": "as always; or drop it",
}
# Pieces of sentences that comments of this project had too many of.
FRAGMENTS = {
    r"so (?:long|many|wide)": "the formula, or a sentence with a verb",
    r"this comes (?:before|after|first|last)": "say once, at the top, what the order protects",
}
_GAP = r"\s+(?:[#*]\s*)?"  # a construction may be broken over two lines of a comment


def _whole(words: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w-])(?:{words.replace(' ', _GAP)})(?![\w-])", re.IGNORECASE)


_STOPPED = {_whole(words): instead for words, instead in STOP_LIST.items()}
_FRAGMENTS = {_whole(words): instead for words, instead in FRAGMENTS.items()}
# Of text in lower case: without what precedes and follows a word, this takes a tenth of the time.
_PERHAPS = re.compile("|".join([*STOP_LIST, *FRAGMENTS]).replace(" ", _GAP).lower())


def _files(*patterns: str, but: tuple[str, ...] = ()) -> list[str]:
    found = {path for pattern in patterns for path in ROOT.glob(pattern)}
    return sorted(name for path in found if (name := str(path.relative_to(ROOT))) not in but)


PYTHON = _files("src/**/*.py", "src/**/*.pyi", "examples/**/*.py", "benchmarks/**/*.py")
NATIVE = _files("src/**/*.c", "src/**/*.h")
TEXTS = _files("src/**/*.txt")
WITHOUT_FRAGMENTS = _files(
    "src/**/*.py",
    "src/**/*.pyi",
    "src/**/*.[ch]",
    "tests/**/*.[ch]",
    "driver/**/*.[ch]",
    "driver/**/*.py",
    "examples/*.py",
    "tools/*.py",
)
# This page is made of the docstrings, and the code of conduct is another's text.
MARKDOWN = _files(
    "*.md",
    "docs/**/*.md",
    "driver/*.md",
    "benchmarks/**/*.md",
    but=("docs/reference.md", "CODE_OF_CONDUCT.md"),
)

# Their messages and comments too. This file has the words themselves.
for _folder in ("tests", "driver", "tools", "docs"):
    PYTHON += _files(f"{_folder}/**/*.py", but=("tests/project/test_language.py",))
    NATIVE += _files(f"{_folder}/**/*.[ch]")
PYTHON += _files("*.py")


# ------------------------------------------------------------------------------- what is read where


@dataclass(frozen=True)
class Prose:
    """A text for people, and the line of its file at which it begins."""

    line: int
    text: str


def python_prose(source: str) -> Iterator[Prose]:
    """Docstrings, comments, and every other string of more than one word."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant):
            text = node.value
            if isinstance(text, str) and " " in text:
                yield Prose(node.lineno, text)
    comments: list[tuple[int, str]] = [
        (token.start[0], token.string)
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    while comments:  # comments on lines that follow each other are one text
        line, text = comments.pop(0)
        while comments and comments[0][0] == line + text.count("\n") + 1:
            text += "\n" + comments.pop(0)[1]
        yield Prose(line, text)


def native_prose(source: str) -> Iterator[Prose]:
    """Comments and strings of C."""
    texts = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.DOTALL)
    for found in texts.finditer(source):
        yield Prose(source.count("\n", 0, found.start()) + 1, found.group())


def markdown_lines(source: str) -> list[tuple[int, str]]:
    """The lines outside of code blocks, with their numbers; a code block is one empty line."""
    lines, fence = [], ""
    for number, line in enumerate(source.splitlines(), 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if fence:
            if mark and mark[1] == fence:
                fence = ""
            continue
        if mark:
            fence = mark[1]
            line = ""
        lines.append((number, line))
    return lines


def without_code(line: str) -> str:
    """A line of Markdown, with a letter for each piece of code and for each link's address."""
    line = re.sub(r"`[^`]*`", "x", line)
    return re.sub(r"\]\([^)]*\)|https?://\S+", "] ", line)


def markdown_prose(source: str) -> Iterator[Prose]:
    for number, line in markdown_lines(source):
        yield Prose(number, without_code(line))


def stopped(prose: Iterator[Prose], of: dict[re.Pattern[str], str] = _STOPPED) -> list[str]:
    """The stop-list's words in a text, with their lines and what to write instead.

    The benchmark's rows keep their names ("126 x 0.5 ms beside 2 x 1.2 s"), because the files of
    earlier results have them.
    """
    found = [
        (each.line + each.text.count("\n", 0, match.start()), match[0], instead)
        for each in prose
        if _PERHAPS.search(each.text.lower())
        for words, instead in of.items()
        for match in words.finditer(each.text)
        if not re.search(
            r"( x |lag in us|loop lag|empty kernels).{0,30}beside|^[; ]*beside",
            each.text,
            re.IGNORECASE,
        )
    ]
    return [f"line {line}: {word!r}: write {instead}" for line, word, instead in sorted(found)]


READERS: dict[str, Callable[[str], Iterator[Prose]]] = {
    ".py": python_prose,
    ".pyi": python_prose,
    ".c": native_prose,
    ".h": native_prose,
    ".md": markdown_prose,
    ".txt": lambda source: iter([Prose(1, source)]),
}


def find_faults(names: list[str], faults_of: Callable[[Path], list[str]]) -> list[str]:
    """The faults of files, each with the name of its file."""
    return [f"{name}: {fault}" for name in names for fault in faults_of(ROOT / name)]


def stopped_in(path: Path, of: dict[re.Pattern[str], str] = _STOPPED) -> list[str]:
    source = path.read_text()
    return stopped(READERS[path.suffix](source), of) if _PERHAPS.search(source.lower()) else []


def test_stop_list() -> None:
    assert len(stopped(python_prose('f("it drops itself")  # It belongs\n# into it.'))) == 2
    for reader, text in ((native_prose, "/* it\n * drops\n * itself */"), (markdown_prose, "Told")):
        assert stopped(reader(text)), "the check finds nothing"
    found = find_faults([*PYTHON, *NATIVE, *MARKDOWN, *TEXTS], stopped_in)
    assert not found, "\n".join(found)


def test_comments_have_no_fragments() -> None:
    text = "/* This\n * comes before, and so long */"
    assert len(stopped(native_prose(text), _FRAGMENTS)) == 2, "the check finds nothing"
    found = find_faults(WITHOUT_FRAGMENTS, lambda path: stopped_in(path, _FRAGMENTS))
    assert not found, "\n".join(found)


# ------------------------------------------------------------------------------ the layout of files


_ENDS = re.compile(r"""[.!?:]["')*_`\]]*$""")
_TWO = re.compile(r"""[.!?]["')*_\]]* +(?=["'(*_\[]*[A-Zx])""")
_NOT_AN_END = re.compile(r"(?:\b(?:e\.g|i\.e|vs|cf|etc|al|No|St)|\d)\.$")


def layout_faults(source: str) -> list[str]:
    """Lines with more than one sentence, and sentences that go on in the next line.

    Tables, headings and HTML are not sentences. The bold words at the start of an item are its
    title.
    """
    lines = [(number, without_code(line)) for number, line in markdown_lines(source)]
    faults = []
    for (number, line), (_, following) in zip(lines, [*lines[1:], (0, "")], strict=True):
        line, following = line.rstrip(), following.strip()
        if not line or re.match(r"\s*(?:[|#<]|---|!\[)", line):
            continue
        text = re.sub(r"^\s*(?:[-*+]|\d+\.) +", "", line)
        text = re.sub(r"^\*\*[^*]+\*\* ", "", text).lstrip("> ")
        for match in _TWO.finditer(text):
            if not _NOT_AN_END.search(text[: match.start() + 1]):
                faults.append(f"line {number}: a second sentence: {text[match.end() :][:50]!r}")
        goes_on = following and not re.match(r"(?:[-*+>|#<]|\d+\.) |[|<#]|```|!\[", following)
        if goes_on and not _ENDS.search(line):
            faults.append(f"line {number}: the sentence goes on in the next line: {line[-50:]!r}")
    return faults


def test_markdown_has_one_sentence_per_line() -> None:
    assert len(layout_faults("One. Two.\n\nIt is\nbroken.\n")) == 2, "the check finds nothing"
    faults = find_faults(MARKDOWN, lambda path: layout_faults(path.read_text()))
    assert not faults, "\n".join(faults)


def test_markdown_has_few_semicolons() -> None:
    """At most 2 per 1,000 words of a page, outside of tables and code."""

    def faults_of(path: Path) -> list[str]:
        lines = [
            (number, without_code(line))
            for number, line in markdown_lines(path.read_text())
            if not line.lstrip().startswith("|")
        ]
        words = sum(len(line.split()) for _, line in lines)
        found = [f"line {number}: {line}" for number, line in lines if ";" in line]
        return found if len(found) > max(1, 2 * words / 1000) else []

    found = find_faults(MARKDOWN, faults_of)
    assert not found, "\n".join(found)


# ------------------------------------------------------------------------------- public docstrings

# Of each public docstring but those that repeat another one: its words, without its examples.
DOCSTRINGS = {inspect.cleandoc(text): name for name, text in public_docstrings().items() if text}
PROSE = {text: re.sub(r">>>.*?(?:\n[ \t]*\n|$)", "", text, flags=re.DOTALL) for text in DOCSTRINGS}
YOU = re.compile(r"\byou(?:r|rs|rself)?\b", re.IGNORECASE)


def test_public_docstrings_speak_to_you_in_short_sentences_and_show_it() -> None:
    """Per 1,000 words. h11, trio, anyio and httpcore have 0 to 2 semicolons, and examples."""
    assert len(DOCSTRINGS) > 150
    whole = "\n".join(PROSE.values())
    words = len(re.findall(r"[A-Za-z][\w'.-]*", whole)) / 1000
    semicolons = [DOCSTRINGS[text] for text, prose in PROSE.items() if ";" in prose]
    assert whole.count(";") <= 2 * words, f"look at {semicolons}"
    no_you = [DOCSTRINGS[text] for text, prose in PROSE.items() if not YOU.search(prose)]
    assert len(YOU.findall(whole)) >= 5 * words, f"look at {no_you}"
    shown = sum(len(re.findall(r">>>.*?(?:\n[ \t]*\n|$)", text, re.DOTALL)) for text in DOCSTRINGS)
    assert shown >= 2 * words


def test_public_docstrings_begin_with_one_idea() -> None:
    """The first line is one sentence, without a semicolon."""
    assert not [name for text, name in DOCSTRINGS.items() if ";" in text.split("\n\n")[0]]
