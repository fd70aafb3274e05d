"""`aiostream.testing`: kernels, gates, `ledger`, blocked loops, and faults on command."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import threading
import time
from typing import Any

import pytest
from cuda.bindings import driver as cuda

import aiostream
import internals
from aiostream import CudaError, OutOfMemoryError, Stream, StreamClosedError, simulator, testing
from aiostream.testing import Faults, Gate, LedgerError, check, ledger, settle, spin
from support import run_on


def test_check_unpacks_answers_and_raises_their_errors() -> None:
    assert check((cuda.CUresult.CUDA_SUCCESS,)) is None
    assert check((cuda.CUresult.CUDA_SUCCESS, 7)) == 7
    assert check((cuda.CUresult.CUDA_SUCCESS, 7, 8)) == (7, 8)
    with pytest.raises(OutOfMemoryError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        check((cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY, None))
    with pytest.raises(CudaError):
        check(cuda.cuDeviceGet(99))


async def test_spin_takes_its_time_on_the_gpu(stream: Stream) -> None:
    began = time.monotonic()
    spin(stream, 0.03)
    await stream.synchronize_async()
    assert time.monotonic() - began >= 0.03


async def test_a_launched_kernel_gets_its_arguments(stream: Stream) -> None:
    with stream.context.as_current():
        memory = int(check(cuda.cuMemHostAlloc(32, 3)))
    x = (ctypes.c_float * 4).from_address(memory)
    y = (ctypes.c_float * 4).from_address(memory + 16)
    x[:], y[:] = [1, 2, 3, 4], [10, 20, 30, 40]
    arguments = (ctypes.c_float(2), ctypes.c_uint64(memory), ctypes.c_uint64(memory + 16))
    testing.launch(stream, "saxpy", *arguments, ctypes.c_uint32(4), threads=4)
    await stream.synchronize_async()
    assert list(y) == [12, 24, 36, 48]
    with stream.context.as_current():
        check(cuda.cuMemFreeHost(memory))


async def test_gate_holds_until_it_is_opened_and_again_when_shut(stream: Stream) -> None:
    with Gate() as gate:
        gate.hold(stream)
        assert not stream.query()
        gate.open()
        await stream.synchronize_async()
        gate.shut()
        gate.hold(stream)
        assert not stream.query()
    await stream.synchronize_async()


def test_helpers_refuse_a_closed_stream() -> None:
    """A driver may crash at its handle, or take it for that of another stream."""
    stream = Stream()
    stream.close()
    with pytest.raises(StreamClosedError):
        spin(stream, 0.001)
    with Gate() as gate, pytest.raises(StreamClosedError):
        gate.hold(stream)


# ------------------------------------------------------------------------------ ledger


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_ledger_names_what_is_pending(is_cancelled: bool) -> None:
    """Work whose future was cancelled is pending too."""
    says = "pending" if is_cancelled else "1 more futures are pending"
    async with Stream() as stream:
        with Gate() as gate:
            with pytest.raises(LedgerError, match=says), ledger(seconds=0.05 * is_cancelled):
                gate.hold(stream)
                future = stream.enqueue_async(lambda stream: None)
                if is_cancelled:
                    future.cancel()
            gate.open()
            if not is_cancelled:
                await future


async def test_ledger_in_a_coroutine_does_not_wait_for_a_turn_of_the_loop(stream: Stream) -> None:
    """A task that has polled its work goes on before the loop has got the ticket."""
    for _ in range(20):
        with ledger():
            assert await stream.enqueue_async(lambda stream: [stream]) == [stream]


@pytest.mark.parametrize("wait", ["auto", "hostfunc"])
async def test_ledger_in_a_coroutine_waits_for_what_cancelled_waits_have_waited_for(
    wait: Any,
) -> None:
    """The loop has no turn while the block ends."""
    async with Stream(wait=wait) as stream:
        for _ in range(8):  # so that the loop's timer has the waits
            await stream.enqueue_async(spin, 0.02)
        with ledger():
            assert stream.enqueue_async(spin, 0.02).cancel()


def test_ledger_names_what_is_open_but_no_garbage_and_lets_the_error_of_the_block_win() -> None:
    gc.collect()
    with ledger():
        cycle: list[Any] = [Stream()]
        cycle.append(cycle)
        del cycle
    with pytest.raises(ZeroDivisionError), ledger(seconds=0):
        stream = Stream()
        1 / 0  # noqa: B018
    stream.close()
    says = "1 more streams, events or graphs are open"
    with pytest.raises(LedgerError, match=says), ledger(seconds=0):
        stream = Stream()
    stream.close()


def test_ledger_collects_what_was_garbage_but_pending() -> None:
    """Until the GPU has passed the work, the library holds the task of a loop that is closed."""

    class Opener:
        """Garbage, so that the gate opens when `ledger` has collected a first time."""

        def __init__(self, gate: Gate) -> None:
            self.me, self.gate = self, gate

        def __del__(self) -> None:
            self.gate.open()

    with Gate() as gate, ledger():
        stream = Stream()
        gate.hold(stream)
        loop = asyncio.new_event_loop()

        async def wait() -> None:
            me = asyncio.current_task()  # a cycle
            await stream.run(int)
            del me

        task: Any = loop.create_task(wait())
        task._log_destroy_pending = False
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()
        del task
        stream.close()
        Opener(gate)


@pytest.mark.cuda_leaks(1)
def test_ledger_counts_what_leaked(breakable: Any) -> None:
    async def lose() -> None:
        stream = Stream()
        with Gate() as gate:
            gate.hold(stream)
            future = stream.enqueue_async(lambda stream: object())
            breakable.break_context(700)
            with pytest.raises(aiostream.ContextFailedError):
                await future
        with pytest.raises(CudaError):
            stream.shutdown()

    said = r"1 point was leaked, and not 0.*cuda_leaks\(1\)"
    with pytest.raises(LedgerError, match=said), ledger(seconds=0.2):
        run_on("asyncio", lose)


# ------------------------------------------------------------------------------ faults


def test_faults_happen_and_are_undone(breakable: Any) -> None:
    """One that did not happen is an error, unless the block has its own."""
    name = "cuStreamCreateWithPriority"
    with Faults() as faults:
        faults.fail(name, 2, nth=2)
        Stream().close()
        with pytest.raises(OutOfMemoryError):
            Stream()
    Stream().close()
    says = "1 of the arranged faults did not happen"
    with pytest.raises(AssertionError, match=says), Faults() as faults:
        faults.fail(name, 2)
    Stream().close()
    with pytest.raises(ZeroDivisionError), Faults() as faults:
        faults.fail(name, 2)
        1 / 0  # noqa: B018


def test_hang_and_endless_kernel_end_with_the_block(breakable: Any, stream: Stream) -> None:
    with Faults() as faults:
        faults.endless_kernel(stream)
        with pytest.raises(TimeoutError):
            stream.synchronize(timeout=0.01)
        faults.hang("cuStreamGetFlags")  # which the watcher never calls
        asking = threading.Thread(target=lambda: stream.flags)
        before = simulator.calls("cuStreamGetFlags")
        asking.start()
        assert settle(lambda: simulator.calls("cuStreamGetFlags") > before)
        assert asking.is_alive()
    asking.join()
    stream.synchronize()


@pytest.mark.parametrize("loop_kind", ["asyncio"])
@pytest.mark.parametrize("code", [46, 719, 999])
async def test_gpu_that_has_fallen_off_the_bus(breakable: Any, code: int) -> None:
    with contextlib.closing(Stream()) as stream, Faults() as faults:
        faults.endless_kernel(stream)
        waiting = asyncio.ensure_future(stream.synchronize_async())
        await asyncio.sleep(0)
        faults.lose_context(code)
        with pytest.raises(CudaError) as caught:
            await waiting
        assert caught.value.code == code


def test_lost_context_is_healed_and_reported_again(breakable: Any) -> None:
    async def lose_it() -> None:
        with Gate() as gate, Faults() as faults:
            stream = Stream()
            gate.hold(stream)
            waiting = asyncio.create_task(stream.synchronize_async())
            await asyncio.sleep(0)
            faults.lose_context(719)
            with pytest.raises(aiostream.ContextFailedError):
                await waiting
            with pytest.raises(CudaError):
                stream.shutdown()

    # No call has failed because this context is gone. The watcher reports that when it asks next.
    handle = internals.create_context()
    with aiostream.Context.from_handle(int(handle)).as_current():
        Stream().close()
    internals.driver_call("cuCtxDestroy", handle)
    run_on("asyncio", lose_it)
    seen: list[int] = []
    end = aiostream.on_context_failed(lambda error: seen.append(error.code))
    # On each device, because other tests may have destroyed contexts there.
    for number in range(aiostream.Device.count()):
        Stream(device=number).close()
    assert aiostream.health() is None
    assert seen == []
    for times in (1, 2):
        run_on("asyncio", lose_it)
        assert testing.settle(lambda times=times: seen == [719] * times), seen
    end()
    for times in (3, 4):  # also to a new listener, without a call or a wait that meets the failure
        end = aiostream.on_context_failed(lambda error: seen.append(error.code))
        breakable.break_context(716)
        assert testing.settle(lambda times=times: len(seen) == times), seen
        end()
        testing.recover()
    assert seen[2:] == [716] * 2


@pytest.mark.cuda_leaks(2)
@pytest.mark.parametrize("wait", ["auto", "spin"])
@pytest.mark.parametrize("code", [None, 716])
def test_what_is_pending_fails_before_the_recovery(
    breakable: Any, code: int | None, wait: Any
) -> None:
    """Its work is dropped. Without this, it would seem done, or be pending without end."""

    async def main() -> None:
        with Gate() as gate:
            stream = Stream(wait=wait)
            gate.hold(stream)
            pending = [
                stream.completion_future(),
                stream.enqueue_async(lambda stream: None),
                asyncio.create_task(stream.synchronize_async()),
            ]
            await asyncio.sleep(0)  # the task begins to wait
            if code is not None:
                breakable.break_context(code)
            testing.recover()
            for each in pending:
                with pytest.raises(aiostream.ContextFailedError) as problem:
                    await asyncio.wait_for(each, 20)
                # A wait that its task or its loop polls learns of it afterwards.
                assert problem.value.code in (719, code)
            assert await aiostream.drain(20)
            await stream.completion_future()
            stream.close()

    run_on("asyncio", main)
    testing.recover()  # forgets the failure that was delivered after the first


@pytest.mark.cuda_leaks(1)
def test_what_is_pending_without_a_loop_ends_with_the_recovery(breakable: Any) -> None:
    """As at the end of a test that has lost its context: the next one can drain."""

    async def lose_it() -> None:
        stream = Stream()
        with Gate() as gate:
            gate.hold(stream)
            stream.completion_future()
            faults.lose_context()
        with pytest.raises(CudaError):
            stream.close()

    with Faults() as faults:
        run_on("asyncio", lose_it)
    assert run_on("asyncio", aiostream.drain, 20), aiostream.statistics()


def test_recover_waits_for_what_is_being_reported(breakable: Any) -> None:
    """Or a listener would be called for the healed failure afterwards."""
    begun, may_end, reported = threading.Event(), threading.Event(), threading.Event()

    def report() -> None:
        begun.set()
        assert may_end.wait(20)
        reported.set()

    Stream().close()
    internals.run_in_janitor(report)
    assert begun.wait(20)
    timer = threading.Timer(0.05, may_end.set)
    timer.start()
    testing.recover()
    assert reported.is_set()
    timer.join()


def test_exit_on_context_failed_forgets_what_was_healed(breakable: Any) -> None:
    breakable.break_context(716)
    assert aiostream.health() is not None
    testing.recover()
    aiostream.exit_on_context_failed(99)()  # or this process has ended here


def test_faults_need_the_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiostream.simulator, "installed", lambda: False)
    with pytest.raises(RuntimeError, match="simulator"):
        Faults()


async def test_a_refused_code_loses_no_context(breakable: Any, stream: Stream) -> None:
    """The end of the block would drop the pending work, to heal what is not lost."""
    with Gate() as gate:
        gate.hold(stream)
        with Faults() as faults, pytest.raises(ValueError, match=r"simulator\.fail\(\)"):
            faults.lose_context(600)
        assert not stream.query()


# ------------------------------------------------------------------------------ arguments


@pytest.mark.parametrize(
    ("wrong", "error"),
    [(each, ValueError) for each in (-1, float("nan"), float("inf"), 1e30, 10**400, 1e10)]
    + [(each, TypeError) for each in ("1", None, True, [1])],
)
async def test_a_spin_that_no_kernel_can_make(wrong: Any, error: type[Exception]) -> None:
    async with Stream() as stream:
        with pytest.raises(error, match=r"spin(s for 0 to 9e\+09| takes a number of) seconds, not"):
            spin(stream, wrong)
        assert stream.query()


async def test_launches_that_are_refused(stream: Stream) -> None:
    number = ctypes.c_uint64(0)
    for threads in (-1, 0, 2**40):
        with pytest.raises(ValueError, match=rf"a number from 1 to .*, not {threads}"):
            testing.launch(stream, "stamp", number, threads=threads)
    with pytest.raises(TypeError, match="threads is an int, not float"):
        testing.launch(stream, "stamp", number, threads=1.5)  # type: ignore[arg-type]
    for argument in (5, "5", None, ctypes.c_uint64):
        with pytest.raises(TypeError, match=r"spin is launched with ctypes values, such as"):
            testing.launch(stream, "spin", argument)
    for wrong in (stream, stream.context.device, None, 0):
        with pytest.raises(TypeError, match=rf"a Context, .* not {type(wrong).__name__}$"):
            testing.load_kernels(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("call", ["cuEventQuery", "cuLaunchKernel", None])
def test_what_hangs_goes_on_after_a_while_and_the_block_fails(
    breakable: Any, call: str | None
) -> None:
    """The loop's thread makes these calls, so no timeout of a task ends them."""

    async def main(faults: Faults) -> None:
        async with Stream() as stream:
            if call is None:
                faults.endless_kernel(stream)
            else:
                faults.hang(call)
            async with asyncio.timeout(60):
                await stream.run(spin, stream, 0.001)

    says = pytest.raises(AssertionError, match=r"kept the test for 0\.2 s")
    with says, Faults(patience=0.2) as faults:
        asyncio.run(main(faults))
