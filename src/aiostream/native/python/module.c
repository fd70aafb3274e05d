/* The Python face of the native part: `aiostream._native`, of which this file has the module
 * itself, the queues, the contexts, the counters, and what its companions share.
 *
 * Python's threads come in here and in the other files of python/, and nowhere else. Each function
 * parses its arguments, gives up the GIL around each call of the driver, and answers with a number
 * that Python turns into an error. No KeyboardInterrupt comes within one. The driver's threads come
 * the other way, to Python, only through python_dispatch() of process.c, for the user's own Python
 * host functions.
 *
 * The files of engine/ know nothing of Python or of these. All of python/ keeps to the limited API,
 * so one wheel serves every Python >= 3.11.
 */
#include "module.h"

#include <string.h>

#include "../engine/waits.h"

/* --- what the other files use --- */

static _Atomic bool forked; /* set in a forked child, in which the driver may not be called */

bool is_child(void) { return atomic_load(&forked); }

bool refuse_in_child(void) {
    if (!is_child()) return false;
    PyErr_SetString(
        PyExc_RuntimeError,
        "CUDA cannot be used in a forked child: neither the driver nor aiostream survives "
        "fork(). Start worker processes with multiprocessing's 'spawn' or 'forkserver' method. A "
        "server that loads its application before it forks (gunicorn --preload, Celery) must not "
        "use CUDA in the parent, not even Device.count(): make streams in the lifespan, or in a "
        "hook after the fork.");
    return true;
}

/* Keeps the GIL unless this destroys the object. While another thread computes in Python, each time
 * that a thread gives up the GIL may cost it 5 ms. */
void unpin_from_python(struct handle *handle) {
    /* forked since the pin: the last user would destroy the parent's object */
    if (is_child()) return;
    handle = handle_unpin_at_once(handle);
    if (!handle) return;
    Py_BEGIN_ALLOW_THREADS
    handle_unpin(handle);
    Py_END_ALLOW_THREADS
}

int operate_from_python(struct handle *handle, handle_operation operation, void *argument) {
    int result;
    Py_BEGIN_ALLOW_THREADS
    result = operate(handle, 0, operation, argument);
    Py_END_ALLOW_THREADS
    return result;
}

PyObject *as_text(const char *text) {
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

int is_found(const void *found, const char *what, PyObject *number) {
    if (!found && !PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "there is no %s %R", what, number);
    return found != NULL;
}

PyObject *raised_take(void) {
    PyObject *kind, *value, *traceback;
    PyErr_Fetch(&kind, &value, &traceback);
    if (kind) PyErr_NormalizeException(&kind, &value, &traceback);
    if (traceback) PyException_SetTraceback(value, traceback);
    Py_XDECREF(kind);
    Py_XDECREF(traceback);
    return value;
}

void raise_again(PyObject *raised) {
    if (!raised) return;
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(raised)), raised, PyException_GetTraceback(raised));
}

int done_with(PyObject *answer) {
    Py_XDECREF(answer);
    return answer ? 0 : -1;
}

bool append_new(PyObject *list, PyObject *object) {
    int failed = object ? PyList_Append(list, object) : -1;
    Py_XDECREF(object);
    return failed == 0;
}

void free_object(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

int add_type(PyObject *module, PyTypeObject **type, const char *name, int size, unsigned flags,
             PyType_Slot *slots) {
    PyType_Spec spec = {name, size, 0, Py_TPFLAGS_DEFAULT | flags, slots};
    if (!*type) *type = (PyTypeObject *)PyType_FromSpec(&spec);
    return *type ? PyModule_AddType(module, *type) : -1;
}

int add_tuple(PyObject *module, const char *attribute, PyObject *(*item)(int), int count) {
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple && i < count; i++) {
        PyObject *object = item(i);
        if (!object || PyTuple_SetItem(tuple, i, object) < 0) Py_CLEAR(tuple);
    }
    int status = PyModule_AddObjectRef(module, attribute, tuple);
    Py_XDECREF(tuple);
    return status;
}

/* --- points and queues --- */

int to_queue(PyObject *number, void *queue) {
    struct queue *found = *(struct queue **)queue = queue_at((int)PyLong_AsLong(number));
    return is_found(found, "queue", number);
}

int to_context(PyObject *number, void *context) {
    struct context *found = *(struct context **)context = context_at((int)PyLong_AsLong(number));
    return is_found(found, "context", number);
}

int to_strategy(PyObject *number, void *strategy) {
    long index = PyLong_AsLong(number);
    bool exists = index >= 0 && index < strategy_count;
    *(const struct strategy **)strategy = exists ? &strategies[index] : NULL;
    return is_found(*(const struct strategy **)strategy, "wait strategy", number);
}

static PyObject *native_queue_wake(PyObject *Py_UNUSED(self), PyObject *number) {
    struct queue *queue;
    if (!to_queue(number, &queue)) return NULL;
    queue_wake(queue);
    Py_RETURN_NONE;
}

static PyObject *native_context_register(PyObject *Py_UNUSED(self), PyObject *args) {
    unsigned long long handle, identity, stream;
    PyObject *made;
    if (!PyArg_ParseTuple(args, "KKKO!", &handle, &identity, &stream, &PyList_Type, &made))
        return NULL;
    bool is_taken;
    void *private_stream = (void *)(uintptr_t)stream;
    struct context *context =
        context_register((void *)(uintptr_t)handle, identity, private_stream, &is_taken);
    if (!context)
        return PyErr_Format(PyExc_RuntimeError,
                            "this process has used %d CUDA contexts, destroyed ones included, and "
                            "aiostream can watch no more: use a "
                            "context for longer, or a new process",
                            MAX_CONTEXTS);
    /* One step, because an interrupt must not make Python destroy a stream that is in use. */
    if (is_taken && PyList_SetSlice(made, 0, PyList_Size(made), NULL) < 0) return NULL;
    return PyLong_FromLong(context->index);
}

