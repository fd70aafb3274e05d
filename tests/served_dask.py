"""A Dask worker whose context is lost while it has tasks: `python served_dask.py`.

It prints the workers that ended the tasks, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from dask.distributed import Client, LocalCluster, WorkerPlugin, get_worker

import aiostream
from aiostream import testing


class Streams(WorkerPlugin):
    """docs/serving.md shows it."""

    name = "streams"

    def setup(self, worker: object) -> None:
        self.stop_watching = aiostream.exit_on_context_failed()
        worker.streams = [aiostream.Stream(0) for _ in range(4)]  # type: ignore[attr-defined]

    def teardown(self, worker: object) -> None:
        for stream in worker.streams:  # type: ignore[attr-defined]
            stream.close()
        self.stop_watching()


async def infer(n: int) -> int:
    await get_worker().streams[n % 4].enqueue_async(testing.spin, 0.05)
    return os.getpid()


async def fault(marker: str) -> int:
    """Loses the context of the first worker that calls it."""
    stream = get_worker().streams[0]
    if not Path(marker).exists():
        Path(marker).touch()
        testing.launch(stream, "trap")
        await stream.synchronize_async()  # the process ends in it
    return os.getpid()


def main(marker: str) -> None:
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=4, processes=True, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(Streams())
        before = client.gather(client.map(infer, range(16), pure=False))
        failing = client.submit(fault, marker, pure=False)
        after = client.gather(client.map(infer, range(16), pure=False))
        print(json.dumps([before, after, failing.result()]))


if __name__ == "__main__":
    main(sys.argv[1])
