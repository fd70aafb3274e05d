/* What the process has once, as Python sees it: the driver's addresses, the watcher, and the end
 * of callbacks.
 *
 * `_runtime/process.py` calls these at the first use, at the end and after a fork. Each may be
 * called again, because an interrupt may cut the start short. python_dispatch is the one place
 * where a driver's thread comes to Python: it takes the GIL, and runs the user's host function.
 */
#include "module.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "../engine/waits.h"
#include "../engine/watcher.h"

/* --- the end of callbacks ---
 *
 * A driver thread that asks for the GIL of an interpreter that is being torn down hangs or crashes.
 * So it counts itself in first. The exit ends callbacks, and waits, without the GIL, for those that
 * run. */

static _Atomic int callbacks; /* those that run, and CALLBACKS_ENDED; any thread */
enum { CALLBACKS_ENDED = 1 << 30 };

bool refuse_at_exit(void) {
    bool ended = atomic_load(&callbacks) & CALLBACKS_ENDED;
    if (ended)
        PyErr_SetString(
            PyExc_RuntimeError,
            "Python is ending, and the driver's threads may not call Python functions any more. "
            "Enqueue host functions and callbacks before the interpreter runs its atexit "
            "handlers.");
    return ended;
}

static void python_dispatch(uint64_t ticket, int status) {
    /* from here on the exit waits */
    if (atomic_fetch_add(&callbacks, 1) & CALLBACKS_ENDED) {
        atomic_fetch_add(&counters[HOST_FUNCTIONS_LATE], 1);
    } else {
        PyGILState_STATE state = PyGILState_Ensure();
        run_host_function(ticket, status);
        PyGILState_Release(state);
    }
    atomic_fetch_sub(&callbacks, 1);
}

static PyObject *native_end_callbacks(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
    atomic_fetch_or(&callbacks, CALLBACKS_ENDED);
    while (atomic_load(&callbacks) != CALLBACKS_ENDED) {
        struct timespec pause = {.tv_nsec = 1000000};
        Py_BEGIN_ALLOW_THREADS
        nanosleep(&pause, NULL);
        Py_END_ALLOW_THREADS
        /* so a host function that never ends can be interrupted */
        if (PyErr_CheckSignals() < 0) return NULL;
    }
    Py_RETURN_NONE;
}

/* --- the process --- */

/* The rows of driver_calls.h. */
static const struct {
    const char *name;
    int version;
    size_t offset;
} driver_rows[] = {
#define CALL(field, name, version, parameters)                                                     \
    {#name, version, offsetof(struct driver_calls, field)},
#include "../engine/driver_calls.h"
};
enum { DRIVER_ROWS = sizeof driver_rows / sizeof *driver_rows };

static PyObject *driver_row(int i) {
    return Py_BuildValue("si", driver_rows[i].name, driver_rows[i].version);
}

static PyObject *native_bind(PyObject *Py_UNUSED(self), PyObject *addresses) {
    struct driver_calls bound;
    for (size_t i = 0; i < DRIVER_ROWS; i++) {
        PyObject *address = PyMapping_GetItemString(addresses, driver_rows[i].name);
        if (!address) return NULL;
        void *pointer = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(address);
        Py_DECREF(address);
        if (PyErr_Occurred()) return NULL;
        *(void **)((char *)&bound + driver_rows[i].offset) = pointer;
    }
    driver = bound;
    Py_RETURN_NONE;
}

/* Python's own end is over, or C's. No thread of the library may call the driver while it is torn
 * down. */
static void end_watcher(void) { watcher_stop(EXIT_PATIENCE_S); }

static PyObject *native_watcher_start(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
    static bool ends; /* the lock of _runtime/process.py is held */
    if (refuse_in_child()) return NULL;
    int error = watcher_start();
    if (error) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    /* It runs after all of Python's atexit handlers, because one of them may await. Python has room
     * for 32 such functions. C has more. */
    if (!ends) ends = Py_AtExit(end_watcher) == 0 || atexit(end_watcher) == 0;
    Py_RETURN_NONE;
}

static PyObject *native_watcher_stop(PyObject *Py_UNUSED(self), PyObject *fails_pending) {
    bool ran;
    Py_BEGIN_ALLOW_THREADS
    ran = watcher_stop(ANY_PATIENCE_S);
    if (ran && fails_pending == Py_True) watcher_fail_lost();
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(ran);
}

/* open_orphans(): the descriptor of queue 0. The first call makes the queue, so a start that failed
 * can be repeated. */
static PyObject *native_open_orphans(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
    if (refuse_in_child()) return NULL;
    struct queue *queue = queue_orphans();
    return queue ? PyLong_FromLong(queue->descriptor) : PyErr_SetFromErrno(PyExc_OSError);
}

/* sys.unraisablehook takes an object that Python code cannot make. */
static PyObject *native_write_unraisable(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *error, *where;
    if (!PyArg_ParseTuple(args, "OO", &error, &where)) return NULL;
    raise_again(Py_NewRef(error));
    PyErr_WriteUnraisable(where);
    Py_RETURN_NONE;
}

PyMethodDef process_functions[] = {
    /* Takes the driver's raw addresses, by name. */
    METHOD(native, bind, O),
    /* The descriptor of the orphans' queue, which is made once. */
    METHOD(native, open_orphans, NOARGS),
    /* Ends callbacks: waits for those that run. */
    METHOD(native, end_callbacks, NOARGS),
    /* Starts the watcher thread, once. */
    METHOD(native, watcher_start, NOARGS),
    /* Stops and joins it. With True, fails what is pending. Whether it ran. */
    METHOD(native, watcher_stop, O),
    /* Reports an exception to sys.unraisablehook. */
    METHOD(native, write_unraisable, VARARGS),
    {NULL, NULL, 0, NULL},
};

int add_driver_calls(PyObject *module) {
    points_set_dispatcher(python_dispatch);
    return add_tuple(module, "DRIVER_CALLS", driver_row, DRIVER_ROWS);
}
