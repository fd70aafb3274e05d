/* The forwarding library: a libcuda.so.1 that passes every call on to the real driver, and notes
 * those that block.
 *
 * Python loads it before any CUDA library looks for a driver, and with RTLD_LOCAL. Loaded globally,
 * it would divert the real library's calls of its own exports. Then every library of the process
 * calls the driver through it, in its own thread. A call that cannot block is one jump (forward.c).
 * One that can goes through a wrapper, which leaves a note (notes.c), and the reader, a thread of
 * Python, looks at the notes.
 *
 * It knows no Python, never takes the GIL, and changes no argument. Of the answers it changes those
 * of cuGetProcAddress alone, because what is found there needs a wrapper too.
 */
#ifndef NOGPU_FORWARD_H
#define NOGPU_FORWARD_H

#include <stdbool.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

typedef void (*function)(void);

/* What the driver's functions answer here if the real driver cannot be asked. */
enum { OK = 0, NO_DEVICE = 100, NOT_SUPPORTED = 801 };

/* The way of a call to `real`, the driver's function `name`: a wrapper if the function can block,
 * or else `real` itself. `name` is without `_v2`, `_ptds` and `_ptsz`. */
function wrapper_of(const char *name, function real);

#endif
