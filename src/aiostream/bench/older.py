"""The process in which an older aiostream takes its turns. `companion.py` starts it as a script.

    PYTHONPATH=<the unpacked wheel> python -P older.py <the unpacked wheel> [simulator]

It reads a JSON request a line from standard input, and answers each with a JSON line. Of the older
library it uses the public interface only. The code that measures is this version's: `loops.py`,
`turns.py` and `spinning.py` are loaded by their paths, because the older library has a `bench` package of its own.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any


def _load(name: str) -> ModuleType:
    """A module of this folder, under a name of its own."""
    spec = importlib.util.spec_from_file_location(
        f"bench_{name}", Path(__file__).with_name(f"{name}.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class _Server:
    """Takes the turns that are asked for."""

    def __init__(self, library: Any, driver: Any) -> None:
        self._library, self._driver = library, driver
        self._loops, self._turns, self._spinning = _load("loops"), _load("turns"), _load("spinning")
        self._function = self._spinning.load(driver)
        self._pools: dict[tuple[str, str], list[Any]] = {}

    def _lanes(self, pool: str, wait: str, count: int) -> list[Any]:
        lanes = self._pools.setdefault((pool, wait), [])
        while len(lanes) < count:
            lanes.append(
                self._spinning.Lane(self._library.Stream(wait=wait), self._driver, self._function)
            )
        return lanes[:count]

    def answer(self, request: dict[str, Any]) -> Any:
        """Does what one line asks for: a turn, or to close the streams of a pool."""
        if request["turn"] == "close":
            for key in [key for key in self._pools if key[0] == request["pool"]]:
                for lane in self._pools.pop(key):
                    lane.stream.close()
            return None
        lanes = self._lanes(request["pool"], request["wait"], request["streams"])
        pairs = [(lane.spin, lane.stream.synchronize_async) for lane in lanes]
        gc.collect()  # it is off while something is timed
        return self._loops.run(request["loop"], self._turns.take, pairs, request)


def main() -> None:
    """Answers until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not come between the answers
    folder = Path(sys.argv[1]).resolve()
    try:
        import aiostream

        path = Path(str(aiostream.__file__)).resolve()
        if folder not in path.parents:
            raise RuntimeError(f"{path} was imported, and not the wheel's aiostream")
        if "simulator" in sys.argv[2:]:
            from aiostream import simulator

            simulator.install()
        context: Any = aiostream.Device(0).primary_context
        from cuda.bindings import driver

        block = (
            context.as_current if hasattr(context, "as_current") else context.current
        )  # of an older version
        with block():
            server = _Server(aiostream, driver)
            gc.disable()
            print(json.dumps({"found": aiostream.__version__}), file=answers, flush=True)
            for line in sys.stdin:
                print(json.dumps(_answer(server, json.loads(line))), file=answers, flush=True)
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answers, flush=True)
        raise SystemExit(1) from None


def _answer(server: _Server, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"found": server.answer(request)}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
