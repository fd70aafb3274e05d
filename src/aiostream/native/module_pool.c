/* What a pool does for most requests: it gives a task a free stream, and takes it back.
 *
 * Each of the two is one step here, in the thread of the loop that uses the pool, so no interrupt
 * comes in between. They do only what is usual. Anything else they leave to the pool's Python
 * (pool.py, _servers), which can do all of it.
 *
 * - Both need that the pool is open and of one device, that no task waits for a stream, and that no
 *   stream was dropped or is unreported.
 * - A loan also needs a free stream with a Stream that no task has kept, a task of asyncio in the
 *   pool's loop, no observer, and no new fatal code. The sixteenth loan since the loop had a turn
 *   is Python's, which asks whether the loop needs one.
 * - A return also needs that the stream's work is over.
 *
 * The Stream that a task gives back is a *spare*. It is lent again if no task has kept it, because
 * a new one costs more than all the rest. A Lease is what `pool.stream()` returns.
 */
#include "module.h"

/* One stream of a pool. Python writes the fields too; None is as good as NULL. */
typedef struct {
    PyObject_HEAD
    PyObject *stream, *handle;       /* the pool's own Stream, and its Handle */
    PyObject *lent, *alarm, *holder; /* of the loan: see Pooled */
    PyObject *record; /* a tuple, see RECORD_HANDLE, of the Stream that was lent last */
    PyObject *spares; /* a list of Streams that were given back, each a tuple with its record */
    uint64_t drains;  /* of the loop, when it was lent last in one step */
} PooledObject;

/* What a record has: its Handle, two weak references, and its id. */
enum { RECORD_HANDLE, RECORD_LENT, RECORD_ALARM, RECORD_KEY };
/* Two, because the variable of a loop keeps the last Stream until it gets the next one. */
enum { MOST_SPARES = 2 };

typedef struct {
    PyObject_HEAD
    PyObject *bound; /* a tuple, see FUTURES; or NULL */
    PyObject *idle;  /* a list if all streams are of one device, and the last is the next */
    PyObject *lent, *dropped, *busy;
    PyObject *healthy_since;
    int at_once;         /* how many loans took no turn of the loop, modulo TURNS_AFTER; or -1 */
    struct queue *queue; /* of the loop */
    char closed;
    char has_own_release; /* a subclass has another `release`, and each return is to call it */
} PoolObject;

/* What `_bind` gets: the futures of the tasks that wait, of Python the driver, the observers and
 * two functions of asyncio, and a weak reference to the loop of asyncio that uses the pool, or
 * None. */
enum { FUTURES, DRIVER, OBSERVERS, LOOP, RUNNING_LOOP, CURRENT_TASK };

typedef struct {
    PyObject_HEAD
    PyObject *pool;
    PyObject *acquiring; /* what is awaited, or was */
    PyObject *lent;
    char is_done; /* the stream's work was awaited */
} LeaseObject;

/* An awaitable that is over. It costs less than a coroutine. */
typedef struct {
    PyObject_HEAD
    PyObject *value; /* NULL: it was awaited. That is allowed once, but with None more often. */
} DoneObject;

static PyTypeObject *done_type, *lease_type;

static PyObject *count_references;

static bool is_set(const PyObject *object) { return object && object != Py_None; }

static bool is_at(PyObject *reference, const PyObject *object) {
    PyObject *found = is_set(reference) ? PyObject_CallNoArgs(reference) : NULL;
    Py_XDECREF(found);
    return found == object && found;
}

/* --- the steps --- */

static PyObject *recorded(const PooledObject *pooled, int what) {
    return PyTuple_GetItem(pooled->record, what);
}

/* Whether a task has added nothing to a Stream: its weak references are the pool's two, and what is
 * the Stream's own has slots. */
