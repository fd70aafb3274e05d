"""Runs Python texts, each in a fork of a process that has imported what they need.

A process of its own takes most of its time for its imports. A fork has them at once. Otherwise it
is as a new process is: nothing is imported that starts the driver, and so the library does not know
that there was a fork. (The children of multiprocessing's fork server end by `os._exit`, without
what Python does at its end.) A text that looks at how something is imported, at a variable of the
environment that is read then, or at who registered with `atexit` before an import, needs a new
process.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

MOST = 1 << 17
"""Bytes of a request."""


def serve(descriptor: int, *modules: str) -> str:
    """Imports the modules, and forks for each request. Returns in the fork alone: the text that it
    has to run.
    """
    for module in modules:
        importlib.import_module(module)
    with socket.socket(fileno=descriptor) as requests:
        while True:
            request, outputs, *_ = socket.recv_fds(requests, MOST, 2)
            if not request:
                os._exit(0)
            if (child := os.fork()) == 0:
                for number, output in enumerate(outputs, start=1):
                    os.dup2(output, number)
                    os.close(output)
                wanted = json.loads(request)
                os.environ.clear()
                os.environ.update(wanted["environment"])
                os.chdir(wanted["folder"])
                text: str = wanted["text"]
                return text
            for output in outputs:
                os.close(output)
            requests.send(str(child).encode())
            requests.send(str(os.waitpid(child, 0)[1]).encode())


class Forks:
    """The process that forks, as the tests see it. It ends if a request is not answered."""

    def __init__(self, modules: Sequence[str], environment: dict[str, str]) -> None:
        self._requests, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = f"import forks; exec(forks.serve{(other.fileno(), *modules)})"
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error", "-c", program],
                stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                env=environment,
            )
        atexit.register(self._end)

    def _end(self) -> None:
        self._requests.close()
        self._process.wait()

    def run(
        self, text: str, folder: Any, environment: dict[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        wanted = {"text": text, "folder": str(folder), "environment": environment}
        child = 0
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            request = json.dumps(wanted).encode()
            self._requests.settimeout(timeout)
            try:
                socket.send_fds(self._requests, [request], [out.fileno(), err.fileno()])
                child = int(self._requests.recv(MOST))
                status = int(self._requests.recv(MOST))
            except BaseException as error:  # or pytest's, when the test's own time is up
                # Its answer may still come, and would be taken for that of the next request.
                if child > 0:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(child, signal.SIGKILL)
                self._process.kill()
                if isinstance(error, TimeoutError):
                    raise subprocess.TimeoutExpired(text, timeout) from None
                raise
            out.seek(0)
            err.seek(0)
            code = os.waitstatus_to_exitcode(status)
            return subprocess.CompletedProcess(text, code, out.read(), err.read())
