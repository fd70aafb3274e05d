/* Stream capture: its modes, what it forbids to whom, and how streams join it. */
#include "driver.h"

#include "api.h"

#include <stdlib.h>

enum { GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2 };

void capture_release(struct capture *capture)
{
    if (--capture->references == 0 && capture->ended)
        free(capture);
}

void capture_invalidate(struct capture *capture)
{
    capture->invalid = true;
}

/* Whether `capture` forbids this thread potentially unsafe calls. */
static bool forbids(const struct capture *capture)
{
    if (me.capture_mode == RELAXED || capture->mode == RELAXED)
        return false;
    if (pthread_equal(capture->owner, pthread_self()))
        return true;
    return me.capture_mode == GLOBAL && capture->mode == GLOBAL;
}

CUresult capture_forbids_unsafe(void)
{
    CUresult code = OK;
    for (struct capture *capture = sim.captures; capture != NULL; capture = capture->next)
        if (forbids(capture)) {
            capture_invalidate(capture);
            code = CAPTURE_UNSUPPORTED;
        }
    return code;
}

/* The legacy stream would depend on every blocking stream that captures, and no dependency may cross that border. */
CUresult capture_forbids_legacy(struct stream *stream)
{
    CUresult code = OK;
    for (struct stream *other = stream->legacy ? stream->context->streams : NULL; other != NULL; other = other->next)
        if (other->blocking && other->capture != NULL) {
            capture_invalidate(other->capture);
            code = CAPTURE_IMPLICIT;
        }
    return code;
}

/* For cuStreamGetFlags, GetId and GetDevice, which an H200's driver takes for unsupported work on the stream itself. */
CUresult capture_forbids_question(struct stream *stream)
{
    if (stream->capture == NULL)
        return OK;
    CUresult code = stream->capture->invalid ? CAPTURE_INVALIDATED : CAPTURE_UNSUPPORTED;
    capture_invalidate(stream->capture);
    return code;
}

/* For cuStreamQuery and cuStreamSynchronize: never of a stream that captures, and else potentially unsafe. */
CUresult capture_forbids_query(struct stream *stream)
{
    if (sim.captures == NULL)
        return OK;
    if (stream->capture != NULL)
        return capture_forbids_question(stream);
    CUresult code = capture_forbids_legacy(stream);
    return code != OK ? code : capture_forbids_unsafe();
}

static void set_dependencies(struct stream *stream, struct node **nodes, size_t count)
{
    struct node **copy = count > 0 ? malloc(count * sizeof *copy) : NULL;
    for (size_t i = 0; i < count; i++)
        copy[i] = nodes[i];
    free(stream->dependencies);
    stream->dependencies = copy;
    stream->dependency_count = count;
}

static void add_dependency(struct stream *stream, struct node *node)
{
    for (size_t i = 0; i < stream->dependency_count; i++)
        if (stream->dependencies[i] == node)
            return;
    stream->dependencies = realloc(stream->dependencies, (stream->dependency_count + 1) * sizeof node);
    stream->dependencies[stream->dependency_count++] = node;
}

CUresult capture_add(struct stream *stream, struct op *op, int type)
{
    struct capture *capture = stream->capture;
    if (capture->invalid) {
        op_free(op);
        return CAPTURE_INVALIDATED;
    }
    struct node *node = graph_add(capture->graph, type, op, stream->dependencies, stream->dependency_count);
    set_dependencies(stream, &node, 1);
    return OK;
}

/* Recorded under capture, an event stands for the nodes that came before it, and makes no node itself. */
CUresult capture_record(struct stream *stream, struct event *event)
{
    if (stream->capture->invalid)
        return CAPTURE_INVALIDATED;
    event_forget_capture(event);
    if (event->marker != NULL)
        marker_release(event->marker);
    event->marker = NULL;
    event->capture = stream->capture;
    event->capture->references++;
    event->nodes = malloc((stream->dependency_count + 1) * sizeof *event->nodes);
    for (size_t i = 0; i < stream->dependency_count; i++)
        event->nodes[i] = stream->dependencies[i];
    event->node_count = stream->dependency_count;
    return OK;
}

