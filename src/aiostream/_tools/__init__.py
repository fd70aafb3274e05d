"""The commands of `python -m aiostream`: `demo` and `doctor`. Observers have `blocking`.

`__main__` reads the arguments and calls one of these modules, which runs in the main thread, with a
loop of its own, and prints what it finds. They use the public names as any program does. In
addition to the public API they know `_base.driver`, so that they can say why there is none.

Only `demo` falls back on the simulator by itself, and says so. Nothing of the library imports a
command.
"""
