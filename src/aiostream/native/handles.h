/* Handles: who may still use a stream, an event or a graph. */
#ifndef AIOSTREAM_HANDLES_H
#define AIOSTREAM_HANDLES_H

#include "base.h"

struct handle;
enum handle_kind { HANDLE_STREAM = 0, HANDLE_EVENT = 1, HANDLE_GRAPH = 2, HANDLE_GRAPH_EXEC = 3 };
struct handle *handle_new(enum handle_kind, void *value, void *context, bool owned,
                          bool needs_context, struct handle *parent);
void handle_ref(struct handle *);
/* with the last reference the record goes, never the driver's object */
void handle_unref(struct handle *);
/* of an event: what waits for it share; guarded by those who use it */
void **handle_attachment(struct handle *);
void *handle_value(const struct handle *);
void *handle_context(const struct handle *);
bool handle_pin(struct handle *);
void handle_unpin(struct handle *); /* the last user of a closed handle destroys it */
int handle_close(struct handle *);
/* the same, for a caller who cannot be told of a refusal: see handle_take_refusal */
void handle_drop(struct handle *);
/* Another library has got the handle: from now on its close retires it, and nobody destroys it.
 * Also of the owner, if it is borrowed or lent. False: it was closed before. */
bool handle_share(struct handle *);
bool handle_is_shared(const struct handle *);
/* now; another thread may begin or end a use at any time */
bool handle_is_used(const struct handle *);
/* the driver did it by itself: nobody is to do it again */
void handle_mark_destroyed(struct handle *);
/* Gives it away: begin refuses new uses (false: it was closed before), await waits a little for the
 * last use and says whether it is over, and end is for who may have the handle then. Or cancel lets
 * it be used again. */
bool handle_release_begin(struct handle *);
bool handle_release_await(struct handle *);
void handle_release_end(struct handle *);
void handle_release_cancel(struct handle *);
bool handle_release(struct handle *); /* all of it; blocks */
/* Whether a use of `pinned` is one of `handle` too: it is that handle, or was borrowed from it. */
bool handle_is_part_of(const struct handle *pinned, const struct handle *handle);
/* The driver refused a destruction by the last user, who could not be told: what it was (enum
 * handle_kind), and the code; 0: none. */
int handle_take_refusal(enum handle_kind *);
const char *handle_destructor(enum handle_kind); /* the driver's function */
/* called after each such refusal, in the thread that met it */
void handles_tell(void (*listener)(void));
bool handle_is_open(const struct handle *);
bool handle_is_gone(const struct handle *); /* its context was destroyed: see context_is_gone */
/* makes the context current where the driver needs one */
int handle_enter_context(const struct handle *, bool *entered);
void handle_leave_context(bool entered);

#endif
