/* Stalls: what has not come back within its limit. */
#ifndef AIOSTREAM_STALLS_H
#define AIOSTREAM_STALLS_H

#include "waits.h"

/* What does not come back: the work of a stream, a loop, or a call on a stream. */
struct stall {
    int64_t limit, ns;      /* ns: for how long, in beats */
    int loop;               /* the queue of a loop that is blocked if it runs; 0: it is sure */
    const char *form;       /* of the text: with the name, and with seconds */
    char name[STREAM_NAME]; /* of the stream */
    char text[256];
};

/* Begins to count, once, and writes this eventfd at news. 0, or an errno, after which it can be
 * tried again. One thread at a time. */
int stalls_start(int eventfd);
/* Whether something is stalled of which Python has taken the news. Any thread. */
bool stall_lasts(struct stall *);
/* The news, behind what was taken before, which is done with. One thread of Python's calls these.
 */
bool stall_take(struct stall *);
/* Whether the loop of the news is blocked, of which Python says whether it runs. If the loop did
 * not run before, it is not. */
bool stall_is_sure(struct queue *, bool runs);

/* A call on a stream begins that may not return, before there is a wait that would show it. NULL:
 * there is no limit, or no memory. Call both without the GIL. */
struct call *call_begin(const struct waits *);
void call_end(struct call *);

#endif
