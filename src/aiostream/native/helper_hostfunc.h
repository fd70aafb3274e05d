/* Host functions behind an event, on helper streams, enqueued by a thread of their own because that may block. */
#ifndef AIOSTREAM_HELPER_HOSTFUNC_H
#define AIOSTREAM_HELPER_HOSTFUNC_H

#include "contexts.h"

enum helper_hostfunc_state {
    HOSTFUNC_NONE,
    HOSTFUNC_REQUESTED, /* on the sleeper's list, or in its hands */
    HOSTFUNC_ARMED,     /* the host function is pending */
    HOSTFUNC_DONE,      /* it has run */
    HOSTFUNC_REFUSED,   /* the driver refused, or nobody wanted it any more */
};
struct helper_hostfunc {
    struct context *context; /* these three by the watcher, before helper_hostfunc_request */
    void *event;
    void (*hostfunc_ran)(struct helper_hostfunc *); /* runs on the driver's thread */
    void *stream;                    /* by the sleeper; the watcher reads it in a final state */
    _Atomic int state;               /* REQUESTED, NONE by the watcher; ARMED, REFUSED by the sleeper; DONE by the driver's thread */
    _Atomic bool unwanted;           /* by the watcher */
    struct helper_hostfunc *next;              /* under the sleeper's lock */
};
/* Has `reached` run behind an event, on a helper stream, enqueued by the sleeper's own thread because that may block. false:
 * as many as may be are pending already. */
bool helper_hostfunc_request(struct helper_hostfunc *);
void helper_hostfunc_release(struct helper_hostfunc *); /* in a final state: DONE or REFUSED */
void helper_hostfunc_forget(struct helper_hostfunc *);  /* it will never end: its context has failed */
void helper_hostfunc_limit(int pending);
int helper_hostfunc_start(void);
void helper_hostfunc_stop(void);

#endif
