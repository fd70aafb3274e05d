/* Python's frames, for the forwarding library (forward/watch.c): what a thread that holds the GIL
 * reads by itself while it blocks in a driver call. */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include "module.h"

#include <dlfcn.h>

enum { MOST_FRAMES = 256 };

/* [(frame, line), ...] from the innermost one. It runs no bytecode, in which a signal's handler
 * could run, or the GIL be given away: the caller may be native code of others. NULL: no memory. */
static PyObject *frames_from(PyObject *frame) {
    PyObject *list = PyList_New(0);
    Py_XINCREF(frame);
    for (int n = 0; list && frame && n < MOST_FRAMES; n++) {
        PyObject *item = Py_BuildValue("Oi", frame, PyFrame_GetLineNumber((PyFrameObject *)frame));
        if (!item || PyList_Append(list, item) < 0) Py_CLEAR(list);
        Py_XDECREF(item);
        PyObject *back = list ? PyObject_GetAttrString(frame, "f_back") : NULL;
        Py_DECREF(frame);
        if (back == Py_None) Py_CLEAR(back);
        frame = back;
    }
    Py_XDECREF(frame);
    return list;
}

static PyObject *native_frames_from(PyObject *self, PyObject *frame) {
    (void)self;
    return frames_from(frame);
}

/* Whether Python knows this thread. Needs no GIL. */
static int is_python_thread(void) { return PyGILState_GetThisThreadState() != NULL; }

/* The state of the thread that holds the GIL. It is in no header of the limited API, and has
 * another name from Python 3.13 on. */
static PyThreadState *(*holder_of_the_gil)(void);

static int holds_gil(void) {
    PyThreadState *mine = PyGILState_GetThisThreadState();
    return mine && holder_of_the_gil && holder_of_the_gil() == mine;
}

/* The frames of this thread, if it holds the GIL, or else NULL. */
static void *frames_here(void) {
    if (!holds_gil()) return NULL;
    /* A garbage collection would run finalizers of others. */
    int collects = PyGC_Disable();
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *frames = frames_from((PyObject *)PyEval_GetFrame());
    PyErr_Restore(type, value, traceback);
    if (collects) PyGC_Enable();
    return frames;
}

/* frames_take(address): the list that `frames_here` has made. */
static PyObject *native_frames_take(PyObject *self, PyObject *address) {
    (void)self;
    void *list = PyLong_AsVoidPtr(address);
    if (!list && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "there are no frames");
    return list;
}

/* raise_in(thread, class): at the thread's next step in Python. Whether the thread is there. */
static PyObject *native_raise_in(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long thread;
    PyObject *exception;
    if (!PyArg_ParseTuple(args, "kO", &thread, &exception)) return NULL;
    return PyBool_FromLong(PyThreadState_SetAsyncExc(thread, exception) == 1);
}

static PyMethodDef frame_functions[] = {
    {"frames_from", native_frames_from, METH_O,
     "[(frame, line), ...] from a frame to its thread's first one."},
    {"frames_take", native_frames_take, METH_O,
     "The list that FRAMES_HERE has returned. Its caller becomes the owner."},
    {"raise_in", native_raise_in, METH_VARARGS,
     "Has an exception of this class raised at a thread's next step in Python."},
    {NULL, NULL, 0, NULL},
};

static int add_address(PyObject *module, const char *name, void *address) {
    PyObject *number = PyLong_FromVoidPtr(address);
    int failed = number ? PyModule_AddObjectRef(module, name, number) : -1;
    Py_XDECREF(number);
    return failed;
}

int add_frame_functions(PyObject *module) {
    void *found = dlsym(RTLD_DEFAULT, "PyThreadState_GetUnchecked");
    if (!found) found = dlsym(RTLD_DEFAULT, "_PyThreadState_UncheckedGet");
    *(void **)&holder_of_the_gil = found;
    if (add_address(module, "IS_PYTHON_THREAD", (void *)is_python_thread) < 0 ||
        add_address(module, "FRAMES_HERE", (void *)frames_here) < 0)
        return -1;
    return PyModule_AddFunctions(module, frame_functions);
}
