/* Completions: what a point stands for in Python. A future that settles there, and the objects that
 * live until the GPU has passed it.
 *
 * The step that enqueues the work makes the completion, in the thread of the loop
 * (enqueue.c). From then on the point of the point owns it (`point_set_owner`), so it lives on when
 * the task, the future, the loop and the stream are gone. The drain of the loop's queue ends it
 * (drain.c). If the GPU has passed the point, completion_complete settles the future and
 * drops the objects, those of earlier work on the stream first. If the context has failed,
 * it fails the future and keeps the objects.
 *
 * A cancelled future ends only the wait (completion_give_up). The watcher goes on polling its
 * event, the janitor drains its ticket, and release() has the releaser's thread drop the objects,
 * because a destructor may block. The same happens if the loop is gone. None of this runs on the
 * driver's threads or in the watcher.
 *
 * A point may own other things too. A Wait is left to a timer or the watcher while its task sleeps
 * on a future, which gets the answer. Of any other object, the method `complete` is called.
 *
 * A KeyboardInterrupt may come in what a step here calls: the function of `enqueue`, a future's
 * methods, finalizers. So an object changes its state after such a call, and everything may be done
 * twice: if the call has raised, the arrival goes back to the queue, and the next drain does it
 * again.
 */
#include "completions.h"

PyTypeObject *completion_type, *order_type;
static PyTypeObject *own_future_type;

/* The library's functions that an end calls: see `_native.pyi`. Never released. */
static PyObject *make_error, *release_objects;

/* --- calls of Python --- */

/* -1: it has raised */
int call_truth(PyObject *object, PyObject *method) {
    PyObject *answer = PyObject_CallMethodObjArgs(object, method, NULL);
    int truth = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    return truth;
}

bool is_own_future(PyObject *future) { return PyObject_TypeCheck(future, own_future_type); }

int settle_future(PyObject *future, PyObject *error, PyObject *result) {
    bool own = is_own_future(future);
    PyObject *for_error = own ? names.own_set_exception : names.set_exception;
    PyObject *for_result = own ? names.own_set_result : names.set_result;
    return done_with(PyObject_CallMethodObjArgs(future, error ? for_error : for_result,
                                                error ? error : result, NULL));
}

/* --- the order of a stream --- */

/* The completions of one stream whose points the driver has, oldest first. Those of different loops
 * stand in one list. They settle in the order of their own loop. It refers to none of them: each
 * refers to the order, and leaves it when it ends or dies. */
void completion_enter(CompletionObject *self, PyObject *order) {
    OrderObject *list = (OrderObject *)order;
    self->order = Py_NewRef(order);
    self->next = NULL;
    Py_BEGIN_CRITICAL_SECTION(order);
    self->previous = list->last;
    *(list->last ? &list->last->next : &list->first) = self;
    list->last = self;
    Py_END_CRITICAL_SECTION();
}

static void leave_order(CompletionObject *self) {
    OrderObject *list = (OrderObject *)self->order;
    if (!list) return;
    Py_BEGIN_CRITICAL_SECTION(list);
    *(self->previous ? &self->previous->next : &list->first) = self->next;
    *(self->next ? &self->next->previous : &list->last) = self->previous;
    Py_END_CRITICAL_SECTION();
    self->order = NULL;
    Py_DECREF(list);
}

/* A reference to one, or NULL. It is not dying: its point refers to it until its loop's thread,
 * which is this one, has drained it. */
static CompletionObject *earlier_of(const CompletionObject *self) {
    CompletionObject *each;
    Py_BEGIN_CRITICAL_SECTION(self->order);
    each = ((OrderObject *)self->order)->first;
    while (each != self && each->queue_identity != self->queue_identity) each = each->next;
    if (each != self) Py_INCREF((PyObject *)each);
    Py_END_CRITICAL_SECTION();
    return each == self ? NULL : each;
}

/* --- its fields --- */

static PyObject *get(PyObject *self, PyObject *const *field) {
    PyObject *value;
    Py_BEGIN_CRITICAL_SECTION(self);
    value = Py_XNewRef(*field);
    Py_END_CRITICAL_SECTION();
    return value;
}

static PyObject *take(CompletionObject *self, PyObject **field) {
    PyObject *value;
    Py_BEGIN_CRITICAL_SECTION(self);
    value = *field;
    *field = NULL;
    Py_END_CRITICAL_SECTION();
    return value;
}

/* --- how it ends --- */

