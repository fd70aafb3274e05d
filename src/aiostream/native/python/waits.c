/* The Python face of the waits: the types Wait, History and WaitList, and the turns of a loop.
 *
 * `WaitList.begin` begins a wait in the thread of its loop, and answers: it is over, or a Wait,
 * which its task polls, or which a timer or the watcher has. The task polls a Wait once in each
 * turn of the loop. It is awaitable on asyncio without a coroutine, so this is the C side of
 * asyncio's file. The policy and the state of the wait lie below (task_waits.c).
 *
 * A Wait belongs to one task. When it dies it is dropped, and the watcher has the wait. It is left
 * alone in a forked child.
 */
#include "completions.h"

/* --- Wait --- */

PyTypeObject *wait_type;

/* What begin, poll and await answer, always in the same form. None: the wait is over and has
 * succeeded. A Wait: it is not over. If it has a ticket, a timer or the watcher has it from now on,
 * and otherwise its task polls it. A number: an error or a refusal. None costs no object, and a
 * StopIteration carries it for free. The reference to the Wait is passed on. */
static PyObject *as_answer(WaitObject *self, const struct wait_result *result) {
    self->wait = result->spinning;
    self->ticket = result->ticket;
    if (self->wait || self->ticket) return (PyObject *)self;
    Py_DECREF(self);
    if (result->refusal) return PyLong_FromLong(result->refusal);
    Py_RETURN_NONE;
}

static PyObject *poll(PyObject *object) {
    WaitObject *self = (WaitObject *)object;
    if (refuse_in_child()) return NULL;
    if (!self->wait) return PyErr_Format(PyExc_ValueError, "the wait is over");
    struct wait_result result;
    Py_BEGIN_ALLOW_THREADS
    failed_forget();
    int mode = relaxed_enter();
    wait_poll(self->wait, &result);
    relaxed_leave(mode);
    Py_END_ALLOW_THREADS
    Py_INCREF(object);
    return as_answer(self, &result);
}

static PyObject *Wait_poll(PyObject *self, PyObject *Py_UNUSED(unused)) { return poll(self); }

/* The C side of asyncio's file (see `_runtime/loops`): one step of `await wait`. It yields None, as
 * a bare `yield` does, which asks asyncio for one turn of the loop, and then polls with turns in
 * between. The await ends with poll()'s last answer. Only `_runtime/loops/on_asyncio.py` awaits a
 * Wait, because trio would refuse what is yielded here. */
static PyObject *Wait_next(PyObject *object) {
    WaitObject *self = (WaitObject *)object;
    PyObject *answer = self->yielded ? poll(object) : Py_NewRef(object);
    self->yielded = true;
    bool yields = answer == object && self->wait;
    if (answer && !yields && answer != Py_None) PyErr_SetObject(PyExc_StopIteration, answer);
    Py_XDECREF(answer);
    return yields ? Py_NewRef(Py_None) : NULL;
}

/* In a forked child it is left alone, because the parent has the watcher that would deal with
 * it. */
static void drop(WaitObject *self) {
    struct wait *wait = self->wait;
    self->wait = NULL;
    if (wait && !is_child()) wait_drop(wait);
}

/* drop(work, here): no task waits any more. If the wait was for a Work, that owns it now. `here`:
 * this is the thread of the loop. */
static PyObject *Wait_drop(PyObject *object, PyObject *args) {
    WaitObject *self = (WaitObject *)object;
    PyObject *work;
    int here;
    if (!PyArg_ParseTuple(args, "Op", &work, &here)) return NULL;
    uint64_t ticket = self->ticket;
    self->ticket = 0;
    if (ticket && !is_child()) {
        bool is_left = is_work(work) && replace_owner(ticket, object, work);
        if (is_left && work_leaves(work, here)) Py_RETURN_NONE;
        /* the janitor may deliver it once it is orphaned */
        replace_owner(ticket, object, NULL);
        wait_orphan(ticket);
    } else if (self->wait && !is_child() && work_takes(work, self->wait, here)) {
        self->wait = NULL;
    }
    drop(self);
    Py_RETURN_NONE;
}

