/* Fatal codes: the driver's answers after which the context is lost. The one table of them, which
 * of them were met, and the end of the process, if somebody has asked for that. */
#ifndef AIOSTREAM_FAILURES_H
#define AIOSTREAM_FAILURES_H

#include "base.h"

enum { MAX_FATAL_CODES = 32 };
struct fatal_code {
    int code;
    const char *name;
};
extern const struct fatal_code fatal_codes[]; /* ends with a code of 0 */

/* A driver call, or work, has failed with this code. If it is fatal, the process ends here, if that
 * was asked for; else whoever waits for that is told. Called wherever a code first appears, before
 * anybody else learns of it. Any thread, without the GIL. */
void failure_note(int code, const char *call);
static inline int failure_noted(int code, const char *call) { /* the code itself */
    if (code != CUDA_SUCCESS && code != CUDA_NOT_READY) failure_note(code, call);
    return code;
}
bool failure_is_fatal(int code);
/* fatal, and not 709, which says that one context was destroyed */
bool failure_is_of_process(int code);
/* The next code that was met for the first time, and the call that answered it; 0: none. By one
 * thread. */
int failure_take(const char **call);
/* called once for each code, in the thread that met it */
void failures_tell(void (*listener)(void));

/* How many there are who want to know of failures while nothing is pending: then the watcher looks
 * now and then. */
void failures_watch(int more);
bool failures_watched(void);

/* The process ends at the first fatal code (but 709: only that one context was destroyed), or at
 * once if one was met before. With a grace period it first gets a signal (0: none), and everybody
 * is told. */
void exit_arm(int status, int64_t grace_ns, int signal);
void exit_disarm(void);

#endif