void completion_end(CompletionObject *self, enum state outcome) {
    static const enum counter counted[] = {[DONE] = FUTURES_DONE,
                                           [FAILED] = FUTURES_FAILED,
                                           [CANCELLED] = FUTURES_CANCELLED,
                                           [DROPPED] = FUTURES_DROPPED};
    enum state expected = PENDING; /* otherwise another thread was first */
    if (!atomic_compare_exchange_strong(&self->state, &expected, outcome)) return;
    atomic_fetch_add(&counters[counted[outcome]], 1);
    Py_XDECREF(take(self, &self->future));
}

/* Settles the future. error: with which it fails, or NULL. */
static int settle_with(CompletionObject *self, PyObject *error, bool orphaned) {
    if (self->state != PENDING) return 0;
    PyObject *future = get((PyObject *)self, &self->future);
    if (!future) { /* a dead task took it along */
        completion_end(self, CANCELLED);
        return 0;
    }
    enum state outcome = error ? FAILED : DONE;
    int done = call_truth(future, names.done), cancelled = 0, failed = -1;
    if (done > 0) cancelled = call_truth(future, names.cancelled);
    if (done < 0 || cancelled < 0) goto end;
    if (cancelled) {
        outcome = CANCELLED;
    } else if (orphaned) {
        /* This is the janitor's thread. The loop is gone, so no other thread uses the future, and
         * no task would ever read a result. asyncio's own future is left alone, because to settle
         * it would raise: its loop is closed. */
        outcome = DROPPED;
        if (!done && is_own_future(future) &&
            done_with(PyObject_CallMethod(future, "_drop", NULL)) < 0)
            goto end;
    } else if (!done && settle_future(future, error, self->result ? self->result : Py_None) < 0) {
        goto end;
    }
    completion_end(self, outcome);
    failed = 0;
end:
    Py_DECREF(future);
    return failed;
}

static int settle(CompletionObject *self, int code, bool orphaned) {
    if (self->state != PENDING || code == 0 || orphaned) return settle_with(self, NULL, orphaned);
    /* Each waiter gets an object of its own. */
    PyObject *error = PyObject_CallFunction(make_error, "isO", code, self->call, self->name);
    int failed = error ? settle_with(self, error, false) : -1;
    Py_XDECREF(error);
    return failed;
}

void completion_leak(CompletionObject *self) {
    if (self->keepalive) {
        count_leak();
        take(self, &self->keepalive);
        self->result = NULL;
    }
    Py_CLEAR(self->result);
}

/* The releaser drops the objects, and this thread's references go before that, because the last
 * reference must be the releaser's. A tuple of them dies here, because without the GIL one that
 * this thread has made would wait until it runs Python again. If this raises, it is done again. */
static int release(CompletionObject *self) {
    PyObject *held = Py_BuildValue("[O]", self->result ? self->result : Py_None);
    PyObject *keepalive = take(self, &self->keepalive);
    int failed = held ? 0 : -1;
    if (held && keepalive)
        failed = PyTuple_CheckExact(keepalive) ? PyList_SetSlice(held, 1, 1, keepalive)
                                               : PyList_Append(held, keepalive);
    if (failed) {
        Py_XDECREF(held);
        self->keepalive = keepalive;
        return -1;
    }
    Py_XDECREF(keepalive);
    Py_CLEAR(self->result);
    failed = done_with(PyObject_CallFunctionObjArgs(release_objects, held, NULL));
    if (failed) self->keepalive = held;
    else Py_DECREF(held);
    return failed;
}

/* Settles the future and releases everything, because the GPU has passed the point. After a failed
 * event nothing proves that it has, and the objects are leaked. */
static int finish(CompletionObject *self, int code, bool orphaned) {
    if (settle(self, code, orphaned) < 0) return -1;
    if (code && self->wait) {
        completion_leak(self);
        return 0;
    }
    /* A destructor may block, for example if it frees GPU memory. If the future has got its result,
     * the objects die where the user's code drops them. If not, they must not die here, because
     * they would block a loop that no longer uses them, or the janitor. */
    if (self->state != DONE &&
        (self->keepalive || (orphaned && self->result && self->result != Py_None))) {
        return release(self);
    }
    Py_XDECREF(take(self, &self->keepalive));
    Py_CLEAR(self->result);
    return 0;
}

/* What the GPU has passed on the stream before this point is over too. The loop may hear of it
 * later, because it learns of an event in another way than of a host function. */
