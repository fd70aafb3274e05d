"""What is a CUDA driver itself: the simulator, and what else is in `nogpu`.

That is a distribution of its own, which aiostream may lack. No other module of the base knows it.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from aiostream import _native

WITHOUT_DRIVER = (
    ". Without a GPU, set AIOSTREAM_SIMULATOR=1, or use `pytest --aiostream=simulator` for tests"
)
_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")
_registered: list[None] = []  # has an item once `recover` knows what to do with the watcher


def of_nogpu(name: str, needed_by: str, extra: str) -> ModuleType:
    """Imports a module of the other distribution.

    Args:
        name: The module.
        needed_by: What the program has asked for.
        extra: The extra of aiostream-cuda that brings it along.

    Raises:
        ModuleNotFoundError: It is not installed. The text says what to install.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "nogpu":
            raise
        text = f"{needed_by} needs the package nogpu: pip install 'aiostream-cuda[{extra}]'"
        raise ModuleNotFoundError(text, name="nogpu") from None


def simulator(needed_by: str = "the simulator") -> Any:
    """Imports the simulator, and has its `recover` fail the waits of this library.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    module = of_nogpu("nogpu", needed_by, "simulator")
    if not _registered:
        _registered.append(None)
        module.around_recovery(_fail_pending)
    return module


def _fail_pending() -> Callable[[], object]:
    # A pass of the watcher that began before the recovery would fail what is waited for afterwards.
    # Stopping waits for the end of the pass.
    was_running = _native.watcher_stop(True)
    return _native.watcher_start if was_running else lambda: None


def simulator_is_wanted() -> bool:
    """Whether the environment variable `AIOSTREAM_SIMULATOR` asks for the simulator.

    Raises:
        ValueError: It says neither yes nor no.
    """
    value = os.environ.get("AIOSTREAM_SIMULATOR", "")
    if value.strip().lower() in _YES:
        return True
    if value.strip().lower() in _NO:
        return False
    raise ValueError(
        "the environment variable AIOSTREAM_SIMULATOR is 1 (yes, true, on) or 0 (no, false, off), "
        f"not {value!r}"
    )


def install_simulator(needed_by: str, *, final: bool = True, **options: Any) -> None:
    """Installs the simulator. What is not given is as the environment says.

    Raises:
        RuntimeError, ValueError, OSError: As `nogpu.install` raises them, and for the environment.
        ModuleNotFoundError: The simulator is not installed.
    """
    module = simulator(needed_by)
    if options.get("devices") is None and not module.installed():
        options["devices"] = _number_from("AIOSTREAM_SIMULATOR_DEVICES", module.MOST_DEVICES)
    seed = _number_from("AIOSTREAM_SIMULATOR_SEED")
    options["library"] = os.environ.get("AIOSTREAM_SIMULATOR_LIBRARY")
    module.install(**options, final=final)
    if seed is not None:
        module.seed(seed)


says_so = False  # whether a command of the library prints which driver it runs on


def warn() -> None:
    """Says on stderr that a program runs without a GPU, unless it is a test runner or its child."""
    runner = getattr(sys.modules["__main__"], "__spec__", None)
    is_test = "pytest" in sys.modules or os.environ.get("PYTEST_VERSION")
    if not (says_so or is_test or (runner and runner.name.startswith("unittest"))):
        sys.stderr.write("aiostream: AIOSTREAM_SIMULATOR is set, so no GPU is used\n")


def _number_from(variable: str, most: int | None = None) -> int | None:
    """The number in an environment variable. `None`: it is absent or blank."""
    said = os.environ.get(variable, "").strip()
    try:
        number = int(said) if said else None
    except ValueError:
        raise ValueError(
            f"the environment variable {variable} is a whole number, not {said!r}"
        ) from None
    if number is not None and most is not None and not 0 <= number <= most:
        raise ValueError(
            f"the environment variable {variable} is a number of GPUs from 0 to {most}, not "
            f"{number}"
        )
    return number


def is_simulated() -> bool:
    """Whether the simulator is this process's driver. `python -m nogpu` may have made it so."""
    is_there = "nogpu" in sys.modules or "NOGPU_DEVICES" in os.environ
    return is_there and bool(simulator().installed())
