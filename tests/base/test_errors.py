"""Driver codes become exceptions that say what happened."""

from __future__ import annotations

import pytest

import aiostream
import internals
from support import run_script


@pytest.mark.parametrize(
    ("code", "name", "kind"),
    [
        (1, "CUDA_ERROR_INVALID_VALUE", aiostream.CudaError),
        (2, "CUDA_ERROR_OUT_OF_MEMORY", aiostream.OutOfMemoryError),
        (700, "CUDA_ERROR_ILLEGAL_ADDRESS", aiostream.ContextFailedError),
        (719, "CUDA_ERROR_LAUNCH_FAILED", aiostream.ContextFailedError),
        (801, "CUDA_ERROR_NOT_SUPPORTED", aiostream.NotSupportedError),
        (900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", aiostream.StreamCaptureError),
        (908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", aiostream.StreamCaptureError),
    ],
)
def test_a_code_has_its_name_and_class(
    code: int, name: str, kind: type[aiostream.CudaError]
) -> None:
    error = internals.driver_error(code, "cuStreamQuery", "stream 0x10")
    assert type(error) is kind
    said = (error.code, error.name, error.call, error.stream)
    assert said == (code, name, "cuStreamQuery", "stream 0x10")
    assert error.meaning
    assert str(error).startswith(
        f"cuStreamQuery reported {name} ({code}) for stream 0x10: {error.meaning}"
    )
    assert ("only in a new process" in str(error)) is (kind is aiostream.ContextFailedError)


def test_a_code_newer_than_the_bindings_is_still_an_error() -> None:
    assert internals.driver_error(987654, "cuStreamQuery").name == "CUDA_ERROR_UNRECOGNIZED"


def test_the_driver_s_refusal_is_raised_with_its_call() -> None:
    with pytest.raises(
        aiostream.CudaError, match=r"cuCtxGetDevice reported CUDA_ERROR_INVALID_CONTEXT \(201\)"
    ) as caught:
        internals.driver_call("cuCtxGetDevice")
    assert caught.value.code == 201


def test_a_function_that_the_bindings_lack_is_not_supported() -> None:
    with pytest.raises(aiostream.NotSupportedError, match="cuda-bindings do not have it"):
        internals.driver_call("cuStreamTeleport")


def test_function_that_driver_lacks_is_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    internals.remove_from_driver(monkeypatch, "cuStreamGetFlags")
    with pytest.raises(aiostream.NotSupportedError) as caught:
        internals.driver_call("cuStreamGetFlags")
    assert caught.value.call == "cuStreamGetFlags"
    assert "too old: this one is of CUDA" in str(caught.value)


def test_another_error_of_the_bindings_is_no_missing_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as of old bindings, which refuse `None` for the data of edges."""
    message = "List is too small: 0 < 1"
    internals.remove_from_driver(monkeypatch, "cuStreamGetFlags", says=message)
    with pytest.raises(RuntimeError, match=message) as caught:
        internals.driver_call("cuStreamGetFlags")
    assert type(caught.value) is RuntimeError


def test_hidden_devices_are_named_by_the_error() -> None:
    """Whether the driver is there, or not; the bindings' loader fails first where there is none."""
    script = """
    import importlib, types
    import aiostream
    class Code(int):
        name = "CUDA_ERROR_NO_DEVICE"
    bindings = types.SimpleNamespace(cuInit=lambda flags: (Code(CODE),))
    importlib.import_module = lambda name: bindings
    try:
        aiostream.Device.count()
    except Exception as error:
        print(type(error).__name__, error)
    """
    hidden = run_script("none", script.replace("CODE", "100"), CUDA_VISIBLE_DEVICES="7")
    assert "NoDriverError" in hidden.stdout
    assert "CUDA_VISIBLE_DEVICES is '7'" in hidden.stdout
    forked = run_script("none", script.replace("CODE", "3"))
    assert "RuntimeError" in forked.stdout
    assert (
        "forked from one that had used CUDA already, perhaps through another library"
        in forked.stdout
    )
    assert "forked from one" in str(internals.driver_error(3, "cuDeviceGetCount"))


def test_without_a_driver_the_error_says_how_to_get_the_simulator(driver_kind: str) -> None:
    if driver_kind == "gpu":
        pytest.skip("there is a driver here")
    script = """
    import contextlib, ctypes, pytest
    with contextlib.suppress(OSError):
        ctypes.CDLL("libcuda.so.1")
        raise SystemExit(77)
    import aiostream
    for use in (aiostream.Stream, aiostream.Event, aiostream.Device, aiostream.Stream.legacy,
            lambda: aiostream.Stream.borrow(0)):
        with pytest.raises(aiostream.NoDriverError, match="AIOSTREAM_SIMULATOR=1"):
            use()
    """
    done = run_script("none", script)
    if done.returncode == 77:
        pytest.skip("there is a driver here, although the tests use the simulator")
    assert (done.returncode, done.stderr) == (0, "")


def test_codes_after_which_only_a_new_process_helps_are_fatal() -> None:
    """The bindings' own texts say which: 721 and 810, for example."""
    fatal = [
        int(code)
        for code in internals.bindings().CUresult
        if "process must be terminated" in " ".join((code.__doc__ or "").split())
    ]
    for code in (*fatal, 700, 719, 721, 810):
        assert type(internals.driver_error(code, "cuStreamQuery")) is aiostream.ContextFailedError
    # 917 concerns one stream, whose green context was destroyed.
    assert type(internals.driver_error(917, "cuStreamQuery")) is aiostream.CudaError
