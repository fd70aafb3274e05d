/* Fatal codes: the driver's answers after which the context is lost. Here are the table of them,
 * which of them the process has met, the news of stalls, and the end of the process, if the program
 * has asked for it. */
#ifndef AIOSTREAM_FAILURES_H
#define AIOSTREAM_FAILURES_H

#include "base.h"

/* A fourth of the shortest limit (beats.h). */
enum { BEAT_NS = 5000000 };
/* Whether that time, in beats, is a stall. The first beat may have come at once. */
static inline bool stall_reaches(int64_t ns, int64_t limit) { return ns - BEAT_NS >= limit; }
/* What does not come back: the work of a stream, a loop, or a call of the driver. */
struct stall {
    int64_t limit, ns;      /* ns: for how long, in beats (beats.h) */
    int loop;               /* the queue of a loop that is blocked if it runs; 0: it is sure */
    const char *form;       /* of the text: with the name, and with seconds */
    char name[STREAM_NAME]; /* of the stream, or of the thread that calls */
    char text[256];
};
void stall_say(struct stall *); /* fills in `text` */
/* It is news for Python. False: there is no room for it. Any thread, as for the others. */
bool news_note(const struct stall *);
/* The oldest news. False: there is none. *ends: the program has asked for its end, so stall_end is
 * the next call if the news is sure and `lasts`. Until then it stays, because Python might block.
 * *late: Python did not run, so nor did the loop, which may have come back since. */
bool news_take(struct stall *, bool lasts, bool *ends, bool *late);
extern int news_descriptor; /* an eventfd that is written at news; before the first */
/* At each beat. If Python has not taken the news for seconds, it ends the process, if the program
 * has asked for that, or stderr gets the news. Whether there is some. */
bool news_beat(void);
/* Ends the process, with these stacks of its threads behind the line on stderr. */
void stall_end(const char *text, const char *stacks);

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
