/* What Python says of a thread, for the forwarding library (forward/notes.c), which knows no
 * Python.
 *
 * A wrapper there calls these functions in the thread whose call has blocked, perhaps under locks
 * of other libraries. So they never wait for the GIL: only a thread that holds it already reads its
 * own frames, without bytecode and without a garbage collection. The addresses of the functions are
 * constants of the module.
 */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include "module.h"

#include <dlfcn.h>

/* Whether Python knows this thread. Needs no GIL. */
static int is_python_thread(void) { return PyGILState_GetThisThreadState() != NULL; }

/* The state of the thread that holds the GIL. It is in no header of the limited API, and has
 * another name from Python 3.13 on. */
static PyThreadState *(*gil_thread)(void);

static int holds_gil(void) {
    PyThreadState *mine = PyGILState_GetThisThreadState();
    return mine && gil_thread && gil_thread() == mine;
}

/* Adds (code, line, None) of each frame of this thread, from the innermost one. A frame itself
 * would outlive its function, whose variables would then end in another thread. */
static void add_lines(PyObject *list) {
    PyObject *frame = Py_XNewRef((PyObject *)PyEval_GetFrame());
    while (frame && frame != Py_None) {
        PyFrameObject *typed = (PyFrameObject *)frame;
        append_new(list, Py_BuildValue("NiO", PyFrame_GetCode(typed), PyFrame_GetLineNumber(typed),
                                       Py_None));
        PyObject *back = PyObject_GetAttrString(frame, "f_back");
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
}

/* Chains of functions, each called with what the one before has returned. None of them is written
 * in Python. */
static PyObject *questions;

static PyObject *native_set_questions(PyObject *Py_UNUSED(self), PyObject *chains) {
    Py_XDECREF(questions);
    questions = Py_NewRef(chains);
    Py_RETURN_NONE;
}

/* Adds the chain's last value, or None. */
static void add_answer(PyObject *list, PyObject *chain) {
    PyObject *value = NULL;
    for (Py_ssize_t n = 0; n < PyTuple_Size(chain) && value != Py_None; n++) {
        PyObject *next = PyObject_CallFunctionObjArgs(PyTuple_GetItem(chain, n), value, NULL);
        Py_XDECREF(value);
        value = next ? next : Py_NewRef(Py_None);
        PyErr_Clear();
    }
    append_new(list, value);
}

/* The lines of this thread, if it holds the GIL, and then an answer to each question. Otherwise
 * NULL. It runs no bytecode, in which a signal's handler could run, or the GIL be given away: the
 * caller may be native code of others. */
static void *frames_here(void) {
    if (!holds_gil()) return NULL;
    /* A garbage collection would run finalizers of others. */
    int collects = PyGC_Disable();
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *list = PyList_New(0);
    if (list) add_lines(list);
    for (Py_ssize_t n = 0; list && n < PyTuple_Size(questions); n++)
        add_answer(list, PyTuple_GetItem(questions, n));
    PyErr_Restore(type, value, traceback);
    if (collects) PyGC_Enable();
    return list;
}

static PyObject *native_frames_here(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
    PyObject *list = frames_here();
    return list || PyErr_Occurred() ? list : PyErr_NoMemory();
}

PyMethodDef frame_functions[] = {
    /* What FRAMES_HERE answers in this thread. */
    METHOD(native, frames_here, NOARGS),
    /* What FRAMES_HERE asks, besides the frames. */
    METHOD(native, set_questions, O),
    {NULL, NULL, 0, NULL},
};

int add_frame_addresses(PyObject *module) {
    void *found = dlsym(RTLD_DEFAULT, "PyThreadState_GetUnchecked");
    if (!found) found = dlsym(RTLD_DEFAULT, "_PyThreadState_UncheckedGet");
    *(void **)&gil_thread = found;
    if (PyModule_AddIntConstant(module, "IS_PYTHON_THREAD", (long)is_python_thread) < 0) return -1;
    return PyModule_AddIntConstant(module, "FRAMES_HERE", (long)frames_here);
}
