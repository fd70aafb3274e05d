/* The Python face of waits.c and sleeper.c: the types Line and Wait, and some functions. */
#include "module.h"

/* ---------------------------------------------------------------- Wait */

/* A KeyboardInterrupt may come between a call's return and the next step of Python, when its answer is lost. So what must not be
 * lost is an object, and what it owns is given up in one step with the call that takes it over. */
typedef struct {
    PyObject_HEAD
    struct wait *wait;   /* NULL: it is over, or the watcher has it */
    struct queue *queue; /* of the loop whose task looks at it */
    bool yielded;        /* the loop has had its turn: the next step is a look */
} WaitObject;

PyTypeObject *wait_type;

/* NULL: no memory; the wait is the caller's. */
static PyObject *new_wait(struct wait *wait, struct queue *queue) {
    WaitObject *self = PyObject_New(WaitObject, wait_type);
    if (!self) return NULL;
    self->wait = wait;
    self->queue = queue;
    self->yielded = false;
    return (PyObject *)self;
}

static void disown_wait(PyObject *object) { ((WaitObject *)object)->wait = NULL; }

/* Whether it is over, one way or another; if not, or if it has failed with an exception, begun is of no use. */
static bool look(WaitObject *self, struct begun *begun) {
    if (refuse_in_child()) return false;
    if (!self->wait) {
        PyErr_SetString(PyExc_ValueError, "the wait is over");
        return false;
    }
    *begun = (struct begun){.spinning = self->wait};
    bool over;
    Py_BEGIN_ALLOW_THREADS
    int mode = relaxed_enter();
    over = wait_poll(self->wait, self->queue, begun);
    relaxed_leave(mode);
    Py_END_ALLOW_THREADS
    if (over) self->wait = NULL;
    return over;
}

/* Codes and refusals are small, tickets are from 1 << 24 on. */
static PyObject *as_number(const struct begun *begun) {
    return begun->ticket ? PyLong_FromUnsignedLongLong(begun->ticket) : PyLong_FromLong(begun->refusal);
}

/* poll(): itself if the wait is not over. Else 0, an error, or the ticket that the watcher has from now on. */
static PyObject *Wait_poll(PyObject *self, PyObject *unused) {
    (void)unused;
    struct begun begun;
    if (look((WaitObject *)self, &begun)) return as_number(&begun);
    return PyErr_Occurred() ? NULL : Py_NewRef(self);
}

/* One step of `await wait`, in asyncio: a turn of the loop (what a bare `yield` asks for), then looks with turns in between. Its
 * value is what poll() says in the end, or None for 0, which spares the exception that would carry it. */
static PyObject *Wait_next(PyObject *object) {
    WaitObject *self = (WaitObject *)object;
    struct begun begun;
    if (!self->yielded) {
        self->yielded = true;
        Py_RETURN_NONE;
    }
    if (!look(self, &begun)) {
        if (PyErr_Occurred()) return NULL;
        Py_RETURN_NONE;
    }
    if (!begun.ticket && !begun.refusal) return NULL;
    PyObject *value = as_number(&begun);
    if (value) PyErr_SetObject(PyExc_StopIteration, value);
    Py_XDECREF(value);
    return NULL;
}

static PyObject *Wait_await(PyObject *self) { return Py_NewRef(self); }

/* A forked child's is left alone: the watcher that would see to it is the parent's. */
static void drop(WaitObject *self) {
    struct wait *wait = self->wait;
    self->wait = NULL;
    if (wait && !is_child()) wait_drop(wait);
}

static PyObject *Wait_drop(PyObject *self, PyObject *unused) {
    (void)unused;
    drop((WaitObject *)self);
    Py_RETURN_NONE;
}

