"""The command line: `python -m aiostream demo`, `doctor` and `blocking`."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from aiostream._base import clash

LOOPS = ("asyncio", "uvloop", "trio")


def _program() -> str:
    """What the user typed: the console script or the module."""
    name = os.path.basename(sys.argv[0])
    return name if name == "aiostream-cuda" else "python -m aiostream"


Parser = argparse.ArgumentParser


def _parsers(version: str) -> tuple[Parser, dict[str, Parser]]:
    """The parser, and that of each command."""
    parser = Parser(prog=_program(), description="Await CUDA streams from asyncio and trio.")
    parser.add_argument("--version", action="version", version=f"aiostream-cuda {version}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    def command(name: str, does: str, more: str, **options: Any) -> Parser:
        description = f"{does[0].upper()}{does[1:]}. {more}"
        return commands.add_parser(name, help=does, description=description, **options)

    demo = command(
        "demo",
        "await six streams at once while a heartbeat runs, and draw what happened",
        "It runs on the GPU if there is one, and otherwise on the simulator. Its first line says "
        "which.",
    )
    demo.add_argument(
        "--html",
        metavar="FILE",
        help="write a timeline for the browser too, to a file that ends with .html",
    )
    demo.add_argument(
        "--loop", choices=LOOPS, default="asyncio", help="the event loop (default: asyncio)"
    )
    doctor = command(
        "doctor",
        "look at this installation, and measure one await",
        "The exit code is 0, or 1 if there are problems. For each problem it prints what you can "
        "do.",
    )
    blocking = command(
        "blocking",
        "run a program, and say which of its lines block an event loop",
        "It prints the ten lines that block longest, by driver calls of any library.",
        usage="%(prog)s [--action ACTION] [--threshold SECONDS] [--simulator] "
        "-- (FILE | -m MODULE) ...",
    )
    blocking.add_argument(
        "--action",
        choices=["count", "warn", "raise"],
        default="count",
        help="count the calls, warn of each place at once, or raise (default: count)",
    )
    blocking.add_argument(
        "--threshold",
        type=float,
        metavar="SECONDS",
        default=0.001,
        help="shorter calls do not count (default: 0.001)",
    )
    for each in (demo, doctor, blocking):
        each.add_argument("--simulator", action="store_true", help="use no GPU, but the simulator")
    blocking.add_argument("program", nargs=argparse.REMAINDER, help="after `--`")
    return parser, commands.choices


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns the process's exit code."""
    # If the other project was installed last, its __init__ has run in place of this package's. This
    # file is still there, so it can say what is wrong.
    found = clash.other_distribution()
    if found is not None:
        print(clash.MESSAGE.format(path=found), file=sys.stderr)
        return 1

    import aiostream
    from aiostream._base import stand_ins

    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115, as after `>&-`
    parser, commands = _parsers(aiostream.__version__)
    of_the_driver = aiostream.CudaError, aiostream.NoDriverError
    try:
        try:
            options, others = parser.parse_known_args(arguments)
            parser = commands.get(options.command, parser)  # its errors show its usage
            if others:
                parser.error(f"unrecognized arguments: {' '.join(others)}")
            stand_ins.says_so = options.command != "blocking"
            if getattr(options, "simulator", False):
                os.environ["AIOSTREAM_SIMULATOR"] = "1"
                stand_ins.install_simulator("--simulator", final=False)
            if options.command != "blocking":
                return _run(parser, options)
        finally:
            sys.stdout.flush()  # at its exit, Python would answer an error with a traceback
    except (OSError, ModuleNotFoundError, ValueError, *of_the_driver) as error:
        said = f"{parser.prog}: {error}"
        if isinstance(error, ModuleNotFoundError):
            if (error.name or "").partition(".")[0] == "cuda":
                remedy = "run `pip install 'cuda-bindings>=12.9.8,<14'`"
                said = f"NVIDIA's bindings are missing ({error}): {remedy}"
            elif error.name != "nogpu":
                raise
        elif isinstance(error, OSError):  # perhaps of stdout, which Python flushes at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # as of `demo | head`
            print(said, file=sys.stderr)
        return 1
    from aiostream._observers import command  # its errors are those of a program

    program = options.program[options.program[:1] == ["--"] :]
    if not program or program == ["-m"]:
        parser.error("which program? For example, `blocking -- app.py`")
    command.run(program, options.action, options.threshold)
    return 0


def _run(parser: Parser, options: argparse.Namespace) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):  # an old terminal lacks some characters
        sys.stdout.reconfigure(errors="replace")
    if options.command is None:
        parser.print_help()
        return 0
    if options.command == "doctor":
        from aiostream._tools import doctor

        return doctor.run()
    if options.loop != "asyncio":
        try:
            importlib.import_module(options.loop)
        except Exception as error:  # an old version may raise anything
            parser.error(f"--loop {options.loop}: {error}: run `pip install -U {options.loop}`")
    from aiostream._tools import demo

    return demo.run(options.loop, options.html)


if __name__ == "__main__":
    raise SystemExit(main())
