/* What arrives: how a drain gives each ticket to its owner, and the owners that are no completions.
 *
 * The loop's thread calls drain() when its queue's descriptor is readable. It first polls the waits
 * whose timer is due, without the GIL, then takes the queue whole, and settles what it finds: a
 * completion, a wait whose task sleeps, or an object with `complete`. The janitor calls
 * the same for the orphans' queue. It settles no future with a result, because that belongs to its
 * loop.
 *
 * What raises goes back to the queue with all that came after it, so nothing is lost by an
 * interrupt. A host function of the user's goes to the janitor's queue from the beginning, because
 * it belongs to no loop. No driver call is made with the GIL held. owners() and waiting() list what
 * is pending, for any thread.
 */
#include "completions.h"

#include <string.h>

/* --- other owners --- */

static int do_arm(struct handle *stream, void *argument) {
    return point_arm(*(uint64_t *)argument, stream->value);
}

/* arm(handle, context, kind, owner, sync_mode, function, data): enqueues a host function or
 * callback of a user, which belongs to no loop. 0, a driver code, or a refusal. */
static PyObject *native_arm(PyObject *Py_UNUSED(module), PyObject *args) {
    struct handle *stream;
    struct context *context;
    PyObject *owner;
    int kind, sync_mode;
    unsigned long long function, data;
    if (!PyArg_ParseTuple(args, "O&O&iOiKK", to_handle, &stream, to_context, &context, &kind,
                          &owner, &sync_mode, &function, &data))
        return NULL;
    if ((kind == KIND_PYTHON_HOST || kind == KIND_PYTHON_CALLBACK) && refuse_at_exit()) return NULL;
    /* The janitor's queue. On a loop's queue, the objects would be kept until that loop runs again,
     * and this thread need not have a loop at all. */
    uint64_t ticket = point_reserve(queue_orphans(), context, kind);
    if (!ticket) return PyErr_NoMemory();
    /* The driver's thread reads these without a lock once the ticket is armed. */
    host_function called = (host_function)(uintptr_t)function;
    point_set_call(ticket, called, (void *)(uintptr_t)data, sync_mode);
    set_owner(ticket, owner);
    int result;
    Py_BEGIN_ALLOW_THREADS
    result = operate(stream, 0, do_arm, &ticket);
    point_unreserve(ticket); /* it never came to arming */
    Py_END_ALLOW_THREADS
    if (result && !point_is_live(ticket)) replace_owner(ticket, owner, NULL);
    return PyLong_FromLong(result);
}

static int do_watch(struct handle *stream, void *wait) {
    return wait_record_future(wait, stream->value);
}

/* watch(handle, wait_list, queue, strategy, owner, pinned): records an event behind the work of a
 * stream, and the owner hears of its end. A Completion without a future only keeps its objects
 * alive. Whether that was possible. A stream that the owner or the caller has pinned may be closed.
 */
static PyObject *native_watch(PyObject *Py_UNUSED(module), PyObject *args) {
    struct handle *stream;
    const struct waits *waits;
    struct queue *queue;
    const struct strategy *strategy;
    PyObject *owner;
    struct wait *wait;
    struct call *call;
    int status, pinned = false;
    if (!PyArg_ParseTuple(args, "O&O&O&O&O|p", to_handle, &stream, to_waits, &waits, to_queue,
                          &queue, to_strategy, &strategy, &owner, &pinned))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    call = call_begin(waits);
    status = wait_reserve(waits, queue, strategy, &wait);
    if (status != CUDA_SUCCESS) call_end(call);
    Py_END_ALLOW_THREADS
    if (status != CUDA_SUCCESS) Py_RETURN_FALSE;
    uint64_t ticket = wait_ticket(wait);
    set_owner(ticket, owner);
    if (Py_IS_TYPE(owner, completion_type)) completion_is_watched((CompletionObject *)owner, wait);
    Py_BEGIN_ALLOW_THREADS
    status = operate(stream, pinned || is_work(owner) ? PINNED : 0, do_watch, wait);
    if (status != CUDA_SUCCESS) wait_unreserve(wait);
    call_end(call);
    Py_END_ALLOW_THREADS
    if (status != CUDA_SUCCESS) replace_owner(ticket, owner, NULL);
    else if (is_work(owner)) work_leaves(owner, false);
    return PyBool_FromLong(status == CUDA_SUCCESS);
}

