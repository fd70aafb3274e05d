"""What looks on: the parts of `aiostream.trace` and of `aiostream.blocking`.

For a trace, `_runtime.observing` reports each step of an await, in the thread of its loop.
`trace_clock` finds when the GPU reached a point, by timing events around the work. `trace_files`
writes the result, and knows no stream. For `blocking`, the forwarding library notes each call of
the driver that blocks, and the thread of `blocked`, the reader, reads the Python frames of the
thread that is held up. `frames` finds the loop among them.

Nothing here is imported before `trace` or `blocking` is used. An await that is observed does what
it does otherwise, and a trace only adds timing events around its work. A call that has blocked is
held until its line is read, for a second at most.
"""
