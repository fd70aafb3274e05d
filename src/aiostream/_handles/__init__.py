"""The driver's streams, events and graphs as the library holds them, its own and those of others.

An object of the public API (`owned`) holds a native `Handle`, which counts the calls that use the
driver's object (`native/engine/handles.c`). The storeys above pass an `Operand` around: the handle,
its context, and where its waits stand. `interop` makes an operand from another library's stream,
event or number.

Each call pins the handle in the thread of its caller, for as long as the driver may use it.
`close()` only refuses new uses, and the last user destroys the object, in its own thread. A
finalizer never calls the driver: what dies open goes to the janitor. A stream that another library
has too is never destroyed, but kept for a later `Stream`.
"""
