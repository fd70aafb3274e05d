/* How work is enqueued with a completion behind it, in one step for a KeyboardInterrupt.
 *
 * `enqueue` runs in the thread of the loop. It reserves the wait, its event and the ticket first,
 * so that all that can be refused is refused before the user's function runs. It then calls the
 * function in the stream's context, counts the future as pending, and records the event behind the
 * work, or enqueues a host function. Before that the completion becomes the owner of its point,
 * because the point may fire at once.
 *
 * If the driver refuses after the function has run, the objects are leaked and counted, because
 * nothing would prove that the GPU is done with them. The GIL is given up for the driver's calls
 * and never for the function. Completion.run does the same in a worker thread.
 */
#include "completions.h"

struct enqueuing {
    CompletionObject *completion;
    const struct waits *waits;
    struct call *under_way; /* see call_begin */
    struct context *context;
    const struct strategy *strategy;
    enum point_kind kind;
    PyObject *call; /* made in the context of the stream before; NULL: there is none */
    bool asks;      /* whether the context is healthy, and whether the stream captures */
    bool drives;    /* the caller runs a generator that the call returns */
    bool at_once;   /* the work may be done when it is enqueued; then, that it is */
    int refusal;    /* of the point behind the work */
};

/* Without the GIL, under RELAXED, with the stream pinned. */
static int do_reserve(struct handle *stream, void *argument) {
    const struct enqueuing *with = argument;
    CompletionObject *completion = with->completion;
    int refusal = with->asks ? capture_refusal(stream->value) : 0;
    if (refusal) return refusal;
    if (with->waits) {
        refusal = wait_reserve(with->waits, completion->queue, with->strategy, &completion->wait);
        if (refusal) return refusal;
        completion->ticket = wait_ticket(completion->wait);
        atomic_store(&completion->began, 0);
        return CUDA_SUCCESS;
    }
    completion->ticket = point_reserve(completion->queue, with->context, with->kind);
    return completion->ticket ? CUDA_SUCCESS : RESULT_NO_MEMORY;
}

/* Everything that can be refused before the work is enqueued. The GIL is given up once, because
 * each time may cost 5 ms while another thread computes in Python. */
static int reserve(struct enqueuing *with, struct handle *stream) {
    int status;
    Py_BEGIN_ALLOW_THREADS
    failed_forget();
    if (with->waits) with->under_way = call_begin(with->waits);
    status = !with->asks   ? CUDA_SUCCESS
             : with->waits ? wait_list_health(with->waits->list)
                           : context_recent_health(with->context);
    if (status != CUDA_SUCCESS) failed_in("cuStreamQuery", status);
    else status = operate(stream, PINNED, do_reserve, with);
    if (status == CUDA_SUCCESS && with->call) status = context_push(stream->context);
    Py_END_ALLOW_THREADS
    return status;
}

static int do_record(struct handle *stream, void *argument) {
    struct enqueuing *with = argument;
    struct wait *wait = with->completion->wait;
    if (!wait) return point_arm(with->completion->ticket, stream->value);
    if (with->at_once && (with->at_once = wait_is_over_at_once(wait, stream->value)))
        return CUDA_SUCCESS;
    return wait_record_future(wait, stream->value);
}

/* Enqueues the point behind the work, unless the work may be done already, and is. Sets the
 * refusal, after which only a quarantined point still has its owner. It also leaves the context
 * that was pushed. */
static void record(struct enqueuing *with, struct handle *stream) {
    CompletionObject *self = with->completion;
    int status, how = self->wait ? PINNED | AS_IS : PINNED;
    set_owner(self->ticket, (PyObject *)self);
    Py_BEGIN_ALLOW_THREADS
    struct call *call = with->waits && !with->under_way ? call_begin(with->waits) : NULL;
    if (with->call) context_pop();
    status = operate(stream, how, do_record, with);
    call_end(call);
    Py_END_ALLOW_THREADS
    self->recorded = !with->at_once && (status == CUDA_SUCCESS || status == RESULT_QUARANTINED);
    if (!self->recorded) replace_owner(self->ticket, (PyObject *)self, NULL);
    with->refusal = status;
}

/* Calls `call`, if there is one, and enqueues the point behind what it has enqueued. The context
 * was pushed if there is a call. -1: `call` has raised. The point is enqueued then too, if objects
 * are to be kept alive until the GPU has passed what it has enqueued. */
