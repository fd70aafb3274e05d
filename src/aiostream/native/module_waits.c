/* The Python face of the waits: the types Wait, History and WaitList, and some functions. This is
 * the C side of the loop seam, because it has asyncio's protocol of `await`. */
#include "module.h"

#include "waits.h"

/* --- Wait --- */

/* A KeyboardInterrupt may come between a call's return and the next step of Python, and then the
 * call's answer is lost. So what must not be lost is an object, and it gives up what it owns in one
 * step with the call that takes that over. */
typedef struct {
    PyObject_HEAD
    struct wait *wait;   /* NULL: it is over, or the watcher has it */
    struct queue *queue; /* of the loop whose task polls it */
    uint64_t ticket;     /* of a future's wait; else 0 */
    bool yielded;        /* the loop has had its turn, so the next step is a poll */
} WaitObject;

static PyTypeObject *wait_type;
static PyMethodDef wait_functions[];

/* NULL: no memory. The wait is still the caller's. */
static PyObject *new_wait(struct wait *wait, struct queue *queue) {
    WaitObject *self = PyObject_New(WaitObject, wait_type);
    if (!self) return NULL;
    self->wait = wait;
    self->queue = queue;
    self->ticket = 0;
    self->yielded = false;
    return (PyObject *)self;
}

static void disown_wait(PyObject *object) { ((WaitObject *)object)->wait = NULL; }

/* Whether it is over, one way or another. If it is not, or has failed with an exception, begun is
 * of no use. */
static bool poll(WaitObject *self, struct wait_result *result) {
    if (refuse_in_child()) return false;
    if (!self->wait) {
        PyErr_SetString(PyExc_ValueError, "the wait is over");
        return false;
    }
    *result = (struct wait_result){.ticket = self->ticket};
    if (self->ticket && !wait_is_taken(self->wait, self->ticket)) return true;
    *result = (struct wait_result){.spinning = self->wait};
    bool over;
    Py_BEGIN_ALLOW_THREADS
    failed_forget();
    int mode = relaxed_enter();
    over = wait_poll(self->wait, self->queue, result);
    relaxed_leave(mode);
    Py_END_ALLOW_THREADS
    if (over) self->wait = NULL;
    return over;
}

/* What begin, poll and await answer, always in the same form. None: the wait is over and has
 * succeeded. A number from FIRST_TICKET on: the ticket of a wait that a timer or the watcher has
 * from now on. Any other number: an error or a refusal. And, except of await, a Wait: it is not
 * over, and the task polls it. None costs no object, and a StopIteration carries it for free. */
static PyObject *as_answer(const struct wait_result *result) {
    if (result->ticket) return PyLong_FromUnsignedLongLong(result->ticket);
    if (result->refusal) return PyLong_FromLong(result->refusal);
    Py_RETURN_NONE;
}

/* poll(): the answer; the Wait itself if it is not over. */
static PyObject *Wait_poll(PyObject *self, PyObject *unused) {
    (void)unused;
    struct wait_result result;
    if (poll((WaitObject *)self, &result)) return as_answer(&result);
    return PyErr_Occurred() ? NULL : Py_NewRef(self);
}

static PyObject *end_iteration(const struct wait_result *result) {
    if (!result->ticket && !result->refusal) return NULL;
    PyObject *value = as_answer(result);
    if (value) PyErr_SetObject(PyExc_StopIteration, value);
    Py_XDECREF(value);
    return NULL;
}

/* The C side of the seam to asyncio (see `_runtime/loops`): one step of `await wait`. It yields
 * None, as a bare `yield` does, which asks asyncio for one turn of the loop, and then polls with
 * turns in between. The await ends with poll()'s last answer. Only
 * `_runtime/loops/on_asyncio.py` awaits a Wait, because trio would refuse what is yielded here. A
 * future's wait that was dropped meanwhile (the future was cancelled) has been left to the watcher.
 */
static PyObject *Wait_next(PyObject *object) {
    WaitObject *self = (WaitObject *)object;
    struct wait_result result = {.ticket = self->ticket};
    if (!self->wait && self->ticket) return end_iteration(&result);
    if (!self->yielded) {
        self->yielded = true;
        Py_RETURN_NONE;
    }
    if (!poll(self, &result)) {
        if (PyErr_Occurred()) return NULL;
        Py_RETURN_NONE;
    }
    return end_iteration(&result);
}