/* --- counters --- */

static PyObject *native_counters(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < COUNTERS; i++)
        if (!append_new(list, PyLong_FromLongLong(atomic_load(&counters[i])))) Py_CLEAR(list);
    return list;
}

static PyObject *native_pending(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
    struct pending_points pending = points_pending();
    return Py_BuildValue("LLL", (long long)pending.all, (long long)pending.captured,
                         (long long)pending.in_streams);
}

/* Opens or shuts a gate of testing.Gate: a stream waits for the word. The store is a release,
 * because the work behind the gate must see what this thread has written before. A plain store of
 * Python's may overtake earlier ones on aarch64. */
static PyObject *native_store_word(PyObject *Py_UNUSED(self), PyObject *args) {
    unsigned long long address;
    unsigned value;
    if (!PyArg_ParseTuple(args, "KI", &address, &value)) return NULL;
    atomic_store((_Atomic uint32_t *)(uintptr_t)address, value);
    Py_RETURN_NONE;
}

static PyObject *native_set_forked(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
    forked = true;
    Py_RETURN_NONE;
}

static PyObject *native_is_forked(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
    return PyBool_FromLong(atomic_load(&forked));
}

static PyMethodDef functions[] = {
    /* Makes the queue's descriptor readable. */
    METHOD(native, queue_wake, O),
    /* Its number. The list is emptied if the watcher took the idle stream, which it does once. */
    METHOD(native, context_register, VARARGS),
    /* All counters, in the order of COUNTERS. */
    METHOD(native, counters, NOARGS),
    /* The points that are armed now, counted one by one. Of these, the host functions that live
     * in graphs, and those in streams. */
    METHOD(native, pending, NOARGS),
    /* Stores 32 bits at an address, after all that this thread has written before. */
    METHOD(native, store_word, VARARGS),
    /* From now on every call here is refused: this is a forked child. */
    METHOD(native, set_forked, NOARGS),
    /* Whether set_forked() was called. */
    METHOD(native, is_forked, NOARGS),
    {NULL, NULL, 0, NULL},
};

#define CONSTANT(name) {#name, name}
static const struct {
    const char *name;
    int value;
} constants[] = {
    CONSTANT(KIND_HOST_FUNCTION),   CONSTANT(KIND_CALLBACK),      CONSTANT(KIND_PYTHON_HOST),
    CONSTANT(KIND_PYTHON_CALLBACK), CONSTANT(KIND_FOREIGN),       CONSTANT(HANDLE_STREAM),
    CONSTANT(HANDLE_EVENT),         CONSTANT(HANDLE_GRAPH),       CONSTANT(HANDLE_GRAPH_EXEC),
    CONSTANT(TURN_YIELD),           CONSTANT(TURN_BEGAN),         CONSTANT(RESULT_CLOSED),
    CONSTANT(RESULT_NO_MEMORY),     CONSTANT(RESULT_QUARANTINED), CONSTANT(RESULT_AWAITED),
    CONSTANT(RESULT_CAPTURING),     CONSTANT(RESULT_AT_ONCE),     CONSTANT(RESULT_AFTERWARDS),
};

static PyObject *counter_name(int number) {
    static const char *const names[] = {
#define COUNTER(name) #name,
#include "../engine/counters.h"
    };
    return PyUnicode_FromString(names[number]);
}

static PyObject *strategy_name(int number) { return PyUnicode_FromString(strategies[number].name); }

struct names names;

static bool make_names(void) {
    /* in the order of the fields */
    static const char *const texts[] = {"done",        "cancelled",     "set_result",
                                        "_set_result", "set_exception", "_set_exception",
                                        "point"};
    PyObject **place = (PyObject **)&names;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!place[i] && !(place[i] = PyUnicode_InternFromString(texts[i]))) return false;
    return true;
}

static int module_exec(PyObject *module) {
    /* The native part knows one interpreter, and so do the driver's threads that call it. Python
     * 3.12 refuses most others by itself. */
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
        PyErr_SetString(
            PyExc_ImportError,
            "aiostream cannot be imported in a subinterpreter, because the driver's threads know "
            "only the main interpreter. Use it there, or in a process of its own "
            "(multiprocessing's 'spawn' method).");
        return -1;
    }
    static adder *const adders[] = {add_handle_type,     add_completion_types, add_queue_type,
                                    add_wait_types,      add_work_type,        add_fatal_codes,
                                    add_frame_addresses, add_driver_calls};
    static PyMethodDef *const tables[] = {
        functions,       handle_functions, completion_functions, enqueue_functions,
        drain_functions, wait_functions,   graph_functions,      failure_functions,
        stall_functions, frame_functions,  process_functions};
    if (!make_names() || add_tuple(module, "COUNTERS", counter_name, COUNTERS) < 0 ||
        add_tuple(module, "WAIT_STRATEGIES", strategy_name, strategy_count) < 0)
        return -1;
    for (size_t i = 0; i < sizeof adders / sizeof *adders; i++)
        if (adders[i](module) < 0) return -1;
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (PyModule_AddFunctions(module, tables[i]) < 0) return -1;
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0) return -1;
    return 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED}, /* see module.h for what excludes threads in its place */
#endif
    {0, NULL},
};
static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_native",
    .m_doc = "The compiled part of aiostream: see native/engine/base.h.",
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&module_definition); }
