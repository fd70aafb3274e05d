/* Stream capture: how a program begins, ends, asks and changes it. captured.c has what goes into
 * it, and forbidden.c what it forbids. */
#include "../driver.h"

#include "../api.h"
#include "../graph.h"

#include <stdlib.h>

/* --- beginning and ending --- */

static CUresult can_begin(CUstream handle, int mode, struct stream **out) {
    CUresult code = mode < GLOBAL || mode > RELAXED ? INVALID_VALUE : find_stream(handle, out);
    if (code == OK && (*out)->legacy) code = CAPTURE_UNSUPPORTED;
    return code == OK && (*out)->capture != NULL ? ILLEGAL_STATE : code;
}

static struct capture *begin(struct stream *stream, int mode, struct graph *graph) {
    struct capture *capture = alloc_need(sizeof *capture);
    capture->id = ++sim.next_id;
    capture->mode = mode;
    capture->owner = pthread_self();
    capture->origin = stream;
    capture->context = stream->context;
    capture->graph = graph;
    capture->next = sim.captures;
    sim.captures = capture;
    capture_join(stream, capture);
    return capture;
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream handle, int mode) {
    ENTER(cuStreamBeginCapture, 0);
    struct stream *stream;
    CUresult code = can_begin(handle, mode, &stream);
    if (code == OK) begin(stream, mode, graph_new(false));
    return leave(code);
}

/* Before CUDA 10.1 there was one mode. */
EXPORT CUresult cuStreamBeginCapture(CUstream handle) {
    return cuStreamBeginCapture_v2(handle, GLOBAL);
}

/* A graph that a program owns, and that no other capture is at work on. */
static CUresult find_graph(CUgraph handle, struct graph **out) {
    *out = object_find(handle, OBJECT_GRAPH);
    if (*out == NULL) return INVALID_VALUE;
    return capture_into(*out) == NULL ? OK : ILLEGAL_STATE;
}

EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream handle, CUgraph graph_handle,
                                            const CUgraphNode *nodes, const void *edges,
                                            size_t count, int mode) {
    ENTER(cuStreamBeginCaptureToGraph, 0);
    struct stream *stream;
    struct graph *graph;
    struct dependencies dependencies;
    CUresult code = can_begin(handle, mode, &stream);
    if (code == OK) code = find_graph(graph_handle, &graph);
    if (code == OK) code = dependencies_read(graph, nodes, edges, count, &dependencies);
    if (code != OK) return leave(code);
    begin(stream, mode, graph);
    stream->dependencies = dependencies;
    return leave(OK);
}

EXPORT CUresult cuStreamBeginRecaptureToGraph(CUstream handle, int mode, CUgraph graph_handle,
                                              CUrecaptureFn function, void *user_data) {
    ENTER(cuStreamBeginRecaptureToGraph, 0);
    struct stream *stream;
    struct graph *graph;
    CUresult code = can_begin(handle, mode, &stream);
    if (code == OK) code = find_graph(graph_handle, &graph);
    if (code != OK) return leave(code);
    struct capture *capture = begin(stream, mode, graph);
    capture->recapture = recapture_new(function, user_data);
    holdings_release(graph);
    return leave(OK);
}

/* Marks the nodes and all that they come after. Without recursion: chains may be long. */
static void reach(const struct dependencies *from, uint64_t mark) {
    struct node **todo = NULL;
    size_t count = 0, space = 0;
    for (size_t i = 0;; i++) {
        while (i == from->count) {
            if (count == 0) {
                free(todo);
                return;
            }
            from = &todo[--count]->before;
            i = 0;
        }
        if (from->nodes[i]->mark == mark) continue;
        from->nodes[i]->mark = mark;
        todo = alloc_room(todo, count, &space, sizeof *todo);
        todo[count++] = from->nodes[i];
    }
}

/* Whether all that other streams did in the capture comes before where its origin stands now. */
static bool joined(const struct capture *capture) {
    uint64_t mark = ++sim.next_id;
    reach(&capture->origin->dependencies, mark);
    reach(&capture->exempt, mark);
    for (size_t c = 0; c < sim.context_count; c++)
        for (const struct stream *stream = sim.contexts[c]->streams; stream != NULL;
             stream = stream->next)
            for (size_t i = 0; stream->capture == capture && i < stream->dependencies.count; i++)
                if (stream->dependencies.nodes[i]->mark != mark) return false;
    for (size_t i = 0; i < capture->left.count; i++)
        if (capture->left.nodes[i]->mark != mark) return false;
    return true;
}

EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph *out) {
    ENTER(cuStreamEndCapture, FREES);
    struct stream *stream;
    CUresult code = find_stream(handle, &stream);
    if (code != OK) return leave(code);
    struct capture *capture = stream->capture;
    if (capture == NULL) return leave(ILLEGAL_STATE);
    if (capture->origin != stream) {
        capture_invalidate(capture);
        return leave(CAPTURE_UNMATCHED);
    }
    bool elsewhere = capture->mode != RELAXED && !pthread_equal(capture->owner, pthread_self());
    code = capture->invalid  ? CAPTURE_INVALIDATED
           : elsewhere       ? CAPTURE_WRONG_THREAD
           : joined(capture) ? OK
                             : CAPTURE_UNJOINED;
    if (code == OK && capture->recapture != NULL) code = recapture_end(capture);
    /* without a place the graph is lost, as on an H200 */
    if (out != NULL) *out = code == OK ? capture->graph : NULL;
    if (code != OK) capture_discard(capture);
    capture->graph = NULL;
    capture_end(capture);
    return leave(code);
}

