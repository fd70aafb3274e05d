/* The Python face of failures.c: notes of fatal codes, the health of contexts.
 *
 * Any thread of Python notes a code here. The janitor takes the notes, and Python calls the
 * listeners in a thread of their own (`_runtime/process.py`). `wake_janitor` is what native code
 * calls when there is something to take, in the thread that has met it.
 */
#include "module.h"

#include "../engine/failures.h"
#include "../engine/waker.h"

/* (code, call) of what is next, or None. */
static PyObject *taken(int (*take)(const char **call)) {
    const char *call;
    int code = is_child() ? 0 : take(&call);
    if (!code) Py_RETURN_NONE;
    return Py_BuildValue("is", code, call);
}

/* drop_abandoned(): destroys what no object has got, because an error came. (code, call) of a
 * destruction that the driver has refused and for which no caller got the error, or None. */
static PyObject *native_drop_abandoned(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
    if (is_child()) Py_RETURN_NONE;
    Py_BEGIN_ALLOW_THREADS
    handles_drop_abandoned();
    Py_END_ALLOW_THREADS
    return taken(handle_take_refusal);
}

static void wake_janitor(void) {
    struct queue *orphans = queue_at(0);
    if (orphans && !is_child()) queue_wake(orphans);
}

/* failure_note(code, call) */
static PyObject *native_failure_note(PyObject *Py_UNUSED(self), PyObject *args) {
    int code;
    const char *call;
    if (!PyArg_ParseTuple(args, "is", &code, &call)) return NULL;
    if (!is_child()) failure_noted(code, call);
    Py_RETURN_NONE;
}

/* failure_take(): (code, call) of a code that the process has met for the first time, or None. */
static PyObject *native_failure_take(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
    return taken(failure_take);
}

static PyObject *native_failures_forget(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
    if (!is_child()) failures_forget();
    Py_RETURN_NONE;
}

static PyObject *native_failures_expect(PyObject *Py_UNUSED(self), PyObject *more) {
    failures_expect((int)PyLong_AsLong(more));
    waker_wake_if_parked();
    Py_RETURN_NONE;
}

/* exit_arm(status, grace_ns, signal, stalled, descriptor) */
static PyObject *native_exit_arm(PyObject *Py_UNUSED(self), PyObject *args) {
    int status, signal, stalled, descriptor;
    long long grace_ns;
    if (!PyArg_ParseTuple(args, "iLipi", &status, &grace_ns, &signal, &stalled, &descriptor) ||
        refuse_in_child())
        return NULL;
    int number = exit_arm(status, grace_ns, signal, stalled, descriptor);
    waker_wake_if_parked(); /* so that the watcher reads the health of idle contexts */
    return PyLong_FromLong(number);
}

static PyObject *native_exit_disarm(PyObject *Py_UNUSED(self), PyObject *number) {
    /* in a child the lock may be held without an end */
    if (!is_child()) exit_disarm((int)PyLong_AsLong(number));
    Py_RETURN_NONE;
}

static PyObject *native_health(PyObject *Py_UNUSED(self), PyObject *args) {
    struct context *context;
    int status, recent = false;
    if (!PyArg_ParseTuple(args, "O&|p", to_context, &context, &recent) || refuse_in_child())
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = recent ? context_recent_health(context) : context_health(context);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(status);
}

static PyObject *native_context_is_gone(PyObject *Py_UNUSED(self), PyObject *args) {
    unsigned long long context, identity;
    bool gone;
    if (!PyArg_ParseTuple(args, "KK", &context, &identity)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    gone = driver.ctx_get_id && context_is_gone((void *)(uintptr_t)context, identity);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(gone);
}

static PyObject *native_failed_call(PyObject *Py_UNUSED(self), PyObject *status) {
    const char *call = failed_call((int)PyLong_AsLong(status));
    if (call) return PyUnicode_FromString(call);
    Py_RETURN_NONE;
}

PyMethodDef failure_functions[] = {
    /* Which call of this thread's latest operation answered this error, if it noted that. */
    METHOD(native, failed_call, O),
    /* Whether the context that had this id was destroyed or reset. */
    METHOD(native, context_is_gone, VARARGS),
    /* 0, or the error of a context; with True, it may be 1 ms old. */
    METHOD(native, health, VARARGS),
    /* A driver call has answered this code: may end the process. */
    METHOD(native, failure_note, VARARGS),
    /* (code, call) of a fatal code that is new, or None. */
    METHOD(native, failure_take, NOARGS),
    /* For tests: no fatal code counts as met. */
    METHOD(native, failures_forget, NOARGS),
    /* The janitor's: (code, call) of a destruction that the driver refused, or None. */
    METHOD(native, drop_abandoned, NOARGS),
    /* Adds to those that want to know of failures while nothing is pending. */
    METHOD(native, failures_expect, O),
    /* The process ends at the first fatal code, or now if there was one. */
    METHOD(native, exit_arm, VARARGS),
    /* It does not, unless it was armed again. With 0, in any case. */
    METHOD(native, exit_disarm, O),
    {NULL, NULL, 0, NULL},
};

static PyObject *fatal_code(int i) { return PyLong_FromLong(fatal_codes[i].code); }

int add_fatal_codes(PyObject *module) {
    failures_set_listener(wake_janitor);
    int count = 0;
    while (fatal_codes[count].code) count++;
    return add_tuple(module, "FATAL_CODES", fatal_code, count);
}
