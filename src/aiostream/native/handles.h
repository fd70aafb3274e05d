/* Handles: who may still use a stream, an event or a graph. */
#ifndef AIOSTREAM_HANDLES_H
#define AIOSTREAM_HANDLES_H

#include "base.h"

struct handle;
enum handle_kind { HANDLE_STREAM = 0, HANDLE_EVENT = 1, HANDLE_GRAPH = 2, HANDLE_GRAPH_EXEC = 3 };
struct handle *handle_new(enum handle_kind, void *value, void *context, bool owned, bool needs_context, struct handle *parent);
void handle_ref(struct handle *);
void handle_unref(struct handle *); /* with the last reference the record goes, never the driver's object */
void **handle_attachment(struct handle *); /* of an event: what waits for it share; guarded by those who use it */
void *handle_value(const struct handle *);
void *handle_context(const struct handle *);
bool handle_pin(struct handle *);
void handle_unpin(struct handle *); /* the last user of a closed handle destroys it */
int handle_close(struct handle *);
/* Another library has got the handle: from now on its close retires it, and nobody destroys it. Also of the owner, if it is borrowed
 * or lent. False: it was closed before. */
bool handle_share(struct handle *);
bool handle_is_shared(const struct handle *);
bool handle_is_used(const struct handle *); /* now; another thread may begin or end a use at any time */
void handle_mark_destroyed(struct handle *); /* the driver did it by itself: nobody is to do it again */
bool handle_release(struct handle *); /* blocks until nobody uses it; false: it was closed before */
bool handle_is_open(const struct handle *);
bool handle_is_gone(const struct handle *); /* its context was destroyed: see context_is_gone */
int handle_enter_context(const struct handle *, bool *entered); /* makes the context current where the driver needs one */
void handle_leave_context(bool entered);

#endif
