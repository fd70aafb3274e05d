"""The parts of `Stream` and `Graph`, which inherit or use them.

A method here checks its arguments, pins the stream's handle, and makes one call of the driver, in
the thread of its caller. Those that await do so through `_waits`, in the thread of a loop. `runs`
has the call that a program begins with, `Stream.run`. `threads` lets a worker thread enqueue the
work, and a completion brings its end to the loop.

`captures` notes what the driver does not keep of a capture. A call that would end a capture is
refused before it touches the stream. `shared` gives the stream to other libraries, and from then on
the library never destroys it. No finalizer here calls the driver. If a task leaves `run` early, the
event behind the work keeps the objects until the GPU has passed.
"""
