"""Names that other libraries have, or that are guessed: the error says what to write."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import aiostream
import internals
from aiostream import Event, Stream, StreamPool, serving
from commands import python
from support import succeed

GUESSES = {
    "Stream": "launch enqueue submit wait sync record_event wait_stream cuda_stream ptr done "
    "memcpy_async use add_done_callback timeout",
    "StreamPool": "get get_nowait put submit map shutdown synchronize drain resize get_size "
    "get_idle_size streams",
    "Event": "wait cuda_event ptr done set",
    "Device": "ordinal index id device_id context set_current",
    "Statistics": "streams events pending",
    "aiostream": "Pool run gather to_thread synchronize current_stream ExternalStream CUDAError "
    "record Gate PoolFull OutOfMemory PoolTimeout device_count is_available fail_after create_pool",
}


@pytest.fixture
def owners() -> Any:
    stream, pool, event = Stream(), StreamPool(1), Event()
    yield {
        **{"Stream": stream, "StreamPool": pool, "Event": event, "Device": stream.device},
        **{"Statistics": aiostream.statistics(), "aiostream": aiostream},
    }
    for each in (stream, pool, event):
        each.close()


def test_a_guess_is_answered(owners: dict[str, Any]) -> None:
    for owner, names in GUESSES.items():
        for name in names.split():
            said = "module 'aiostream'" if owner == "aiostream" else f"{owner!r} object"
            with pytest.raises(AttributeError, match=f"^{said} has no attribute '{name}': write `"):
                getattr(owners[owner], name)
            # Other libraries ask so what kind of a stream it is.
            assert not hasattr(owners[owner], name)


def test_what_is_advised_exists_and_what_exists_has_no_hint(owners: dict[str, Any]) -> None:
    for name in ("Stream", "Event", "Device"):
        owners[name.lower()] = owners[name]
    owners["pool"] = owners["StreamPool"]
    owners["Batches"] = serving.Batches(owners["StreamPool"], list, most=1)
    for owner, table in internals.ADVICE.items():
        names = [*table]
        if owner.endswith("()"):
            for kind in (serving.Batches,) if owner == "Batches()" else (Stream, StreamPool, Event):
                assert not {*names} & {*inspect.signature(kind).parameters}
        elif owner == "run":
            assert not {*names} & {*inspect.signature(Stream.run).parameters}
        else:
            assert not [name for name in names if hasattr(owners[owner], name)]
        spelled = r"\b(aiostream|stream|pool|event|device|Stream)\.(\w+)"
        for advice in table.values():
            for written in re.findall(spelled, advice):
                assert written[1] in dir(owners[written[0]]), advice  # `own` may be unset


@pytest.mark.parametrize(
    ("call", "write"),
    [
        (lambda: StreamPool(2, timeout=3), r"asyncio\.timeout\(1\)"),  # type: ignore[call-arg]
        (lambda: StreamPool(2, max_queue=8), "max_waiting=64"),  # type: ignore[call-arg]
        (lambda: StreamPool(max_size=8), r"StreamPool\(8\)"),  # type: ignore[call-arg]
        (lambda: Stream(timeout=3), r"asyncio\.timeout\(1\)"),  # type: ignore[call-arg]
        (lambda: Stream(null=True), r"Stream\.legacy\(\)"),  # type: ignore[call-arg]
        (lambda: Event(enable_timing=True), "timing=True"),  # type: ignore[call-arg]
    ],
)
def test_a_guessed_keyword_is_answered(call: Any, write: str) -> None:
    with pytest.raises(TypeError, match=rf"__init__\(\) takes no keyword '\w+': write .*{write}"):
        call()
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        Stream(colour=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"not 0\. Name a device: `Event\(device=0\)`"):
        Event(0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("keyword", "write"),
    [
        ("max_batch_size", "`most=32`"),
        ("max_wait", "nothing for it: a batch begins when a stream is free"),
        ("timeout", r"`async with asyncio\.timeout\(1\):` around `await batches\(item\)`"),
        ("key", "a `Batches` for each key"),
        ("max_queue", "`max_waiting=256`"),
    ],
)
def test_a_guessed_keyword_of_batches_is_answered(
    keyword: str, write: str, owners: dict[str, Any]
) -> None:
    make: Any = serving.Batches
    said = rf"^Batches.__init__\(\) takes no keyword '{keyword}': write {write}"
    with pytest.raises(TypeError, match=said):
        make(owners["StreamPool"], list, **{keyword: 3})
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        make(owners["StreamPool"], list, most=1, colour=3)


@pytest.mark.parametrize("name", ["submit", "run", "put", "predict", "close", "stats", "timeout"])
def test_any_name_that_batches_lack_is_answered(name: str, owners: dict[str, Any]) -> None:
    class Mine(serving.Batches[Any, Any]):
        """A subclass has the same hints."""

    for kind in (serving.Batches, Mine):
        made: Any = kind(owners["StreamPool"], list, most=1)
        said = (
            rf"^'{kind.__name__}' object has no attribute '{name}': write .*`await batches\(item\)`"
        )
        with pytest.raises(AttributeError, match=said):
            getattr(made, name)
        assert not hasattr(made, name)
        with pytest.raises(AttributeError, match=r"has no attribute '_put'$"):
            getattr(made, "_put")  # noqa: B009, a private name


def test_the_package_says_where_batches_are() -> None:
    assert not hasattr(aiostream, "Batches")
    with pytest.raises(AttributeError, match=r"aiostream\.serving\.Batches\(pool, fn, most=32\)"):
        _ = aiostream.Batches  # type: ignore[attr-defined]


def test_other_names_get_the_usual_error(owners: dict[str, Any]) -> None:
    class Mine(Stream):
        """A subclass has the same hints."""

    mine = Mine()
    with pytest.raises(AttributeError, match=r"^'Mine' object has no attribute 'qery'$") as caught:
        _ = mine.qery  # type: ignore[attr-defined]
    assert (caught.value.name, caught.value.obj) == ("qery", mine)  # by which Python suggests
    with pytest.raises(AttributeError, match="'Mine' object has no attribute 'launch': write `"):
        _ = mine.launch  # type: ignore[attr-defined]
    mine.close()
    with pytest.raises(AttributeError, match=r"^module 'aiostream' has no attribute 'Strem'$"):
        _ = aiostream.Strem  # type: ignore[attr-defined]


MODULES = ["blocking", "metrics", "serving", "simulator", "testing", "trace"]


def test_the_package_shows_public_names_only() -> None:
    assert set(dir(aiostream)) == {*aiostream.__all__, *MODULES, "__version__"}


def test_public_modules_are_loaded_at_their_first_use() -> None:
    script = f"""
        import sys, aiostream
        print([name for name in {MODULES} if f"aiostream.{{name}}" in sys.modules])
        print([getattr(aiostream, name).__name__ for name in {MODULES}])
    """
    loaded = [f"aiostream.{name}" for name in MODULES]
    assert succeed("none", script) == f"[]\n{loaded}\n"


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_type_checkers_report_a_guess(checker: str, tmp_path: Path) -> None:
    pytest.importorskip(checker)
    program = tmp_path / "program.py"
    program.write_text(
        "import aiostream\n\n"
        "aiostream.trace.record()\n"
        "aiostream.Pool(8)\n"
        "aiostream.Stream().launch(print)\n"
        "aiostream.Event().ptr\n"
        'aiostream.Stream(wait="sleep")\n'
    )
    done = python("none", "-m", checker, str(program), folder=tmp_path)
    lines = {int(found) for found in re.findall(r"program\.py:(\d+)(?::\d+)?.*error", done.stdout)}
    assert lines == {4, 5, 6, 7}, done.stdout


def test_property_that_fails_in_a_subclass_says_why() -> None:
    class Model(Stream):
        @property
        def weights(self) -> Any:
            return self.config.wieghts  # type: ignore[attr-defined]

        config = 3

    stream = Model()
    with pytest.raises(AttributeError, match="'int' object has no attribute 'wieghts'"):
        _ = stream.weights
    stream.close()
