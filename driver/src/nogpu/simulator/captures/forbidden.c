/* What captures forbid, and to whom: their modes, and the streams and graphs that they are at work
 * on. */
#include "../driver.h"

#include "../graph.h"

void capture_invalidate(struct capture *capture) { capture->invalid = true; }

/* Whether `capture` forbids this thread potentially unsafe calls. */
static bool forbids(const struct capture *capture) {
    if (me.capture_mode == RELAXED || capture->mode == RELAXED) return false;
    if (pthread_equal(capture->owner, pthread_self())) return true;
    return me.capture_mode == GLOBAL && capture->mode == GLOBAL;
}

CUresult capture_forbids_unsafe(void) {
    CUresult code = OK;
    for (struct capture *capture = sim.captures; capture != NULL; capture = capture->next)
        if (forbids(capture)) {
            capture_invalidate(capture);
            code = CAPTURE_UNSUPPORTED;
        }
    return code;
}

/* The legacy stream would depend on every blocking stream that captures, and no dependency may
 * cross that border. */
CUresult capture_forbids_legacy(struct stream *stream) {
    CUresult code = OK;
    for (struct stream *other = stream->legacy ? stream->context->streams : NULL; other != NULL;
         other = other->next)
        if (other->blocking && other->capture != NULL) {
            capture_invalidate(other->capture);
            code = CAPTURE_IMPLICIT;
        }
    return code;
}

/* What cannot be done to a stream that captures. To try it ends the capture. */
CUresult capture_unsupported(struct stream *stream) {
    CUresult code = stream->capture->invalid ? CAPTURE_INVALIDATED : CAPTURE_UNSUPPORTED;
    capture_invalidate(stream->capture);
    return code;
}

/* For cuStreamGetFlags, GetId and GetDevice, which an H200's driver takes for unsupported work on
 * the stream itself. */
CUresult capture_forbids_question(struct stream *stream) {
    return stream->capture != NULL ? capture_unsupported(stream) : OK;
}

/* For cuStreamQuery and cuStreamSynchronize, which are forbidden on a stream that captures, and
 * potentially unsafe on others. */
CUresult capture_forbids_query(struct stream *stream) {
    if (sim.captures == NULL) return OK;
    if (stream->capture != NULL) return capture_forbids_question(stream);
    CUresult code = capture_forbids_legacy(stream);
    return code != OK ? code : capture_forbids_unsafe();
}

/* The capture in progress whose nodes go into this graph, or NULL. */
struct capture *capture_into(const struct graph *graph) {
    for (struct capture *capture = sim.captures; capture != NULL; capture = capture->next)
        if (capture->graph == graph) return capture;
    return NULL;
}

struct capture *capture_inside(const struct graph *graph) {
    for (struct capture *capture = sim.captures; capture != NULL; capture = capture->next)
        for (const struct graph *at = capture->graph; at != NULL;
             at = at->owner != NULL ? at->owner->graph : NULL)
            if (at == graph) return capture;
    return NULL;
}
