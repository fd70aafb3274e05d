/* The type Work: a call of `Stream.run` on its stream, with all that it uses, until its task has
 * seen the end of what the call has enqueued.
 *
 * The task makes the call in the thread of its loop (begin), waits as for any stream, and takes the
 * result (end). Meanwhile only the frame of the task refers to the Work. If the task leaves before
 * the end, the GPU may still use all of it. Then the event behind the work owns it until the GPU
 * has passed: that of the wait, whose ticket gets the Work for its owner, or else one that the
 * keeper records. Then the keeper ends it, and calls what the pool of its stream has set. If the
 * frame dies, because an interrupt has cut it short or the loop is gone, all of it goes to a new
 * Work, and that to the keeper.
 *
 * States: new, begun, left (an event owns it), at a `yield` meanwhile (`in_halves`), over. A task
 * that leaves takes it from begun to left. The keeper takes it from left to over, for one at a
 * `yield` by way of the close, and back to left if the close has enqueued more.
 *
 * Threads: that of its loop, until an event owns it. Then that in which the ticket is drained: the
 * loop's if `in_loop`, and otherwise, or if the loop is gone, the janitor's, which has the releaser
 * close a function at its `yield`.
 *
 * The collector must not take what it refers to for garbage and call finalizers, because the GPU
 * may use it. So the type has a tp_del, the finalizer that Python had before PEP 442. The collector
 * then leaves alone all that a Work refers to, and puts the Work into `gc.garbage`, where `runs.py`
 * looks for it. That is how a task is freed that its own arguments refer to, if its loop is closed
 * or gone.
 */
#include "completions.h"

#include <string.h>

typedef struct {
    PyObject_HEAD
    PyObject *operand, *mode; /* what a wait needs of a stream */
    PyObject *keeper;
    PyObject *call, *result;
    PyObject *left_by; /* for `pending` */
    PyObject *handle;  /* of the stream, which is pinned from begin to end */
    unsigned long thread;
    _Atomic bool pinned;
    char left, in_halves, in_loop; /* see `work_members` */
    int tries;                     /* how often it was given to the keeper in vain */
    PyObject *at_end;              /* what is called at its end, if its task has left */
} WorkObject;

enum { MOST_TRIES = 3 };

static PyTypeObject *work_type;
static PyObject *generator_type, *coroutine_type;

static PyObject *Work_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs)) {
    PyObject *operand, *mode, *call, *keeper;
    if (!PyArg_ParseTuple(args, "OOOO", &operand, &mode, &call, &keeper)) return NULL;
    WorkObject *self = (WorkObject *)PyType_GenericAlloc(type, 0);
    if (!self) return NULL;
    self->operand = Py_NewRef(operand);
    self->mode = Py_NewRef(mode);
    self->call = Py_NewRef(call);
    self->keeper = Py_NewRef(keeper);
    return (PyObject *)self;
}

static void let_go(WorkObject *self) {
    if (atomic_exchange(&self->pinned, false) && !is_child())
        unpin_from_python(as_handle(self->handle));
}

/* Whether the GPU may use its objects. */
static bool is_used(const WorkObject *self) { return self->handle && self->call; }

/* The objects may still be in use. They go to another object, because this one is dying. */
static void give_away(WorkObject *self) {
    PyObject *raised = raised_take();
    PyObject *object = self->tries < MOST_TRIES ? PyType_GenericAlloc(work_type, 0) : NULL;
    WorkObject *heir = (WorkObject *)object;
    if (heir) {
        memcpy(&heir->operand, &self->operand, sizeof *self - offsetof(WorkObject, operand));
        heir->left = false;
        heir->tries++;
        Py_INCREF(heir->keeper);
        self->operand = self->mode = self->call = self->result = self->handle = NULL;
        self->left_by = self->at_end = NULL;
        if (done_with(PyObject_CallFunctionObjArgs(self->keeper, object, NULL)) < 0)
            PyErr_WriteUnraisable(self->keeper);
        Py_DECREF(object);
    } else { /* no memory, or no janitor any more */
        PyErr_Clear();
        count_leak();
        self->call = self->result = NULL; /* which nothing releases any more */
        let_go(self);
    }
    raise_again(raised);
}

