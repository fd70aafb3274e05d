"""Builds the two drivers, and the README for package indexes. The rest is in pyproject.toml.

`AIOSTREAM_DEBUG=1` keeps symbols and debug information, for gdb and perf.
"""

import os
import posixpath
import re
import shutil
import tomllib
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

FILES = {"libcuda": "libcuda.so.1", "_forward": "_forward.so"}
"""The libraries' files. They are no Python modules, and know nothing of Python."""

compile_args = ["-std=c11", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden", "-pthread"]
# Its SONAME is what makes cuda-bindings take a library for the driver once it is loaded.
link_args = ["-pthread", "-Wl,-soname,libcuda.so.1"]
if os.environ.get("AIOSTREAM_DEBUG", "0") in ("", "0"):
    compile_args += ["-g0"]  # Python's own flags have -g
    link_args += ["-Wl,-s"]


class BuildPy(build_py):
    """Builds into an empty folder."""

    def run(self) -> None:
        """A wheel takes what an earlier build has left there."""
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class BuildExt(build_ext):
    """Gives the libraries names that are the same for every Python."""

    def copy_extensions_to_source(self) -> None:
        """Of an editable installation. setuptools makes no folder for it."""
        os.makedirs("src/nogpu/lib", exist_ok=True)
        super().copy_extensions_to_source()

    def get_ext_filename(self, name: str) -> str:
        """The path for a dotted name, or the file for its last part."""
        *folders, last = name.split(".")
        return os.path.join(*folders, FILES[last])


class Wheel(bdist_wheel):
    """One wheel for each processor serves every Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """Any Python 3, no ABI of Python."""
        return "py3", "none", super().get_tag()[2]


def library(name: str, folder: str, *link: str) -> Extension:
    """A library of the C files in a folder and those in it. Any header's change builds it again."""
    return Extension(
        name,
        sources=sorted(glob(f"{folder}/**/*.c", recursive=True)),
        depends=sorted(glob("src/nogpu/**/*.h", recursive=True)),
        extra_compile_args=compile_args,
        extra_link_args=[*link_args, *link],
    )


def readme() -> str:
    """The README with absolute links, because a package index has none of the files."""
    root = tomllib.loads(Path("pyproject.toml").read_text())["project"]["urls"]["Repository"]

    def absolute(link: re.Match[str]) -> str:
        return f"]({root}/blob/main/{posixpath.normpath('driver/' + link[1])})"

    return re.sub(r"\]\((?!https?:)([^)]+)\)", absolute, Path("README.md").read_text("utf-8"))


setup(
    cmdclass={"build_ext": BuildExt, "build_py": BuildPy, "bdist_wheel": Wheel},
    ext_modules=[
        library("nogpu.lib.libcuda", "src/nogpu/simulator"),
        # Its forwards are made from the simulator's table of functions. `-Bsymbolic`, because the
        # simulator exports the same names globally.
        library("nogpu._forward", "src/nogpu/forward", "-Wl,-Bsymbolic"),
    ],
    long_description=readme(),
    long_description_content_type="text/markdown",
)
