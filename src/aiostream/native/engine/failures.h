/* Fatal codes: the driver's answers after which the context is lost. Here are the table of them,
 * which of them the process has met, and the end of the process, if the program has asked for
 * it. */
#ifndef AIOSTREAM_FAILURES_H
#define AIOSTREAM_FAILURES_H

#include "base.h"

/* What does not come back: the work of a stream, a loop, or a call of the driver. */
struct stall {
    int64_t since, limit, ns; /* ns: for how long */
    int loop;                 /* the queue of a loop that is blocked if it runs; 0: it is sure */
    int64_t sure_since;       /* until Python takes it */
    const char *form;         /* of the text: with the name, and with seconds */
    char name[STREAM_NAME];   /* of the stream, or of the thread that calls */
    char text[256];
};
void stall_say(struct stall *, int64_t now); /* fills in `ns` and `text` */
/* Whether more than that of the time between the two counts: not the time in which the process was
 * stopped, so that the watcher did not look, or in which its threads got no CPU. What the GPU does
 * needs no CPU, so only long stops are left out of that. */
bool stall_lasts(int64_t ns, int64_t since, int64_t until, bool on_gpu);
/* It is news for Python, and there is room for it. Any thread, as for the others. */
void stall_note(const struct stall *);
bool stall_has_room(void);
/* The oldest news. False: there is none. *ends: the program has asked for its end, so stall_end is
 * the next call if the news is sure. Until then it stays, because this thread might block. *soon:
 * it is a question, and no stall yet. */
bool stall_take(struct stall *, bool *ends, bool *soon);
/* Ends the process, with these stacks of its threads behind the line on stderr. */
void stall_end(const char *text, const char *stacks);
/* The watcher calls this every HEALTH_PERIOD_NS while there is a limit. If Python has not taken the
 * news for seconds, it ends the process, if the program has asked for that, or stderr gets the
 * news. */
enum { HEALTH_PERIOD_NS = 15000000 };
void stall_act(int64_t now, int64_t worked); /* worked: the watcher, since the last of these */

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

#endif
