"""Builds the two compiled parts; everything else is in pyproject.toml."""

import sysconfig
from glob import glob

from setuptools import Extension, setup

# One abi3 wheel serves every ordinary Python >= 3.11. The free-threaded builds have no limited API
# (Python.h says #error), so their wheels are version-specific.
limited = not sysconfig.get_config_var("Py_GIL_DISABLED")
compile_args = ["-std=c11", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden", "-pthread"]

native = Extension(
    "aiostream._native",
    sources=sorted(glob("src/aiostream/native/*.c")),
    depends=sorted(glob("src/aiostream/native/*.h")),
    define_macros=[("Py_LIMITED_API", "0x030b0000")] if limited else [],
    extra_compile_args=compile_args,
    extra_link_args=["-pthread"],
    py_limited_api=limited,
)

# Not a Python module but a CUDA driver: its SONAME is what makes cuda-bindings take it for the real
# one once it is loaded.
simulator = Extension(
    "aiostream.simulator._libcuda",
    sources=sorted(glob("src/aiostream/simulator/*.c")),
    depends=sorted(glob("src/aiostream/simulator/*.h")),
    extra_compile_args=compile_args,
    extra_link_args=["-pthread", "-Wl,-soname,libcuda.so.1"],
    py_limited_api=limited,
)

setup(
    ext_modules=[native, simulator],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if limited else {},
)