static int finish_earlier(CompletionObject *self, bool orphaned) {
    CompletionObject *earlier;
    while (self->order && (earlier = earlier_of(self))) {
        int failed = finish(earlier, 0, orphaned);
        if (!failed) leave_order(earlier);
        Py_DECREF(earlier);
        if (failed) return -1;
    }
    return 0;
}

int completion_complete(CompletionObject *self, int code, bool orphaned, bool passed) {
    /* After a failure nothing is known of the earlier ones. The watcher fails each of them. */
    if (code == 0 && finish_earlier(self, orphaned) < 0) return -1;
    if ((passed ? finish : settle)(self, code, orphaned) < 0) return -1;
    leave_order(self);
    return 0;
}

void completion_give_up(CompletionObject *self) {
    /* Out of the order before the rest, because the janitor may complete this from the last step
     * on, and must not settle what other tasks of this loop await. */
    leave_order(self);
    if (!self->recorded || is_child()) return;
    wait_orphan(self->ticket);
}

/* --- the type --- */

static int Completion_clear(PyObject *object) {
    CompletionObject *self = (CompletionObject *)object;
    Py_CLEAR(self->future);
    Py_CLEAR(self->keepalive);
    Py_CLEAR(self->result);
    return 0;
}

static int Completion_traverse(PyObject *object, visitproc visit, void *arg) {
    CompletionObject *self = (CompletionObject *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->future);
    Py_VISIT(self->keepalive);
    Py_VISIT(self->result);
    return 0;
}

static void Completion_dealloc(PyObject *object) {
    CompletionObject *self = (CompletionObject *)object;
    PyObject_GC_UnTrack(object);
    if (self->ticket && !self->recorded && !is_child()) { /* it was reserved and not used */
        if (self->wait) wait_unreserve(self->wait);
        else point_unreserve(self->ticket);
    }
    leave_order(self);
    Completion_clear(object);
    Py_CLEAR(self->name);
    free_object(object);
}

void completion_fill(CompletionObject *self, PyObject *future, PyObject *name,
                     PyObject *keepalive) {
    self->future = future == Py_None ? NULL : Py_NewRef(future);
    self->name = Py_NewRef(name);
    self->keepalive = keepalive == Py_None ? NULL : Py_NewRef(keepalive);
    self->call = "cuEventQuery";
}

static int Completion_init(PyObject *object, PyObject *args, PyObject *Py_UNUSED(kwargs)) {
    PyObject *future, *name, *keepalive = Py_None;
    if (!PyArg_ParseTuple(args, "OU|O", &future, &name, &keepalive)) return -1;
    completion_fill((CompletionObject *)object, future, name, keepalive);
    return 0;
}

/* Counts the future as pending, if it is new. */
void completion_begin(CompletionObject *self) {
    if (self->state != NEW) return;
    if (!self->wait) self->began = now_ns();
    self->state = PENDING;
    atomic_fetch_add(&counters[FUTURES_CREATED], 1);
}

