"""What errors advise, and what to write in place of names that other libraries have.

`hints.txt` has the texts. It is read at import, because an error may come when no file can be
opened.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, ParamSpec

P = ParamSpec("P")

# By section of the file: names, and the text for each.
ADVICE: dict[str, dict[str, str]] = {}


def _read(path: str) -> None:
    owner = ""
    with open(path, encoding="utf-8") as file:
        for line in map(str.rstrip, file):
            names, is_row, advice = line.partition(" = ")
            if line.startswith("["):
                owner = line.strip("[]")
                ADVICE[owner] = {}
            elif is_row:
                ADVICE[owner].update(dict.fromkeys(names.split(), advice))


_read(os.path.join(os.path.dirname(__file__), "hints.txt"))


def _advice(owner: str, name: str) -> str:
    """The end of the error for a name that `owner`, a key of the table, does not have."""
    advice = ADVICE[owner].get(name) or ADVICE[owner].get("*")
    return f": write {advice}" if advice else ""


def missing(owner: str, said: str, name: str) -> AttributeError:
    """Makes the error for an attribute that `owner`, a key of the table, does not have."""
    advice = _advice(owner, name)
    error = AttributeError(f"{said} has no attribute {name!r}{advice}")
    if advice:
        error.name = name  # Python would otherwise add a name that is spelled alike
    return error


def answers_keywords(init: Callable[P, None]) -> Callable[P, None]:
    """Has the errors for keywords that a constructor does not take say what to write."""
    owner = own if (own := init.__qualname__.replace(".__init__", "()")) in ADVICE else "()"

    @functools.wraps(init)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        for name in ADVICE[owner].keys() & kwargs:
            said = f"{init.__qualname__}() takes no keyword {name!r}"
            raise TypeError(said + _advice(owner, name))
        init(*args, **kwargs)

    return checked


class Hinted:
    """Has the errors for missing attributes say what to write."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers report these names themselves

        def __getattr__(self, name: str) -> NoReturn:
            if hasattr(type(self), name):  # a property has raised an AttributeError of its own
                object.__getattribute__(self, name)
            kinds = [kind.__name__ for kind in type(self).__mro__]
            said = f"{kinds[0]!r} object"
            if name.startswith("_"):  # finalizers ask for these, when modules may be empty
                raise AttributeError(f"{said} has no attribute {name!r}")
            raise missing(next(kind for kind in kinds if kind in ADVICE), said, name)
