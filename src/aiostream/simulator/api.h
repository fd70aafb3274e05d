/* What the library exports: the driver's functions under their symbols' names, and the controls of
 * tests. The functions are declared from their rows in functions.h. */
#ifndef AIOSTREAM_SIMULATOR_API_H
#define AIOSTREAM_SIMULATOR_API_H

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

/* --- control.c and kernels.c --- */
EXPORT CUresult aiostream_sim_configure(int devices, int driver_version, size_t memory_bytes,
                                        int hardware_queues);
EXPORT CUresult aiostream_sim_fail(const char *name, CUresult code, unsigned long nth);
EXPORT int aiostream_sim_clear_faults(void);
EXPORT void aiostream_sim_seed(uint64_t seed, int on);
EXPORT void aiostream_sim_adversary(int driver_lock, uint64_t enqueue_ns, int shuffle,
                                    uint64_t late_ns, int fire_after_fault);
EXPORT void aiostream_sim_break(CUresult code);
EXPORT CUresult aiostream_sim_recover(void (*fail_pending)(void));
EXPORT long aiostream_sim_calls(const char *name);
EXPORT int aiostream_sim_known(int i, const char **name, int *lacking, unsigned long *count);
EXPORT size_t aiostream_sim_pending(void);
EXPORT CUresult aiostream_sim_register_kernel(const char *name, void (*function)(void **),
                                              const unsigned *sizes, const unsigned *aligns,
                                              unsigned count);
EXPORT int aiostream_sim_has_kernel(const char *name);

#endif
