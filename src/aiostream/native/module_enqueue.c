/* How work is enqueued with a completion behind it, in one step for a KeyboardInterrupt.
 *
 * enqueue() runs in the thread of the loop. It reserves the wait, its event and the ticket first,
 * so that all that can be refused is refused before the user's function runs. It then calls the
 * function in the stream's context, counts the future as pending, and records the event behind the
 * work, or enqueues a host function. The completion belongs to the slot of its point before that,
 * because the point may fire at once.
 *
 * If the driver refuses after the function has run, the objects are leaked and counted, because
 * nothing would prove that the GPU is done with them. The GIL is given up for the driver's calls
 * and never for the function. Completion.run does the same in a worker thread.
 */
#include "module_completions.h"

struct reserving {
    CompletionObject *completion;
    const struct waits *waits;
    struct wait *under_way; /* see call_begin */
    struct context *context;
    const struct strategy *strategy;
    enum point_kind kind;
    bool asks; /* whether the context is healthy, and whether the stream captures */
    bool enters;
};

/* Without the GIL, under RELAXED, with the stream pinned. */
static int do_reserve(struct handle *stream, void *argument) {
    const struct reserving *reserving = argument;
    CompletionObject *completion = reserving->completion;
    int refusal = reserving->asks ? capture_refusal(handle_value(stream)) : 0;
    if (refusal) return refusal;
    if (reserving->waits) {
        refusal = wait_reserve(reserving->waits, completion->queue, reserving->strategy,
                               &completion->wait);
        if (refusal) return refusal;
        completion->ticket = wait_ticket(completion->wait);
        atomic_store(&completion->began, 0);
        return CUDA_SUCCESS;
    }
    completion->ticket = point_reserve(completion->queue, reserving->context, reserving->kind);
    return completion->ticket ? CUDA_SUCCESS : RESULT_NO_MEMORY;
}

/* Everything that can be refused before the work is enqueued. The GIL is given up once, because
 * each time may cost 5 ms while another thread computes in Python. */
static int reserve(struct reserving *reserving, struct handle *stream) {
    int status;
    Py_BEGIN_ALLOW_THREADS
    failed_forget();
    if (reserving->waits) reserving->under_way = call_begin(reserving->waits);
    status = !reserving->asks   ? CUDA_SUCCESS
             : reserving->waits ? wait_list_health(reserving->waits->list)
                                : context_recent_health(reserving->context);
    if (status != CUDA_SUCCESS) failed_in("cuStreamQuery", status);
    else status = operate_pinned(stream, do_reserve, reserving);
    if (status == CUDA_SUCCESS && reserving->enters) status = context_push(handle_context(stream));
    Py_END_ALLOW_THREADS
    return status;
}

struct recording {
    struct wait *wait;
    uint64_t ticket;
    bool at_once; /* it may be over at once; then, that it is */
};

static int do_record(struct handle *stream, void *argument) {
    struct recording *recording = argument;
    if (!recording->wait) return point_arm(recording->ticket, handle_value(stream));
    if (recording->at_once &&
        (recording->at_once = wait_is_over_at_once(recording->wait, handle_value(stream))))
        return CUDA_SUCCESS;
    return wait_record_future(recording->wait, handle_value(stream));
}

/* Enqueues the point behind the work, unless *at_once says that the work may be done already, and
 * it is: then *at_once stays true. 0, or a refusal, after which only a quarantined one still has
 * its owner. It also leaves the context that was pushed. */
static int record(CompletionObject *self, struct handle *stream, bool leaves, bool *at_once) {
    struct recording recording = {self->wait, self->ticket, *at_once};
    int status;
    own(self->ticket, (PyObject *)self, 0);
    Py_BEGIN_ALLOW_THREADS
    if (leaves) context_pop();
    status = recording.wait ? operate_pinned_as_is(stream, do_record, &recording)
                            : operate_pinned(stream, do_record, &recording);
    Py_END_ALLOW_THREADS
    *at_once = recording.at_once;
    self->recorded = !*at_once && (status == CUDA_SUCCESS || status == RESULT_QUARANTINED);
    if (!self->recorded) disown(self->ticket);
    return status;
}