static bool is_bare(PyObject *stream) {
    PyObject *count = PyObject_CallFunctionObjArgs(count_references, stream, NULL);
    PyObject *attributes = PyObject_GenericGetDict(stream, NULL);
    bool is_so = count && attributes && PyLong_AsLong(count) == 2 && PyDict_Size(attributes) == 0;
    Py_XDECREF(count);
    Py_XDECREF(attributes);
    PyErr_Clear();
    return is_so;
}

/* A Stream that was given back, with its record. None: a task has added something to it, and it is
 * not kept. */
static PyObject *new_spare(PooledObject *pooled, PyObject *stream) {
    return is_bare(stream) ? PyTuple_Pack(2, stream, pooled->record) : Py_NewRef(Py_None);
}

static bool keep(PooledObject *pooled, PyObject *spare) {
    return spare == Py_None || PyList_Append(pooled->spares, spare) == 0;
}

/* Takes a spare out. Its record goes first, because no task has dropped the spare. */
static PyObject *take_spare(PooledObject *pooled, Py_ssize_t i) {
    PyObject *spare = Py_NewRef(PyTuple_GetItem(PyList_GetItem(pooled->spares, i), 0));
    PyList_SetSlice(pooled->spares, i, i + 1, NULL);
    return spare;
}

/* A Stream that was given back, open again, if no task has kept it. Else NULL, and Python may have
 * run, because a spare has died. */
static PyObject *lend_again(PooledObject *pooled) {
    Py_ssize_t count = PyList_Size(pooled->spares);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *entry = PyList_GetItem(pooled->spares, i);
        PyObject *spare = PyTuple_GetItem(entry, 0), *record = PyTuple_GetItem(entry, 1);
        if ((uint32_t)Py_REFCNT(spare) != 1) continue;
        if (is_bare(spare) && handle_is_open(as_handle(pooled->handle)) &&
            PyObject_SetAttr(spare, names.source, pooled->stream) == 0 &&
            handle_reopen(as_handle(PyTuple_GetItem(record, RECORD_HANDLE)))) {
            PyObject *old = pooled->record;
            pooled->record = Py_NewRef(record);
            Py_XDECREF(old);
            return take_spare(pooled, i);
        }
        PyErr_Clear();
        Py_DECREF(take_spare(pooled, i));
        return NULL;
    }
    if (count >= MOST_SPARES) Py_DECREF(take_spare(pooled, 0));
    return NULL;
}

/* A thread that exports metrics may read the fields of a loan meanwhile. Takes the value over. */
static void set_field(PooledObject *pooled, PyObject **field, PyObject *value) {
    PyObject *old;
    Py_BEGIN_CRITICAL_SECTION(pooled);
    old = *field;
    __atomic_store_n(field, value, __ATOMIC_RELEASE);
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(old);
}

static void set_loan(PooledObject *pooled, PyObject *lent, PyObject *alarm, PyObject *holder) {
    set_field(pooled, &pooled->alarm, Py_XNewRef(alarm));
    set_field(pooled, &pooled->lent, Py_XNewRef(lent));
    set_field(pooled, &pooled->holder, holder);
}

static PyObject *bound(const PoolObject *self, int what) {
    return PyTuple_GetItem(self->bound, what);
}

/* Whether the pool has nothing else to do at a use. */
static bool is_usual(const PoolObject *self) {
    if (self->closed || !self->bound || PyDict_Size(bound(self, FUTURES)) ||
        PyObject_Size(self->dropped))
        return false;
    PyObject *unreported = PyObject_GetAttr(self->busy, names.has_unreported);
    Py_XDECREF(unreported);
    return unreported == Py_False && !is_child();
}

static bool is_healthy(const PoolObject *self) {
    PyObject *latest = PyObject_GetAttr(bound(self, DRIVER), names.latest_failure);
    Py_XDECREF(latest);
    return latest && latest == self->healthy_since;
}

