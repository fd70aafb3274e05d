/* The Python face of failures.c. */
#include "module.h"

#include "failures.h"
#include "waits.h"
#include "waker.h"
#include "watcher.h"

/* refusal_take(): (call, code) of a destruction that the driver has refused and for which no caller
 * got the error, or None. */
static PyObject *native_refusal_take(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    enum handle_kind kind;
    int code = is_child() ? 0 : handle_take_refusal(&kind);
    if (!code) Py_RETURN_NONE;
    return Py_BuildValue("si", handle_destructor(kind), code);
}

static void wake_janitor(void) {
    struct queue *orphans = queue_at(0);
    if (orphans && !is_child()) queue_wake(orphans);
}

/* failure_note(code, call) */
static PyObject *native_failure_note(PyObject *self, PyObject *args) {
    (void)self;
    int code;
    const char *call;
    if (!PyArg_ParseTuple(args, "is", &code, &call)) return NULL;
    if (!is_child()) failure_noted(code, call);
    Py_RETURN_NONE;
}

/* failure_take(): (code, call) of a code that the process has met for the first time, or None. */
static PyObject *native_failure_take(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    const char *call;
    int code = is_child() ? 0 : failure_take(&call);
    if (!code) Py_RETURN_NONE;
    return Py_BuildValue("is", code, call);
}

static PyObject *native_failures_forget(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    if (!is_child()) failures_forget();
    Py_RETURN_NONE;
}

static PyObject *native_failures_watch(PyObject *self, PyObject *args) {
    (void)self;
    int more;
    if (!PyArg_ParseTuple(args, "i", &more)) return NULL;
    failures_watch(more);
    waker_wake_if_parked();
    Py_RETURN_NONE;
}

/* exit_arm(status, grace_ns, signal, stalled) */
static PyObject *native_exit_arm(PyObject *self, PyObject *args) {
    (void)self;
    int status, signal, stalled;
    long long grace_ns;
    if (!PyArg_ParseTuple(args, "iLip", &status, &grace_ns, &signal, &stalled) || refuse_in_child())
        return NULL;
    exit_arm(status, grace_ns, signal, stalled);
    Py_RETURN_NONE;
}

static PyObject *native_exit_disarm(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    if (!is_child()) exit_disarm(); /* in a child the lock may be held without an end */
    Py_RETURN_NONE;
}

static PyObject *native_health(PyObject *self, PyObject *args) {
    (void)self;
    int index, status, recent = false;
    if (!PyArg_ParseTuple(args, "i|p", &index, &recent) || refuse_in_child()) return NULL;
    struct context *context = as_context(index);
    if (!context) return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = recent ? context_recent_health(context) : context_health(context);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(status);
}

static PyObject *native_context_is_gone(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long context, identity;
    bool gone;
    if (!PyArg_ParseTuple(args, "KK", &context, &identity)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    gone = driver.ctx_get_id && context_is_gone((void *)(uintptr_t)context, identity);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(gone);
}

static PyObject *native_failed_call(PyObject *self, PyObject *status) {
    (void)self;
    long code = PyLong_AsLong(status);
    if (code == -1 && PyErr_Occurred()) return NULL;
    const char *call = failed_call((int)code);
    if (call) return PyUnicode_FromString(call);
    Py_RETURN_NONE;
}

/* How much longer a call of the driver may take for what waits now. */
static int64_t call_may_take(const char *thread, int64_t ns, struct stall *stall) {
    int64_t oldest, limit;
    waits_extremes(&oldest, &limit);
    stall_describe(stall, STALLED_CALL, thread, ns);
    return limit - ns;
}

/* stall(news): (text, name, seconds) of what is stalled now, or of what is new, or None. */
static PyObject *native_stall(PyObject *self, PyObject *is_news) {
    (void)self;
    struct stall stall;
    if (is_child() ||
        !(is_news == Py_True ? stall_take(&stall)
                             : waits_stalled(false, &stall) ||
                                   call_may_take("watcher", watcher_held_ns(), &stall) < 0))
        Py_RETURN_NONE;
    return Py_BuildValue("ssd", stall.text, stall.name, (double)stall.ns / 1e9);
}

/* call_may_take(thread, seconds): how many more. If it is less than none, the call is stalled. */
static PyObject *native_call_may_take(PyObject *self, PyObject *args) {
    (void)self;
    const char *thread;
    double seconds;
    if (!PyArg_ParseTuple(args, "sd", &thread, &seconds)) return NULL;
    struct stall stall;
    int64_t more = call_may_take(thread, (int64_t)(seconds * 1e9), &stall);
    if (more < 0) stall_note(&stall);
    return PyFloat_FromDouble((double)more / 1e9);
}

static PyObject *native_stall_signal(PyObject *self, PyObject *number) {
    (void)self;
    stalls_set_signal((int)PyLong_AsLong(number));
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef failure_functions[] = {
    {"failed_call", native_failed_call, METH_O,
     "Which call of this thread's latest operation answered this error, if it noted that."},
    {"context_is_gone", native_context_is_gone, METH_VARARGS,
     "Whether the context that had this id was destroyed or reset."},
    {"health", native_health, METH_VARARGS,
     "0, or the error of a context; with True, it may be 1 ms old."},
    {"failure_note", native_failure_note, METH_VARARGS,
     "A driver call has answered this code: may end the process."},
    {"failure_take", native_failure_take, METH_NOARGS,
     "(code, call) of a fatal code that is new, or None."},
    {"failures_forget", native_failures_forget, METH_NOARGS,
     "For tests: no fatal code counts as met."},
    {"refusal_take", native_refusal_take, METH_NOARGS,
     "(call, code) of a destruction that the driver refused, or None."},
    {"failures_watch", native_failures_watch, METH_VARARGS,
     "So many more want to know of failures while nothing is pending."},
    {"exit_arm", native_exit_arm, METH_VARARGS,
     "The process ends at the first fatal code, or now if there was one."},
    {"stall", native_stall, METH_O, "What is stalled now, or with True what is new, or None."},
    {"call_may_take", native_call_may_take, METH_VARARGS,
     "How much longer a call of the driver may take. Less than 0: it is noted as stalled."},
    {"stall_signal", native_stall_signal, METH_O, "The signal that writes all stacks."},
    {"exit_disarm", native_exit_disarm, METH_NOARGS, "It does not."},
    {NULL, NULL, 0, NULL},
};

int add_failure_functions(PyObject *module) {
    failures_set_listener(wake_janitor);
    handles_set_listener(wake_janitor);
    PyObject *codes = PyList_New(0);
    for (int i = 0; codes && fatal_codes[i].code; i++)
        if (!append_number(codes, PyLong_FromLong(fatal_codes[i].code))) Py_CLEAR(codes);
    PyObject *constant = codes ? PyList_AsTuple(codes) : NULL;
    Py_XDECREF(codes);
    int failed = constant ? PyModule_AddObjectRef(module, "FATAL_CODES", constant) : -1;
    Py_XDECREF(constant);
    return failed < 0 ? -1 : PyModule_AddFunctions(module, failure_functions);
}
