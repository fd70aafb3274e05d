/* Which symbol a name stands for, by the CUDA version that brought it (cuGetProcAddress), and the
 * functions that are not simulated. */
#include "../driver.h"

#include "../api.h"

#include <string.h>

/* A function that is not simulated counts its call, may answer an injected fault, and refuses. It
 * ignores its arguments, because in every ABI that this is built for the caller cleans them up.
 * There is one function for each symbol, because each has its own name. */
static CUresult lacking(enum call_id id) {
    CUresult code = enter(id, PURE);
    return code != OK ? code : NOT_SUPPORTED;
}

#define REFUSE_none(name, symbol)                                                                  \
    EXPORT CUresult symbol(void);                                                                  \
    EXPORT CUresult symbol(void) { return lacking(CALL_##name); }
#define REFUSE_ptsz(name, symbol) REFUSE_none(name, symbol) REFUSE_none(name, symbol##_ptsz)
#define REFUSE_ptds(name, symbol) REFUSE_none(name, symbol) REFUSE_none(name, symbol##_ptds)
#define LACK(name, version, symbol, forms) REFUSE_##forms(name, symbol)
#define LACK_AGAIN LACK
#include "../functions.h"

struct version {
    const char *name;
    int version;
    void (*function)(void);
    void (*per_thread)(void);
};

#define F(symbol) ((void (*)(void))symbol)
#define PER_THREAD_none(symbol) NULL
#define PER_THREAD_ptsz(symbol) F(symbol##_ptsz)
#define PER_THREAD_own PER_THREAD_ptsz
#define PER_THREAD_ptds(symbol) F(symbol##_ptds)
#define LACK(name, version, symbol, forms) {#name, version, F(symbol), PER_THREAD_##forms(symbol)},
#define LACK_AGAIN LACK
#define CALL(name, version, symbol, forms, parameters) LACK(name, version, symbol, forms)
#define AGAIN CALL
static const struct version versions[] = {
#include "../functions.h"
};

enum { FOUND = 0, SYMBOL_NOT_FOUND = 1, VERSION_NOT_SUFFICIENT = 2 };

static int look_up(const char *symbol, int version, uint64_t flags, void **out) {
    const struct version *best = NULL;
    bool known = false;
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        const struct version *entry = &versions[i];
        if (strcmp(entry->name, symbol) != 0 || entry->version > sim.driver_version)
            continue; /* a function newer than the driver that is played does not exist in it */
        known = true;
        if (entry->version <= version && (best == NULL || entry->version > best->version))
            best = entry;
    }
    if (best == NULL) return known ? VERSION_NOT_SUFFICIENT : SYMBOL_NOT_FOUND;
    void (*function)(void) = (flags & 2) && best->per_thread ? best->per_thread : best->function;
    memcpy(out, &function, sizeof *out);
    return FOUND;
}

/* A version newer than the driver is INVALID_VALUE, by the manual and on the H200. */
static CUresult get_proc_address(const char *symbol, void **out, int version, uint64_t flags,
                                 int *status) {
    if (out == NULL || symbol == NULL || flags > 2) return INVALID_VALUE;
    *out = NULL;
    int found =
        version > sim.driver_version ? SYMBOL_NOT_FOUND : look_up(symbol, version, flags, out);
    if (status != NULL) *status = found;
    if (version > sim.driver_version) return INVALID_VALUE;
    /* A function newer than the version is no error for a caller that asks for the status, as on
     * the H200. */
    return found == FOUND || (found == VERSION_NOT_SUFFICIENT && status != NULL) ? OK : NOT_FOUND;
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **out, int version, uint64_t flags) {
    ENTER(cuGetProcAddress, PURE);
    return get_proc_address(symbol, out, version, flags, NULL);
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **out, int version, uint64_t flags,
                                    int *status) {
    ENTER(cuGetProcAddress, PURE);
    return get_proc_address(symbol, out, version, flags, status);
}