/* The task of asyncio that runs here, if its loop uses the pool. */
static PyObject *task_here(const PoolObject *self) {
    PyObject *ours = self->bound ? bound(self, LOOP) : NULL;
    PyObject *loop = is_set(ours) ? PyObject_CallNoArgs(bound(self, RUNNING_LOOP)) : NULL;
    PyObject *task = loop && is_at(ours, loop)
                         ? PyObject_CallFunctionObjArgs(bound(self, CURRENT_TASK), loop, NULL)
                         : NULL;
    Py_XDECREF(loop);
    if (is_set(task)) return task;
    Py_XDECREF(task);
    return NULL;
}

/* Whether a task may get a stream without an await. */
static bool may_take_at_once(const PoolObject *self) {
    return self->at_once >= 0 && self->at_once + 1 < TURNS_AFTER;
}

/* NULL without an error: this way is not open, and nothing has changed. */
static PyObject *take(PoolObject *self) {
    /* First, because the collector may run Python here. Behind it nothing does. */
    PyObject *task = task_here(self);
    PyObject *holder = task ? PyWeakref_NewRef(task, NULL) : NULL;
    Py_XDECREF(task);
    Py_ssize_t free = holder && PyList_Check(self->idle) ? PyList_Size(self->idle) : 0;
    PyObject *lent = NULL;
    if (free && is_usual(self) && !PyDict_Size(bound(self, OBSERVERS)) && is_healthy(self) &&
        may_take_at_once(self)) {
        PooledObject *pooled = (PooledObject *)PyList_GetItem(self->idle, free - 1);
        lent = lend_again(pooled);
        if (lent &&
            PyDict_SetItem(self->lent, recorded(pooled, RECORD_KEY), (PyObject *)pooled) < 0)
            Py_CLEAR(lent);
        if (lent) {
            set_loan(pooled, recorded(pooled, RECORD_LENT), recorded(pooled, RECORD_ALARM),
                     Py_NewRef(holder));
            PyList_SetSlice(self->idle, free - 1, free, NULL);
            pooled->drains = queue_drains(self->queue);
        }
    }
    Py_XDECREF(holder);
    PyErr_Clear();
    return lent;
}

static bool is_idle(struct handle *handle, bool is_done) {
    if (handle_is_used(handle)) return false;
    return is_done || operate_from_python(handle, do_stream_query, NULL) == CUDA_SUCCESS;
}

/* False: this way is not open, and nothing has changed but that the Stream may be closed. */
static bool give(PoolObject *self, PyObject *stream, bool is_done) {
    PyObject *key = PyLong_FromVoidPtr(stream);
    PooledObject *pooled =
        key && self->lent ? (PooledObject *)PyDict_GetItem(self->lent, key) : NULL;
    bool gave = false;
    /* Without a drain since, the loop had no turn. A task that goes on so keeps it for itself. */
    bool had_turn = !self->queue || !pooled || pooled->drains != queue_drains(self->queue);
    if (!had_turn && may_take_at_once(self)) self->at_once++;
    if (pooled && is_at(pooled->lent, stream) && PyList_Check(self->idle) && is_usual(self)) {
        Py_INCREF((PyObject *)pooled);
        PyObject *spare = new_spare(pooled, stream);
        /* The handle is borrowed, so this destroys nothing. It comes before the pool looks at the
         * stream, because a thread could otherwise begin a use that the pool has not seen. */
        struct handle *handle = as_handle(recorded(pooled, RECORD_HANDLE));
        handle_close(handle);
        /* is_usual once more, behind all that may run Python, in this thread or in another. */
        gave = spare && !handle_is_used(handle) && is_idle(as_handle(pooled->handle), is_done) &&
               is_usual(self) && is_at(pooled->lent, stream) &&
               PyObject_SetAttr(stream, names.source, Py_None) == 0 && keep(pooled, spare) &&
               PyList_Append(self->idle, (PyObject *)pooled) == 0;
        if (gave) {
            set_loan(pooled, NULL, NULL, NULL);
            PyDict_DelItem(self->lent, key);
        }
        Py_XDECREF(spare);
        Py_DECREF((PyObject *)pooled);
    }
    Py_XDECREF(key);
    PyErr_Clear();
    return gave;
}