/* Calls `call`, if there is one, and enqueues the point behind what it has enqueued. The context
 * was pushed if there is a call. -1: `call` has raised. The point is enqueued then too, if objects
 * are to be kept alive until the GPU has passed what it has enqueued. *refusal says whether that
 * went well. *at_once is that of `record`.
 */
static int carry_out(CompletionObject *self, struct handle *stream, PyObject *call, int *refusal,
                     bool *at_once) {
    PyObject *kind = NULL, *value = NULL, *traceback = NULL;
    PyObject *result = call ? plain_result(PyObject_CallNoArgs(call)) : Py_NewRef(Py_None);
    *refusal = 0;
    if (is_child()) { /* `call` has forked, and the driver is the parent's */
        if (result) refuse_in_child();
        Py_XDECREF(result);
        return -1;
    }
    if (!result) PyErr_Fetch(&kind, &value, &traceback);
    /* `call` may hold what it has got before it raised. */
    self->result = result ? result : Py_NewRef(call);
    /* This comes before the record. Otherwise the event could be complete and counted while this
     * thread waits for the GIL, and `drain` in another thread would miss the future. */
    if (result && self->state == NEW && self->future) completion_begin(self);
    if (result || self->keepalive) {
        *at_once = *at_once && result;
        *refusal = record(self, stream, call != NULL, at_once);
    } else {
        pop_from_python();
        Py_CLEAR(self->result);
    }
    if (result) return 0;
    PyErr_Restore(kind, value, traceback);
    return -1;
}

static PyObject *call_inside(PyObject *currents, Py_ssize_t done, PyObject *call, PyObject *held) {
    if (done == PyList_Size(currents)) {
        PyObject *result = PyObject_CallNoArgs(call);
        if (result && PyList_Append(held, result) < 0) Py_CLEAR(result);
        /* An interrupt that came in a function of C. It would come at the beginning of `put_back`,
         * and the stream would stay current. */
        if (result && PyErr_CheckSignals() < 0) Py_CLEAR(result);
        return result;
    }
    PyObject *current = PyList_GetItem(currents, done); /* (put, put_back) */
    PyObject *before = PyObject_CallNoArgs(PyTuple_GetItem(current, 0));
    if (!before) return NULL;
    PyObject *result = call_inside(currents, done + 1, call, held);
    PyObject *kind, *value, *traceback, *handled[3];
    PyErr_Fetch(&kind, &value, &traceback);
    if (kind) { /* it is being handled, as at the end of a `with` block: see `__context__` */
        PyErr_NormalizeException(&kind, &value, &traceback);
        if (traceback) PyException_SetTraceback(value, traceback);
        PyErr_GetExcInfo(&handled[0], &handled[1], &handled[2]);
        PyErr_SetExcInfo(Py_NewRef(kind), Py_NewRef(value), Py_XNewRef(traceback));
    }
    PyObject *put = PyObject_CallFunctionObjArgs(PyTuple_GetItem(current, 1), before, NULL);
    if (kind) PyErr_SetExcInfo(handled[0], handled[1], handled[2]);
    if (put) {
        PyErr_Restore(kind, value, traceback);
    } else {
        Py_CLEAR(result);
        PyObject *first[] = {kind, value, traceback};
        for (int i = 0; i < 3; i++) Py_XDECREF(first[i]);
    }
    Py_XDECREF(put);
    Py_DECREF(before);
    return result;
}

/* call_with(currents, call, held): calls `call` while a stream is current in other libraries. Each
 * of `currents` is a pair of functions. The first makes the stream current and returns what was,
 * with which the second takes that back. The result is appended to `held`, because an interrupt may
 * come in the second, and the GPU may use the result. */
static PyObject *native_call_with(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *currents, *call, *held;
    if (!PyArg_ParseTuple(args, "O!OO!", &PyList_Type, &currents, &call, &PyList_Type, &held))
        return NULL;
    return call_inside(currents, 0, call, held);
}

/* call_in_context(handle, wait_list, call): makes another call in the context of a stream that is
 * pinned, of which nothing is kept. 0, or why it was not made. */