static void join(struct stream *stream, struct capture *capture)
{
    stream->capture = capture;
    capture->references++;
    set_dependencies(stream, NULL, 0);
}

CUresult capture_wait(struct stream *stream, struct event *event)
{
    struct capture *from = event->capture, *into = stream->capture;
    if (from == NULL && event->marker == NULL)
        return OK; /* never recorded */
    if (into != NULL && into->invalid)
        return CAPTURE_INVALIDATED;
    if (from == NULL) {
        capture_invalidate(into);
        return CAPTURE_ISOLATION; /* work outside the capture */
    }
    if (from->ended)
        return CAPTURED_EVENT;
    if (from->invalid)
        return CAPTURE_INVALIDATED;
    if (into != NULL && into != from) {
        capture_invalidate(into);
        capture_invalidate(from);
        return CAPTURE_MERGE;
    }
    if (stream->legacy) {
        capture_invalidate(from);
        return CAPTURE_IMPLICIT;
    }
    if (into == NULL)
        join(stream, from);
    for (size_t i = 0; i < event->node_count; i++)
        add_dependency(stream, event->nodes[i]);
    return OK;
}

/* --- beginning and ending --- */

EXPORT CUresult cuStreamBeginCapture_v2(CUstream handle, int mode)
{
    ENTER(cuStreamBeginCapture, 0);
    struct stream *stream;
    CUresult code = mode < GLOBAL || mode > RELAXED ? INVALID_VALUE : find_stream(handle, &stream);
    if (code == OK && stream->legacy)
        code = CAPTURE_UNSUPPORTED;
    if (code == OK && stream->capture != NULL)
        code = ILLEGAL_STATE;
    if (code != OK)
        return leave(code);
    struct capture *capture = calloc(1, sizeof *capture);
    capture->id = ++sim.next_id;
    capture->mode = mode;
    capture->owner = pthread_self();
    capture->origin = stream;
    capture->context = stream->context;
    capture->graph = graph_new();
    capture->next = sim.captures;
    sim.captures = capture;
    join(stream, capture);
    return leave(OK);
}

/* Before CUDA 10.1 there was one mode. */
EXPORT CUresult cuStreamBeginCapture(CUstream handle)
{
    return cuStreamBeginCapture_v2(handle, GLOBAL);
}

static void reach(struct node *node)
{
    if (node->reached)
        return;
    node->reached = true;
    for (size_t i = 0; i < node->dependency_count; i++)
        reach(node->dependencies[i]);
}

/* Whether all that other streams did in the capture comes before where its origin stands now. */
static bool joined(const struct capture *capture)
{
    const struct stream *origin = capture->origin;
    for (size_t i = 0; i < origin->dependency_count; i++)
        reach(origin->dependencies[i]);
    for (const struct stream *stream = origin->context->streams; stream != NULL; stream = stream->next)
        if (stream->capture == capture)
            for (size_t i = 0; i < stream->dependency_count; i++)
                if (!stream->dependencies[i]->reached)
                    return false;
    return true;
}

static void detach(struct stream *stream)
{
    struct capture *capture = stream->capture;
    stream->capture = NULL;
    set_dependencies(stream, NULL, 0);
    capture_release(capture);
}

static void end(struct capture *capture)
{
    capture->references++;
    for (struct capture **link = &sim.captures; *link != NULL; link = &(*link)->next)
        if (*link == capture) {
            *link = capture->next;
            break;
        }
    for (size_t c = 0; c < sim.context_count; c++)
        for (struct stream *stream = sim.contexts[c]->streams; stream != NULL; stream = stream->next)
            if (stream->capture == capture)
                detach(stream);
    capture->ended = true;
    capture_release(capture);
}

