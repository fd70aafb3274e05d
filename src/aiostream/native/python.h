/* What the files that know Python share: module.c and graphs.c. */
#ifndef AIOSTREAM_PYTHON_H
#define AIOSTREAM_PYTHON_H

#include <Python.h>

#include "native.h"

struct handle *as_handle(PyObject *); /* NULL, with an exception, if it is no Handle or this is a forked child */

/* One driver call on a pinned handle, without the GIL, in its context, under RELAXED. */
typedef int (*handle_operation)(struct handle *, void *argument);
int operate(struct handle *, handle_operation, void *argument);

extern PyMethodDef graph_functions[]; /* graphs.c */

#endif
