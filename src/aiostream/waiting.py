"""How a wait is carried out."""

from __future__ import annotations

from collections.abc import Callable

from aiostream import _loops, hostfunc, interop
from aiostream.futures import Completion

checkpoint = _loops.checkpoint


async def in_thread(blocking: Callable[[], None]) -> None:
    """Runs what may block in a worker thread of the loop's. Cancelled, it leaves the thread to finish by itself."""
    import anyio.to_thread  # on the rare path that needs it: importing aiostream does not import anyio

    await anyio.to_thread.run_sync(blocking, abandon_on_cancel=True)


async def wait_for(completion: Completion) -> None:
    """Waits until the GPU has passed a point at which only this task waits.

    Cancellation: raises at once; the point stays registered until the GPU has passed it.

    Raises:
        CudaError: The context has failed.
    """
    future = completion.future
    try:
        if future is not None:
            await future  # type: ignore[misc]  # SettledFuture says what Completion needs; both kinds can be awaited
    except BaseException:
        completion.cancel()
        raise


async def synchronize(reference: interop.StreamReference) -> None:
    """Waits, without blocking the loop, until all work that is on the stream now is done; see `Stream.synchronize_async`."""
    await wait_for(hostfunc.arm_completion(reference.handle, reference.context, reference.name))
