/* The Python face of failures.c: notes of fatal codes, stalls, the health of contexts.
 *
 * Any thread of Python notes a code here. The janitor takes the notes, and Python calls the
 * listeners in a thread of their own (`_runtime/process.py`). `wake_janitor` is what native code
 * calls when there is something to take, in the thread that has met it.
 */
#include "module.h"

#include <string.h>

#include "../engine/failures.h"
#include "../engine/waits.h"
#include "../engine/waker.h"
#include "../engine/watcher.h"

/* (code, call) of what is next, or None. */
static PyObject *taken(int (*take)(const char **call)) {
    const char *call;
    int code = is_child() ? 0 : take(&call);
    if (!code) Py_RETURN_NONE;
    return Py_BuildValue("is", code, call);
}

/* refusal_take(): (code, call) of a destruction that the driver has refused and for which no caller
 * got the error, or None. */
static PyObject *native_refusal_take(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
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

/* exit_arm(status, grace_ns, signal, stalled) */
static PyObject *native_exit_arm(PyObject *Py_UNUSED(self), PyObject *args) {
    int status, signal, stalled;
    long long grace_ns;
    if (!PyArg_ParseTuple(args, "iLip", &status, &grace_ns, &signal, &stalled) || refuse_in_child())
        return NULL;
    int number = exit_arm(status, grace_ns, signal, stalled);
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
    long code = PyLong_AsLong(status);
    if (code == -1 && PyErr_Occurred()) return NULL;
    const char *call = failed_call((int)code);
    if (call) return PyUnicode_FromString(call);
    Py_RETURN_NONE;
}

static PyObject *stall_tuple(const struct stall *stall) {
    return Py_BuildValue("NNd", as_text(stall->text), as_text(stall->name),
                         (double)stall->ns / 1e9);
}

/* stall(): (text, name, seconds) of what is stalled now, or None. */
static PyObject *native_stall(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
    struct stall stall;
    if (is_child() || !waits_stalled("watcher", watcher_held_ns(), &stall)) Py_RETURN_NONE;
    return stall_tuple(&stall);
}

/* stall_take(): the same of the oldest news, whether the process is to end for it, the queue of the
 * loop of which it is not known whether it runs, or 0, and whether it is no stall yet. */
static PyObject *native_stall_take(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
    struct stall stall;
    bool ends, soon;
    if (is_child() || !stall_take(&stall, &ends, &soon)) Py_RETURN_NONE;
    return Py_BuildValue("NOiO", stall_tuple(&stall), ends ? Py_True : Py_False, stall.loop,
                         soon ? Py_True : Py_False);
}

/* stall_end(text, stacks) */
static PyObject *native_stall_end(PyObject *Py_UNUSED(self), PyObject *args) {
    const char *text, *stacks;
    if (!PyArg_ParseTuple(args, "ss", &text, &stacks)) return NULL;
    Py_BEGIN_ALLOW_THREADS /* stderr may block */
    stall_end(text, stacks);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* loop_seen(queue, runs, again): see waits_note_loop. */
static PyObject *native_loop_seen(PyObject *Py_UNUSED(self), PyObject *args) {
    struct queue *queue;
    int runs, again;
    if (!PyArg_ParseTuple(args, "O&pp", to_queue, &queue, &runs, &again)) return NULL;
    waits_note_loop(queue, runs, again);
    Py_RETURN_NONE;
}

/* look_for_stalls(thread, seconds): that thread has been in a call of the driver for so long. */
static PyObject *native_look_for_stalls(PyObject *Py_UNUSED(self), PyObject *args) {
    const char *thread;
    double seconds;
    if (!PyArg_ParseTuple(args, "sd", &thread, &seconds)) return NULL;
    waits_note_stall(thread, (int64_t)(seconds * 1e9));
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
     "(code, call) of a destruction that the driver refused, or None."},
    {"failures_expect", native_failures_expect, METH_O,
     "So many more want to know of failures while nothing is pending."},
    {"exit_arm", native_exit_arm, METH_VARARGS,
     "The process ends at the first fatal code, or now if there was one."},
    {"stall", native_stall, METH_NOARGS, "What is stalled now, or None."},
    {"stall_take", native_stall_take, METH_NOARGS,
     "The oldest news of a stall, and whether the process is to end for it, or None."},
    {"stall_end", native_stall_end, METH_VARARGS, "Ends the process: the line and the stacks."},
    {"loop_seen", native_loop_seen, METH_VARARGS, "Whether a queue's loop runs."},
    {"look_for_stalls", native_look_for_stalls, METH_VARARGS,
     "Notes what is stalled, also a call of the driver that has not returned."},
    {"exit_disarm", native_exit_disarm, METH_O,
     "It does not, unless it was armed again. With 0, in any case."},
    {NULL, NULL, 0, NULL},
};

static PyObject *fatal_code(int i) { return PyLong_FromLong(fatal_codes[i].code); }

int add_failure_functions(PyObject *module) {
    failures_set_listener(wake_janitor);
    int count = 0;
    while (fatal_codes[count].code) count++;
    if (add_tuple(module, "FATAL_CODES", fatal_code, count) < 0) return -1;
    return PyModule_AddFunctions(module, failure_functions);
}