/* --- asking --- */

static CUresult state(CUstream handle, int *status, struct stream **out) {
    CUresult code = status == NULL ? INVALID_VALUE : find_stream(handle, out);
    if (code != OK) return code;
    struct stream *stream = *out;
    for (struct stream *other = stream->legacy ? stream->context->streams : NULL; other != NULL;
         other = other->next)
        if (other->blocking && other->capture != NULL)
            return CAPTURE_IMPLICIT; /* and the capture is unharmed */
    *status = stream->capture == NULL ? 0 : stream->capture->invalid ? 2 : 1;
    return OK;
}

EXPORT CUresult cuStreamIsCapturing(CUstream handle, int *status) {
    ENTER(cuStreamIsCapturing, FREES);
    struct stream *stream;
    return leave(state(handle, status, &stream));
}

/* All forms. What the caller does not ask for is NULL. The arrays are the simulator's, and valid
 * until the stream's next call. */
static CUresult information(CUstream handle, int *status, uint64_t *id, CUgraph *graph,
                            struct node ***nodes, const void **edges, size_t *count) {
    struct stream *stream;
    CUresult code = edges != NULL && nodes == NULL ? INVALID_VALUE : state(handle, status, &stream);
    if (code != OK || *status != 1) return code;
    if (nodes != NULL && edges == NULL && !edges_plain(&stream->dependencies)) return LOSSY_QUERY;
    if (id != NULL) *id = stream->capture->id;
    if (graph != NULL) *graph = stream->capture->graph;
    if (nodes != NULL) *nodes = stream->dependencies.nodes;
    if (edges != NULL) *edges = stream->dependencies.edges;
    if (count != NULL) *count = stream->dependencies.count;
    return OK;
}

EXPORT CUresult cuStreamGetCaptureInfo(CUstream handle, int *status, uint64_t *id) {
    ENTER(cuStreamGetCaptureInfo, FREES);
    return leave(information(handle, status, id, NULL, NULL, NULL, NULL));
}

EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream handle, int *status, uint64_t *id,
                                          CUgraph *graph, const CUgraphNode **nodes,
                                          size_t *count) {
    ENTER(cuStreamGetCaptureInfo, FREES);
    return leave(information(handle, status, id, graph, (struct node ***)nodes, NULL, count));
}

EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream handle, int *status, uint64_t *id,
                                          CUgraph *graph, const CUgraphNode **nodes,
                                          const void **edges, size_t *count) {
    ENTER(cuStreamGetCaptureInfo, FREES);
    return leave(information(handle, status, id, graph, (struct node ***)nodes, edges, count));
}

/* --- changing what the next node comes after --- */

static CUresult update(CUstream handle, const CUgraphNode *nodes, const struct edge *edges,
                       size_t count, unsigned flags) {
    struct stream *stream;
    struct dependencies given;
    CUresult code = flags > 1 ? INVALID_VALUE : find_stream(handle, &stream);
    if (code == OK && stream->capture == NULL) code = ILLEGAL_STATE;
    if (code == OK && stream->capture->invalid) code = CAPTURE_INVALIDATED;
    if (code == OK) code = dependencies_read(stream->capture->graph, nodes, edges, count, &given);
    if (code != OK) return leave(code);
    if (flags == 1) {
        for (size_t i = 0; i < stream->dependencies.count; i++)
            dependencies_add(&stream->capture->exempt, stream->dependencies.nodes[i], NULL);
        dependencies_clear(&stream->dependencies);
    }
    for (size_t i = 0; i < given.count; i++)
        dependencies_add(&stream->dependencies, given.nodes[i], &given.edges[i]);
    dependencies_clear(&given);
    return leave(OK);
}

EXPORT CUresult cuStreamUpdateCaptureDependencies(CUstream handle, const CUgraphNode *nodes,
                                                  size_t count, unsigned flags) {
    ENTER(cuStreamUpdateCaptureDependencies, 0);
    return update(handle, nodes, NULL, count, flags);
}

EXPORT CUresult cuStreamUpdateCaptureDependencies_v2(CUstream handle, const CUgraphNode *nodes,
                                                     const void *edges, size_t count,
                                                     unsigned flags) {
    ENTER(cuStreamUpdateCaptureDependencies, 0);
    return update(handle, nodes, edges, count, flags);
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    ENTER(cuThreadExchangeStreamCaptureMode, DEAD_OK | FREES);
    if (mode == NULL || *mode < GLOBAL || *mode > RELAXED) return leave(INVALID_VALUE);
    int before = me.capture_mode;
    me.capture_mode = *mode;
    *mode = before;
    return leave(OK);
}