static void Wait_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    drop((WaitObject *)object);
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyMethodDef wait_methods[] = {
    {"poll", Wait_poll, METH_NOARGS, "Queries it: itself if it is not over, else 0, an error, or the watcher's ticket."},
    {"drop", Wait_drop, METH_NOARGS, "Nobody waits any more. May be called again, and when it is over."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot wait_slots[] = {
    {Py_tp_dealloc, Wait_dealloc},
    {Py_tp_methods, wait_methods},
    {Py_am_await, Wait_await},
    {Py_tp_iter, Wait_await},
    {Py_tp_iternext, Wait_next},
    {Py_tp_doc, "A wait at which its task looks itself; an asyncio task can await it. When it dies it is dropped."},
    {0, NULL},
};
PyType_Spec wait_spec = {"aiostream._native.Wait", sizeof(WaitObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                         wait_slots};

/* ---------------------------------------------------------------- Line */

typedef struct {
    PyObject_HEAD
    struct line *line;
} LineObject;

static PyObject *Line_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"probe", "ordered", NULL};
    int number, ordered;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "ip", names, &number, &ordered)) return NULL;
    struct probe *probe = as_probe(number);
    if (!probe) return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    LineObject *self = (LineObject *)allocate(type, 0);
    if (!self) return NULL;
    self->line = line_new(probe, ordered);
    if (self->line) return (PyObject *)self;
    Py_DECREF(self);
    return PyErr_NoMemory();
}

