/* Handles as Python sees them, and the driver calls that need one handle and no more.
 *
 * Each operation of Python's on a stream, event or graph goes through `operate` (engine/handles.h):
 * it pins the handle, asks whether the context is still there, makes it current where that is
 * needed, and calls the driver, without the GIL. A capture is safe from it, because the thread's
 * mode is RELAXED meanwhile, unless the call is harmless. The thread is the caller's. A pin that
 * outlives a step is noted in a list in the same step, because a KeyboardInterrupt may come right
 * after it.
 *
 * A Handle that dies open is abandoned to the janitor (engine/handles.c), because a finalizer may
 * not call the driver. In a forked child every call is refused or does nothing.
 */
#include "module.h"

#include "../engine/stalls.h"

typedef struct {
    PyObject_HEAD
    struct handle *handle;
    PyObject *parent; /* the Handle that a borrowed one pins too; it keeps handle->parent alive */
    bool made_here;   /* the library has made the driver's object, and nothing else owns it */
} HandleObject;

static PyTypeObject *handle_type;

static PyObject *Handle_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs)) {
    int kind, owned, made_here = false;
    unsigned long long value, context;
    if (!PyArg_ParseTuple(args, "iKKp|p", &kind, &value, &context, &owned, &made_here)) return NULL;
    HandleObject *self = (HandleObject *)PyType_GenericAlloc(type, 0);
    if (!self) return NULL;
    Py_BEGIN_ALLOW_THREADS /* it asks the driver for the context's id */
    self->handle = handle_new(kind, (void *)(uintptr_t)value, (void *)(uintptr_t)context, owned);
    Py_END_ALLOW_THREADS
    if (!self->handle) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->made_here = made_here;
    if (self->handle->root && !made_here) graphs_relate(self->handle, NULL);
    return (PyObject *)self;
}

/* A pool does this for each request, so it asks the driver nothing. */
static PyObject *Handle_borrow(PyObject *object, PyObject *Py_UNUSED(unused)) {
    HandleObject *self = (HandleObject *)PyType_GenericAlloc(Py_TYPE(object), 0);
    if (!self) return NULL;
    self->parent = Py_NewRef(object);
    self->handle = handle_borrow(((HandleObject *)object)->handle);
    if (self->handle) return (PyObject *)self;
    Py_DECREF(self);
    return PyErr_NoMemory();
}

/* An owner's object closes its handle before the handle dies. If this one is open, an error or an
 * interrupt came before an object had got it, or it was an event's and replaced. */
static void Handle_dealloc(PyObject *object) {
    HandleObject *self = (HandleObject *)object;
    struct handle *handle = self->handle;
    if (handle && handle->owned && handle_is_open(handle) && !is_child()) {
        if (self->made_here) {
            handle_abandon(handle);
            handle = NULL;
        } else { /* it stays theirs who passed it to from_raw */
            handle_release(handle, true);
        }
    }
    if (handle && !is_child()) handle_unref(handle); /* its locks may be held without an end */
    Py_XDECREF(self->parent);
    free_object(object);
}

/* Python may raise a KeyboardInterrupt as soon as a method has returned. So a pin is noted in a
 * list before that, and the caller's `finally` knows of it. A pin that is lost would keep the
 * handle for the life of the process, and refuse release(). */
static PyObject *Handle_pin(PyObject *self, PyObject *held) {
    struct handle *handle = ((HandleObject *)self)->handle;
    if (refuse_in_child()) return NULL;
    if (!handle_pin(handle)) Py_RETURN_FALSE;
    if (PyList_Append(held, Py_True) < 0) {
        handle_unpin(handle);
        return NULL;
    }
    Py_RETURN_TRUE;
}

/* unpin(held): if the list has an item, it is taken back with the pin, in one step again. */
static PyObject *Handle_unpin(PyObject *self, PyObject *held) {
    if (PyList_Size(held) <= 0) return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    if (PyList_SetSlice(held, 0, 1, NULL) < 0) return NULL;
    unpin_from_python(((HandleObject *)self)->handle);
    Py_RETURN_NONE;
}

static PyObject *Handle_close(PyObject *self, PyObject *Py_UNUSED(unused)) {
    if (refuse_in_child()) return NULL;
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = handle_close(((HandleObject *)self)->handle);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(status);
}

static PyObject *Handle_drop(PyObject *self, PyObject *Py_UNUSED(unused)) {
    bool is_dropped;
    if (is_child()) Py_RETURN_TRUE;
    Py_BEGIN_ALLOW_THREADS
    is_dropped = handle_try_drop(((HandleObject *)self)->handle);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(is_dropped);
}

