/* Stream capture: its modes, what it forbids to whom, and how streams join it. */
#include "../driver.h"

#include "../api.h"
#include "../graph.h"

#include <stdlib.h>

enum { GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2 };

void capture_release(struct capture *capture) {
    if (--capture->references > 0 || !capture->ended) return;
    dependencies_clear(&capture->exempt);
    dependencies_clear(&capture->left);
    free(capture);
}

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

/* A node that the program has cut off itself need not be joined. */
void capture_exempt(struct capture *capture, struct node *node) {
    dependencies_add(&capture->exempt, node, NULL);
}

static void depend_on(struct stream *stream, struct node *node) {
    dependencies_clear(&stream->dependencies);
    dependencies_add(&stream->dependencies, node, NULL);
}

CUresult capture_add_node(struct stream *stream, struct node *node) {
    struct capture *capture = stream->capture;
    if (capture->invalid) {
        node_free(node);
        return CAPTURE_INVALIDATED;
    }
    struct graph *graph = capture->graph;
    if (capture->recapture != NULL) {
        struct node *again;
        CUresult code = recapture_node(stream, node, &again);
        if (code == OK) depend_on(stream, again);
        return code;
    }
    CUresult code = graph_link(graph, node, &stream->dependencies);
    if (code == OK) depend_on(stream, node);
    return code;
}

/* For cuGraphMemcpyNodeGetParams. */
static struct copy_end copy_end_at(const void *at) {
    const struct allocation *found = find_allocation(at);
    struct copy_end end = {.type = found != NULL && found->kind != MEMORY_HOST &&
                                           found->kind != MEMORY_REGISTERED
                                       ? 2
                                       : 1};
    if (end.type == 2) end.device = (uintptr_t)at;
    else end.host = (void *)(uintptr_t)at;
    return end;
}

CUresult capture_add(struct stream *stream, struct op *op, int type) {
    struct node *node = node_new(type);
    node_add_op(node, op);
    if (type != NODE_HOST && type != NODE_EMPTY) node->context = stream->context;
    if (type == NODE_COPY)
        node->copy = (struct copy_params){copy_end_at(op->u.copy.from), copy_end_at(op->u.copy.to),
                                          op->u.copy.bytes, 1, 1};
    if (type == NODE_FILL)
        node->fill = (struct fill_params){.to = (uintptr_t)op->u.fill.to,
                                          .value = op->u.fill.value,
                                          .width = op->u.fill.width,
                                          .count = op->u.fill.count,
                                          .height = 1};
    return capture_add_node(stream, node);
}

CUresult capture_add_kernel(struct stream *stream, struct op *op,
                            const struct attributes *attributes) {
    struct node *node = node_new(NODE_KERNEL);
    node_add_op(node, op);
    node->context = stream->context;
    node->attributes = *attributes;
    node_describe_kernel(node);
    return capture_add_node(stream, node);
}

/* Recorded under capture, an event stands for the nodes that came before it, and makes no node
 * itself. */
CUresult capture_record(struct stream *stream, struct event *event) {
    if (stream->capture->invalid) return CAPTURE_INVALIDATED;
    event_unregister_capture(event);
    if (event->marker != NULL) marker_release(event->marker);
    event->marker = NULL;
    event->capture = stream->capture;
    event->capture->references++;
    dependencies_set(&event->dependencies, &stream->dependencies);
    return OK;
}

static void join(struct stream *stream, struct capture *capture) {
    stream->capture = capture;
    capture->references++;
    dependencies_clear(&stream->dependencies);
}

CUresult capture_wait(struct stream *stream, struct event *event) {
    struct capture *from = event->capture, *into = stream->capture;
    if (from == NULL && event->marker == NULL) return OK; /* never recorded */
    if (into != NULL && into->invalid) return CAPTURE_INVALIDATED;
    if (from == NULL) {
        capture_invalidate(into);
        return CAPTURE_ISOLATION; /* work outside the capture */
    }
    if (from->ended) { /* a point of a graph by now, and none of any stream */
        if (into != NULL) capture_invalidate(into);
        return INVALID_VALUE;
    }
    if (from->invalid) return CAPTURE_INVALIDATED;
    if (into != NULL && into != from) {
        capture_invalidate(into);
        capture_invalidate(from);
        return CAPTURE_MERGE;
    }
    if (stream->legacy) {
        capture_invalidate(from);
        return CAPTURE_IMPLICIT;
    }
    if (into == NULL) join(stream, from);
    for (size_t i = 0; i < event->dependencies.count; i++)
        dependencies_add(&stream->dependencies, event->dependencies.nodes[i],
                         &event->dependencies.edges[i]);
    return OK;
}

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
    join(stream, capture);
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
        if (count == space) {
            space = space ? space * 2 : 64;
            todo = alloc_more(todo, space * sizeof *todo);
        }
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

static void detach(struct stream *stream) {
    struct capture *capture = stream->capture;
    stream->capture = NULL;
    dependencies_clear(&stream->dependencies);
    capture_release(capture);
}

static void end(struct capture *capture) {
    capture->references++;
    for (struct capture **link = &sim.captures; *link != NULL; link = &(*link)->next)
        if (*link == capture) {
            *link = capture->next;
            break;
        }
    for (size_t c = 0; c < sim.context_count; c++)
        for (struct stream *stream = sim.contexts[c]->streams; stream != NULL;
             stream = stream->next)
            if (stream->capture == capture) detach(stream);
    free(capture->recapture);
    capture->recapture = NULL;
    capture->ended = true;
    capture_release(capture);
}

/* The capture has failed, and takes its graph with it, even if the graph was there before. (No
 * driver could be asked yet about a recapture, nor about a child graph.) A capture into a child
 * graph of it is lost too. */
static void discard(struct capture *capture) {
    struct graph *graph = capture->graph;
    capture->graph = NULL;
    if (capture->recapture != NULL || graph->owner != NULL) return;
    while (capture_inside(graph) != NULL) capture_unregister_stream(capture_inside(graph)->origin);
    graph_free(graph);
}

/* For a stream that is destroyed. If the capture began on it, the capture ends with it. Another
 * stream leaves its work to be joined. */
void capture_unregister_stream(struct stream *stream) {
    struct capture *capture = stream->capture;
    if (capture == NULL) return;
    if (capture->origin != stream) {
        for (size_t i = 0; i < stream->dependencies.count; i++)
            dependencies_add(&capture->left, stream->dependencies.nodes[i], NULL);
        detach(stream);
        return;
    }
    capture_invalidate(capture);
    discard(capture);
    end(capture);
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
    if (code != OK) discard(capture);
    capture->graph = NULL;
    end(capture);
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
            capture_exempt(stream->capture, stream->dependencies.nodes[i]);
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
