"""What can be tested here, by what is installed.

Nothing here imports aiostream, because `exits.py` may not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import metadata
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

MISSING = frozenset(name for name in ("trio", "uvloop") if find_spec(name) is None)

# Of those that the library supports. docs/installation.md says what they do wrong.
GIVES_WRONG_EDGE_DATA = metadata.version("cuda-bindings").startswith(("13.0.", "13.1."))


def missing_of(text: str) -> list[str]:
    """Returns which of the missing loops a text names, as in `new_uvloop` or `asyncio-trio`."""
    words = re.findall("[a-z]+", text)
    return sorted(MISSING.intersection(words))


def installed(names: Iterable[str]) -> list[str]:
    """Returns those of the names that need no missing loop."""
    return [name for name in names if not missing_of(name)]


def beside(name: str) -> Path:
    """Returns a file or folder of the clone. Skips the test if it runs on an installed package
    alone.
    """
    import pytest

    if not (path := Path(__file__).parents[1] / name).exists():
        pytest.skip(f"{name} is not next to the tests")
    return path


def program(name: str) -> ModuleType:
    """Imports a program of the clone that lies in no package."""
    path = beside(name)
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