/* relate(from): this was made of another one just now. */
static PyObject *Handle_relate(PyObject *self, PyObject *from) {
    struct handle *other;
    if (!to_handle(from, &other)) return NULL;
    graphs_relate(((HandleObject *)self)->handle, other);
    Py_RETURN_NONE;
}

static PyObject *Handle_share(PyObject *self, PyObject *Py_UNUSED(unused)) {
    return PyBool_FromLong(handle_share(((HandleObject *)self)->handle));
}

static PyObject *Handle_mark_destroyed(PyObject *self, PyObject *Py_UNUSED(unused)) {
    if (refuse_in_child()) return NULL;
    handle_mark_destroyed(((HandleObject *)self)->handle);
    Py_RETURN_NONE;
}

static PyObject *Handle_hide(PyObject *self, PyObject *Py_UNUSED(unused)) {
    handle_hide(((HandleObject *)self)->handle);
    Py_RETURN_NONE;
}

static PyObject *Handle_release(PyObject *self, PyObject *Py_UNUSED(unused)) {
    if (refuse_in_child()) return NULL;
    return PyBool_FromLong(handle_release(((HandleObject *)self)->handle, false));
}

static PyObject *Handle_value(PyObject *self, void *Py_UNUSED(unused)) {
    return PyLong_FromUnsignedLongLong((uintptr_t)((HandleObject *)self)->handle->value);
}

/* The answer of a function of handles.h, which is the closure. */
static PyObject *is_so(PyObject *self, void *function) {
    bool (*asked)(const struct handle *) = (bool (*)(const struct handle *))function;
    return PyBool_FromLong(asked(((HandleObject *)self)->handle));
}

