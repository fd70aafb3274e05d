/* What the files that know Python share: module.c and its companions, the rest of python/. */
#ifndef AIOSTREAM_MODULE_H
#define AIOSTREAM_MODULE_H

#include <Python.h>
#include <structmember.h>

#include "../engine/handles.h"
#include "../engine/points.h"

/* A free-threaded Python has no GIL, so several threads run these files at once. Then these exclude
 * each other:
 *
 * - The owner of a point is read and written under the lock of its point (completions.h).
 * - The fields of a Completion that several threads use, and the list of an Order, are read and
 *   written in a critical section. With the GIL it is nothing, and the limited API has none.
 * - Handles, queues, points and waits have their own atomics and locks, because the driver's
 *   threads and the watcher never had the GIL.
 * - Types, names and the driver's table are written before another thread knows the module, or
 *   under the lock of `_runtime/process.py`.
 * - A Wait belongs to its task, a Work to the frame that has made it, and the turns of a queue to
 * its loop. So one thread alone uses each. */
#ifndef Py_BEGIN_CRITICAL_SECTION
#define Py_BEGIN_CRITICAL_SECTION(object)                                                          \
    {                                                                                              \
        (void)(object);
#define Py_END_CRITICAL_SECTION() }
#endif

/* The names of the methods and attributes that native code uses often, made once. */
extern struct names {
    PyObject *done, *cancelled, *set_result, *own_set_result, *set_exception, *own_set_exception,
        *point;
} names;

/* What a step that enqueues answers is 0, or a refusal before its function has run, or one of
 * these. */
enum {
    RESULT_AT_ONCE = -5,        /* its future is done already */
    RESULT_AFTERWARDS = 1 << 24 /* added to a refusal after its function has run */
};

bool is_child(void);        /* of a fork, in which the driver may not be called */
bool refuse_in_child(void); /* the same, with an exception set */
bool refuse_at_exit(void);  /* callbacks have ended; with an exception set */
struct handle *as_handle(PyObject *);
/* What an argument stands for: converters, as "O&" of PyArg_ParseTuple wants them. Each fills in a
 * pointer to a struct of that name. 0: an exception is set. */
int to_handle(PyObject *, void *handle);
int to_queue(PyObject *number, void *queue);
int to_context(PyObject *number, void *context);
int to_waits(PyObject *wait_list, void *waits);
int to_strategy(PyObject *number, void *strategy);
/* What a converter returns for something that a number has found, or for NULL. */
int is_found(const void *, const char *what, PyObject *number);
/* The exception that was raised, which is no longer set, or NULL; and sets one again. */
PyObject *raised_take(void);
void raise_again(PyObject *);
/* Releases what a call of Python has answered. -1: it has raised. */
int done_with(PyObject *answer);
/* appends the object and releases it; false: with an exception set, or NULL was passed */
bool append_new(PyObject *list, PyObject *object);

/* As `operate`, for a caller that has the GIL. */
int operate_from_python(struct handle *, handle_operation, void *argument);

/* keeps the GIL, unless this destroys the driver's object */
void unpin_from_python(struct handle *);
/* --- of one file each --- */

struct wait;
/* A wait of a task, which polls it, or sleeps while a timer or the watcher has it.
 *
 * A KeyboardInterrupt may come between a call's return and the next step of Python, and then the
 * call's answer is lost. So what must not be lost is an object, and it gives up what it owns in one
 * step with the call that takes that over. */
typedef struct {
    PyObject_HEAD
    struct wait *wait;         /* NULL: it is over, or it was left */
    unsigned long long ticket; /* with which it was left; 0: it was not */
    PyObject *future; /* on which the task sleeps; the point of the ticket owns this object */
    bool yielded;     /* the loop has had its turn, so the next step is a poll */
} WaitObject;
extern PyTypeObject *wait_type;
PyObject *new_order(void);
PyObject *wait_list_order(PyObject *wait_list); /* borrowed */
PyObject *WaitList_enqueue(PyObject *, PyObject *const *args, Py_ssize_t count);
bool is_work(PyObject *);
/* A Work owns a wait that its task has polled, and the watcher has it. Its end goes to its loop or
 * to the janitor. `here`: this is the thread of the loop. False: it is no Work, or there is no
 * memory. */
bool work_takes(PyObject *, struct wait *, bool here);
/* An event owns a Work. Whether its end goes to its loop. */
bool work_leaves(PyObject *, bool here);
/* on a driver's thread, with the GIL */
void run_host_function(uint64_t ticket, int status);

/* A stream's name, or a text with one. It may have been cut within a character. */
PyObject *as_text(const char *);
/* A row of a type's methods, or of the module's functions, which begin with `native`. Their types
 * stand in `_native.pyi`. */
#define METHOD(of, name, flags)                                                                    \
    {#name, (PyCFunction)(void (*)(void))of##_##name, METH_##flags, NULL}
/* What a type's tp_dealloc does last. */
void free_object(PyObject *);

/* Takes what a user's function has returned, and returns it. NULL: the function has raised, or it
 * is a coroutine, or a generator that the caller does not drive. That would never run: raises a
 * TypeError, and closes it. */
PyObject *plain_result(PyObject *result, bool drives);
PyObject *native_plain_result(PyObject *module, PyObject *args);
/* Adds a type that it has made, and makes it if the module is imported first. -1: an exception is
 * set. */
int add_type(PyObject *module, PyTypeObject **, const char *name, int size, unsigned flags,
             PyType_Slot *);
#define ADD_TYPE(module, name, Name, flags)                                                        \
    add_type(module, &name##_type, "aiostream._native." #Name, sizeof(Name##Object), flags,        \
             name##_slots)
/* Adds a tuple, in which the place of an item is its number. */
int add_tuple(PyObject *module, const char *name, PyObject *(*item)(int), int count);
/* Each adds types or constants to the module. -1: an exception is set. */
typedef int adder(PyObject *module);
adder add_handle_type, add_completion_types, add_queue_type, add_wait_types, add_work_type,
    add_fatal_codes, add_frame_addresses, add_driver_calls;
extern PyMethodDef handle_functions[], completion_functions[], enqueue_functions[],
    drain_functions[], wait_functions[], graph_functions[], failure_functions[], stall_functions[],
    frame_functions[], process_functions[];

#endif