static int carry_out(struct enqueuing *with, struct handle *stream) {
    CompletionObject *self = with->completion;
    PyObject *call = with->call;
    PyObject *result =
        call ? plain_result(PyObject_CallNoArgs(call), with->drives) : Py_NewRef(Py_None);
    if (is_child()) { /* `call` has forked, and the driver is the parent's */
        if (result) refuse_in_child();
        Py_XDECREF(result);
        return -1;
    }
    PyObject *raised = result ? NULL : raised_take();
    /* `call` may hold what it has got before it raised. */
    self->result = result ? result : Py_NewRef(call);
    /* The event may be complete and counted while this thread waits for the GIL after the record,
     * and `drain` in another thread must not miss the future. */
    if (result && self->state == NEW && self->future) completion_begin(self);
    if (result || self->keepalive) {
        with->at_once &= result != NULL;
        record(with, stream);
    } else {
        call_leave(NULL);
        Py_CLEAR(self->result);
    }
    raise_again(raised);
    return result ? 0 : -1;
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
    PyObject *raised = raised_take(), *handled = raised ? PyErr_GetHandledException() : NULL;
    /* It is being handled, as at the end of a `with` block: see `__context__`. */
    if (raised) PyErr_SetHandledException(raised);
    PyObject *put = PyObject_CallFunctionObjArgs(PyTuple_GetItem(current, 1), before, NULL);
    if (raised) PyErr_SetHandledException(handled);
    Py_XDECREF(handled);
    if (put) {
        raise_again(raised);
    } else {
        Py_CLEAR(result);
        Py_XDECREF(raised);
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

int call_enter(struct handle *stream, const struct waits *waits, bool asks, struct call **call) {
    *call = call_begin(waits);
    failed_forget();
    int status = asks ? failed_in("cuStreamQuery", wait_list_health(waits->list)) : CUDA_SUCCESS;
    if (asks && !status) status = operate(stream, AS_IS, do_capture_refusal, NULL);
    if (!asks && handle_is_gone(stream)) status = CUDA_CONTEXT_IS_DESTROYED;
    if (!status) status = context_push(stream->context);
    if (status) call_end(*call);
    return status;
}

void call_leave(struct call *call) {
    if (is_child()) return;
    Py_BEGIN_ALLOW_THREADS
    context_pop();
    Py_END_ALLOW_THREADS
    call_end(call);
}

/* call_in_context(handle, wait_list, call, asks): makes another call in the context of a stream
 * that is pinned, of which nothing is kept. 0, or why it was not made. If it asks, also because a
 * wait behind the call would be refused. */
static PyObject *native_call_in_context(PyObject *Py_UNUSED(module), PyObject *args) {
    struct handle *handle;
    const struct waits *waits;
    PyObject *call;
    struct call *under_way;
    int asks, status;
    if (!PyArg_ParseTuple(args, "O&O&Op", to_handle, &handle, to_waits, &waits, &call, &asks))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = call_enter(handle, waits, asks, &under_way);
    Py_END_ALLOW_THREADS
    if (status != CUDA_SUCCESS) return PyLong_FromLong(status);
    PyObject *answer = PyObject_CallNoArgs(call);
    call_leave(under_way);
    return done_with(answer) < 0 ? NULL : PyLong_FromLong(CUDA_SUCCESS);
}

/* leak(keepalive): nothing will prove that the GPU does not use it. */
static PyObject *native_leak(PyObject *Py_UNUSED(module), PyObject *keepalive) {
    Py_INCREF(keepalive);
    count_leak();
    Py_RETURN_NONE;
}

/* Enqueues what the call does, if there is one, and the completion behind it, on a stream.
 * 0, RESULT_AT_ONCE, or a refusal: see module.h. NULL: the call has raised. */
static PyObject *enqueue(struct enqueuing *with, struct handle *stream, PyObject *order) {
    CompletionObject *self = with->completion;
    /* The record would harm a capture only on the legacy stream. */
    with->asks = with->call || (uintptr_t)stream->value <= 1;
    /* Until the point is behind the work, because `call` or another thread may close the stream,
     * and the work would then have no completion. */
    if (!handle_pin(stream)) return PyLong_FromLong(RESULT_CLOSED);
    PyObject *answer = NULL;
    int refusal = reserve(with, stream);
    if (refusal) {
        answer = PyLong_FromLong(refusal);
        goto unpin;
    }
    int raised = carry_out(with, stream);
    if (with->refusal) { /* the driver would refuse again */
        if (self->state == PENDING) completion_end(self, CANCELLED);
        if (with->refusal != RESULT_QUARANTINED) completion_leak(self);
    }
    if (raised) {
        completion_give_up(self);
    } else if (with->refusal) {
        answer = PyLong_FromLong(RESULT_AFTERWARDS + with->refusal);
    } else if (completion_enter(self, order), !with->at_once) {
        answer = PyLong_FromLong(CUDA_SUCCESS);
    } else if (completion_complete(self, CUDA_SUCCESS, false, true) == 0) {
        answer = PyLong_FromLong(RESULT_AT_ONCE);
    } else { /* the caller gets no future, and the GPU has passed the work */
        completion_give_up(self), completion_end(self, CANCELLED);
    }
unpin:
    if (!is_child()) call_end(with->under_way);
    unpin_from_python(stream);
    return answer;
}

/* WaitList.enqueue(handle, queue, strategy, future, call, keepalive, name, at_once): a future of
 * what `call` enqueues on a stream. `call` runs in the stream's context. Everything that can be
 * refused is reserved before. `at_once` says that the future may be done when this returns. If it
 * is not, its `point` is the completion. */
PyObject *WaitList_enqueue(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    if (count != 8) return PyErr_Format(PyExc_TypeError, "eight arguments are needed");
    struct handle *stream;
    struct queue *queue;
    struct enqueuing with = {.call = args[4], .at_once = args[7] == Py_True};
    if (!to_waits(object, &with.waits) || !to_handle(args[0], &stream) ||
        !to_queue(args[1], &queue) || !to_strategy(args[2], &with.strategy))
        return NULL;
    PyObject *made = PyType_GenericAlloc(completion_type, 0), *future = args[3];
    if (!made) return NULL;
    with.completion = (CompletionObject *)made;
    completion_fill(with.completion, future, args[6], args[5]);
    completion_expect(with.completion, queue);
    PyObject *answer = enqueue(&with, stream, wait_list_order(object));
    if (with.completion->order && PyObject_SetAttr(future, names.point, made) < 0) Py_CLEAR(answer);
    Py_DECREF(made);
    return answer;
}

/* enqueue(handle, context, queue, kind, call, order): the same by a host function or callback, and
 * for the stream's present end if `call` is None. */
PyObject *Completion_enqueue(PyObject *object, PyObject *args) {
    CompletionObject *self = (CompletionObject *)object;
    struct handle *stream;
    struct queue *queue;
    struct enqueuing with = {.completion = self};
    PyObject *order;
    int kind;
    if (!PyArg_ParseTuple(args, "O&O&O&iOO!", to_handle, &stream, to_context, &with.context,
                          to_queue, &queue, &kind, &with.call, order_type, &order))
        return NULL;
    if (self->ticket) return PyErr_Format(PyExc_ValueError, "it was enqueued or expected before");
    with.kind = (enum point_kind)kind;
    self->call = kind == KIND_CALLBACK ? "cuStreamAddCallback" : "cuLaunchHostFunc";
    completion_expect(self, queue);
    if (with.call == Py_None) with.call = NULL;
    return enqueue(&with, stream, order);
}

/* The steps of an enqueue that another thread carries out. */

/* expect(context, queue): takes a ticket and counts the future, in the thread of the loop, and
 * makes no driver call. So the queue is not another loop's when the other thread reserves the wait
 * or fires the ticket. */
PyObject *Completion_expect(PyObject *object, PyObject *args) {
    CompletionObject *self = (CompletionObject *)object;
    struct context *context;
    struct queue *queue;
    if (!PyArg_ParseTuple(args, "O&O&", to_context, &context, to_queue, &queue)) return NULL;
    if (self->ticket) return PyErr_Format(PyExc_ValueError, "it was expected before");
    completion_expect(self, queue);
    self->ticket = point_reserve(queue, context, KIND_POLLED);
    if (!self->ticket) return PyErr_NoMemory();
    completion_begin(self);
    set_owner(self->ticket, object);
    Py_RETURN_NONE;
}

/* run(wait_list, strategy, handle, call): as `enqueue`, once it was expected, with a stream that is
 * pinned. */
PyObject *Completion_run(PyObject *object, PyObject *args) {
    CompletionObject *self = (CompletionObject *)object;
    struct handle *stream;
    struct enqueuing with = {.completion = self, .asks = true, .drives = true};
    if (!PyArg_ParseTuple(args, "O&O&O&O", to_waits, &with.waits, to_strategy, &with.strategy,
                          to_handle, &stream, &with.call))
        return NULL;
    if (!self->ticket || self->wait)
        return PyErr_Format(PyExc_ValueError, "it was not expected, or was run before");
    uint64_t expected = self->ticket;
    int refusal = reserve(&with, stream);
    call_end(with.under_way), with.under_way = NULL; /* the function of a thread may take long */
    if (self->ticket != expected) {
        set_owner(self->ticket, object);
        replace_owner(expected, object, NULL);
        point_unreserve(expected);
    }
    if (refusal) return PyLong_FromLong(refusal);
    if (carry_out(&with, stream) < 0) return NULL;
    return PyLong_FromLong(with.refusal ? RESULT_AFTERWARDS + with.refusal : CUDA_SUCCESS);
}

/* fire(status): ends it, once, if there is nothing to record. False: it was not expected. Any
 * thread. */
PyObject *Completion_fire(PyObject *object, PyObject *args) {
    CompletionObject *self = (CompletionObject *)object;
    int status;
    if (!PyArg_ParseTuple(args, "i", &status) || refuse_in_child()) return NULL;
    if (!self->ticket) Py_RETURN_FALSE;
    if (atomic_exchange(&self->recorded, true)) Py_RETURN_TRUE;
    set_owner(self->ticket, object);
    if (self->wait) wait_fire_unrecorded(self->wait, status);
    else point_arm_polled(self->ticket), point_fire(self->ticket, status);
    Py_RETURN_TRUE;
}

PyMethodDef enqueue_functions[] = {
    /* Calls with a stream current in torch or cupy. */
    METHOD(native, call_with, VARARGS),
    /* Makes a call in the context of a pinned stream: 0, or why not. */
    METHOD(native, call_in_context, VARARGS),
    /* Returns a result, unless it is a coroutine, or a generator that the caller does not run. */
    METHOD(native, plain_result, VARARGS),
    /* Keeps an object for the life of the process: counted. */
    METHOD(native, leak, O),
    {NULL, NULL, 0, NULL},
};