static PyObject *Wait_await(PyObject *self) { return Py_NewRef(self); }

/* In a forked child it is left alone, because the parent has the watcher that would deal with
 * it. */
static void drop(WaitObject *self) {
    struct wait *wait = self->wait;
    self->wait = NULL;
    if (!wait || is_child()) return;
    if (self->ticket) wait_drop_future(wait, self->ticket);
    else wait_drop(wait);
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
    {"poll", Wait_poll, METH_NOARGS,
     "Queries it: itself if it is not over, else None, an error, or the ticket of a timer or the "
     "watcher."},
    {"drop", Wait_drop, METH_NOARGS,
     "No task waits any more. May be called again, and when it is over."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot wait_slots[] = {
    {Py_tp_dealloc, Wait_dealloc},
    {Py_tp_methods, wait_methods},
    {Py_am_await, Wait_await},
    {Py_tp_iter, Wait_await},
    {Py_tp_iternext, Wait_next},
    {Py_tp_doc, "A wait at which its task polls itself; an asyncio task can await it. When it dies "
                "it is dropped."},
    {0, NULL},
};
static PyType_Spec wait_spec = {"aiostream._native.Wait", sizeof(WaitObject), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, wait_slots};

/* --- Reserved --- */

/* Everything that a future's wait needs, before its work is enqueued. It is given back if it dies
 * unrecorded. */
typedef struct {
    PyObject_HEAD
    struct wait *wait; /* once it is recorded, the record may be another's */
    struct queue *queue;
    bool recorded;
    uint64_t ticket;
} ReservedObject;

static PyTypeObject *reserved_type;

static void Reserved_dealloc(PyObject *object) {
    ReservedObject *self = (ReservedObject *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (!self->recorded && !is_child()) wait_unreserve(self->wait);
    PyObject_Free(object);
    Py_DECREF(type);
}

struct recording_future {
    ReservedObject *reserved;
    enum stage stage;
};

static int do_record_future(struct handle *stream, void *argument) {
    struct recording_future *recording = argument;
    int status =
        wait_record_future(recording->reserved->wait, handle_value(stream), &recording->stage);
    if (status == CUDA_SUCCESS) recording->reserved->recorded = true;
    return status;
}

/* record(handle): (0 or a refusal, who polls it first: STAGE_TASK, and then the loop has to poll
 * soon, STAGE_TIMER or STAGE_WATCHER, which has it until the end). The caller has pinned the
 * handle. */
static PyObject *Reserved_record(PyObject *object, PyObject *stream) {
    struct recording_future recording = {.reserved = (ReservedObject *)object,
                                         .stage = STAGE_WATCHER};
    struct handle *handle = as_handle(stream);
    if (!handle) return NULL;
    if (recording.reserved->recorded)
        return PyErr_Format(PyExc_ValueError, "it was recorded before");
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = operate_pinned_as_is(handle, do_record_future, &recording);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("ii", status, (int)recording.stage);
}

/* fire(status): fires the ticket if there is nothing to record. Any thread. */
static PyObject *Reserved_fire(PyObject *object, PyObject *status) {
    ReservedObject *self = (ReservedObject *)object;
    long code = PyLong_AsLong(status);
    if ((code == -1 && PyErr_Occurred()) || refuse_in_child()) return NULL;
    if (self->recorded) return PyErr_Format(PyExc_ValueError, "it was recorded before");
    self->recorded = true;
    wait_fire_unrecorded(self->wait, (int)code);
    Py_RETURN_NONE;
}

/* take(at_once): the wait, if the loop polls it. Its caller, in the loop's thread, polls it from
 * now on. Otherwise None. An `await` of it polls at once, or after a turn of the loop. */
static PyObject *Reserved_take(PyObject *object, PyObject *at_once) {
    ReservedObject *self = (ReservedObject *)object;
    if (refuse_in_child()) return NULL;
    if (!self->recorded) Py_RETURN_NONE;
    /* first, because what was taken must not be lost */
    WaitObject *taken = (WaitObject *)new_wait(NULL, NULL);
    if (!taken) return NULL;
    if (!wait_take_future(self->wait, self->ticket)) {
        Py_DECREF(taken);
        Py_RETURN_NONE;
    }
    taken->wait = self->wait;
    taken->queue = self->queue;
    taken->ticket = self->ticket;
    taken->yielded = at_once == Py_True;
    return (PyObject *)taken;
}

static PyObject *Reserved_ticket(PyObject *object, void *unused) {
    (void)unused;
    return PyLong_FromUnsignedLongLong(((ReservedObject *)object)->ticket);
}

static PyObject *Reserved_is_recorded(PyObject *object, void *unused) {
    (void)unused;
    return PyBool_FromLong(((ReservedObject *)object)->recorded);
}

static PyMethodDef reserved_methods[] = {
    {"record", Reserved_record, METH_O,
     "Records what a pinned stream has reached: (0 or a refusal, STAGE_...)."},
    {"fire", Reserved_fire, METH_O, "Fires the ticket with a status in place of recording."},
    {"take", Reserved_take, METH_O,
     "The Wait, if its loop polls it: the caller does from now on. Else None."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef reserved_properties[] = {
    {"ticket", Reserved_ticket, NULL, "The ticket that is fired at the end.", NULL},
    {"is_recorded", Reserved_is_recorded, NULL, "Whether the ticket will be fired.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot reserved_slots[] = {
    {Py_tp_dealloc, Reserved_dealloc},
    {Py_tp_methods, reserved_methods},
    {Py_tp_getset, reserved_properties},
    {Py_tp_doc, "A reserved wait of a future."},
    {0, NULL},
};
static PyType_Spec reserved_spec = {"aiostream._native.Reserved", sizeof(ReservedObject), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                    reserved_slots};

/* --- History --- */

typedef struct {
    PyObject_HEAD
    struct shared_history *history;
} HistoryObject;

static PyTypeObject *history_type;

static PyObject *History_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "", names)) return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    HistoryObject *self = (HistoryObject *)allocate(type, 0);
    if (!self) return NULL;
    self->history = shared_history_new();
    if (self->history) return (PyObject *)self;
    Py_DECREF(self);
    return PyErr_NoMemory();
}

static void History_dealloc(PyObject *object) {
    HistoryObject *self = (HistoryObject *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->history) shared_history_unref(self->history);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static struct shared_history *as_history(PyObject *object) {
    if (PyObject_TypeCheck(object, history_type)) return ((HistoryObject *)object)->history;
    PyErr_SetString(PyExc_TypeError, "a History is needed");
    return NULL;
}

static PyType_Slot history_slots[] = {
    {Py_tp_new, History_new},
    {Py_tp_dealloc, History_dealloc},
    {Py_tp_doc, "How long waits took: of one stream, of one event, or of the streams of a pool."},
    {0, NULL},
};
static PyType_Spec history_spec = {"aiostream._native.History", sizeof(HistoryObject), 0,
                                   Py_TPFLAGS_DEFAULT, history_slots};

/* --- WaitList --- */

typedef struct {
    PyObject_HEAD
    struct wait_list *list;
} WaitListObject;

static PyTypeObject *wait_list_type;

struct wait_list *as_wait_list(PyObject *object) {
    if (PyObject_TypeCheck(object, wait_list_type)) return ((WaitListObject *)object)->list;
    PyErr_SetString(PyExc_TypeError, "a WaitList is needed");
    return NULL;
}

static PyObject *WaitList_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"context_id", "history", NULL};
    int number;
    PyObject *object;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iO", names, &number, &object)) return NULL;
    struct context *context = as_context(number);
    struct shared_history *history = context ? as_history(object) : NULL;
    if (!history) return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    WaitListObject *self = (WaitListObject *)allocate(type, 0);
    if (!self) return NULL;
    self->list = wait_list_new(context, history);
    if (self->list) return (PyObject *)self;
    Py_DECREF(self);
    return PyErr_NoMemory();
}

static void WaitList_dealloc(PyObject *object) {
    WaitListObject *self = (WaitListObject *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->list) wait_list_unref(self->list);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyObject *from_result(const struct wait_result *result, struct queue *queue) {
    if (!result->spinning) return as_answer(result);
    PyObject *object = new_wait(result->spinning, queue);
    if (!object) wait_drop(result->spinning);
    return object;
}

static const struct strategy *as_strategy(long number) {
    if (number >= 0 && number < strategy_count) return &strategies[number];
    if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "there is no wait strategy %ld", number);
    return NULL;
}

struct beginning {
    struct wait_list *list;  /* of a stream */
    struct context *context; /* these two of an event */
    struct shared_history *history;
    struct queue *queue;
    const struct strategy *strategy;
    struct wait_result result;
};

static int do_begin(struct handle *stream, void *argument) {
    struct beginning *beginning = argument;
    wait_begin(beginning->list, handle_value(stream), beginning->queue, beginning->strategy,
               &beginning->result);
    return 0;
}

static int do_begin_event(struct handle *event, void *argument) {
    struct beginning *beginning = argument;
    wait_begin_event(beginning->context, beginning->history, event, beginning->queue,
                     beginning->strategy, &beginning->result);
    return 0;
}

/* The arguments handle, queue and strategy; false: an exception is set. */
static bool parse_beginning(PyObject *const *args, struct handle **handle,
                            struct beginning *beginning) {
    *handle = as_handle(args[0]);
    beginning->queue = *handle ? as_queue((int)PyLong_AsLong(args[1])) : NULL;
    beginning->strategy = beginning->queue ? as_strategy(PyLong_AsLong(args[2])) : NULL;
    return beginning->strategy != NULL;
}

/* begin(handle, queue, strategy): waits for what the handle's stream has reached now. */
static PyObject *WaitList_begin(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "a handle, a queue and a strategy are needed");
    struct handle *handle;
    struct beginning beginning = {.list = ((WaitListObject *)object)->list};
    if (!parse_beginning(args, &handle, &beginning)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    int refusal = operate_as_is(handle, do_begin, &beginning);
    if (refusal) beginning.result.refusal = refusal;
    Py_END_ALLOW_THREADS
    return from_result(&beginning.result, beginning.queue);
}

/* begin_event_wait(handle, queue, strategy, context, history): waits for what the handle's event
 * has recorded now. */
static PyObject *native_begin_event_wait(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (count != 5)
        return PyErr_Format(PyExc_TypeError,
                            "a handle, a queue, a strategy, a context and a history are needed");
    struct handle *handle;
    struct beginning beginning = {0};
    if (!parse_beginning(args, &handle, &beginning)) return NULL;
    beginning.context = as_context((int)PyLong_AsLong(args[3]));
    beginning.history = beginning.context ? as_history(args[4]) : NULL;
    if (!beginning.history) return NULL;
    Py_BEGIN_ALLOW_THREADS
    int refusal = operate(handle, do_begin_event, &beginning);
    if (refusal) beginning.result.refusal = refusal;
    Py_END_ALLOW_THREADS
    return from_result(&beginning.result, beginning.queue);
}

struct reserving {
    struct wait_list *list;
    struct queue *queue;
    const struct strategy *strategy;
    struct wait *wait;
};

static int do_reserve(struct handle *stream, void *argument) {
    struct reserving *reserving = argument;
    int refusal = stream ? capture_refusal(handle_value(stream)) : 0;
    return refusal ? refusal
                   : wait_reserve(reserving->list, reserving->queue, reserving->strategy,
                                  &reserving->wait);
}

/* reserve(queue, strategy, stream): a Reserved, or the driver's error. With a stream, it asks first
 * whether the context was healthy within the last millisecond, and whether the stream captures. All
 * this gives up the GIL once, because each time may cost 5 ms while another thread computes in
 * Python. */
static PyObject *WaitList_reserve(PyObject *object, PyObject *args) {
    int index, number, status;
    PyObject *stream = NULL;
    if (!PyArg_ParseTuple(args, "ii|O", &index, &number, &stream) || refuse_in_child()) return NULL;
    struct reserving reserving = {.list = ((WaitListObject *)object)->list};
    struct handle *handle = stream ? as_handle(stream) : NULL;
    if (stream && !handle) return NULL;
    reserving.queue = as_queue(index);
    reserving.strategy = reserving.queue ? as_strategy(number) : NULL;
    if (!reserving.strategy) return NULL;
    Py_BEGIN_ALLOW_THREADS
    failed_forget();
    status = handle ? wait_list_health(reserving.list) : CUDA_SUCCESS;
    if (status != CUDA_SUCCESS) failed_in("cuStreamQuery", status);
    else status = handle ? operate(handle, do_reserve, &reserving) : do_reserve(NULL, &reserving);
    Py_END_ALLOW_THREADS
    if (status != CUDA_SUCCESS) return PyLong_FromLong(status);
    ReservedObject *self = PyObject_New(ReservedObject, reserved_type);
    if (!self) {
        wait_unreserve(reserving.wait);
        return NULL;
    }
    self->wait = reserving.wait;
    self->queue = reserving.queue;
    self->recorded = false;
    self->ticket = wait_ticket(reserving.wait);
    return (PyObject *)self;
}

static PyMethodDef wait_list_methods[] = {
    {"reserve", WaitList_reserve, METH_VARARGS, "Reserves the wait of a future."},
    {"begin", (PyCFunction)(void (*)(void))WaitList_begin, METH_FASTCALL,
     "Begins a wait for a stream's present end."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot wait_list_slots[] = {
    {Py_tp_new, WaitList_new},
    {Py_tp_dealloc, WaitList_dealloc},
    {Py_tp_methods, wait_list_methods},
    {Py_tp_doc, "The waits on one stream, in its order."},
    {0, NULL},
};
static PyType_Spec wait_list_spec = {"aiostream._native.WaitList", sizeof(WaitListObject), 0,
                                     Py_TPFLAGS_DEFAULT, wait_list_slots};

struct delivery {
    PyObject *list;
    struct queue *queue;
};

static bool append(void *argument, uint64_t ticket, int64_t status, bool complete) {
    const struct delivery *delivery = argument;
    PyObject *list = delivery->list;
    Py_ssize_t length = PyList_Size(list);
    struct wait *wait = wait_handed_back(status);
    PyObject *code =
        wait ? new_wait(wait, delivery->queue) : PyLong_FromLongLong(complete ? status : -status);
    if (code && append_number(list, PyLong_FromUnsignedLongLong(ticket)) &&
        PyList_Append(list, code) == 0) {
        Py_DECREF(code);
        return true;
    }
    /* the ticket goes back on its queue, and the wait with it */
    if (wait && code) disown_wait(code);
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
    bool again = false;
    if (waits_are_due(queue)) {
        Py_BEGIN_ALLOW_THREADS
        int mode = relaxed_enter();
        waits_run_due(queue);
        again = waits_poll_futures(queue);
        relaxed_leave(mode);
        Py_END_ALLOW_THREADS
    }
    if (!queue_drain(queue, append, &delivery)) return NULL;
    for (uint64_t ticket; (ticket = waits_next_near(queue));)
        if (!append(&delivery, ticket, STATUS_NEAR, true))
            return NULL; /* then the loop goes on polling it */
    return PyBool_FromLong(again);
}

static PyObject *native_spend_turn(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (count != 2) return PyErr_Format(PyExc_TypeError, "a queue and a task are needed");
    struct queue *queue = as_queue((int)PyLong_AsLong(args[0]));
    return queue ? PyLong_FromLong(queue_spend_turn(queue, args[1])) : NULL;
}

static PyObject *native_new_turn(PyObject *self, PyObject *args) {
    (void)self;
    int index;
    if (!PyArg_ParseTuple(args, "i", &index)) return NULL;
    struct queue *queue = as_queue(index);
    if (!queue) return NULL;
    queue_new_turn(queue);
    Py_RETURN_NONE;
}

/* arm_alarm(queue, context, tickets): appends a ticket to the list of its owner. It is one step,
 * because a KeyboardInterrupt before the caller has stored the ticket would leave it armed, and its
 * queue could never be used again. */
static PyObject *native_arm_alarm(PyObject *self, PyObject *args) {
    (void)self;
    int queue_number, context_id;
    PyObject *tickets;
    if (!PyArg_ParseTuple(args, "iiO!", &queue_number, &context_id, &PyList_Type, &tickets) ||
        refuse_in_child())
        return NULL;
    struct queue *queue = as_queue(queue_number);
    struct context *context = queue && context_id >= 0 ? as_context(context_id) : NULL;
    if (!queue || (context_id >= 0 && !context)) return NULL;
    uint64_t ticket = point_arm_alarm(queue, context);
    if (!ticket) return PyErr_NoMemory();
    if (append_number(tickets, PyLong_FromUnsignedLongLong(ticket))) Py_RETURN_NONE;
    point_fire_alarm(ticket);
    return NULL;
}

static PyObject *native_fire_alarm(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long ticket;
    if (!PyArg_ParseTuple(args, "K", &ticket)) return NULL;
    if (!is_child()) point_fire_alarm(ticket);
    Py_RETURN_NONE;
}

static PyObject *native_orphan(PyObject *self, PyObject *ticket) {
    (void)self;
    if (!is_child()) wait_orphan(PyLong_AsUnsignedLongLongMask(ticket));
    Py_RETURN_NONE;
}

static PyObject *native_predict(PyObject *self, PyObject *enabled) {
    (void)self;
    waits_predict(PyObject_IsTrue(enabled));
    Py_RETURN_NONE;
}

static PyObject *native_limit_timer(PyObject *self, PyObject *args) {
    (void)self;
    int most;
    if (!PyArg_ParseTuple(args, "i", &most)) return NULL;
    return PyLong_FromLong(waits_limit_timer(most));
}

static PyObject *native_pending_waits(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    return PyLong_FromLongLong(waits_pending());
}

int add_wait_types(PyObject *module) {
    if (!wait_list_type) wait_list_type = (PyTypeObject *)PyType_FromSpec(&wait_list_spec);
    if (!wait_list_type ||
        PyModule_AddObjectRef(module, "WaitList", (PyObject *)wait_list_type) < 0)
        return -1;
    if (!history_type) history_type = (PyTypeObject *)PyType_FromSpec(&history_spec);
    if (!history_type || PyModule_AddObjectRef(module, "History", (PyObject *)history_type) < 0)
        return -1;
    if (!reserved_type) reserved_type = (PyTypeObject *)PyType_FromSpec(&reserved_spec);
    if (!reserved_type || PyModule_AddObjectRef(module, "Reserved", (PyObject *)reserved_type) < 0)
        return -1;
    if (!wait_type) wait_type = (PyTypeObject *)PyType_FromSpec(&wait_spec);
    if (!wait_type || PyModule_AddObjectRef(module, "Wait", (PyObject *)wait_type) < 0) return -1;
    return PyModule_AddFunctions(module, wait_functions);
}

static PyMethodDef wait_functions[] = {
    {"drain", native_drain, METH_VARARGS,
     "Appends ticket, code, ... of all that has arrived to a list. True: drain again in the next "
     "turn."},
    {"begin_event_wait", (PyCFunction)(void (*)(void))native_begin_event_wait, METH_FASTCALL,
     "Begins a wait for an event."},
    {"spend_turn", (PyCFunction)(void (*)(void))native_spend_turn, METH_FASTCALL,
     "A wait of a task was ready: TURN_ flags."},
    {"new_turn", native_new_turn, METH_VARARGS, "A new turn of the queue's loop has begun."},
    {"arm_alarm", native_arm_alarm, METH_VARARGS,
     "Appends to a list a ticket that fires with the code when the context fails; -1: of none."},
    {"fire_alarm", native_fire_alarm, METH_VARARGS,
     "Fires such a ticket with 0, unless it has fired."},
    {"orphan", native_orphan, METH_O,
     "No task waits for a ticket any more: the watcher and the janitor see to its end."},
    {"predict", native_predict, METH_O,
     "Whether the policy uses what waits have learnt; for benchmarks and tests."},
    {"limit_timer", native_limit_timer, METH_VARARGS,
     "How many waits a loop's timer takes; what it was. For tests."},
    {"pending_waits", native_pending_waits, METH_NOARGS,
     "Waits with a task, also those that the task polls."},
    {NULL, NULL, 0, NULL},
};
