"""A pytest plugin for numba-cuda's tests. `run.py` loads it next to `plugin.py`.

It changes three things:

- numba links its kernels to a cubin, which the simulator refuses. Here the linker links them, and
  then returns the kernel's PTX.
- numba-cuda has disabled its tests of streams, because of a deadlock between the GIL and its
  callbacks. Here they run.
- `Stream.add_callback` reads `handle.value`, which this version's handles do not have.
"""

from __future__ import annotations

from typing import Any

import pytest

import nogpu as simulator


def link_to_ptx() -> None:
    from cuda.core import ObjectCode
    from numba.cuda.cudadrv import driver

    link = driver._Linker.complete

    def complete(linker: Any) -> Any:
        cubin = link(linker)
        fields = vars(linker)
        if fields["_has_ltoir"]:
            code = ObjectCode.from_ptx(linker.get_linked_ptx())
        else:
            texts = [code for code in fields["_object_codes"] if code.code_type == "ptx"]
            if not texts:
                return cubin
            code = texts[0]  # the kernel's own, because numba adds it first
        simulator.register_ptx(code.code)
        return code

    driver._Linker.complete = complete


def read_handles_as_numbers() -> None:
    from numba.cuda.cudadrv import driver

    class Handle(int):
        @property
        def value(self) -> int:
            return int(self)

    add_callback = driver.Stream.add_callback

    def add(stream: Any, callback: Any, arg: Any = None) -> None:
        stream.handle = Handle(int(stream.handle))
        add_callback(stream, callback, arg)

    driver.Stream.add_callback = add


def pytest_configure(config: Any) -> None:
    link_to_ptx()
    read_handles_as_numbers()


def pytest_pycollect_makeitem(collector: Any, name: str, obj: Any) -> None:
    if name == "TestCudaStream":
        obj.__unittest_skip__ = False


@pytest.fixture
def initialize_from_pytest_config() -> None:
    """A fixture that numba-cuda's repository has, and its wheel does not."""
