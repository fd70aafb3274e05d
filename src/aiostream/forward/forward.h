/* The forwarding library: a libcuda.so.1 that passes every call on to the real driver, and notes
 * those that block.
 *
 * Python loads it before any CUDA library looks for a driver, and with RTLD_LOCAL. Loaded globally,
 * it would divert the real library's calls of its own exports. It knows no Python. */
#ifndef AIOSTREAM_FORWARD_H
#define AIOSTREAM_FORWARD_H

#include <stdbool.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

typedef void (*function)(void);

/* What the driver's functions answer here if the real driver cannot be asked. */
enum { OK = 0, NO_DEVICE = 100, NOT_SUPPORTED = 801 };

/* The way of a call to `real`, the driver's function `name`: a wrapper if the function can block,
 * or else `real` itself. `name` is without `_v2`, `_ptds` and `_ptsz`. */
function watched(const char *name, function real);

#endif
