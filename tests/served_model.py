"""`examples/model_server.py` with what tests need.

`/fault` loses the context, and `/statistics` shows counters.

python served_model.py uvicorn|hypercorn PORT [TIMEOUT LAST]
"""

from __future__ import annotations

import sys
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import aiostream
from aiostream import testing

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import model_server


async def fault(request: Request) -> Response:
    """Launches a kernel that fails, and does not wait for it."""
    async with request.app.state.pool.stream() as stream:
        testing.launch(stream, "trap")
    return JSONResponse({})


async def statistics(request: Request) -> Response:
    """Who waits, and who has gone."""
    pool = request.app.state.pool
    counts = {"waiting": pool.waiting, "lent": pool.lent, "busy": pool.busy}
    return JSONResponse({**counts, "cancelled": aiostream.statistics().futures.cancelled})


if __name__ == "__main__":
    timeout, last = [float(each) for each in sys.argv[3:]] or [30.0, 10.0]
    app = model_server.application(streams=1, waiting=1, timeout=timeout, last=last)
    app.routes.extend([Route("/fault", fault), Route("/statistics", statistics)])
    serve = {"uvicorn": model_server.serve_uvicorn, "hypercorn": model_server.serve_hypercorn}
    serve[sys.argv[1]](app, int(sys.argv[2]))
