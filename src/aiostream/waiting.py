"""How a wait is carried out."""

from __future__ import annotations

from collections.abc import Callable

from aiostream import _driver, _loops
from aiostream.device import Context
from aiostream.futures import Completion

checkpoint = _loops.checkpoint


async def in_thread(blocking: Callable[[], None]) -> None:
    """Runs what may block in a worker thread of the loop's. Cancelled, it leaves the thread to finish by itself."""
    import anyio.to_thread  # on the rare path that needs it: importing aiostream does not import anyio

    await anyio.to_thread.run_sync(blocking, abandon_on_cancel=True)


async def wait_for(completion: Completion, context: Context) -> None:
    """Waits until the GPU has passed a point at which only this task waits.

    A host function fires after success only, so its firing is the success; but a fault may have come just after it, and then
    nothing that the work has left behind can be used. So the context's health is read once more on resumption.

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
    code = context.health()
    if code:
        raise _driver.error(code, "cuStreamQuery", completion.stream)
