"""What ends: contexts that are lost, work that hangs, and the program.

`health` is about lost contexts. Whatever thread meets a fatal code first notes it in native code
(`native/engine/failures.c`), which ends the process if the program has asked for that. Otherwise
the janitor reads the note and has the listeners called, one after another, in a thread of their
own. The listeners of hangs are there too, which `_runtime/stalls.py` reports. `ending` waits until
nothing is pending: it asks the counts, so that no wait pays for it.
"""
