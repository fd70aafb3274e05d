/* What the files that know Python share: module.c and its companions. */
#ifndef AIOSTREAM_MODULE_H
#define AIOSTREAM_MODULE_H

#include <Python.h>
#include <structmember.h>

#include "handles.h"
#include "points.h"

/* A free-threaded Python has no GIL, so several threads run these files at once. Then these exclude
 * each other:
 *
 * - The owner of a point is read and written under the lock of its slot (module_completions.h).
 * - The fields of a Completion that several threads use, and the list of an Order, are read and
 *   written in a critical section. With the GIL it is nothing, and the limited API has none.
 * - Handles, queues, points and waits have their own atomics and locks, because the driver's
 *   threads and the watcher never had the GIL.
 * - Types, names and the driver's table are written before another thread knows the module, or
 *   under the lock of `_runtime/process.py`.
 * - A Wait belongs to its task, a Work to the frame that has made it, and the turns and polled
 * waits of a queue to its loop. So one thread alone uses each. */
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

bool is_child(void);        /* of a fork, in which the driver may not be called */
bool refuse_in_child(void); /* the same, with an exception set */
bool refuse_at_exit(void);  /* the exit gate is closed; with an exception set */
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
/* appends the object and releases it; false: with an exception set, or NULL was passed */
bool append_new(PyObject *list, PyObject *object);

/* Pins a handle, and makes one driver call on it, without the GIL, in its context, under
 * RELAXED. */
typedef int (*handle_operation)(struct handle *, void *argument);
int operate(struct handle *, handle_operation, void *argument);
/* The same, if the caller has pinned the handle. */
int operate_pinned(struct handle *, handle_operation, void *argument);
/* The caller has pinned it, and the call is made in the thread's own capture mode. */
int operate_pinned_as_is(struct handle *, handle_operation, void *argument);
/* As operate, in the thread's own capture mode. */
int operate_as_is(struct handle *, handle_operation, void *argument);
/* As operate, for a caller that has the GIL. */
int operate_from_python(struct handle *, handle_operation, void *argument);

/* --- completions --- */

int do_capture_refusal(struct handle *, void *unused); /* a handle_operation */
int do_stream_query(struct handle *, void *unused);    /* another one */
/* keeps the GIL, unless this destroys the driver's object */
void unpin_from_python(struct handle *);
/* Makes a stream's context current for a call of Python: 0, or a driver code. */
int push_from_python(struct handle *);
void pop_from_python(void);
struct wait;
/* A Wait that its task polls. NULL: no memory, and the wait is still the caller's. */
PyObject *new_wait(struct wait *, struct queue *);
void disown_wait(PyObject *); /* the wait is the caller's again */
PyObject *new_order(void);
bool is_work(PyObject *);
/* A Work owns a wait that its task has polled, and the watcher has it. Its end goes to the queue.
 * False: it is no Work, or there is no memory. */
bool work_takes(PyObject *, struct wait *, struct queue *);
/* on a driver's thread, with the GIL */
void run_host_function(uint64_t ticket, int status);

/* A stream's name, or a text with one. It may have been cut within a character. */
PyObject *as_text(const char *);
/* The function and the flags of a method that gets an array of arguments. */
#define FAST(function) (PyCFunction)(void (*)(void)) function, METH_FASTCALL
/* What a type's tp_dealloc does last. */
void free_object(PyObject *);

/* Takes what a user's function has returned, and returns it. NULL: the function has raised, or it
 * is a coroutine, which would never run: raises a TypeError, and closes it. */
PyObject *plain_result(PyObject *result);
PyObject *native_plain_result(PyObject *module, PyObject *result);
/* Adds a type that it has made, and makes it if the module is imported first. -1: an exception is
 * set. */
int add_type(PyObject *module, PyTypeObject **, const char *name, int size, unsigned flags,
             PyType_Slot *);
#define ADD_TYPE(module, name, Name, flags)                                                        \
    add_type(module, &name##_type, "aiostream._native." #Name, sizeof(Name##Object), flags,        \
             name##_slots)
/* Adds a tuple, in which the place of an item is its number. */
int add_tuple(PyObject *module, const char *name, PyObject *(*item)(int), int count);
/* Each adds types or functions to the module. -1: an exception is set. */
int add_handle_type(PyObject *module);
int add_completion_types(PyObject *module);
int add_wait_types(PyObject *module);
int add_work_type(PyObject *module);
int add_failure_functions(PyObject *module);
int add_frame_functions(PyObject *module);
int add_process_functions(PyObject *module);
extern PyMethodDef graph_functions[];

#endif
