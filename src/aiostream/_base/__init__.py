"""What all other storeys stand on: the way to the driver, and the checks of arguments.

Python calls the driver through `driver` alone. It loads cuda-bindings at the first call, and turns
each code of the driver into an exception. Native code gets the driver's addresses from it once, at
the start, and calls them itself. `checks` and `hints` refuse wrong arguments and wrong names before
anything else happens. `turns` finds out which loop runs in this thread. `stand_ins` puts the
simulator, or the library that notes blocking calls, in the driver's place, which has to come before
the driver.

Everything here runs in the thread of its caller, which may be any. Nothing here awaits, starts a
thread, or knows a stream. An import of it loads no driver and no loop but asyncio.
"""
