"""Finds the examples in the docstrings of public names, and runs them as `python -m asyncio` does.

`test_docstring_examples.py` uses it, and so do the processes that it starts.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import contextvars
import doctest
import enum
import importlib
import inspect
import io
import pkgutil
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import aiostream
import internals
import nogpu
from support import is_at_rest, settle

_PARSER = doctest.DocTestParser()
_CHECKER = doctest.OutputChecker()
_COMPILED = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


# ----------------------------------------------------------------------------------- what is public


def public_docstrings() -> dict[str, str]:
    """The docstrings of everything public, by the name that a user writes behind `aiostream.`.

    That is the package, its public modules, their names, and the methods and properties of these.
    An object that several modules export counts once, by its shortest name.
    """
    found: dict[str, str] = {"": aiostream.__doc__ or ""}
    seen: set[int] = set()
    for path, module in _public_modules():
        found.setdefault(path, module.__doc__ or "")
        for name in getattr(module, "__all__", ()):
            _collect(f"{path}.{name}".lstrip("."), getattr(module, name), found, seen)
    return found


def _public_modules() -> Iterator[tuple[str, types.ModuleType]]:
    """The package first, so that its names are the short ones."""
    yield "", aiostream
    for module in pkgutil.walk_packages(aiostream.__path__, "aiostream."):
        path = module.name.split(".")[1:]
        if not any(part.startswith("_") for part in path):
            yield ".".join(path), importlib.import_module(module.name)


def _collect(name: str, public: Any, found: dict[str, str], seen: set[int]) -> None:
    if id(public) in seen:
        return
    seen.add(id(public))
    found[name] = getattr(public, "__doc__", None) or ""
    if not isinstance(public, type):
        return
    for member in dir(public):  # also what it inherits from private classes of the package
        value = inspect.getattr_static(public, member)
        if isinstance(value, (classmethod, staticmethod)):
            value = value.__func__
        module = getattr(getattr(value, "fget", value), "__module__", None) or ""
        if isinstance(value, enum.Enum):
            continue  # it has its class's docstring
        if not member.startswith("_") and module.split(".")[0] == "aiostream":
            found[f"{name}.{member}"] = getattr(value, "__doc__", None) or ""


def examples_of(docstring: str) -> list[doctest.Example]:
    """The statements of a docstring that begin with `>>>`, with the output that it shows."""
    return _PARSER.get_examples(docstring)


# ------------------------------------------------------------------------------------------ running


def run_docstring(name: str, docstring: str) -> None:
    """Runs the examples of one docstring, in order, in one asyncio loop and one namespace.

    Raises:
        AssertionError: A statement printed or raised what the docstring does not show, or a task
            was left running.
    """
    names = {"__name__": "__main__", "asyncio": asyncio, "aiostream": aiostream}
    if "nogpu." in docstring:  # as the first lines of that module's own example make them
        names |= {"nogpu": nogpu, "driver": internals.bindings()}
    with asyncio.Runner() as runner:
        runner.run(_session(f"<docstring of aiostream.{name}>", examples_of(docstring), names))
    names.clear()  # Python 3.13t never frees the functions that have them as globals


async def _session(file: str, examples: list[doctest.Example], names: dict[str, Any]) -> None:
    context = contextvars.copy_context()
    for example in examples:
        code = compile(example.source, file, "single", _COMPILED, dont_inherit=True)
        printed = io.StringIO()
        raised = None
        with contextlib.redirect_stdout(printed), mock.patch("sys.displayhook", _display):
            try:
                result = await _in_a_callback(types.FunctionType(code, names))
                if inspect.iscoroutine(result):
                    await asyncio.create_task(result, context=context)
            except Exception as error:
                raised = error
        _check(file, example, printed.getvalue(), raised)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"{file} leaves tasks running: {left}"


async def _in_a_callback(function: Callable[[], Any]) -> Any:
    """Calls it where the interactive interpreter would: in the loop, and not in a task."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Any] = loop.create_future()

    def call() -> None:
        try:
            result.set_result(function())
        except Exception as error:
            result.set_exception(error)

    loop.call_soon(call)
    return await result


def _display(value: object) -> None:
    """Prints the value of an expression as the interpreter does, and keeps no reference to it."""
    if value is not None:
        print(repr(value))


def _check(file: str, example: doctest.Example, printed: str, raised: Exception | None) -> None:
    flags = doctest.ELLIPSIS | sum(flag for flag, is_set in example.options.items() if is_set)
    want, got = example.want, printed
    if example.exc_msg is not None:
        assert raised is not None, f"{file}: {example.source!r} did not raise {example.exc_msg!r}"
        want, got = example.exc_msg, "".join(traceback.format_exception_only(raised))
    elif raised is not None:
        raise AssertionError(f"{file}: {example.source!r} failed") from raised
    if not _CHECKER.check_output(want, got, flags):
        difference = _CHECKER.output_difference(doctest.Example("", want), got, flags)
        raise AssertionError(f"{file}: {example.source!r}\n{difference}")


def run_in_this_process(name: str) -> None:
    """Runs one docstring in a process of its own, and checks `statistics()` at the end."""
    run_docstring(name, public_docstrings()[name])

    def ended() -> bool:
        now = aiostream.statistics()
        return is_at_rest() and now.handles.open == now.points.leaked == 0

    assert settle(ended), f"the numbers do not add up: {aiostream.statistics()}"