static void append_owner(void *list, uint64_t ticket) { append_new(list, owner_of(ticket)); }

/* owners(): of all points, for statistics() and for tests. */
static PyObject *native_owners(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
    PyObject *list = PyList_New(0);
    if (list) points_visit_owned(append_owner, list);
    if (list && PyErr_Occurred()) Py_CLEAR(list);
    return list;
}

/* waiting(): of each pending wait a tuple: the name of its stream, or of a user's event; seconds
 * since it began, and the longest that were expected, or 0; its queue; the address of the wait, and
 * what its ticket stands for. */
static PyObject *native_waiting(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
    struct waiting each;
    PyObject *list = PyList_New(0);
    for (struct wait *wait = NULL; list && waits_next(&wait, &each);) {
        PyObject *owner = each.ticket ? owner_of(each.ticket) : NULL;
        PyObject *row =
            Py_BuildValue("(NddiNO)", as_text(each.name), (double)(now_ns() - each.began) / 1e9,
                          (double)each.expected / 1e9, each.queue, PyLong_FromVoidPtr(wait),
                          owner ? owner : Py_None);
        if (!append_new(list, row)) Py_CLEAR(list);
        Py_XDECREF(owner);
    }
    return list;
}

/* --- a loop's queue --- */

/* The queue of a loop, whose bridge has it. It shows to the collector what has arrived there. So if
 * only futures that the GPU has passed refer to a loop, the loop is garbage, although it was not
 * closed: the collector finalizes this, which closes the queue, and the janitor releases what they
 * keep. */
typedef struct {
    PyObject_HEAD
    _Atomic(struct queue *) queue; /* NULL: it is closed, and may be another loop's */
    int number, descriptor;        /* constant */
    char is_open;
} QueueObject;

static PyTypeObject *queue_type;

static PyObject *Queue_new(PyTypeObject *type, PyObject *Py_UNUSED(args),
                           PyObject *Py_UNUSED(kwargs)) {
    if (refuse_in_child()) return NULL;
    QueueObject *self = (QueueObject *)PyType_GenericAlloc(type, 0);
    if (!self) return NULL;
    struct queue *queue = self->queue = queue_open();
    if (!queue) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF(self);
        return NULL;
    }
    self->is_open = true;
    self->number = queue->index;
    self->descriptor = queue->descriptor;
    return (PyObject *)self;
}

/* Once, by the janitor or a finalizer. A child leaves it to the parent, whose descriptor it is, and
 * another thread of which may have held a lock at the fork. */
static void close_queue(PyObject *self) {
    struct queue *queue = atomic_exchange(&((QueueObject *)self)->queue, NULL);
    ((QueueObject *)self)->is_open = false;
    if (!queue || is_child()) return;
    waits_leave_loop(queue);
    queue_close(queue);
    queues_trim();
}

static PyObject *Queue_close(PyObject *self, PyObject *Py_UNUSED(unused)) {
    close_queue(self);
    Py_RETURN_NONE;
}

/* The thread is attached to Python, so none takes what has arrived, and none closes the queue. */
static int Queue_traverse(PyObject *self, visitproc visit, void *arg) {
    struct queue *queue = ((QueueObject *)self)->queue;
    Py_VISIT(Py_TYPE(self));
    return queue ? points_visit_arrived(queue, (int (*)(void *, void *))visit, arg) : 0;
}

static int append_arrived(void *owner, void *list) { return PyList_Append(list, owner); }

