"""Builds the compiled parts, and the README for package indexes. The rest is in pyproject.toml.

`AIOSTREAM_DEBUG=1` keeps symbols, debug information and unwind tables, for gdb and perf.
"""

import os
import re
import shutil
import sys
import sysconfig
import tomllib
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

# An abi3 wheel serves the ordinary Python that builds it and all later ones. Not earlier ones, and
# so the published wheels come from 3.11: from 3.12 on, `None` is immortal, and Python.h's
# Py_RETURN_NONE takes no reference to it, also if it is asked for the limited API of 3.11. Python
# 3.11 would die of that. The free-threaded builds have no limited API (Python.h says #error), so
# their wheels are version-specific.
limited = not sysconfig.get_config_var("Py_GIL_DISABLED")
version = sys.version_info
compile_args = ["-std=c11", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden", "-pthread"]
link_args = ["-pthread"]
if os.environ.get("AIOSTREAM_DEBUG", "0") in ("", "0"):
    # Python's own flags have -g. The unwind tables, a sixth of the library, are for debuggers too.
    compile_args += ["-g0", "-fno-asynchronous-unwind-tables"]
    link_args += ["-Wl,-s"]

native = Extension(
    "aiostream._native",
    sources=sorted(glob("src/aiostream/native/*/*.c")),
    depends=sorted(glob("src/aiostream/native/*/*.h")),
    define_macros=[("Py_LIMITED_API", f"0x03{version.minor:02x}0000")] if limited else [],
    extra_compile_args=compile_args,
    extra_link_args=link_args,
    py_limited_api=limited,
)


def readme() -> str:
    """The README with absolute links, because a package index has none of the files."""
    root = tomllib.loads(Path("pyproject.toml").read_text())["project"]["urls"]["Repository"]

    def absolute(link: re.Match[str]) -> str:
        before, target = link.groups()
        view = "raw" if target.endswith((".png", ".svg")) else "blob"
        return before + root + (target if target[0] == "#" else f"/{view}/main/{target}")

    relative = r"(\]\(|(?:src|srcset|href)=\")(?!https?:)([^)\"]+)"
    return re.sub(relative, absolute, Path("README.md").read_text(encoding="utf-8"))


class BuildPy(build_py):
    """Builds into an empty folder."""

    def run(self) -> None:
        """A wheel takes what an earlier build has left there."""
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


setup(
    cmdclass={"build_py": BuildPy},
    ext_modules=[native],
    long_description=readme(),
    long_description_content_type="text/markdown",
    options={"bdist_wheel": {"py_limited_api": f"cp3{version.minor}"}} if limited else {},
)