/* leave_to(future): it gets the answer of a wait that was left, and is returned. In the loop's
 * thread, which would deliver the ticket. */
static PyObject *Wait_leave_to(PyObject *object, PyObject *future) {
    WaitObject *self = (WaitObject *)object;
    if (!self->ticket || self->future)
        return PyErr_Format(PyExc_ValueError, "the wait was not left, or has a future");
    self->future = Py_NewRef(future);
    set_owner(self->ticket, object);
    return Py_NewRef(future);
}

static int Wait_clear(PyObject *object) {
    Py_CLEAR(((WaitObject *)object)->future);
    return 0;
}

/* If the future that sleeps refers to its loop, the collector has to see that: see Queue. */
static int Wait_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((WaitObject *)object)->future);
    return 0;
}

static void Wait_dealloc(PyObject *object) {
    PyObject_GC_UnTrack(object);
    drop((WaitObject *)object);
    Wait_clear(object);
    free_object(object);
}

static PyMemberDef wait_members[] = {
    /* The address of the native wait, as in waiting(). */
    {"address", T_PYSSIZET, offsetof(WaitObject, wait), READONLY, NULL},
    {"ticket", T_ULONGLONG, offsetof(WaitObject, ticket), READONLY, "0: its task polls it."},
    {"future", T_OBJECT, offsetof(WaitObject, future), READONLY, "On which its task sleeps."},
    {NULL, 0, 0, 0, NULL},
};
static PyMethodDef wait_methods[] = {
    /* Queries it: itself if it is not over, else None or an error. */
    METHOD(Wait, poll, NOARGS),
    /* The future that gets the answer. */
    METHOD(Wait, leave_to, O),
    /* No task waits any more. May be called again, and when it is over. */
    METHOD(Wait, drop, VARARGS),
    {NULL, NULL, 0, NULL},
};
/* A wait at which its task polls itself; an asyncio task can await it. When it dies it is
 * dropped. */
static PyType_Slot wait_slots[] = {
    {Py_tp_dealloc, Wait_dealloc},
    {Py_tp_traverse, Wait_traverse},
    {Py_tp_clear, Wait_clear},
    {Py_tp_methods, wait_methods},
    {Py_tp_members, wait_members},
    {Py_am_await, PyObject_SelfIter},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, Wait_next},
    {0, NULL},
};

/* --- History --- */

typedef struct {
    PyObject_HEAD
    struct shared_history *history;
} HistoryObject;

static PyTypeObject *history_type;

static PyObject *History_new(PyTypeObject *type, PyObject *Py_UNUSED(args),
                             PyObject *Py_UNUSED(kwargs)) {
    HistoryObject *self = (HistoryObject *)PyType_GenericAlloc(type, 0);
    if (!self) return NULL;
    self->history = shared_history_new();
    if (self->history) return (PyObject *)self;
    Py_DECREF(self);
    return PyErr_NoMemory();
}

static void History_dealloc(PyObject *object) {
    HistoryObject *self = (HistoryObject *)object;
    if (self->history) shared_history_unref(self->history);
    free_object(object);
}

/* asked(start, false_at, now, over, waits): see shared_history_asked. */
static PyObject *History_asked(PyObject *self, PyObject *args) {
    long long start, false_at, now;
    int over, waits;
    if (!PyArg_ParseTuple(args, "LLLpi", &start, &false_at, &now, &over, &waits)) return NULL;
    struct shared_history *history = ((HistoryObject *)self)->history;
    struct question next = shared_history_asked(history, start, false_at, now, over, waits);
    return Py_BuildValue("LL", (long long)next.from, (long long)next.by);
}