/* arrived(): what those points stand for. No collection comes in the loop, which could take them.
 */
static PyObject *Queue_arrived(PyObject *self, PyObject *Py_UNUSED(unused)) {
    struct queue *queue = ((QueueObject *)self)->queue;
    PyObject *list = PyList_New(0);
    if (list && queue && points_visit_arrived(queue, append_arrived, list) < 0) Py_CLEAR(list);
    return list;
}

static void Queue_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    close_queue(self);
    free_object(self);
}

static PyMethodDef queue_methods[] = {
    /* What is on it and what still comes goes to the orphans' queue. */
    METHOD(Queue, close, NOARGS),
    /* What has arrived and was not taken. */
    METHOD(Queue, arrived, NOARGS),
    {NULL, NULL, 0, NULL},
};
static PyMemberDef queue_members[] = {
    {"number", T_INT, offsetof(QueueObject, number), READONLY, "What native calls take."},
    /* Readable if something has arrived, or a wait's timer is due. */
    {"descriptor", T_INT, offsetof(QueueObject, descriptor), READONLY, NULL},
    {"is_open", T_BOOL, offsetof(QueueObject, is_open), READONLY, "Whether it was not closed."},
    {NULL, 0, 0, 0, NULL},
};
/* The queue of a loop. When it dies it is closed. */
static PyType_Slot queue_slots[] = {
    {Py_tp_new, Queue_new},
    {Py_tp_methods, queue_methods},
    {Py_tp_members, queue_members},
    {Py_tp_dealloc, Queue_dealloc},
    {Py_tp_finalize, close_queue},
    {Py_tp_traverse, Queue_traverse},
    {0, NULL},
};

int add_queue_type(PyObject *module) { return ADD_TYPE(module, queue, Queue, Py_TPFLAGS_HAVE_GC); }

/* --- what a drain does --- */

struct draining {
    struct queue *queue;
    bool orphaned; /* the loop is gone, or no task waits any more: this is the janitor's thread */
    struct context *context; /* whose health was read in this drain */
    int health;
    /* An exception that came when its cause had been dealt with. */
    PyObject *raised;
};

/* An event and a stream callback bring their status. A host function brings none. By the manual it
 * never runs after an error, but some drivers were reported to run it. So the health of its context
 * is read once for each drain, after the firing: what settles as done has succeeded. The janitor
 * settles no future with a result, so it needs no proof of success. */
static int code_of(struct draining *draining, uint64_t ticket, int64_t status) {
    if (status != STATUS_UNKNOWN) return (int)status;
    if (draining->orphaned) return CUDA_SUCCESS;
    struct context *context = point_context(ticket);
    if (context != draining->context) {
        Py_BEGIN_ALLOW_THREADS
        draining->health = context_health(context);
        Py_END_ALLOW_THREADS
        draining->context = context;
    }
    return draining->health;
}

/* Gives a task the answer of its wait: the Wait itself if it was handed back, None or an error.
 * False: it has raised, and the task has got nothing. */
static bool answer_task(struct draining *draining, WaitObject *self, int64_t status) {
    struct wait *wait = wait_handed_back(status);
    uint64_t ticket = self->ticket;
    /* the collector may have taken the future of a loop that is gone */
    int done = draining->orphaned || !self->future ? 1 : call_truth(self->future, names.done);
    if (done < 0) return false;
    PyObject *answer = done || (!status && !wait) ? Py_NewRef(Py_None)
                       : wait                     ? Py_NewRef((PyObject *)self)
                                                  : PyLong_FromLongLong(status);
    if (!answer) return false;
    self->ticket = 0;
    if (!done) self->wait = wait;
    else if (wait && !is_child()) wait_drop(wait); /* no task waits any more */
    bool given = true;
    if (!done && settle_future(self->future, NULL, answer) < 0) {
        PyObject *raised = raised_take();
        /* Another thread may have closed the task meanwhile, and dropped the wait. */
        given = call_truth(self->future, names.done) != 0 || self->wait != wait;
        if (given) { /* the rest is delivered, and then this is raised */
            Py_XDECREF(draining->raised);
            PyErr_Clear();
            draining->raised = raised;
        } else {
            self->wait = NULL;
            self->ticket = ticket;
            raise_again(raised);
        }
    }
    if (given) Py_CLEAR(self->future); /* which refers to this object */
    Py_DECREF(answer);
    return given;
}

