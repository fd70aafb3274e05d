/* What is captured: how streams join a capture and add nodes to it, and how it is dropped.
 * capture.c has the driver's calls. */
#include "../driver.h"

#include "../graph.h"

#include <stdlib.h>

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

static CUresult add_or_free(struct stream *stream, struct node *node, CUresult code) {
    node->context = stream->context;
    if (code == OK) return capture_add_node(stream, node);
    node_free(node);
    return code;
}

/* For cuMemAllocAsync and cuMemFreeAsync on a stream that captures. */
CUresult graph_memory_capture(struct stream *stream, size_t bytes, CUdeviceptr *out) {
    struct node *node = node_new(NODE_ALLOC);
    CUresult code = stream->capture->invalid ? CAPTURE_INVALIDATED : OK;
    if (code == OK) /* NVIDIA's own tests allocate nothing in a graph, too */
        code = graph_memory_new(stream->context, bytes > 0 ? bytes : 1, &node->memory);
    if (code == OK) *out = (uintptr_t)node->memory->base;
    return add_or_free(stream, node, code);
}

CUresult graph_memory_capture_free(struct stream *stream, CUdeviceptr address) {
    struct node *node = node_new(NODE_FREE);
    return add_or_free(stream, node, make_free(node, address));
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

void capture_join(struct stream *stream, struct capture *capture) {
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
    if (into == NULL) capture_join(stream, from);
    for (size_t i = 0; i < event->dependencies.count; i++)
        dependencies_add(&stream->dependencies, event->dependencies.nodes[i],
                         &event->dependencies.edges[i]);
    return OK;
}

static void detach(struct stream *stream) {
    struct capture *capture = stream->capture;
    stream->capture = NULL;
    dependencies_clear(&stream->dependencies);
    capture_release(capture);
}

void capture_end(struct capture *capture) {
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
void capture_discard(struct capture *capture) {
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
    capture_discard(capture);
    capture_end(capture);
}
