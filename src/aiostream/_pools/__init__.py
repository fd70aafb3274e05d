"""Pools: which stream a task gets, and what happens to a stream that comes back.

A pool's stream is free, held by a task, or busy with what a task has left on it (`pool_places`).
The thread of the loop that uses the pool moves it (`pool_core`), except at the end of a use that
the collector ends, or of a pool that is gone, in any thread. What goes on reports its end: an event
whose ticket the watcher fires, a call that a task has left, or a thread. Then the pool asks for the
stream in that loop.
"""
