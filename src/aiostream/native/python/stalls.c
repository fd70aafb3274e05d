/* The Python face of stalls.c: what a thread of Python's takes and answers. */
#include "module.h"

#include <errno.h>

#include "../engine/failures.h"
#include "../engine/stalls.h"

/* (text, name, seconds), or None. */
static PyObject *as_tuple(bool found, const struct stall *stall) {
    if (!found) Py_RETURN_NONE;
    return Py_BuildValue("NNd", as_text(stall->text), as_text(stall->name),
                         (double)stall->ns / 1e9);
}

/* stall(): what is stalled now, and was said. */
static PyObject *native_stall(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
    struct stall stall;
    return as_tuple(!is_child() && stall_lasts(&stall), &stall);
}

/* stall_take(): the news, and the queue of the loop that is blocked if it runs, or 0. What was
 * taken before is done with. */
static PyObject *native_stall_take(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
    struct stall stall;
    bool found = !is_child() && stall_take(&stall);
    return Py_BuildValue("Ni", as_tuple(found, &stall), found ? stall.loop : 0);
}

/* stall_is_sure(queue, runs) */
static PyObject *native_stall_is_sure(PyObject *Py_UNUSED(self), PyObject *args) {
    struct queue *queue;
    int runs;
    if (!PyArg_ParseTuple(args, "O&p", to_queue, &queue, &runs)) return NULL;
    return PyBool_FromLong(stall_is_sure(queue, runs));
}

/* stall_end(text, stacks): the stacks are bytes. */
static PyObject *native_stall_end(PyObject *Py_UNUSED(self), PyObject *args) {
    const char *text, *stacks;
    if (!PyArg_ParseTuple(args, "sy", &text, &stacks)) return NULL;
    Py_BEGIN_ALLOW_THREADS /* stderr may block */
    exit_if_stalled(text, stacks);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* stalls_start(eventfd): the caller holds a lock. */
static PyObject *native_stalls_start(PyObject *Py_UNUSED(self), PyObject *eventfd) {
    if (refuse_in_child()) return NULL;
    if (!(errno = stalls_start((int)PyLong_AsLong(eventfd)))) Py_RETURN_NONE;
    return PyErr_SetFromErrno(PyExc_OSError);
}

PyMethodDef stall_functions[] = {
    /* What is stalled now, or None. */
    METHOD(native, stall, NOARGS),
    /* The news of a stall, or None. */
    METHOD(native, stall_take, NOARGS),
    /* Whether the loop of the news is blocked. */
    METHOD(native, stall_is_sure, VARARGS),
    /* Ends the process, if it is to end at a stall. */
    METHOD(native, stall_end, VARARGS),
    /* Begins to count, once. */
    METHOD(native, stalls_start, O),
    {NULL, NULL, 0, NULL},
};
