"""How the site reads docstrings: an extension of griffe, see mkdocs.yml."""

from __future__ import annotations

import copy
import re
import textwrap
from typing import Any

import griffe


class Docstrings(griffe.Extension):
    """Shows examples as code, and everything that a class has in the class's own place."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Is called once all modules of the package have been read."""
        for thing in everything(pkg):
            if thing.parent is not None and is_in_its_class(thing):
                thing.parent.del_member(thing.name)
            thing.labels -= {"class-attribute", "instance-attribute"}  # each attribute has them
            if thing.docstring is not None:
                thing.docstring.value = with_code(thing.docstring.value)
        for thing in everything(pkg):
            if isinstance(thing, griffe.Class):
                gather(thing, pkg)


def is_in_its_class(thing: griffe.Object) -> bool:
    """Whether it is `self.code = code`, which the section "Attributes:" of the class describes."""
    assigned = isinstance(thing, griffe.Attribute) and str(thing.value) == thing.name
    return assigned and thing.docstring is None and "instance-attribute" in thing.labels


def with_code(text: str) -> str:
    """A docstring in which griffe and Markdown find the code."""
    # griffe takes "Example:" for a note, and reads `>>>` in a section "Examples:" only.
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
    # griffe takes these for notes too, if the next line is indented.
    text = re.sub(
        r"^(Cancellation|Threads): (\S.*(?:\n +\S.*)*)", _paragraph, text, flags=re.MULTILINE
    )
    # The indented lines after "::" are Python.
    return re.sub(r"^( *)::\n\n((?:\1 +.*\n?|\n)+)", _fenced, text, flags=re.MULTILINE)


def _paragraph(match: re.Match[str]) -> str:
    text = re.sub(r"\n +", " ", match[2])
    return f"**{match[1]}:** {text}"


def _fenced(match: re.Match[str]) -> str:
    code = textwrap.indent(textwrap.dedent(match[2]).strip("\n"), match[1])
    return f"{match[1]}```python\n{code}\n{match[1]}```\n"


def everything(owner: griffe.Module | griffe.Class) -> list[griffe.Object]:
    """What is defined in a module, class by class."""
    found: list[griffe.Object] = [owner]
    for member in owner.members.values():
        if isinstance(member, (griffe.Module, griffe.Class)):
            found += everything(member)
        elif isinstance(member, griffe.Object):
            found.append(member)
    return found


def gather(public: griffe.Class, package: griffe.Module) -> None:
    """Puts what a class inherits from classes of the package behind what it defines itself."""
    for name, member in list(public.members.items()):
        if isinstance(member, griffe.Attribute) and isinstance(member.value, griffe.Expr):
            # `synchronize_async = waiting.synchronize_async` is a method.
            path = member.value.canonical_path.split(".")
            function: griffe.Object | griffe.Alias = package
            for part in path[1:] if path[0] == package.path else ():
                function = function.members.get(part, package)
            if isinstance(function, griffe.Function):
                adopt(public, name, function, member.lineno or 0)
    line = public.endlineno or 0
    for name, member in public.inherited_members.items():
        original = member.final_target if isinstance(member, griffe.Alias) else member
        if not name.startswith("_") and original.path.startswith(f"{package.path}."):
            line += 1
            adopt(public, name, original, line)


def adopt(owner: griffe.Class, name: str, original: griffe.Object, line: int) -> None:
    """Gives a class a copy of a member. Members are shown in the order of their lines."""
    copied = copy.copy(original)
    copied.name, copied.lineno, copied.parent = name, line, owner
    if copied.docstring is not None:
        copied.docstring = copy.copy(copied.docstring)
        copied.docstring.parent = copied
    owner.members[name] = copied