/* A stream that is destroyed, or lost to a fault, takes its capture with it. */
void capture_forget_stream(struct stream *stream)
{
    struct capture *capture = stream->capture;
    if (capture == NULL)
        return;
    capture_invalidate(capture);
    if (capture->origin != stream) {
        detach(stream);
        return;
    }
    graph_free(capture->graph);
    capture->graph = NULL;
    end(capture);
}

EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph *out)
{
    ENTER(cuStreamEndCapture, 0);
    struct stream *stream;
    CUresult code = out == NULL ? INVALID_VALUE : find_stream(handle, &stream);
    if (code != OK)
        return leave(code);
    struct capture *capture = stream->capture;
    if (capture == NULL)
        return leave(ILLEGAL_STATE);
    if (capture->mode != RELAXED && !pthread_equal(capture->owner, pthread_self()))
        return leave(CAPTURE_WRONG_THREAD);
    if (capture->origin != stream) {
        capture_invalidate(capture);
        return leave(CAPTURE_UNMATCHED);
    }
    code = capture->invalid ? CAPTURE_INVALIDATED : joined(capture) ? OK : CAPTURE_UNJOINED;
    *out = code == OK ? capture->graph : NULL;
    if (code != OK)
        graph_free(capture->graph);
    capture->graph = NULL;
    end(capture);
    return leave(code);
}

/* --- asking --- */

static CUresult state(CUstream handle, int *status, struct stream **out)
{
    CUresult code = status == NULL ? INVALID_VALUE : find_stream(handle, out);
    if (code != OK)
        return code;
    struct stream *stream = *out;
    for (struct stream *other = stream->legacy ? stream->context->streams : NULL; other != NULL; other = other->next)
        if (other->blocking && other->capture != NULL)
            return CAPTURE_IMPLICIT; /* and the capture is unharmed */
    *status = stream->capture == NULL ? 0 : stream->capture->invalid ? 2 : 1;
    return OK;
}

EXPORT CUresult cuStreamIsCapturing(CUstream handle, int *status)
{
    ENTER(cuStreamIsCapturing, 0);
    struct stream *stream;
    return leave(state(handle, status, &stream));
}

/* All forms; what the caller does not ask for is NULL. Edges carry no data here. */
static CUresult information(CUstream handle, int *status, uint64_t *id, CUgraph *graph, struct node ***dependencies,
                            const void **edges, size_t *count)
{
    struct stream *stream;
    CUresult code = state(handle, status, &stream);
    if (code != OK || *status != 1)
        return code;
    static const uint64_t plain_edges[1024]; /* eight bytes of zeros each: the default edge */
    if (edges != NULL && stream->dependency_count > 1024)
        return NOT_SUPPORTED;
    if (id != NULL)
        *id = stream->capture->id;
    if (graph != NULL)
        *graph = stream->capture->graph;
    if (dependencies != NULL)
        *dependencies = stream->dependencies;
    if (edges != NULL)
        *edges = plain_edges;
    if (count != NULL)
        *count = stream->dependency_count;
    return OK;
}

EXPORT CUresult cuStreamGetCaptureInfo(CUstream handle, int *status, uint64_t *id)
{
    ENTER(cuStreamGetCaptureInfo, 0);
    return leave(information(handle, status, id, NULL, NULL, NULL, NULL));
}

EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream handle, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
                                          size_t *count)
{
    ENTER(cuStreamGetCaptureInfo, 0);
    return leave(information(handle, status, id, graph, (struct node ***)nodes, NULL, count));
}

EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream handle, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
                                          const void **edges, size_t *count)
{
    ENTER(cuStreamGetCaptureInfo, 0);
    return leave(information(handle, status, id, graph, (struct node ***)nodes, edges, count));
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    ENTER(cuThreadExchangeStreamCaptureMode, 0);
    if (mode == NULL || *mode < GLOBAL || *mode > RELAXED)
        return leave(INVALID_VALUE);
    int before = me.capture_mode;
    me.capture_mode = *mode;
    *mode = before;
    return leave(OK);
}
