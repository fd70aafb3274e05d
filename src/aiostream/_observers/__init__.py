"""What looks on: the parts of `aiostream.trace`, `aiostream.metrics` and `aiostream.blocking`.

`awaits` fills in the one hook of the library, and reports each await to `trace` and `metrics`, in
the thread of its loop. `marked` calls an observer around what the user's function enqueues.

For a trace, `trace_clock` finds when the GPU reached a point, by timing events around the work.
`trace_files` writes the result, and knows no stream. For `blocking`, the forwarding library notes
each call of the driver that blocks, and the thread of `blocked`, the reader, reads the Python
frames of the thread that is held up. `frames` finds the loop among them. `command` is
`python -m aiostream blocking`.

Nothing here is imported before one of the three is used, and no module below knows that it exists.
Without this folder and the three, the rest works as it does otherwise. An await that is observed
does what it does otherwise, and a trace only adds timing events around its work. A call that has
blocked is held until its line is read, for a second at most.
"""