static PyMethodDef handle_methods[] = {
    /* Another handle of the same thing, which pins this one too, and destroys nothing. */
    METHOD(Handle, borrow, NOARGS),
    /* True, noted in a list, and the handle stays valid until unpin(); False if it was closed. */
    METHOD(Handle, pin, O),
    /* Ends a pin that is in the list, in any thread; the last user of a closed handle destroys
     * it. */
    METHOD(Handle, unpin, O),
    /* Refuses new uses; the driver's code of the destruction, if it happened here. */
    METHOD(Handle, close, NOARGS),
    /* As close(), but what the driver refuses goes to sys.unraisablehook. */
    METHOD(Handle, drop, NOARGS),
    METHOD(Handle, relate, O),
    /* Another library has it: close() no longer destroys. False if it was closed before. */
    METHOD(Handle, share, NOARGS),
    /* The driver destroyed it by itself; new uses are refused. */
    METHOD(Handle, mark_destroyed, NOARGS),
    /* It is the library's own, and no longer counted. Once. */
    METHOD(Handle, hide, NOARGS),
    /* Refuses new uses, unless there is one. False: there is, or it was closed before. */
    METHOD(Handle, release, NOARGS),
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef handle_properties[] = {
    {"value", Handle_value, NULL, "The driver's handle, as an integer.", NULL},
    {"is_open", is_so, NULL, "Whether new uses are accepted.", (void *)handle_is_open},
    {"is_used", is_so, NULL, "Whether a call or a thread uses it.", (void *)handle_is_used},
    /* an event that was recorded on a capturing stream */
    {"is_captured", is_so, NULL, "Whether a capture has it.", (void *)event_is_captured},
    /* then it is retired and not destroyed */
    {"is_shared", is_so, NULL, "Whether another library has it.", (void *)handle_is_shared},
    {NULL, NULL, NULL, NULL, NULL},
};
/* Counts the uses of a driver's stream, event or graph, so that no thread destroys it while
 * another uses it. */
static PyType_Slot handle_slots[] = {
    {Py_tp_new, Handle_new},
    {Py_tp_dealloc, Handle_dealloc},
    {Py_tp_methods, handle_methods},
    {Py_tp_getset, handle_properties},
    {0, NULL},
};

struct handle *as_handle(PyObject *object) {
    if (!PyObject_TypeCheck(object, handle_type)) {
        PyErr_SetString(PyExc_TypeError, "a Handle is needed");
        return NULL;
    }
    return refuse_in_child() ? NULL : ((HandleObject *)object)->handle;
}

int to_handle(PyObject *object, void *handle) {
    return (*(struct handle **)handle = as_handle(object)) != NULL;
}

/* --- driver calls on a handle --- */

static int do_stream_query(struct handle *handle, void *waits) {
    struct call *call = waits ? call_begin(waits) : NULL;
    int status = capture_refusal(handle->value);
    if (!status) status = driver.stream_query(handle->value);
    call_end(call);
    return status;
}

static int do_event_query(struct handle *handle, void *Py_UNUSED(unused)) {
    return event_is_captured(handle) ? CUDA_CAPTURED_EVENT : driver.event_query(handle->value);
}

/* `operate` has asked. */
static int do_gone_refusal(struct handle *Py_UNUSED(handle), void *Py_UNUSED(unused)) {
    return CUDA_SUCCESS;
}

/* The functions of Python that make one call on one handle, and answer its code. */
#define OPERATION(name)                                                                            \
    static PyObject *native_##name(PyObject *Py_UNUSED(self), PyObject *object) {                  \
        struct handle *handle = as_handle(object);                                                 \
        return handle ? PyLong_FromLong(operate_from_python(handle, do_##name, NULL)) : NULL;      \
    }
OPERATION(stream_query)
OPERATION(capture_refusal)
OPERATION(event_query)
OPERATION(gone_refusal)

struct recording {
    struct handle *event, *fresh;
    unsigned flags;
};

/* An event that is recorded on a capturing stream becomes part of the capture. Programs join
 * streams to a capture that way, so it is allowed. */
static int do_event_record(struct handle *stream, void *argument) {
    struct recording *recording = argument;
    return event_record(recording->event, stream->value, recording->flags, &recording->fresh);
}

/* Gives an Operand the handle of a fresh event. Its old Handle goes with the last thread that
 * uses it, and the driver's event with the last wait. */
static int replace_event(PyObject *operand, struct handle *old, struct handle *fresh) {
    HandleObject *made = (HandleObject *)PyType_GenericAlloc(handle_type, 0);
    if (!made) {
        handle_abandon(fresh);
        return -1;
    }
    made->handle = fresh;
    made->made_here = true;
    int failed = PyObject_SetAttrString(operand, "handle", (PyObject *)made);
    /* Another thread has closed the event meanwhile. If it comes later, it sees the new handle. */
    if (!handle_is_open(old)) {
        Py_BEGIN_ALLOW_THREADS
        handle_drop(fresh);
        Py_END_ALLOW_THREADS
    }
    Py_DECREF(made);
    return failed;
}

/* event_record(operand, stream, flags): records an event. If that needs a fresh one, it is made
 * with the flags. It is one step, because with steps of Python in between, another thread's wait
 * could begin after the check, and a KeyboardInterrupt could lose the fresh event. */
static PyObject *native_event_record(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *operand;
    struct handle *stream;
    struct recording recording = {0};
    if (!PyArg_ParseTuple(args, "OO&I", &operand, to_handle, &stream, &recording.flags))
        return NULL;
    PyObject *event = PyObject_GetAttrString(operand, "handle");
    int result = 0, failed = -1;
    if (event && to_handle(event, &recording.event)) {
        result = operate_from_python(stream, do_event_record, &recording);
        failed = recording.fresh ? replace_event(operand, recording.event, recording.fresh) : 0;
    }
    Py_XDECREF(event);
    return failed ? NULL : PyLong_FromLong(result);
}

static PyObject *native_limited_query(PyObject *Py_UNUSED(self), PyObject *args) {
    struct handle *handle;
    struct waits *waits;
    if (!PyArg_ParseTuple(args, "O&O&", to_handle, &handle, to_waits, &waits)) return NULL;
    return PyLong_FromLong(operate_from_python(handle, do_stream_query, waits));
}

PyMethodDef handle_functions[] = {
    /* cuStreamQuery, unless the stream captures. */
    METHOD(native, stream_query, O),
    /* The same, within the limit for stalls of a wait list. */
    METHOD(native, limited_query, VARARGS),
    /* 0, or the negative code that says that the stream captures. */
    METHOD(native, capture_refusal, O),
    /* 0, or 709 if the context of a stream or event was destroyed or reset. */
    METHOD(native, gone_refusal, O),
    /* Records the event of an Operand, which may get a fresh handle: the driver's code. */
    METHOD(native, event_record, VARARGS),
    /* cuEventQuery. */
    METHOD(native, event_query, O),
    {NULL, NULL, 0, NULL},
};

int add_handle_type(PyObject *module) { return ADD_TYPE(module, handle, Handle, 0); }
