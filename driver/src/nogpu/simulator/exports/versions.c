/* Which symbol a name stands for, by the CUDA version that brought it, and the functions that are
 * not simulated. */
#include "../driver.h"

#include "../api.h"

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

#define F(symbol) ((void (*)(void))symbol)
#define PER_THREAD_none(symbol) NULL
#define PER_THREAD_ptsz(symbol) F(symbol##_ptsz)
#define PER_THREAD_own PER_THREAD_ptsz
#define PER_THREAD_ptds(symbol) F(symbol##_ptds)
#define LACK(name, version, symbol, forms) {#name, version, F(symbol), PER_THREAD_##forms(symbol)},
#define LACK_AGAIN LACK
#define CALL(name, version, symbol, forms, parameters) LACK(name, version, symbol, forms)
#define AGAIN CALL
const struct version versions[] = {
#include "../functions.h"
};
const size_t version_count = sizeof versions / sizeof versions[0];
