"""The command line: `python -m aiostream demo`, `doctor`, `bench`, `blocking` and `examples`."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence

from aiostream._base import clash

LOOPS = ("asyncio", "uvloop", "trio")


def _program() -> str:
    """What the user typed: the console script or the module."""
    name = os.path.basename(sys.argv[0])
    return name if name == "aiostream-cuda" else "python -m aiostream"


def _parser(version: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_program(), description="Await CUDA streams from asyncio and trio."
    )
    parser.add_argument("--version", action="version", version=f"aiostream-cuda {version}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="await six streams at once while a heartbeat runs, and draw what happened",
        description="Awaits six streams of different load at once, in one loop, while a heartbeat "
        "task runs, and draws what happened. It runs on the GPU if there is one, and otherwise on "
        "the simulator. The first line says which.",
    )
    demo.add_argument(
        "--html",
        metavar="FILE",
        type=_html_file,
        help="write a timeline for the browser too, to a file that ends with .html",
    )
    doctor = commands.add_parser(
        "doctor",
        help="look at this installation, and measure one await",
        description="Looks at the driver, the devices, the bindings, the loops, other libraries "
        "and the environment, and measures an await. The exit code is 0, or 1 if there are "
        "problems. For each problem it prints what you can do.",
    )
    doctor.add_argument(
        "--json", action="store_true", help="print one JSON object, for issue reports and scripts"
    )
    compare = commands.add_parser(
        "bench",
        help="compare four ways to await the GPU",
        description="Compares four ways to await CUDA work: how late the task goes on, what CPU "
        "the process uses meanwhile, and how much many streams complete. It takes some 20 seconds. "
        "With --simulator it runs on the simulator, and its figures say nothing about a GPU.",
    )
    for each in (demo, compare):
        each.add_argument(
            "--loop", choices=LOOPS, default="asyncio", help="the event loop (default: asyncio)"
        )
    compare.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object: for each length the seconds late and the cores of CPU, and "
        "for the streams the completions per second and the cores",
    )
    compare.add_argument(
        "--quick", action="store_true", help="as little as shows that it works: a second"
    )
    for each in (demo, doctor, compare):
        each.add_argument("--simulator", action="store_true", help="use no GPU, but the simulator")
    blocking = commands.add_parser(
        "blocking",
        help="run a program, and say which of its lines block an event loop",
        description="Runs a program, and prints the ten lines that have blocked an event loop "
        "longest, by driver calls of any library. Use it as `blocking -- app.py arguments`, or "
        "`blocking -- -m module arguments`.",
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
    blocking.add_argument("program", nargs=argparse.REMAINDER, help="after `--`")
    examples = commands.add_parser("examples", help="list the example programs, or copy some")
    examples.add_argument("names", nargs="*", metavar="NAME", help="copy this one to this folder")
    return parser


def _html_file(name: str) -> str:
    if not name.endswith(".html"):
        raise argparse.ArgumentTypeError(f"the file's name ends with .html, unlike {name!r}")
    return name


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns the process's exit code."""
    # If the other project was installed last, its __init__ has run in place of this package's. This
    # file is still there, so it can say what is wrong.
    found = clash.other_distribution()
    if found is not None:
        print(clash.MESSAGE.format(path=found), file=sys.stderr)
        return 1

    import aiostream

    parser = _parser(aiostream.__version__)
    options = parser.parse_args(arguments)
    if options.command == "blocking":  # outside of the next block, because its errors are its own
        from aiostream._tools import blocking_command

        program = options.program[options.program[:1] == ["--"] :]
        if not program or program == ["-m"]:
            parser.error("blocking: which program? For example, `blocking -- app.py`")
        blocking_command.run(program, options.action, options.threshold)
        return 0
    try:
        code = _run(parser, options)
        sys.stdout.flush()  # at its exit, Python would answer an error with a traceback
        return code
    except OSError as error:  # of stdout, or of a file that the environment names
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # as of `demo | head`
            print(f"{parser.prog} {options.command}: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if error.name == "nogpu":
            print(f"{parser.prog} {options.command}: {error}", file=sys.stderr)
            return 1
        if (error.name or "").partition(".")[0] != "cuda":
            raise
        print(
            f"NVIDIA's bindings are missing ({error}): run "
            "`pip install 'cuda-bindings>=12.9.8,<14'`",
            file=sys.stderr,
        )
        return 1


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    if options.command is None:
        parser.print_help()
        return 0
    if options.command == "examples":
        from aiostream._tools import examples

        return examples.run(options.names)
    from aiostream._base import stand_ins

    stand_ins.says_so = True
    if options.simulator:
        os.environ["AIOSTREAM_SIMULATOR"] = "1"
        stand_ins.install_simulator("--simulator", final=False)
    if options.command == "doctor":
        from aiostream._tools import doctor as _doctor

        return _doctor.run(as_json=options.json)
    if options.loop != "asyncio" and importlib.util.find_spec(options.loop) is None:
        parser.error(f"--loop {options.loop}: it is not installed; `pip install {options.loop}`")
    if options.command == "bench":
        from aiostream._tools import bench

        return bench.run(options.loop, quick=options.quick, as_json=options.json)
    from aiostream._tools import demo as _demo

    return _demo.run(options.loop, options.html)


if __name__ == "__main__":
    raise SystemExit(main())