static PyMethodDef history_methods[] = {
    /* When to ask a Python function again, in ns. */
    METHOD(History, asked, VARARGS),
    {NULL, NULL, 0, NULL},
};
/* How long waits took: of one stream, of one event, or of the streams of a pool. */
static PyType_Slot history_slots[] = {
    {Py_tp_new, History_new},
    {Py_tp_dealloc, History_dealloc},
    {Py_tp_methods, history_methods},
    {0, NULL},
};

/* --- WaitList --- */

typedef struct {
    PyObject_HEAD
    struct waits waits;
    PyObject *order; /* of the completions of its stream */
} WaitListObject;

static PyTypeObject *wait_list_type;

static PyObject *WaitList_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs)) {
    struct context *context;
    PyObject *object;
    struct waits *other = NULL; /* on the same stream */
    if (!PyArg_ParseTuple(args, "O&O!|O&", to_context, &context, history_type, &object, to_waits,
                          &other))
        return NULL;
    WaitListObject *self = (WaitListObject *)PyType_GenericAlloc(type, 0);
    if (!self) return NULL;
    self->order = new_order();
    self->waits.list = self->order ? wait_list_new(context, ((HistoryObject *)object)->history,
                                                   other ? other->list : NULL)
                                   : NULL;
    if (self->waits.list) return (PyObject *)self;
    Py_DECREF(self);
    return PyErr_NoMemory();
}

PyObject *wait_list_order(PyObject *object) { return ((WaitListObject *)object)->order; }

/* label(name, seconds): see wait_list_label and struct waits. */
static PyObject *WaitList_label(PyObject *object, PyObject *args) {
    struct waits *waits = &((WaitListObject *)object)->waits;
    const char *name;
    double seconds;
    if (!PyArg_ParseTuple(args, "sd", &name, &seconds)) return NULL;
    wait_list_label(waits->list, name);
    atomic_store(&waits->limit, (int64_t)(seconds * 1e9));
    Py_RETURN_NONE;
}

/* shared(order): the same list for another owner of the stream, without a limit. */
static PyObject *WaitList_shared(PyObject *object, PyObject *order) {
    WaitListObject *self = (WaitListObject *)object,
                   *made = (WaitListObject *)PyType_GenericAlloc(wait_list_type, 0);
    if (!made) return NULL;
    made->order = Py_NewRef(order);
    made->waits.list = self->waits.list;
    wait_list_ref(self->waits.list);
    return (PyObject *)made;
}

int to_waits(PyObject *object, void *waits) {
    bool is_one = PyObject_TypeCheck(object, wait_list_type);
    if (is_one) *(const struct waits **)waits = &((WaitListObject *)object)->waits;
    else PyErr_SetString(PyExc_TypeError, "a WaitList is needed");
    return is_one;
}

static void WaitList_dealloc(PyObject *object) {
    WaitListObject *self = (WaitListObject *)object;
    if (self->waits.list) wait_list_unref(self->waits.list);
    Py_XDECREF(self->order);
    free_object(object);
}

struct beginning {
    const struct waits *waits;
    struct queue *queue;
    const struct strategy *strategy;
    struct wait_result result;
};

static int do_begin(struct handle *handle, void *argument) {
    struct beginning *with = argument;
    if (handle->kind == HANDLE_EVENT)
        wait_begin_event(with->waits, handle, with->queue, with->strategy, &with->result);
    else wait_begin(with->waits, handle->value, with->queue, with->strategy, &with->result);
    return 0;
}

/* Begins a wait for a stream's present end, or an event's present record, and leaves what came of
 * it in the result. Without the GIL. */
static void begin(struct handle *handle, struct beginning *with) {
    struct call *call = call_begin(with->waits);
    int refusal = operate(handle, handle->kind == HANDLE_EVENT ? 0 : AS_IS, do_begin, with);
    if (refusal) with->result.refusal = refusal;
    call_end(call);
}

/* begin(handle, queue, strategy): waits for what the handle's stream has reached now, or for what
 * its event has recorded. */
