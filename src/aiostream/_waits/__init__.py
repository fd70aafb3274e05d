"""How a task waits, from the call to the end of its `await`.

`waiting` is the centre. `synchronize_async` begins a wait by one native step, and then does as its
answers say: it polls in each turn of the loop, or sleeps on a future until a timer of the loop or
the watcher hands the wait back or ends it. `enqueuing` calls the user's function and puts a
completion behind its work, also in one native step, so that no KeyboardInterrupt comes in between.
`strategies` are the ways to wait that a user may choose.

The decisions are native (`native/engine/policy.c`), and so is the state of a wait
(`native/engine/wait_inside.h`). All of this runs in the thread of the loop. It never blocks that
thread, unless a host function is enqueued on a full stream. (`synchronize` blocks, and is for
threads without a loop.) A task that leaves drops its wait or orphans its ticket, and the GPU goes
on.

`several` waits for many futures, and `ready` for what only a Python function knows. `pending` lists
what waits, from any thread.
"""