static PyObject *Completion_complete(PyObject *object, PyObject *args) {
    int code, orphaned;
    if (!PyArg_ParseTuple(args, "ip", &code, &orphaned) ||
        completion_complete((CompletionObject *)object, code, orphaned, true) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *Completion_fail(PyObject *object, PyObject *args) {
    PyObject *error;
    int orphaned;
    CompletionObject *self = (CompletionObject *)object;
    if (!PyArg_ParseTuple(args, "Op", &error, &orphaned) || settle_with(self, error, orphaned) < 0)
        return NULL;
    completion_leak(self);
    Py_RETURN_NONE;
}

/* It may be called again, and when it has ended. */
static PyObject *Completion_cancel(PyObject *object, PyObject *Py_UNUSED(unused)) {
    CompletionObject *self = (CompletionObject *)object;
    Py_INCREF(object); /* the future may have the last reference */
    completion_end(self, CANCELLED);
    /* A subclass hears of its end in its own loop. */
    if (Py_IS_TYPE(object, completion_type)) completion_give_up(self);
    Py_DECREF(object);
    Py_RETURN_NONE;
}

/* take(): what is kept alive, in a list. The GPU has passed the point. */
static PyObject *Completion_take(PyObject *object, PyObject *Py_UNUSED(unused)) {
    CompletionObject *self = (CompletionObject *)object;
    PyObject *list = PyList_New(0), *kept = list ? take(self, &self->keepalive) : NULL;
    if (kept) append_new(list, kept);
    return list;
}

static PyObject *get_object(PyObject *self, void *offset) {
    PyObject *object = get(self, (PyObject **)((char *)self + (uintptr_t)offset));
    return object ? object : Py_NewRef(Py_None);
}

static PyObject *is_in_state(PyObject *self, void *state) {
    return PyBool_FromLong(((CompletionObject *)self)->state == (enum state)(uintptr_t)state);
}

static PyObject *get_seconds(PyObject *object, void *Py_UNUSED(unused)) {
    CompletionObject *self = (CompletionObject *)object;
    int64_t began = atomic_load(&self->began);
    if (!began) Py_RETURN_NONE;
    return PyFloat_FromDouble((double)(now_ns() - began) / 1e9);
}

static PyMethodDef completion_methods[] = {
    /* Calls a function and enqueues a host function or callback behind its work. */
    METHOD(Completion, enqueue, VARARGS),
    /* Takes a ticket, and counts the future as pending: another thread does the rest. */
    METHOD(Completion, expect, VARARGS),
    /* Calls a function and records an event behind its work. */
    METHOD(Completion, run, VARARGS),
    /* Ends it with a status in place of recording. */
    METHOD(Completion, fire, VARARGS),
    /* The GPU has passed the point: settles the future with a code, releases everything. */
    METHOD(Completion, complete, VARARGS),
    /* Settles the future with an error, and leaks what is kept alive. */
    METHOD(Completion, fail, VARARGS),
    /* No task waits any more. */
    METHOD(Completion, cancel, NOARGS),
    /* What is kept alive, once the GPU has passed. */
    METHOD(Completion, take, NOARGS),
    {NULL, NULL, 0, NULL},
};
#define FIELD(name) (void *)offsetof(CompletionObject, name)
static PyGetSetDef completion_properties[] = {
    {"future", get_object, NULL, "None once it has ended.", FIELD(future)},
    {"keepalive", get_object, NULL, "What stays alive.", FIELD(keepalive)},
    {"is_pending", is_in_state, NULL, "Whether it is counted and has not ended.", (void *)PENDING},
    {"is_cancelled", is_in_state, NULL, "Whether it was cancelled.", (void *)CANCELLED},
    {"seconds", get_seconds, NULL, "Since it began. None: its wait knows.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyMemberDef completion_members[] = {
    {"stream", T_OBJECT, offsetof(CompletionObject, name), READONLY, "Its name, in errors."},
    {"order", T_OBJECT, offsetof(CompletionObject, order), READONLY, "In which others wait."},
    {NULL, 0, 0, 0, NULL},
};
/* A point for which a task waits: its future, and what is kept alive. */
static PyType_Slot completion_slots[] = {
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, Completion_init},
    {Py_tp_dealloc, Completion_dealloc},
    {Py_tp_traverse, Completion_traverse},
    {Py_tp_clear, Completion_clear},
    {Py_tp_methods, completion_methods},
    {Py_tp_getset, completion_properties},
    {Py_tp_members, completion_members},
    {0, NULL},
};

/* The completions of one stream, in the order of their points. */
static PyType_Slot order_slots[] = {
    {0, NULL},
};

PyObject *new_order(void) { return PyType_GenericAlloc(order_type, 0); }

typedef PyObject OwnFutureObject;
/* The base of the library's own futures, whose setters are private. */
static PyType_Slot own_future_slots[] = {
    {0, NULL},
};

/* set_callbacks(error, release): before the first point is armed. */
static PyObject *native_set_callbacks(PyObject *Py_UNUSED(module), PyObject *args) {
    if (!PyArg_ParseTuple(args, "OO", &make_error, &release_objects)) return NULL;
    Py_INCREF(make_error);
    Py_INCREF(release_objects);
    Py_RETURN_NONE;
}

PyMethodDef completion_functions[] = {
    /* What completions call of Python. */
    METHOD(native, set_callbacks, VARARGS),
    {NULL, NULL, 0, NULL},
};

int add_completion_types(PyObject *module) {
    enum { BASE = Py_TPFLAGS_BASETYPE };
    if (ADD_TYPE(module, completion, Completion, BASE | Py_TPFLAGS_HAVE_GC) < 0 ||
        ADD_TYPE(module, order, Order, 0) < 0)
        return -1;
    return ADD_TYPE(module, own_future, OwnFuture, BASE);
}