static PyObject *WaitList_begin(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "a handle, a queue and a strategy are needed");
    struct handle *handle;
    struct beginning beginning = {.waits = &((WaitListObject *)object)->waits};
    if (!to_handle(args[0], &handle) || !to_queue(args[1], &beginning.queue) ||
        !to_strategy(args[2], &beginning.strategy))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    begin(handle, &beginning);
    Py_END_ALLOW_THREADS
    struct wait_result *result = &beginning.result;
    if (!result->spinning && !result->ticket && !result->refusal) Py_RETURN_NONE;
    WaitObject *wait = (WaitObject *)PyType_GenericAlloc(wait_type, 0);
    if (!wait) {
        if (result->spinning) wait_drop(result->spinning);
        if (result->ticket) wait_orphan(result->ticket);
        return NULL;
    }
    return as_answer(wait, result);
}

struct blocking {
    struct handle *handle;
    struct beginning beginning;
    int64_t until;
    int is_main; /* Python calls the handlers of signals in the main thread alone */
};

/* A wait in the thread of the caller: 1 when it is over, 0 at that time, -1 if the handler of a
 * signal has raised, which Python calls in between. It has the arguments that cuStreamSynchronize
 * has, and one more. */
static int block_stream(void *stream, struct blocking *with) {
    static const int64_t SLICE_NS = 25000000;
    (void)stream;
    struct wait_result *result = &with->beginning.result;
    begin(with->handle, &with->beginning);
    int over = !result->spinning;
    while (!over) {
        int64_t slice = with->is_main ? now_ns() + SLICE_NS : NEVER;
        int mode = relaxed_enter();
        over = wait_block(result->spinning, slice < with->until ? slice : with->until,
                          &result->refusal);
        relaxed_leave(mode);
        if (over || slice >= with->until) break;
        PyGILState_STATE state = PyGILState_Ensure();
        over = PyErr_CheckSignals();
        PyGILState_Release(state);
    }
    if (over <= 0) wait_drop(result->spinning);
    return over;
}
/* Another function, because the forwarding library knows a function by its address. */
static int block_event(void *event, struct blocking *with) { return block_stream(event, with); }

typedef int (*blocker)(void *, struct blocking *);
static _Atomic(blocker) blockers[] = {block_stream, block_event};

/* wrap_blocking(wrap): `wrap` returns a function that calls another one and notes that it blocks,
 * as one of the driver's. */
static PyObject *native_wrap_blocking(PyObject *Py_UNUSED(module), PyObject *address) {
    blocker (*wrap)(const char *, blocker) = PyLong_AsVoidPtr(address);
    if (!wrap) return NULL;
    atomic_store(&blockers[0], wrap("cuStreamSynchronize", block_stream));
    atomic_store(&blockers[1], wrap("cuEventSynchronize", block_event));
    Py_RETURN_NONE;
}

/* block(handle, strategy, seconds, is_main): waits in this thread for what `begin` begins to wait
 * for. 0, an error or a refusal, or None: the time has passed. The queue is the janitor's, so no
 * other thread polls the wait. */
static PyObject *WaitList_block(PyObject *object, PyObject *args) {
    struct blocking with = {
        .beginning = {.waits = &((WaitListObject *)object)->waits, .queue = queue_orphans()}};
    double seconds;
    if (!PyArg_ParseTuple(args, "O&O&dp", to_handle, &with.handle, to_strategy,
                          &with.beginning.strategy, &seconds, &with.is_main))
        return NULL;
    with.until = seconds < 1e9 ? now_ns() + (int64_t)(seconds * 1e9) : NEVER;
    int over;
    Py_BEGIN_ALLOW_THREADS
    failed_forget();
    over = atomic_load(&blockers[with.handle->kind == HANDLE_EVENT])(with.handle->value, &with);
    Py_END_ALLOW_THREADS
    if (over < 0) return NULL;
    if (!over) Py_RETURN_NONE;
    return PyLong_FromLong(with.beginning.result.refusal);
}

