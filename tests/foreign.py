"""Stand-ins for torch, cupy and numba, as far as the library looks at them: streams on a handle,
and current streams.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import threading
import types
import warnings
from typing import Any

import pytest


class Currents(threading.local):
    """The streams that were made current in this thread, for each library; the last one is
    current.
    """

    def __init__(self) -> None:
        self.torch: list[Any] = []
        self.cupy: list[Any] = []


currents = Currents()


class Settings(threading.local):
    """torch's settings of this thread."""

    def __init__(self) -> None:
        self.inference_mode, self.grad_mode, self.autocast = False, True, False

    def all(self) -> dict[str, object]:
        """What each is now."""
        return dict(self.__dict__)


settings = Settings()


def _setting(name: str, value: bool = True) -> Any:
    """A block in which a setting has a value. As torch's, it decorates generator functions so that
    each of their halves runs in it.
    """

    class Block:
        def __init__(self, wanted: Any = value) -> None:
            self.wanted = wanted if isinstance(wanted, bool) else value

        def __enter__(self) -> None:
            self.before = getattr(settings, name)
            setattr(settings, name, self.wanted)

        def __exit__(self, *_: object) -> None:
            setattr(settings, name, self.before)

        def __call__(self, function: Any) -> Any:
            @functools.wraps(function)
            def decorated(*args: Any) -> Any:
                generator = function(*args)
                while True:
                    try:
                        with type(self)(self.wanted):
                            generator.send(None)
                    except StopIteration as end:
                        return end.value
                    yield

            return decorated

    return Block


class InCudaStream:
    """`torch.cuda.stream`."""

    def __init__(self, stream: TorchStream) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        self.before = torch_current_stream(0)
        torch_set_stream(self.stream)

    def __exit__(self, *_: object) -> None:
        torch_set_stream(self.before)


class TheirStream:
    """What another library makes of a handle."""

    def __init__(self, handle: int, *where: Any, **options: Any) -> None:
        self.handle = self.cuda_stream = self.ptr = handle
        self.where = (*where, *options.values())


class TorchStream(TheirStream):
    """One of torch's."""

    __module__ = "torch.cuda.streams"


def deprecated_stream(handle: int, device: int) -> CupyStream:
    """`cupy.cuda.ExternalStream` of cupy 14."""
    warnings.warn("ExternalStream is deprecated", DeprecationWarning, stacklevel=2)
    return CupyStream(handle, device)


class CupyStream(TheirStream):
    """One of cupy's, which a `with` block makes current."""

    __module__ = "cupy.cuda.stream"

    @classmethod
    def from_external(cls, thing: Any) -> CupyStream:
        """Its device is that of the thread that uses it, until it is set."""
        return cls(thing.__cuda_stream__()[1], -1)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(*("where", (value,)) if name == "device_id" else (name, value))

    def __enter__(self) -> CupyStream:
        currents.cupy.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        currents.cupy.pop()


@dataclasses.dataclass
class TheirDevice:
    """`torch.device`, as far as it is looked at."""

    type: str
    index: int | None = None


def torch_current_stream(device: int) -> Any:
    """`torch.accelerator.current_stream`. Here `None` is the default stream."""
    return currents.torch[-1] if currents.torch else None


def torch_set_stream(stream: Any) -> None:
    """`torch.accelerator.set_stream`."""
    currents.torch = [stream] if stream is not None else []


def current_handles() -> dict[str, int | None]:
    """The handles of the current streams of this thread."""
    return {
        name: stack[-1].handle if stack else None
        for name, stack in (("torch", currents.torch), ("cupy", currents.cupy))
    }


def install_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the stand-ins what `import torch` and its like find."""
    libraries: dict[str, dict[str, Any]] = {
        "torch": {
            "cuda": types.SimpleNamespace(
                ExternalStream=TorchStream, is_initialized=lambda: True, stream=InCudaStream
            ),
            "accelerator": types.SimpleNamespace(
                current_stream=torch_current_stream, set_stream=torch_set_stream
            ),
            "device": TheirDevice,
            "inference_mode": _setting("inference_mode"),
            "is_inference_mode_enabled": lambda: settings.inference_mode,
            "no_grad": _setting("grad_mode", False),
            "is_grad_enabled": lambda: settings.grad_mode,
            "set_grad_enabled": functools.partial(setattr, settings, "grad_mode"),
            "autocast": _setting("autocast"),
            "is_autocast_enabled": lambda: settings.autocast,
            "set_autocast_enabled": functools.partial(setattr, settings, "autocast"),
        },
        "cupy": {
            "cuda": types.SimpleNamespace(ExternalStream=deprecated_stream, Stream=CupyStream)
        },
        "numba": {},
        "numba.cuda": {"external_stream": TheirStream},
    }
    for name, contents in libraries.items():
        module = types.ModuleType(name)
        module.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, name, module)