static int Work_traverse(PyObject *object, visitproc visit, void *arg) {
    WorkObject *self = (WorkObject *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->operand);
    Py_VISIT(self->call);
    Py_VISIT(self->result);
    return 0;
}

static void Work_del(PyObject *Py_UNUSED(object)) {} /* never called: see above */

static void Work_dealloc(PyObject *object) {
    WorkObject *self = (WorkObject *)object;
    PyObject_GC_UnTrack(object);
    if (is_used(self) && !is_child()) give_away(self);
    PyObject *fields[] = {self->operand, self->mode,   self->keeper,  self->call,
                          self->result,  self->handle, self->left_by, self->at_end};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) Py_XDECREF(fields[i]);
    free_object(object);
}

PyObject *plain_result(PyObject *result, bool drives) {
    PyObject *kind = result ? (PyObject *)Py_TYPE(result) : NULL;
    if (!kind || (kind != coroutine_type && (drives || kind != generator_type))) return result;
    Py_XDECREF(PyObject_CallMethod(result, "close", NULL));
    PyErr_Format(PyExc_TypeError, "a plain function returned %R, which would never run", result);
    Py_DECREF(result);
    return NULL;
}

PyObject *native_plain_result(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *result;
    int drives = true;
    if (!PyArg_ParseTuple(args, "O|p", &result, &drives)) return NULL;
    return plain_result(Py_NewRef(result), drives);
}

/* begin(handle, wait_list): makes the call in the stream's context. 0, or a refusal, or the
 * generator that the call has returned. If the call raises, it has begun too. It is one step,
 * because a KeyboardInterrupt between two steps of Python could leave the context current, or free
 * the result while the GPU uses it. */
static PyObject *Work_begin(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    WorkObject *self = (WorkObject *)object;
    struct handle *handle;
    const struct waits *waits;
    if (count != 2 || self->handle)
        return PyErr_Format(PyExc_TypeError, "begin(handle, wait_list), once");
    if (!to_handle(args[0], &handle) || !to_waits(args[1], &waits)) return NULL;
    if (!handle_pin(handle)) return PyLong_FromLong(RESULT_CLOSED);
    int status;
    struct call *under_way;
    Py_BEGIN_ALLOW_THREADS
    status = call_enter(handle, waits, true, &under_way);
    if (status != CUDA_SUCCESS) handle_unpin(handle);
    Py_END_ALLOW_THREADS
    if (status != CUDA_SUCCESS) return PyLong_FromLong(status);
    self->handle = Py_NewRef(args[0]);
    self->thread = PyThread_get_thread_ident();
    self->pinned = true;
    self->result = plain_result(PyObject_CallNoArgs(self->call), true);
    call_leave(under_way);
    if (self->result && (PyObject *)Py_TYPE(self->result) == generator_type)
        return Py_NewRef(self->result);
    return self->result ? PyLong_FromLong(CUDA_SUCCESS) : NULL;
}

/* end(): the GPU has passed the work, or something else keeps the objects. What the call has
 * returned. */
static PyObject *Work_end(PyObject *object, PyObject *Py_UNUSED(unused)) {
    WorkObject *self = (WorkObject *)object;
    PyObject *result = self->result ? self->result : Py_NewRef(Py_None);
    self->result = NULL;
    let_go(self);
    Py_CLEAR(self->call);
    Py_CLEAR(self->operand);
    return result;
}

/* take(): the same, in a list, with all that was kept. */
static PyObject *Work_take(PyObject *object, PyObject *Py_UNUSED(unused)) {
    WorkObject *self = (WorkObject *)object;
    PyObject *call = self->call ? self->call : Py_None;
    PyObject *list = Py_BuildValue("[OO]", call, self->result ? self->result : Py_None);
    if (list) Py_XDECREF(Work_end(object, NULL));
    return list;
}