static PyMethodDef wait_list_methods[] = {
    /* Waits in this thread: 0, an error, or None in time. */
    METHOD(WaitList, block, VARARGS),
    /* Begins a wait for a stream's present end, or an event's present record. */
    METHOD(WaitList, begin, FASTCALL),
    /* What operators call the stream, and the seconds after which it is stalled; 0: never. */
    METHOD(WaitList, label, VARARGS),
    /* The same for another owner of the stream. */
    METHOD(WaitList, shared, O),
    /* Enqueues work and an event behind it, at which a future settles. */
    METHOD(WaitList, enqueue, FASTCALL),
    {NULL, NULL, 0, NULL},
};
static PyMemberDef wait_list_members[] = {
    /* The order of the stream's completions. */
    {"order", T_OBJECT, offsetof(WaitListObject, order), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
/* The waits on one stream, in its order, or those for one event. */
static PyType_Slot wait_list_slots[] = {
    {Py_tp_new, WaitList_new},
    {Py_tp_dealloc, WaitList_dealloc},
    {Py_tp_methods, wait_list_methods},
    {Py_tp_members, wait_list_members},
    {0, NULL},
};

static PyObject *native_spend_turn(PyObject *Py_UNUSED(self), PyObject *const *args,
                                   Py_ssize_t count) {
    if (count != 2) return PyErr_Format(PyExc_TypeError, "a queue and a task are needed");
    struct queue *queue;
    return to_queue(args[0], &queue) ? PyLong_FromLong(queue_spend_turn(queue, args[1])) : NULL;
}

static PyObject *native_new_turn(PyObject *Py_UNUSED(self), PyObject *number) {
    struct queue *queue;
    if (!to_queue(number, &queue)) return NULL;
    queue_new_turn(queue);
    Py_RETURN_NONE;
}

/* wake_by(queue, time): its loop drains it then, or before. A time of the clock, in ns. */
static PyObject *native_wake_by(PyObject *Py_UNUSED(self), PyObject *args) {
    struct queue *queue;
    long long time;
    if (!PyArg_ParseTuple(args, "O&L", to_queue, &queue, &time)) return NULL;
    timer_wake_by(&queue->timer, time);
    Py_RETURN_NONE;
}

static PyObject *native_predict(PyObject *Py_UNUSED(self), PyObject *enabled) {
    waits_predict(PyObject_IsTrue(enabled));
    Py_RETURN_NONE;
}

static PyObject *native_limit_timer(PyObject *Py_UNUSED(self), PyObject *most) {
    return PyLong_FromLong(waits_limit_timer((int)PyLong_AsLong(most)));
}

static PyObject *native_pending_waits(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
    struct waiting each;
    int64_t now = now_ns(), oldest = now;
    int pending = 0;
    for (struct wait *wait = NULL; waits_next(&wait, &each); pending++)
        if (each.began < oldest) oldest = each.began;
    return Py_BuildValue("id", pending, (double)(now - oldest) / 1e9);
}

PyMethodDef wait_functions[] = {
    /* What notes the calls that block. */
    METHOD(native, wrap_blocking, O),
    /* A wait of a task was ready: TURN_ flags. */
    METHOD(native, spend_turn, FASTCALL),
    /* A new turn of the queue's loop has begun. */
    METHOD(native, new_turn, O),
    /* Has the queue's loop drain it at a time. */
    METHOD(native, wake_by, VARARGS),
    /* Whether the policy uses what waits have learnt; for benchmarks and tests. */
    METHOD(native, predict, O),
    /* How many waits a loop's timer takes; what it was. For tests. */
    METHOD(native, limit_timer, O),
    /* How many waits have a task, also those that the task polls; the age of the oldest. */
    METHOD(native, pending_waits, NOARGS),
    {NULL, NULL, 0, NULL},
};

int add_wait_types(PyObject *module) {
    if (ADD_TYPE(module, wait_list, WaitList, 0) < 0 || ADD_TYPE(module, history, History, 0) < 0)
        return -1;
    return ADD_TYPE(module, wait, Wait, Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_HAVE_GC);
}
