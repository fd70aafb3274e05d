"""What the process has once: the library's threads, and a bridge into each running loop.

The first use starts all of it (`process.start`). From then on arrivals flow one way. The driver's
thread or the watcher pushes what has ended on the native queue of the loop that waits, and wakes
that loop. The loop's thread drains the queue (`loops`), settles its futures, and lets go of what
they kept alive.

What comes for a closed loop or a cancelled future goes to the janitor instead. A destructor of the
user's may block, so the janitor gives kept objects to the releaser's thread, which drops them. The
janitor also closes what finalizers have left, and starts the thread that calls the listeners, one
after another.

Of the library's Python, the driver's thread runs `HostFunction.run` alone. No future gets a result
or an error outside the thread of its loop. `completion` says what a completion needs of a future,
`observing` is the hook for what looks on, `statistics` adds up the counts, `stalls` has the
listeners hear of what does not come back.
"""
