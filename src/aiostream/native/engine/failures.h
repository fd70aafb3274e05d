/* Fatal codes: the driver's answers after which the context is lost. Here are the table of them,
 * which of them the process has met, and the end of the process, if the program has asked for it.
 */
#ifndef AIOSTREAM_FAILURES_H
#define AIOSTREAM_FAILURES_H

#include "base.h"

enum { MAX_FATAL_CODES = 32 };
struct fatal_code {
    int code;
    const char *name;
};
extern const struct fatal_code fatal_codes[]; /* ends with a code of 0 */

/* Call this wherever a code of a driver call or of work first appears, before any other code sees
 * it. If the code is fatal, the process ends here, or the listener is called, as the program has
 * asked for. Any thread, without the GIL. */
void failure_note(int code, const char *call);
static inline int failure_noted(int code, const char *call) { /* returns the code itself */
    if (code != CUDA_SUCCESS && code != CUDA_NOT_READY) failure_note(code, call);
    return code;
}
bool failure_is_fatal(int code);
/* The next code that the process has met for the first time, and the call that answered it. 0:
 * none. One thread calls this. */
int failure_take(const char **call);
/* For tests: the simulator has healed its contexts, so each code counts as not met. */
void failures_forget(void);
/* Sets the function that is called once for each code, in the thread that met it, and for all else
 * that waits for the janitor. */
void failures_set_listener(void (*listener)(void));
void failures_call_listener(void);

/* How many want to know of failures while nothing is pending. If any does, the watcher reads the
 * health now and then. */
void failures_expect(int more);
bool failures_expected(void);

/* Arms the end of the process at the first fatal code, or at once if it has met one already, and if
 * `stalled` at a stall too. 709 does not count, because only one context was destroyed. With a
 * grace period, the process first gets a signal (0: none), and the listener is called. The
 * descriptor gets a line that says why. A number for exit_disarm, which ends the latest alone. 0:
 * Python ends, and so does whatever was armed. */
int exit_arm(int status, int64_t grace_ns, int signal, bool stalled, int descriptor);
void exit_disarm(int number);
/* Ends the process, if it is to end at a stall: a line to stderr, and the stacks of its threads. */
void exit_if_stalled(const char *text, const char *stacks);
/* Writes to stderr, unless that would block. */
void failure_say(const char *form, ...);

#endif