static void Line_dealloc(PyObject *object) {
    LineObject *self = (LineObject *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->line) line_unref(self->line);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyObject *from_begun(const struct begun *begun, struct queue *queue) {
    if (!begun->spinning) return as_number(begun);
    PyObject *object = new_wait(begun->spinning, queue);
    if (!object) wait_drop(begun->spinning);
    return object;
}

struct beginning {
    struct line *line;
    struct queue *queue;
    enum wait_mode mode;
    struct begun *begun;
};

static int do_begin(struct handle *stream, void *argument) {
    struct beginning *beginning = argument;
    wait_begin(beginning->line, handle_value(stream), NULL, beginning->queue, beginning->mode, beginning->begun);
    return 0;
}

static int do_begin_event(struct handle *event, void *argument) {
    struct beginning *beginning = argument;
    wait_begin(beginning->line, NULL, handle_value(event), beginning->queue, beginning->mode, beginning->begun);
    return 0;
}

/* begin(handle, queue, mode): what the handle's stream or event has reached now. */
static PyObject *Line_begin_any(PyObject *object, PyObject *const *args, Py_ssize_t count, handle_operation operation) {
    if (count != 3) return PyErr_Format(PyExc_TypeError, "a handle, a queue and a mode are needed");
    struct handle *handle = as_handle(args[0]);
    struct queue *queue = handle ? as_queue((int)PyLong_AsLong(args[1])) : NULL;
    long mode = queue ? PyLong_AsLong(args[2]) : -1;
    if (!queue || (mode == -1 && PyErr_Occurred())) return NULL;
    struct begun begun = {0};
    struct beginning beginning = {((LineObject *)object)->line, queue, mode, &begun};
    Py_BEGIN_ALLOW_THREADS
    int result = operation == do_begin ? operate_as_is(handle, operation, &beginning) : operate(handle, operation, &beginning);
    if (result) begun.refusal = result;
    Py_END_ALLOW_THREADS
    return from_begun(&begun, queue);
}

static PyObject *Line_begin(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    return Line_begin_any(self, args, count, do_begin);
}
static PyObject *Line_begin_event(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    return Line_begin_any(self, args, count, do_begin_event);
}

static PyMethodDef line_methods[] = {
    {"begin", (PyCFunction)(void (*)(void))Line_begin, METH_FASTCALL, "Begins a wait for a stream's present end."},
    {"begin_event", (PyCFunction)(void (*)(void))Line_begin_event, METH_FASTCALL, "Begins a wait for an event's present record."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot line_slots[] = {
    {Py_tp_new, Line_new},         {Py_tp_dealloc, Line_dealloc},
    {Py_tp_methods, line_methods}, {Py_tp_doc, "A stream, as far as waits on it are concerned; it learns how long they take."},
    {0, NULL},
};
PyType_Spec line_spec = {"aiostream._native.Line", sizeof(LineObject), 0, Py_TPFLAGS_DEFAULT, line_slots};

struct delivery {
    PyObject *list;
    struct queue *queue;
};

static bool append(void *context, uint64_t ticket, int64_t status, bool passed) {
    const struct delivery *delivery = context;
    PyObject *list = delivery->list;
    Py_ssize_t length = PyList_Size(list);
    struct wait *wait = wait_given_back(status);
    PyObject *code = wait ? new_wait(wait, delivery->queue) : PyLong_FromLongLong(passed ? status : -status);
    if (code && append_number(list, PyLong_FromUnsignedLongLong(ticket)) && PyList_Append(list, code) == 0) {
        Py_DECREF(code);
        return true;
    }
    if (wait && code) disown_wait(code); /* the ticket goes back on its queue, and the wait with it */
    Py_XDECREF(code);
    PyList_SetSlice(list, length, PyList_Size(list), NULL);
    return false;
}

static PyObject *native_drain(PyObject *self, PyObject *args) {
    (void)self;
    int index;
    PyObject *list;
    if (!PyArg_ParseTuple(args, "iO!", &index, &PyList_Type, &list)) return NULL;
    struct queue *queue = as_queue(index);
    struct delivery delivery = {list, queue};
    if (!queue) return NULL;
    waits_wake(queue);
    if (!queue_drain(queue, append, &delivery)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *native_add_helper(PyObject *self, PyObject *args) {
    (void)self;
    int index, status;
    if (!PyArg_ParseTuple(args, "i", &index) || refuse_in_child()) return NULL;
    struct probe *probe = as_probe(index);
    if (!probe) return NULL;
    Py_BEGIN_ALLOW_THREADS
    void *stream;
    status = helper_make(probe, &stream);
    if (status == CUDA_SUCCESS) helper_put(probe, stream, true);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(status);
}

static PyObject *native_idle_helpers(PyObject *self, PyObject *args) {
    (void)self;
    int index;
    if (!PyArg_ParseTuple(args, "i", &index)) return NULL;
    struct probe *probe = as_probe(index);
    return probe ? PyLong_FromLong(helper_count(probe)) : NULL;
}

static PyObject *native_predict(PyObject *self, PyObject *enabled) {
    (void)self;
    waits_predict(PyObject_IsTrue(enabled));
    Py_RETURN_NONE;
}

static PyObject *native_doze(PyObject *self, PyObject *args) {
    (void)self;
    long long length;
    int most;
    if (!PyArg_ParseTuple(args, "Li", &length, &most)) return NULL;
    waits_doze(&length, &most);
    return Py_BuildValue("Li", length, most);
}

static PyObject *native_sleepers(PyObject *self, PyObject *args) {
    (void)self;
    int limit;
    if (!PyArg_ParseTuple(args, "i", &limit)) return NULL;
    sleeper_limit(limit);
    Py_RETURN_NONE;
}

PyMethodDef wait_functions[] = {
    {"drain", native_drain, METH_VARARGS, "Appends ticket, code, ... of all that has arrived to a list."},
    {"add_helper", native_add_helper, METH_VARARGS, "Makes a context another helper stream; may block. The driver's code."},
    {"idle_helpers", native_idle_helpers, METH_VARARGS, "How many helper streams of a context are idle."},
    {"predict", native_predict, METH_O, "Whether the watcher expects what it has seen before; for benchmarks and tests."},
    {"doze", native_doze, METH_VARARGS, "Up to which length (ns) waits may doze, and how many of a loop; what it was. For tests."},
    {"sleepers", native_sleepers, METH_VARARGS, "How many host functions on helper streams may be pending for each device."},
    {NULL, NULL, 0, NULL},
};
