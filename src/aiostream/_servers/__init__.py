"""What a server needs in addition to streams: pools, lost contexts, the end of a program.

A pool's stream is free, held by a task, or busy with what a task has left on it (`pool_core`). The
thread of the loop that uses the pool alone moves it. When the GPU has done the rest, the watcher
fires a ticket, and the drain of that loop has the pool ask for the stream.

`health` is about lost contexts. Whatever thread meets a fatal code first notes it in native code
(`native/engine/failures.c`), which ends the process if the program has asked for that. Otherwise
the janitor reads the note and has the listeners called, one after another, in a thread of their
own. `ending` waits until nothing is pending: it asks the counts, so that no wait pays for it.
"""