/* complete(code, orphaned): the GPU has passed the event that owns it; with a code, nothing proves
 * that; with -1, another event has to own it. */
static PyObject *Work_complete(PyObject *object, PyObject *args) {
    PyObject *code, *orphaned, *keeper = ((WorkObject *)object)->keeper;
    if (!PyArg_ParseTuple(args, "OO", &code, &orphaned)) return NULL;
    return PyObject_CallFunctionObjArgs(keeper, object, code, orphaned, NULL);
}

bool is_work(PyObject *object) { return Py_IS_TYPE(object, work_type); }

bool work_leaves(PyObject *object, bool here) {
    WorkObject *self = (WorkObject *)object;
    self->left = true;
    if (!self->in_halves) let_go(self);
    return here && self->in_loop;
}

bool work_takes(PyObject *object, struct wait *wait, bool here) {
    uint64_t ticket =
        is_work(object) ? wait_reserve_end(wait, here && ((WorkObject *)object)->in_loop) : 0;
    if (!ticket) return false;
    work_leaves(object, here);
    set_owner(ticket, object);
    wait_leave_to_watcher(wait);
    return true;
}

static PyObject *Work_is_over(PyObject *object, void *Py_UNUSED(unused)) {
    return PyBool_FromLong(!is_used((WorkObject *)object));
}

static PyMethodDef work_methods[] = {
    /* Makes the call in the context of a stream: 0, or a refusal. */
    METHOD(Work, begin, FASTCALL),
    /* Lets go of everything: what the call has returned. */
    METHOD(Work, end, NOARGS),
    /* The same: what it has kept. */
    METHOD(Work, take, NOARGS),
    /* The GPU has passed the event that owns it. */
    METHOD(Work, complete, VARARGS),
    {NULL, NULL, 0, NULL},
};
static PyMemberDef work_members[] = {
    {"_operand", T_OBJECT, offsetof(WorkObject, operand), READONLY, "The stream."},
    {"_mode", T_OBJECT, offsetof(WorkObject, mode), READONLY, "How to wait."},
    {"result", T_OBJECT, offsetof(WorkObject, result), 0, "What the call has returned."},
    {"left_by", T_OBJECT, offsetof(WorkObject, left_by), 0, "The task that has left it."},
    {"is_left", T_BOOL, offsetof(WorkObject, left), 0, "Whether an event owns it."},
    {"in_halves", T_BOOL, offsetof(WorkObject, in_halves), 0, "Whether it is at a `yield`."},
    {"in_loop", T_BOOL, offsetof(WorkObject, in_loop), 0, "Whether its end goes to its loop."},
    {"at_end", T_OBJECT, offsetof(WorkObject, at_end), 0, "What is called at its end."},
    {"thread", T_ULONG, offsetof(WorkObject, thread), READONLY, "The thread that has begun it."},
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef work_properties[] = {
    {"is_over", Work_is_over, NULL, "Whether the GPU uses nothing of it any more.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
/* A call on a stream, until its task has seen the end of the work. */
static PyType_Slot work_slots[] = {
    {Py_tp_new, Work_new},           {Py_tp_dealloc, Work_dealloc},
    {Py_tp_traverse, Work_traverse}, {Py_tp_del, Work_del},
    {Py_tp_methods, work_methods},   {Py_tp_members, work_members},
    {Py_tp_getset, work_properties}, {0, NULL},
};

int add_work_type(PyObject *module) {
    PyObject *types = PyImport_ImportModule("types");
    if (!types) return -1;
    generator_type = PyObject_GetAttrString(types, "GeneratorType");
    coroutine_type = PyObject_GetAttrString(types, "CoroutineType");
    Py_DECREF(types);
    if (!generator_type || !coroutine_type) return -1;
    return ADD_TYPE(module, work, Work, Py_TPFLAGS_HAVE_GC);
}