static PyObject *native_call_in_context(PyObject *Py_UNUSED(module), PyObject *args) {
    struct handle *handle;
    const struct waits *waits;
    PyObject *call;
    if (!PyArg_ParseTuple(args, "O&O&O", to_handle, &handle, to_waits, &waits, &call)) return NULL;
    int status = push_from_python(handle);
    if (status != CUDA_SUCCESS) return PyLong_FromLong(status);
    struct wait *under_way = NULL;
    if (atomic_load(&waits->limit)) {
        Py_BEGIN_ALLOW_THREADS
        under_way = call_begin(waits);
        Py_END_ALLOW_THREADS
    }
    PyObject *answer = PyObject_CallNoArgs(call);
    pop_from_python();
    if (!is_child()) call_end(under_way);
    Py_XDECREF(answer);
    return answer ? PyLong_FromLong(CUDA_SUCCESS) : NULL;
}

/* leak(keepalive): nothing will prove that the GPU does not use it. */
static PyObject *native_leak(PyObject *Py_UNUSED(module), PyObject *keepalive) {
    Py_INCREF(keepalive);
    count_leak();
    Py_RETURN_NONE;
}

/* enqueue(handle, where, queue, number, future, call, keepalive, order, name, at_once): a future of
 * what `call` enqueues on a stream, or of the stream's present end if `call` is None. `where` is a
 * wait list, and `number` that of a strategy. Or they are a context, and a KIND_. `call` runs in
 * the stream's context. Everything that can be refused is reserved before.
 *
 * `at_once` says that the future may be done when this returns.
 *
 * None: done. True: the same, and the future is done. The Completion: done, and it has no wait
 * list. A number: it was refused before `call` ran. A tuple with a number: after that. */
static PyObject *native_enqueue(PyObject *Py_UNUSED(module), PyObject *const *args,
                                Py_ssize_t count) {
    if (count != 10) return PyErr_Format(PyExc_TypeError, "ten arguments are needed");
    struct handle *stream;
    struct queue *queue;
    struct reserving reserving = {0};
    PyObject *call = args[5] == Py_None ? NULL : args[5], *order = args[7];
    if (!to_handle(args[0], &stream) || !to_queue(args[2], &queue)) return NULL;
    if (PyLong_CheckExact(args[1])) {
        reserving.kind = (enum point_kind)PyLong_AsLong(args[3]);
        if (!to_context(args[1], &reserving.context)) return NULL;
    } else if (!to_waits(args[1], &reserving.waits) || !to_strategy(args[3], &reserving.strategy)) {
        return NULL;
    }
    if (!is_order(order)) return PyErr_Format(PyExc_TypeError, "an Order is needed");
    PyObject *object = PyType_GenericAlloc(completion_type, 0);
    if (!object) return NULL;
    CompletionObject *self = reserving.completion = (CompletionObject *)object;
    completion_fill(self, args[4], args[8], args[6]);
    if (!reserving.waits)
        self->call = reserving.kind == KIND_CALLBACK ? "cuStreamAddCallback" : "cuLaunchHostFunc";
    self->queue = queue;
    self->queue_identity = queue_identity(queue);
    reserving.enters = call != NULL;
    /* The record would harm a capture only on the legacy stream. */
    reserving.asks = call || (uintptr_t)handle_value(stream) <= 1;
    PyObject *answer = NULL;
    /* Until the point is behind the work, because `call` or another thread may close the stream,
     * and the work would then have no completion. */
    if (!handle_pin(stream)) {
        answer = PyLong_FromLong(RESULT_CLOSED);
        goto end;
    }
    int refusal = reserve(&reserving, stream);
    if (refusal) {
        answer = PyLong_FromLong(refusal);
        goto unpin;
    }
    bool at_once = args[9] == Py_True && self->wait;
    int raised = carry_out(self, stream, call, &refusal, &at_once);
    if (refusal) { /* the driver would refuse again */
        if (self->state == PENDING) completion_end(self, CANCELLED);
        if (refusal != RESULT_QUARANTINED) completion_leak(self);
    }
    if (raised) {
        completion_give_up(self);
    } else if (refusal) {
        answer = Py_BuildValue("(i)", refusal);
    } else if (completion_enter(self, order), at_once) {
        /* If this raises, the caller has no future, and the GPU has passed the work. */
        if (completion_complete(self, CUDA_SUCCESS, false) == 0) answer = Py_NewRef(Py_True);
        else completion_give_up(self), completion_end(self, CANCELLED);
    } else {
        if (!self->wait) answer = Py_NewRef(object);
        else if (PyObject_SetAttr(args[4], names.point, object) == 0) answer = Py_NewRef(Py_None);
    }
unpin:
    if (!is_child()) call_end(reserving.under_way);
    unpin_from_python(stream);
end:
    Py_DECREF(object);
    return answer;
}

