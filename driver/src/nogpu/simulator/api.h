/* What the library exports: the driver's functions under their symbols' names, and the controls of
 * tests. The functions are declared from their rows in functions.h. */
#ifndef NOGPU_API_H
#define NOGPU_API_H

#include "driver.h"
#include "graph.h"

#define UNPACK(...) __VA_ARGS__
#define DECLARE_none(symbol, parameters) EXPORT CUresult symbol parameters;
#define DECLARE_ptsz(symbol, parameters)                                                           \
    EXPORT CUresult symbol parameters;                                                             \
    EXPORT CUresult symbol##_ptsz parameters;
#define DECLARE_own DECLARE_ptsz
#define DECLARE_ptds(symbol, parameters)                                                           \
    EXPORT CUresult symbol parameters;                                                             \
    EXPORT CUresult symbol##_ptds parameters;                                                      \
    CUresult on_##symbol(CUstream, UNPACK parameters);
#define CALL(name, version, symbol, forms, parameters) DECLARE_##forms(symbol, parameters)
#define AGAIN CALL
#include "functions.h"

/* --- base/entry.c, exports/control.c and kernels/kernels.c --- */
EXPORT CUresult nogpu_configure(int devices, int driver_version, size_t memory_bytes,
                                int hardware_queues);
EXPORT CUresult nogpu_fail(const char *name, CUresult code, unsigned long nth);
EXPORT int nogpu_clear_faults(void);
EXPORT void nogpu_seed(uint64_t seed, int on);
EXPORT void nogpu_adversary(int driver_lock, uint64_t enqueue_ns, int shuffle, uint64_t late_ns,
                            int fire_after_fault);
EXPORT void nogpu_break(CUresult code);
EXPORT CUresult nogpu_recover(void (*fail_pending)(void));
EXPORT long nogpu_calls(const char *name);
EXPORT int nogpu_known(int i, const char **name, int *lacking, unsigned long *count);
EXPORT size_t nogpu_pending(void);
EXPORT CUresult nogpu_register_kernel(const char *name, void (*function)(void **),
                                      const unsigned *sizes, const unsigned *aligns,
                                      unsigned count);
EXPORT int nogpu_has_kernel(const char *name);

#endif