/* --- objects that are fields of Python's --- */

#define FIELD(type, name) {#name, T_OBJECT, offsetof(type, name), 0, NULL}
#define HIDDEN(type, name) {"_" #name, T_OBJECT, offsetof(type, name), 0, NULL}
static PyMemberDef pooled_members[] = {
    FIELD(PooledObject, stream), FIELD(PooledObject, handle), FIELD(PooledObject, lent),
    FIELD(PooledObject, alarm),  FIELD(PooledObject, holder), FIELD(PooledObject, record),
    FIELD(PooledObject, spares), {NULL, 0, 0, 0, NULL},
};
/* Python does not see the first one, which `_bind` sets, because a subclass of users might have an
 * attribute of this name. */
static PyMemberDef pool_members[] = {
    HIDDEN(PoolObject, bound),
    HIDDEN(PoolObject, idle),
    HIDDEN(PoolObject, lent),
    HIDDEN(PoolObject, dropped),
    HIDDEN(PoolObject, busy),
    HIDDEN(PoolObject, healthy_since),
    {"_at_once", T_INT, offsetof(PoolObject, at_once), 0, NULL},
    {"_closed", T_BOOL, offsetof(PoolObject, closed), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyMemberDef lease_members[] = {
    HIDDEN(LeaseObject, pool), HIDDEN(LeaseObject, acquiring),
    HIDDEN(LeaseObject, lent), {"is_done", T_BOOL, offsetof(LeaseObject, is_done), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static const PyMemberDef done_members[] = {HIDDEN(DoneObject, value), {NULL, 0, 0, 0, NULL}};

/* The objects of these types are a head, some fields of objects, and others. */
static PyObject **field_of(PyObject *self, const PyMemberDef *member) {
    return member->type == T_OBJECT ? (PyObject **)((char *)self + member->offset) : NULL;
}

static int traverse(PyObject *self, const PyMemberDef *member, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    for (; member->name; member++)
        if (field_of(self, member)) Py_VISIT(*field_of(self, member));
    return 0;
}

static int clear(PyObject *self, const PyMemberDef *member) {
    for (; member->name; member++)
        if (field_of(self, member)) Py_CLEAR(*field_of(self, member));
    return 0;
}

static void dealloc(PyObject *self, const PyMemberDef *members) {
    PyObject_GC_UnTrack(self);
    clear(self, members);
    free_object(self);
}

/* What the collector calls for a type with such members. */
#define COLLECTED(Type, members)                                                                   \
    static int Type##_traverse(PyObject *self, visitproc visit, void *arg) {                       \
        return traverse(self, members, visit, arg);                                                \
    }                                                                                              \
    static int Type##_clear(PyObject *self) { return clear(self, members); }                       \
    static void Type##_dealloc(PyObject *self) { dealloc(self, members); }
COLLECTED(Pooled, pooled_members)
COLLECTED(Pool, pool_members)
COLLECTED(Lease, lease_members)
COLLECTED(Done, done_members)

static PyObject *Pooled_lend_again(PyObject *self, PyObject *Py_UNUSED(unused)) {
    PyObject *lent = lend_again((PooledObject *)self);
    return lent ? lent : Py_NewRef(Py_None);
}

static PyObject *Pooled_keep(PyObject *self, PyObject *stream) {
    PyObject *spare = new_spare((PooledObject *)self, stream);
    bool is_kept = spare && keep((PooledObject *)self, spare);
    Py_XDECREF(spare);
    return is_kept ? Py_NewRef(Py_None) : NULL;
}

static PyObject *Pool_bind(PyObject *object, PyObject *args) {
    PoolObject *self = (PoolObject *)object;
    PyObject *given;
    struct queue *queue;
    int has_own_release;
    if (!PyArg_ParseTuple(args, "O!O&p", &PyTuple_Type, &given, to_queue, &queue, &has_own_release))
        return NULL;
    self->queue = queue;
    PyObject *former = self->bound;
    self->bound = Py_NewRef(given);
    Py_XDECREF(former);
    self->has_own_release = (char)has_own_release;
    Py_RETURN_NONE;
}

static PyObject *Pool_give(PyObject *self, PyObject *stream) {
    return PyBool_FromLong(give((PoolObject *)self, stream, false));
}

/* --- Done --- */

static PyObject *new_done(PyObject *value) {
    DoneObject *self = (DoneObject *)PyType_GenericAlloc(done_type, 0);
    if (self) self->value = Py_NewRef(value);
    return (PyObject *)self;
}

static PyObject *Done_next(PyObject *object) {
    DoneObject *self = (DoneObject *)object;
    PyObject *value = self->value;
    if (value == Py_None) return NULL;
    self->value = NULL;
    if (value) PyErr_SetObject(PyExc_StopIteration, value);
    else PyErr_SetString(PyExc_RuntimeError, "cannot reuse already awaited coroutine");
    Py_XDECREF(value);
    return NULL;
}

static PyObject *Done_send(PyObject *self, PyObject *Py_UNUSED(value)) {
    Done_next(self);
    if (!PyErr_Occurred()) PyErr_SetNone(PyExc_StopIteration);
    return NULL;
}

static PyObject *Done_close(PyObject *self, PyObject *Py_UNUSED(unused)) {
    Py_CLEAR(((DoneObject *)self)->value);
    Py_RETURN_NONE;
}

static PyObject *Done_throw(PyObject *self, PyObject *args) {
    PyObject *kind, *value = NULL, *traceback;
    if (!PyArg_ParseTuple(args, "O|OO", &kind, &value, &traceback)) return NULL;
    if (!((DoneObject *)self)->value) return Done_next(self);
    Py_CLEAR(((DoneObject *)self)->value);
    PyErr_SetObject(PyExceptionInstance_Check(kind) ? (PyObject *)Py_TYPE(kind) : kind,
                    PyExceptionInstance_Check(kind) ? kind : value);
    return NULL;
}

/* --- Lease --- */

/* new_lease(pool, type): costs less than a call of the type. */
static PyObject *native_new_lease(PyObject *Py_UNUSED(module), PyObject *const *args,
                                  Py_ssize_t count) {
    PyTypeObject *type = count == 2 && PyType_Check(args[1]) ? (PyTypeObject *)args[1] : NULL;
    if (!type || !PyType_IsSubtype(type, lease_type))
        return PyErr_Format(PyExc_TypeError, "a pool and a type of leases are needed");
    PyObject *lease = PyType_GenericAlloc(type, 0);
    if (lease) ((LeaseObject *)lease)->pool = Py_NewRef(args[0]);
    return lease;
}

/* What is awaited: of the first await it is over, if a stream is free. */
static PyObject *await_lease(PyObject *object, bool keeps) {
    LeaseObject *self = (LeaseObject *)object;
    bool is_first = !is_set(self->acquiring) && is_set(self->pool);
    PyObject *lent = is_first ? take((PoolObject *)self->pool) : NULL;
    PyObject *done = lent ? new_done(lent) : NULL;
    PyErr_Clear();
    if (done) {
        Py_XDECREF(self->acquiring); /* None */
        self->acquiring = Py_NewRef(done);
    }
    if (done && keeps) {
        Py_XDECREF(self->lent);
        self->lent = Py_NewRef(lent);
    }
    Py_XDECREF(lent);
    return done ? done : PyObject_CallMethod(object, keeps ? "_enter" : "_await", NULL);
}

static PyObject *Lease_await(PyObject *self) { return await_lease(self, false); }
static PyObject *Lease_enter(PyObject *self, PyObject *Py_UNUSED(unused)) {
    return await_lease(self, true);
}

static PyObject *Lease_leave(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    LeaseObject *self = (LeaseObject *)object;
    PyObject *kind = count ? args[0] : Py_None;
    PoolObject *pool = (PoolObject *)self->pool;
    if (is_set(self->lent) && (pool->has_own_release || !give(pool, self->lent, self->is_done)))
        return PyObject_CallMethod(object, "_leave", "O", kind);
    Py_CLEAR(self->lent);
    return new_done(Py_None);
}

static PyMethodDef pooled_methods[] = {
    {"keep", Pooled_keep, METH_O, "Keeps a Stream that was given back, to be lent again."},
    {"lend_again", Pooled_lend_again, METH_NOARGS,
     "The Stream that was given back last, open again, if it looks like a new one."},
    {NULL, NULL, 0, NULL},
};
static PyMethodDef pool_methods[] = {
    {"_bind", Pool_bind, METH_VARARGS,
     "Sets what these steps need of Python, which differs with the loop."},
    {"_give", Pool_give, METH_O,
     "Takes a lent Stream back in one step. False if that takes more, and nothing was done."},
    {NULL, NULL, 0, NULL},
};
static PyMethodDef lease_methods[] = {
    {"__aenter__", Lease_enter, METH_NOARGS, "Waits until a stream is free."},
    {"__aexit__", FAST(Lease_leave), "Gives the stream back."},
    {NULL, NULL, 0, NULL},
};

static PyMethodDef done_methods[] = {
    {"send", Done_send, METH_O, "Goes on."},
    {"throw", Done_throw, METH_VARARGS, "Raises."},
    {"close", Done_close, METH_NOARGS, "Ends it."},
    {NULL, NULL, 0, NULL},
};
static PyMethodDef pool_functions[] = {
    {"new_lease", FAST(native_new_lease), "Makes a Lease of a pool."},
    {NULL, NULL, 0, NULL},
};

#define SLOTS(type, name, members)                                                                 \
    {Py_tp_dealloc, type##_dealloc}, {Py_tp_traverse, type##_traverse},                            \
        {Py_tp_clear, type##_clear}, {Py_tp_members, members}, {                                   \
        Py_tp_methods, name##_methods                                                              \
    }
static PyType_Slot pooled_slots[] = {SLOTS(Pooled, pooled, pooled_members), {0, NULL}};
static PyType_Slot pool_slots[] = {SLOTS(Pool, pool, pool_members + 1), {0, NULL}};
static PyType_Slot lease_slots[] = {
    SLOTS(Lease, lease, lease_members), {Py_am_await, Lease_await}, {0, NULL}};
static PyType_Slot done_slots[] = {
    {Py_tp_dealloc, Done_dealloc},    {Py_tp_traverse, Done_traverse},
    {Py_tp_clear, Done_clear},        {Py_tp_methods, done_methods},
    {Py_am_await, PyObject_SelfIter}, {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, Done_next},      {0, NULL}};

int add_pool_types(PyObject *module) {
    static PyTypeObject *pooled_type, *pool_type;
    PyObject *weak = PyImport_ImportModule("_weakref");
    if (!count_references && weak)
        count_references = PyObject_GetAttrString(weak, "getweakrefcount");
    Py_XDECREF(weak);
    enum { FLAGS = Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC };
    enum { DONE_FLAGS = Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION };
    if (!count_references || ADD_TYPE(module, pooled, Pooled, FLAGS) < 0 ||
        ADD_TYPE(module, pool, Pool, FLAGS) < 0 || ADD_TYPE(module, lease, Lease, FLAGS) < 0 ||
        ADD_TYPE(module, done, Done, DONE_FLAGS) < 0)
        return -1;
    return PyModule_AddFunctions(module, pool_functions);
}