/* The steps of an enqueue that another thread carries out. */

/* expect(context, queue): takes a ticket, in the thread of the loop, and makes no driver call. So
 * the queue is not another loop's when the other thread reserves the wait or fires the ticket. */
PyObject *Completion_expect(PyObject *object, PyObject *args) {
    CompletionObject *self = (CompletionObject *)object;
    struct context *context;
    if (!PyArg_ParseTuple(args, "O&O&", to_context, &context, to_queue, &self->queue)) return NULL;
    if (self->ticket) return PyErr_Format(PyExc_ValueError, "it was expected before");
    self->ticket = point_reserve(self->queue, context, KIND_POLLED);
    if (!self->ticket) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* run(wait_list, strategy, handle, call): as `enqueue`, once it was expected, with a stream that is
 * pinned. A number: it was refused before `call` ran. A tuple with a number: after that. None:
 * done.
 */
PyObject *Completion_run(PyObject *object, PyObject *args) {
    CompletionObject *self = (CompletionObject *)object;
    struct handle *stream;
    struct reserving reserving = {.completion = self, .asks = true, .enters = true};
    PyObject *call;
    if (!PyArg_ParseTuple(args, "O&O&O&O", to_waits, &reserving.waits, to_strategy,
                          &reserving.strategy, to_handle, &stream, &call))
        return NULL;
    if (!self->ticket || self->wait)
        return PyErr_Format(PyExc_ValueError, "it was not expected, or was run before");
    uint64_t expected = self->ticket;
    int refusal = reserve(&reserving, stream);
    call_end(reserving.under_way); /* the function of a thread may take long */
    if (self->ticket != expected) point_unreserve(expected);
    if (refusal) return PyLong_FromLong(refusal);
    bool at_once = false; /* another thread settles the future */
    if (carry_out(self, stream, call, &refusal, &at_once) < 0) return NULL;
    if (refusal) return Py_BuildValue("(i)", refusal);
    Py_RETURN_NONE;
}

/* fire(status): ends it if there is nothing to record. Any thread. */
PyObject *Completion_fire(PyObject *object, PyObject *args) {
    CompletionObject *self = (CompletionObject *)object;
    int status;
    if (!PyArg_ParseTuple(args, "i", &status) || refuse_in_child()) return NULL;
    if (!self->ticket || self->recorded)
        return PyErr_Format(PyExc_ValueError, "it was not expected, or was recorded before");
    self->recorded = true;
    own(self->ticket, object, 0);
    if (self->wait) wait_fire_unrecorded(self->wait, status);
    else point_arm_polled(self->ticket), point_fire(self->ticket, status);
    Py_RETURN_NONE;
}

PyMethodDef enqueue_functions[] = {
    {"enqueue", FAST(native_enqueue),
     "Enqueues work and a point behind it, at which a future settles."},
    {"call_with", native_call_with, METH_VARARGS, "Calls with a stream current in torch or cupy."},
    {"call_in_context", native_call_in_context, METH_VARARGS,
     "Makes a call in the context of a pinned stream: 0, or why not."},
    {"plain_result", native_plain_result, METH_O, "Returns it, unless it is a coroutine."},
    {"leak", native_leak, METH_O, "Keeps an object for the life of the process: counted."},
    {NULL, NULL, 0, NULL},
};
