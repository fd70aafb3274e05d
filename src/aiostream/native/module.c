/* The Python face of the native part: `aiostream._native`. Limited API, so that one wheel serves every Python >= 3.11. Every
 * function here releases the GIL round a driver call; the driver's threads come to Python only through python_dispatch() of
 * module_process.c, for the user's own Python host functions.
 */
#include "module.h"

#include <errno.h>

#include "waits.h"

/* ---------------------------------------------------------------- Handle */

typedef struct {
    PyObject_HEAD
    struct handle *handle;
    PyObject *parent; /* the Handle that a borrowed one pins too; keeps handle->parent alive */
} HandleObject;

static PyTypeObject *handle_type;

static PyObject *Handle_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"kind", "value", "context", "owned", "needs_context", "parent", NULL};
    int kind, owned, needs_context;
    unsigned long long value, context;
    PyObject *parent = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iKKpp|O", names, &kind, &value, &context, &owned, &needs_context, &parent))
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    HandleObject *self = (HandleObject *)allocate(type, 0);
    if (!self) return NULL;
    bool borrowed = parent != Py_None;
    self->parent = borrowed ? Py_NewRef(parent) : NULL;
    self->handle = handle_new(kind, (void *)(uintptr_t)value, (void *)(uintptr_t)context, owned, needs_context,
                              borrowed ? ((HandleObject *)parent)->handle : NULL);
    if (!self->handle) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void Handle_dealloc(PyObject *object) {
    HandleObject *self = (HandleObject *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->handle) handle_unref(self->handle);
    Py_XDECREF(self->parent);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

/* What this thread has pinned and not yet unpinned: to wait for the end of one of these would be to wait for itself. What does not
 * fit is not found, and waited for. */
static _Thread_local struct {
    const struct handle *handles[32];
    int count;
} own_pins;

static bool is_pinned_here(const struct handle *handle) {
    for (int i = 0; i < own_pins.count; i++)
        if (handle_is_part_of(own_pins.handles[i], handle)) return true;
    return false;
}

static void note_unpinned(const struct handle *handle) {
    int i = own_pins.count - 1;
    while (i >= 0 && own_pins.handles[i] != handle) i--;
    if (i >= 0) own_pins.handles[i] = own_pins.handles[--own_pins.count];
}

/* Python may raise a KeyboardInterrupt as soon as a method has returned. So a pin is noted in a list before that, and the caller's
 * `finally` knows of it. A pin that is lost keeps the handle for ever, and blocks release(). */
static int pin_noted(struct handle *handle, PyObject *held) {
    if (!handle_pin(handle)) return 0;
    if (PyList_Append(held, Py_True) == 0) return 1;
    handle_unpin(handle);
    return -1;
}

static PyObject *Handle_pin(PyObject *self, PyObject *held) {
    struct handle *handle = ((HandleObject *)self)->handle;
    if (refuse_in_child()) return NULL;
    int pinned = pin_noted(handle, held);
    if (pinned < 0) return NULL;
    if (pinned && own_pins.count < (int)(sizeof own_pins.handles / sizeof *own_pins.handles))
        own_pins.handles[own_pins.count++] = handle;
    return PyBool_FromLong(pinned);
}

static PyObject *Handle_unpin(PyObject *self, PyObject *unused) {
    (void)unused;
    struct handle *handle = ((HandleObject *)self)->handle;
    if (is_child()) Py_RETURN_NONE; /* of a fork in between: the last user would destroy it */
    note_unpinned(handle);
    Py_BEGIN_ALLOW_THREADS
    handle_unpin(handle);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *Handle_hold(PyObject *self, PyObject *held) {
    if (refuse_in_child()) return NULL;
    int pinned = pin_noted(((HandleObject *)self)->handle, held);
    return pinned < 0 ? NULL : PyBool_FromLong(pinned);
}

static PyObject *Handle_let_go(PyObject *self, PyObject *unused) {
    (void)unused;
    if (is_child()) Py_RETURN_NONE;
    Py_BEGIN_ALLOW_THREADS
    handle_unpin(((HandleObject *)self)->handle);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *Handle_close(PyObject *self, PyObject *unused) {
    (void)unused;
    if (refuse_in_child()) return NULL;
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = handle_close(((HandleObject *)self)->handle);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(status);
}

static PyObject *Handle_drop(PyObject *self, PyObject *unused) {
    (void)unused;
    if (is_child()) Py_RETURN_NONE;
    Py_BEGIN_ALLOW_THREADS
    handle_drop(((HandleObject *)self)->handle);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *Handle_share(PyObject *self, PyObject *unused) {
    (void)unused;
    return PyBool_FromLong(handle_share(((HandleObject *)self)->handle));
}

static PyObject *Handle_mark_destroyed(PyObject *self, PyObject *unused) {
    (void)unused;
    if (refuse_in_child()) return NULL;
    handle_mark_destroyed(((HandleObject *)self)->handle);
    Py_RETURN_NONE;
}

static PyObject *Handle_release(PyObject *self, PyObject *unused) {
    (void)unused;
    struct handle *handle = ((HandleObject *)self)->handle;
    if (refuse_in_child()) return NULL;
    if (is_pinned_here(handle)) {
        PyErr_SetString(PyExc_RuntimeError, "this thread itself is using the handle, as in the function that enqueue_async calls: give it "
                                            "away after that call");
        return NULL;
    }
    if (!handle_release_begin(handle)) Py_RETURN_FALSE;
    for (bool over = false; !over;) {
        Py_BEGIN_ALLOW_THREADS
        over = handle_release_await(handle);
        Py_END_ALLOW_THREADS
        if (!over && PyErr_CheckSignals() < 0) {
            handle_release_cancel(handle); /* Ctrl-C: it is the caller's as before */
            return NULL;
        }
    }
    handle_release_end(handle);
    Py_RETURN_TRUE;
}

static PyObject *Handle_value(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromUnsignedLongLong((uintptr_t)handle_value(((HandleObject *)self)->handle));
}

static PyObject *Handle_is_open(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(handle_is_open(((HandleObject *)self)->handle));
}

static PyObject *Handle_is_shared(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(handle_is_shared(((HandleObject *)self)->handle));
}

static PyObject *Handle_is_used(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(handle_is_used(((HandleObject *)self)->handle));
}

static PyMethodDef handle_methods[] = {
    {"pin", Handle_pin, METH_O, "True, noted in a list, and the handle stays valid until unpin(); False if it was closed."},
    {"unpin", Handle_unpin, METH_NOARGS, "Ends one pin, in its thread; the last user of a closed handle destroys it."},
    {"hold", Handle_hold, METH_O, "As pin(), until let_go() in any thread."},
    {"let_go", Handle_let_go, METH_NOARGS, "As unpin(), for hold()."},
    {"close", Handle_close, METH_NOARGS, "Refuses new uses; the driver's code of the destruction, if it happened here."},
    {"drop", Handle_drop, METH_NOARGS, "As close(), but what the driver refuses goes to sys.unraisablehook."},
    {"share", Handle_share, METH_NOARGS, "Another library has it: close() no longer destroys. False if it was closed before."},
    {"mark_destroyed", Handle_mark_destroyed, METH_NOARGS, "The driver destroyed it by itself; new uses are refused."},
    {"release", Handle_release, METH_NOARGS, "Refuses new uses and waits for the last; interruptible. False if it was closed before."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef handle_properties[] = {
    {"value", Handle_value, NULL, "The driver's handle, as an integer.", NULL},
    {"is_open", Handle_is_open, NULL, "Whether new uses are accepted.", NULL},
    {"is_used", Handle_is_used, NULL, "Whether a call is using it, or a thread of enqueue_in_thread.", NULL},
    {"is_shared", Handle_is_shared, NULL, "Whether another library has it too: then it is retired and not destroyed.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot handle_slots[] = {
    {Py_tp_new, Handle_new},         {Py_tp_dealloc, Handle_dealloc},
    {Py_tp_methods, handle_methods}, {Py_tp_getset, handle_properties},
    {Py_tp_doc, "Counts the uses of a driver's stream, event or graph, so that nobody destroys it under another."},
    {0, NULL},
};
static PyType_Spec handle_spec = {"aiostream._native.Handle", sizeof(HandleObject), 0, Py_TPFLAGS_DEFAULT, handle_slots};

struct handle *as_handle(PyObject *object) {
    if (!PyObject_TypeCheck(object, handle_type)) {
        PyErr_SetString(PyExc_TypeError, "a Handle is needed");
        return NULL;
    }
    return refuse_in_child() ? NULL : ((HandleObject *)object)->handle;
}

static int operate_in_context(struct handle *handle, handle_operation operation, void *argument) {
    bool entered;
    failed_forget();
    int refusal = handle_enter_context(handle, &entered);
    if (refusal) return refusal;
    int result = operation(handle, argument);
    handle_leave_context(entered);
    return result;
}

static int operate_pinned(struct handle *handle, handle_operation operation, void *argument) {
    int mode = relaxed_enter();
    int result = operate_in_context(handle, operation, argument);
    relaxed_leave(mode);
    return result;
}

int operate_pinned_as_is(struct handle *handle, handle_operation operation, void *argument) {
    return operate_in_context(handle, operation, argument);
}

int operate_as_is(struct handle *handle, handle_operation operation, void *argument) {
    if (!handle_pin(handle)) return RESULT_CLOSED;
    int result = operate_in_context(handle, operation, argument);
    handle_unpin(handle);
    return result;
}

int operate(struct handle *handle, handle_operation operation, void *argument) {
    if (!handle_pin(handle)) return RESULT_CLOSED;
    int result = operate_pinned(handle, operation, argument);
    handle_unpin(handle);
    return result;
}

static PyObject *operate_from_python(PyObject *object, handle_operation operation, void *argument) {
    struct handle *handle = as_handle(object);
    if (!handle) return NULL;
    int result;
    Py_BEGIN_ALLOW_THREADS
    result = operate(handle, operation, argument);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(result);
}

static int do_stream_query(struct handle *handle, void *unused) {
    (void)unused;
    int refusal = capture_refusal(handle_value(handle));
    return refusal ? refusal : driver.stream_query(handle_value(handle));
}
static int do_stream_synchronize(struct handle *handle, void *unused) {
    (void)unused;
    int refusal = capture_refusal(handle_value(handle));
    return refusal ? refusal : driver.stream_synchronize(handle_value(handle));
}
static int do_capture_refusal(struct handle *handle, void *unused) {
    (void)unused;
    return capture_refusal(handle_value(handle));
}
static int do_event_query(struct handle *handle, void *unused) {
    (void)unused;
    return driver.event_query(handle_value(handle));
}
static int do_event_synchronize(struct handle *handle, void *unused) {
    (void)unused;
    return driver.event_synchronize(handle_value(handle));
}

static PyObject *native_stream_query(PyObject *self, PyObject *handle) {
    (void)self;
    return operate_from_python(handle, do_stream_query, NULL);
}
static PyObject *native_stream_synchronize(PyObject *self, PyObject *handle) {
    (void)self;
    return operate_from_python(handle, do_stream_synchronize, NULL);
}
static PyObject *native_capture_refusal(PyObject *self, PyObject *handle) {
    (void)self;
    return operate_from_python(handle, do_capture_refusal, NULL);
}
static PyObject *native_event_query(PyObject *self, PyObject *handle) {
    (void)self;
    return operate_from_python(handle, do_event_query, NULL);
}
static PyObject *native_event_synchronize(PyObject *self, PyObject *handle) {
    (void)self;
    return operate_from_python(handle, do_event_synchronize, NULL);
}

struct recording {
    struct handle *event;
    struct context *context; /* the event's */
    unsigned flags;
    bool captured;
};

/* An event recorded on a capturing stream becomes part of the capture, which is how streams are joined to one: allowed, and
 * told, because such an event may never be queried. */
static int do_event_record(struct handle *stream, void *argument) {
    struct recording *recording = argument;
    void *value = handle_value(stream);
    int refusal = capture_refusal(value);
    if (refusal > 0 || refusal == -906) return refusal; /* 906: touching the legacy stream would end the other's capture */
    if (!handle_pin(recording->event)) return RESULT_CLOSED;
    int status = wait_snapshot_before_record(recording->context, recording->event);
    if (status == CUDA_SUCCESS) status = driver.event_record(handle_value(recording->event), value, recording->flags);
    handle_unpin(recording->event);
    recording->captured = refusal < 0 || capture_refusal(value) < 0;
    return status;
}

static PyObject *native_event_record(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *event, *stream;
    struct recording recording = {0};
    int context_id;
    if (!PyArg_ParseTuple(args, "OOIi", &event, &stream, &recording.flags, &context_id)) return NULL;
    recording.context = as_context(context_id);
    if (!recording.context) return NULL;
    struct handle *stream_handle = as_handle(stream);
    recording.event = as_handle(event);
    if (!stream_handle || !recording.event) return NULL;
    int result;
    Py_BEGIN_ALLOW_THREADS
    result = operate(stream_handle, do_event_record, &recording);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("iN", result, PyBool_FromLong(recording.captured));
}

/* Calls a function with a stream's context current, and appends its result to a list. One step, because a KeyboardInterrupt may
 * come between any two of Python: then the context would stay current, or the result be freed while the GPU uses it. */
static PyObject *native_call_in_context(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *stream, *function, *results;
    if (!PyArg_ParseTuple(args, "OOO!", &stream, &function, &PyList_Type, &results)) return NULL;
    struct handle *handle = as_handle(stream);
    if (!handle) return NULL;
    int status = driver.ctx_push(handle_context(handle)); /* its caller has asked for the context's health */
    if (status != CUDA_SUCCESS) return PyLong_FromLong(status);
    PyObject *result = PyObject_CallNoArgs(function);
    bool kept = result && PyList_Append(results, result) == 0;
    Py_XDECREF(result);
    void *popped;
    if (!is_child()) driver.ctx_pop(&popped);
    return kept ? PyLong_FromLong(CUDA_SUCCESS) : NULL;
}

/* ---------------------------------------------------------------- points and queues */

struct queue *as_queue(int index) {
    struct queue *queue = queue_at(index);
    if (!queue) PyErr_Format(PyExc_ValueError, "there is no queue %d", index);
    return queue;
}

/* queue_open(owner): appends the number to a list, and gives the descriptor. One step, because a KeyboardInterrupt before the caller
 * has stored the number would leave the queue to nobody. */
static PyObject *native_queue_open(PyObject *self, PyObject *owner) {
    (void)self;
    if (refuse_in_child()) return NULL;
    if (!PyList_Check(owner)) return PyErr_Format(PyExc_TypeError, "a list is needed, which will own the queue");
    struct queue *queue = queue_open();
    if (!queue) return PyErr_SetFromErrno(PyExc_OSError);
    if (append_number(owner, PyLong_FromLong(queue_index(queue)))) return PyLong_FromLong(queue_descriptor(queue));
    queue_close(queue);
    return NULL;
}

static PyObject *native_queue_close(PyObject *self, PyObject *args) {
    (void)self;
    int index;
    if (!PyArg_ParseTuple(args, "i", &index)) return NULL;
    struct queue *queue = as_queue(index);
    if (!queue) return NULL;
    if (is_child()) Py_RETURN_NONE; /* another thread of the parent may have held a lock at the fork */
    waits_leave_loop(queue);
    queue_close(queue);
    Py_RETURN_NONE;
}

static PyObject *native_queue_wake(PyObject *self, PyObject *args) {
    (void)self;
    int index;
    if (!PyArg_ParseTuple(args, "i", &index)) return NULL;
    struct queue *queue = as_queue(index);
    if (!queue) return NULL;
    queue_wake(queue);
    Py_RETURN_NONE;
}

static PyObject *native_context_register(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long handle, identity, stream;
    int device;
    if (!PyArg_ParseTuple(args, "KKKi", &handle, &identity, &stream, &device)) return NULL;
    bool is_taken;
    void *private_stream = (void *)(uintptr_t)stream;
    struct context *context = context_register((void *)(uintptr_t)handle, identity, private_stream, device, &is_taken);
    if (!context)
        return PyErr_Format(PyExc_RuntimeError,
                            "this process has used %d CUDA contexts, destroyed ones included, and aiostream can watch no more: use a "
                            "context for longer, or a new process", MAX_CONTEXTS);
    return Py_BuildValue("iN", context_index(context), PyBool_FromLong(is_taken));
}

struct context *as_context(int index) {
    struct context *context = context_at(index);
    if (!context) PyErr_Format(PyExc_ValueError, "there is no context %d", index);
    return context;
}

/* Owns a reserved ticket until it is armed: a KeyboardInterrupt may come before Python has stored the number, and a slot that stays
 * reserved would keep its queue from being used again. */
typedef struct {
    PyObject_HEAD
    uint64_t number;
} TicketObject;

static PyTypeObject *ticket_type;

static void Ticket_dealloc(PyObject *object) {
    uint64_t number = ((TicketObject *)object)->number;
    PyTypeObject *type = Py_TYPE(object);
    if (number && !is_child()) point_unreserve(number); /* nothing if it was armed, or given back */
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyObject *Ticket_number(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromUnsignedLongLong(((TicketObject *)self)->number);
}

static PyGetSetDef ticket_properties[] = {
    {"number", Ticket_number, NULL, "What the driver is given.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot ticket_slots[] = {
    {Py_tp_dealloc, Ticket_dealloc},
    {Py_tp_getset, ticket_properties},
    {Py_tp_doc, "A reserved ticket, given back unless it is armed."},
    {0, NULL},
};
static PyType_Spec ticket_spec = {"aiostream._native.Ticket", sizeof(TicketObject), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, ticket_slots};

static PyObject *native_reserve(PyObject *self, PyObject *args) {
    (void)self;
    int queue_number, context_id, kind;
    if (!PyArg_ParseTuple(args, "iii", &queue_number, &context_id, &kind) || refuse_in_child()) return NULL;
    struct queue *queue = as_queue(queue_number);
    struct context *context = queue ? as_context(context_id) : NULL;
    if (!context) return NULL;
    if ((kind == KIND_PYTHON_HOST || kind == KIND_PYTHON_CALLBACK) && refuse_at_exit()) return NULL;
    TicketObject *ticket = PyObject_New(TicketObject, ticket_type);
    if (!ticket) return NULL;
    ticket->number = point_reserve(queue, context, kind);
    if (ticket->number) return (PyObject *)ticket;
    Py_DECREF(ticket);
    return PyErr_NoMemory();
}

static PyObject *native_set_foreign(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long ticket, function, data;
    if (!PyArg_ParseTuple(args, "KKK", &ticket, &function, &data)) return NULL;
    point_set_foreign(ticket, (host_function)(uintptr_t)function, (void *)(uintptr_t)data);
    Py_RETURN_NONE;
}

static PyObject *native_set_sync_mode(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long ticket;
    int mode;
    if (!PyArg_ParseTuple(args, "Ki", &ticket, &mode)) return NULL;
    point_set_sync_mode(ticket, mode);
    Py_RETURN_NONE;
}

static PyObject *native_is_live(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long ticket;
    if (!PyArg_ParseTuple(args, "K", &ticket)) return NULL;
    return PyBool_FromLong(point_is_live(ticket));
}

static PyObject *native_unreserve(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long ticket;
    if (!PyArg_ParseTuple(args, "K", &ticket)) return NULL;
    if (!is_child()) point_unreserve(ticket);
    Py_RETURN_NONE;
}

static int do_arm(struct handle *stream, void *argument) { return point_arm(*(uint64_t *)argument, handle_value(stream)); }

static PyObject *native_arm(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *object;
    unsigned long long number;
    int pinned;
    if (!PyArg_ParseTuple(args, "OKp", &object, &number, &pinned)) return NULL;
    struct handle *handle = as_handle(object);
    if (!handle) return NULL;
    uint64_t ticket = number;
    int result;
    Py_BEGIN_ALLOW_THREADS
    result = pinned ? operate_pinned(handle, do_arm, &ticket) : operate(handle, do_arm, &ticket);
    point_unreserve(ticket); /* if it never came to arming */
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(result);
}

/* ---------------------------------------------------------------- the ledger */

bool append_number(PyObject *list, PyObject *number) {
    if (!number) return false;
    int failed = PyList_Append(list, number);
    Py_DECREF(number);
    return failed == 0;
}

static PyObject *native_counters(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < COUNTERS; i++)
        if (!append_number(list, PyLong_FromLongLong(atomic_load(&counters[i])))) Py_CLEAR(list);
    return list;
}

static PyObject *native_pending(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    return PyLong_FromLongLong(points_pending());
}

static PyObject *native_captured(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    return PyLong_FromLongLong(points_captured());
}

static PyObject *native_count(PyObject *self, PyObject *args) {
    (void)self;
    int counter, amount;
    if (!PyArg_ParseTuple(args, "ii", &counter, &amount)) return NULL;
    if (counter < 0 || counter >= COUNTERS) return PyErr_Format(PyExc_ValueError, "there is no counter %d", counter);
    atomic_fetch_add(&counters[counter], amount);
    Py_RETURN_NONE;
}

/* Setting the outcome of a future and counting it is one step, because a KeyboardInterrupt may come between any two steps of
 * Python. */
static PyObject *native_set_state(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *record, *state;
    int counter;
    if (!PyArg_ParseTuple(args, "OOi", &record, &state, &counter)) return NULL;
    if (counter < 0 || counter >= COUNTERS) return PyErr_Format(PyExc_ValueError, "there is no counter %d", counter);
    if (PyObject_SetAttrString(record, "state", state) < 0) return NULL;
    atomic_fetch_add(&counters[counter], 1);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"queue_open", native_queue_open, METH_O, "A completion queue: appends its number to the list that owns it; its descriptor."},
    {"queue_close", native_queue_close, METH_VARARGS, "What is on it and what still comes goes to the orphans' queue."},
    {"queue_wake", native_queue_wake, METH_VARARGS, "Makes the queue's descriptor readable."},
    {"call_in_context", native_call_in_context, METH_VARARGS, "Calls f() in a stream's context, appends its result: the driver's code."},
    {"context_register", native_context_register, METH_VARARGS, "(number, whether the watcher took the idle stream): it does not if it knows the context."},
    {"reserve", native_reserve, METH_VARARGS, "A ticket for a point that will be armed."},
    {"set_foreign", native_set_foreign, METH_VARARGS, "The native function that a KIND_FOREIGN ticket runs."},
    {"set_sync_mode", native_set_sync_mode, METH_VARARGS, "How the GPU waits for a ticket's host function: needs _v2."},
    {"unreserve", native_unreserve, METH_VARARGS, "Gives back a ticket that was reserved and not armed."},
    {"is_live", native_is_live, METH_VARARGS, "Whether the driver may still come to a ticket, or its consumer has yet to."},
    {"arm", native_arm, METH_VARARGS, "Enqueues a ticket's host function; 0, a driver code, or a negative refusal."},
    {"stream_query", native_stream_query, METH_O, "cuStreamQuery, unless the stream captures."},
    {"stream_synchronize", native_stream_synchronize, METH_O, "cuStreamSynchronize, unless the stream captures."},
    {"capture_refusal", native_capture_refusal, METH_O, "0, or the negative code that says that the stream captures."},
    {"event_record", native_event_record, METH_VARARGS, "(code, captured)."},
    {"event_query", native_event_query, METH_O, "cuEventQuery."},
    {"event_synchronize", native_event_synchronize, METH_O, "cuEventSynchronize."},
    {"counters", native_counters, METH_NOARGS, "All counters, in the order of base.h."},
    {"pending", native_pending, METH_NOARGS, "The points that are armed now, counted one by one."},
    {"captured", native_captured, METH_NOARGS, "Of these, the host functions that live in graphs."},
    {"count", native_count, METH_VARARGS, "Adds to a counter."},
    {"set_state", native_set_state, METH_VARARGS, "Sets a record's state and counts it, in one step."},
    {NULL, NULL, 0, NULL},
};

static const struct {
    const char *name;
    int value;
} constants[] = {
    {"KIND_HOST_FUNCTION", KIND_HOST_FUNCTION}, {"KIND_CALLBACK", KIND_CALLBACK},
    {"KIND_PYTHON_HOST", KIND_PYTHON_HOST}, {"KIND_PYTHON_CALLBACK", KIND_PYTHON_CALLBACK},
    {"KIND_FOREIGN", KIND_FOREIGN}, {"HANDLE_STREAM", HANDLE_STREAM}, {"HANDLE_EVENT", HANDLE_EVENT},
    {"HANDLE_GRAPH", HANDLE_GRAPH}, {"HANDLE_GRAPH_EXEC", HANDLE_GRAPH_EXEC},
    {"FIRST_TICKET", FIRST_TICKET}, {"TURN_YIELD", TURN_YIELD}, {"TURN_BEGAN", TURN_BEGAN},
    {"RESULT_CLOSED", RESULT_CLOSED}, {"RESULT_NO_MEMORY", RESULT_NO_MEMORY},
    {"STATUS_UNKNOWN", STATUS_UNKNOWN}, {"STATUS_NEAR", STATUS_NEAR}, {"STAGE_TASK", STAGE_TASK}, {"STAGE_WATCHER", STAGE_WATCHER},
    {"WAIT_AUTO", WAIT_AUTO}, {"WAIT_EVENT", WAIT_EVENT}, {"WAIT_SPIN", WAIT_SPIN},
    {"WAITS_READY", WAITS_READY}, {"WAITS_SPUN", WAITS_SPUN}, {"WAITS_HANDED_BACK", WAITS_HANDED_BACK},
    {"WAITS_BY_TIMER", WAITS_BY_TIMER}, {"WAITS_WATCHED", WAITS_WATCHED}, {"POINT_SLOTS", POINT_SLOTS},
    {"EVENT_POLLS", EVENT_POLLS}, {"EVENT_PASSES", EVENT_PASSES}, {"RESULT_QUARANTINED", RESULT_QUARANTINED},
    {"RESULT_CAPTURING", RESULT_CAPTURING}, {"POINTS_ARMED", POINTS_ARMED}, {"POINTS_FIRED", POINTS_FIRED},
    {"POINTS_LEAKED", POINTS_LEAKED}, {"POINTS_STALE", POINTS_STALE}, {"POINTS_QUARANTINED", POINTS_QUARANTINED},
    {"HOST_FUNCTIONS_LATE", HOST_FUNCTIONS_LATE}, {"WATCHER_PASSES", WATCHER_PASSES}, {"HANDLES_CREATED", HANDLES_CREATED},
    {"HANDLES_DESTROYED", HANDLES_DESTROYED}, {"HANDLES_RELEASED", HANDLES_RELEASED}, {"HANDLES_OPEN", HANDLES_OPEN},
    {"HANDLES_RETIRED", HANDLES_RETIRED}, {"HANDLES_LEAKED", HANDLES_LEAKED},
    {"WAIT_RECORDS", WAIT_RECORDS}, {"HISTORIES", HISTORIES},
    {"FUTURES_CREATED", FUTURES_CREATED}, {"FUTURES_DONE", FUTURES_DONE}, {"FUTURES_FAILED", FUTURES_FAILED},
    {"FUTURES_CANCELLED", FUTURES_CANCELLED}, {"FUTURES_DROPPED", FUTURES_DROPPED},
};

static int module_exec(PyObject *module) {
    /* The native part, and the driver's threads that call it, know one interpreter. Python 3.12 refuses most others by itself. */
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
        PyErr_SetString(PyExc_ImportError, "aiostream cannot be imported in a subinterpreter, because the driver's threads know only "
                                           "the main interpreter. Use it there, or in a process of its own (multiprocessing's "
                                           "'spawn' method).");
        return -1;
    }
    if (!handle_type) handle_type = (PyTypeObject *)PyType_FromSpec(&handle_spec);
    if (!handle_type || PyModule_AddObjectRef(module, "Handle", (PyObject *)handle_type) < 0) return -1;
    if (!ticket_type) ticket_type = (PyTypeObject *)PyType_FromSpec(&ticket_spec);
    if (!ticket_type || PyModule_AddObjectRef(module, "Ticket", (PyObject *)ticket_type) < 0) return -1;
    if (add_wait_types(module) < 0 || add_failure_functions(module) < 0 || add_process_functions(module) < 0) return -1;
    if (PyModule_AddFunctions(module, graph_functions) < 0) return -1;
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0) return -1;
    return 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};
static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, "_native", "The compiled part of aiostream: see native/base.h.", 0, functions, module_slots,
    NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&module_definition); }