/* One arrival. False: it has raised, and comes again. */
static bool arrive(void *argument, uint64_t ticket, int64_t status, bool passed) {
    struct draining *draining = argument;
    PyObject *object = owner_of(ticket);
    if (!object) { /* its task has gone */
        struct wait *wait = wait_handed_back(status);
        if (wait && !is_child()) wait_drop(wait);
        return true;
    }
    int failed = 0;
    if (Py_IS_TYPE(object, wait_type)) {
        failed = answer_task(draining, (WaitObject *)object, status) ? 0 : -1;
    } else {
        struct wait *wait = is_work(object) ? wait_handed_back(status) : NULL;
        bool goes_on = wait && !is_child() && work_takes(object, wait, !draining->orphaned);
        if (wait && !goes_on) wait_drop(wait);
        int code = wait ? -1 : code_of(draining, ticket, status);
        if (goes_on) { /* by a later ticket of the same event */
        } else if (Py_IS_TYPE(object, completion_type)) {
            CompletionObject *completion = (CompletionObject *)object;
            failed = completion_complete(completion, code, draining->orphaned, passed);
        } else if (passed) {
            PyObject *orphaned = draining->orphaned ? Py_True : Py_False;
            failed = done_with(PyObject_CallMethod(object, "complete", "iO", code, orphaned));
        }
    }
    /* If the point was not passed, the driver may still come to it, and the owner stays. */
    if (!failed && passed) replace_owner(ticket, object, NULL);
    Py_DECREF(object);
    return !failed;
}

/* drain(queue): settles all that has arrived. In a forked child it does nothing: the descriptor is
 * the parent's, and to read it would take a wake-up away from it. */
static PyObject *native_drain(PyObject *Py_UNUSED(module), PyObject *number) {
    struct draining draining = {0};
    if (!to_queue(number, &draining.queue)) return NULL;
    if (is_child()) Py_RETURN_NONE;
    draining.orphaned = draining.queue == queue_at(0);
    if (timer_is_due(&draining.queue->timer, now_ns())) {
        Py_BEGIN_ALLOW_THREADS
        int mode = relaxed_enter();
        waits_run_due(draining.queue);
        relaxed_leave(mode);
        Py_END_ALLOW_THREADS
    }
    bool failed = !queue_drain(draining.queue, arrive, &draining);
    if (draining.orphaned) queues_trim(); /* those of closed loops, whose last points have come */
    if (failed) Py_XDECREF(draining.raised);
    else raise_again(draining.raised);
    if (failed || draining.raised) return NULL;
    Py_RETURN_NONE;
}

void run_host_function(uint64_t ticket, int status) {
    PyObject *object = owner_of(ticket);
    if (!object) return;
    if (done_with(PyObject_CallMethod(object, "run", "i", status)) < 0)
        PyErr_WriteUnraisable(object);
    Py_DECREF(object);
}

PyMethodDef drain_functions[] = {
    /* Settles all that has arrived. */
    METHOD(native, drain, O),
    /* Enqueues a user's host function; 0, a driver code, or a negative refusal. */
    METHOD(native, arm, VARARGS),
    /* Has the watcher report the end of a stream's work to an owner. False: not possible. */
    METHOD(native, watch, VARARGS),
    /* What the tickets of all points stand for. */
    METHOD(native, owners, NOARGS),
    /* The waits that are pending, or those that are slow. */
    METHOD(native, waiting, NOARGS),
    {NULL, NULL, 0, NULL},
};
