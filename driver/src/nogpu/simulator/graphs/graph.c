/* Graphs, which a capture collects or a program builds: how they are made, copied, walked and
 * described. */
#include "../driver.h"

#include "../api.h"
#include "../graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- nodes --- */

/* Outside any graph, so no handle of it exists yet. */
struct node *node_new(int type) {
    struct node *node = alloc_need(sizeof *node);
    node->type = type;
    return node;
}

void node_add_op(struct node *node, struct op *op) {
    node->ops = alloc_more(node->ops, (node->op_count + 1) * sizeof(struct op *));
    node->ops[node->op_count++] = op;
}

static void drop_work(struct node *node) {
    for (size_t i = 0; i < node->op_count; i++) op_free(node->ops[i]);
    free(node->ops);
    free(node->words);
    free(node->parameters);
    if (node->event != NULL) event_release(node->event);
    if (node->memory != NULL) {
        node->memory->executables -=
            node->type == NODE_ALLOC && node->graph != NULL && node->graph->hidden;
        graph_memory_release(node->memory);
    }
    if (node->child != NULL) graph_free(node->child);
}

void node_free(struct node *node) {
    if (node->graph != NULL && !node->graph->hidden) object_unregister(node);
    drop_work(node);
    dependencies_clear(&node->before);
    free(node);
}

static void take_work(struct node *node, struct node *from) {
    node->ops = from->ops;
    node->op_count = from->op_count;
    node->context = from->context;
    node->event = from->event;
    node->child = from->child;
    node->memory = from->memory;
    node->copy = from->copy;
    node->fill = from->fill;
    node->words = from->words;
    node->parameters = from->parameters;
    if (node->child != NULL) node->child->owner = node;
    from->ops = NULL;
    from->op_count = 0;
    from->event = NULL;
    from->child = NULL;
    from->memory = NULL;
    from->words = NULL;
    from->parameters = NULL;
}

void node_refill(struct node *node, struct node *with) {
    drop_work(node);
    take_work(node, with);
    node_free(with);
}

/* The graph's own view of a kernel's arguments: pointers into the pattern, as
 * cuGraphKernelNodeGetParams hands them out. */
void node_describe_kernel(struct node *node) {
    free(node->parameters);
    node->parameters = alloc_need(MAX_PARAMETERS * sizeof *node->parameters);
    kernel_unpack(node->ops[0], node->parameters);
}

struct node *node_copy(const struct node *node, bool hidden) {
    struct node *copy = node_new(node->type);
    copy->original = node->id;
    copy->context = node->context;
    copy->attributes = node->attributes;
    copy->disabled = node->disabled;
    copy->copy = node->copy;
    copy->fill = node->fill;
    for (size_t i = 0; i < node->op_count; i++) node_add_op(copy, op_copy(node->ops[i]));
    if (node->event != NULL) {
        copy->event = node->event;
        copy->event->references++;
    }
    if (node->memory != NULL) {
        copy->memory = node->memory;
        copy->memory->references++;
        copy->memory->executables += hidden && node->type == NODE_ALLOC;
    }
    if (node->child != NULL) {
        copy->child = graph_copy(node->child, hidden);
        copy->child->owner = copy;
    }
    if (node->type == NODE_KERNEL) node_describe_kernel(copy);
    if (node->type == NODE_WORDS) {
        copy->words = alloc_need(node->op_count * sizeof *copy->words);
        memcpy(copy->words, node->words, node->op_count * sizeof *copy->words);
    }
    return copy;
}

/* --- graphs --- */

struct graph *graph_new(bool hidden) {
    static unsigned next_id;
    struct graph *graph =
        hidden ? alloc_need(sizeof *graph) : object_new(OBJECT_GRAPH, sizeof *graph);
    graph->hidden = hidden;
    graph->id = ++next_id;
    return graph;
}

void graph_free(struct graph *graph) {
    for (size_t i = 0; i < graph->node_count; i++) node_free(graph->nodes[i]);
    if (!graph->hidden) object_unregister(graph);
    holdings_release(graph);
    free(graph->nodes);
    free(graph);
}

static void take_in(struct graph *graph, struct node *node) {
    if ((graph->node_count & (graph->node_count - 1)) == 0) {
        graph->nodes =
            alloc_more(graph->nodes,
                       (graph->node_count > 0 ? graph->node_count * 2 : 1) * sizeof *graph->nodes);
    }
    node->graph = graph;
    node->id = ++sim.next_id;
    node->local_id = graph->next_local_id++;
    graph->nodes[graph->node_count++] = node;
}

static bool is_freed(const struct graph *graph, const struct graph_memory *memory) {
    for (size_t i = 0; i < graph->node_count; i++)
        if (graph->nodes[i]->type == NODE_FREE && graph->nodes[i]->memory == memory) return true;
    return false;
}

CUresult graph_link(struct graph *graph, struct node *node, const struct dependencies *before) {
    if (node->type == NODE_FREE && is_freed(graph, node->memory)) {
        node_free(node);
        return INVALID_VALUE;
    }
    for (size_t i = 0; i < before->count; i++)
        if (!edge_fits(&before->edges[i], before->nodes[i], node)) {
            node_free(node);
            return INVALID_VALUE;
        }
    if (!graph->hidden) object_register(node, OBJECT_NODE);
    dependencies_set(&node->before, before);
    take_in(graph, node);
    return OK;
}

struct graph *graph_copy(const struct graph *graph, bool hidden) {
    struct graph *copy = graph_new(hidden);
    copy->original = graph->id;
    for (size_t i = 0; i < graph->node_count; i++) {
        static const struct dependencies none;
        graph->nodes[i]->place = i;
        graph_link(copy, node_copy(graph->nodes[i], hidden), &none);
        copy->nodes[i]->local_id = graph->nodes[i]->local_id;
    }
    copy->next_local_id = graph->next_local_id;
    for (size_t i = 0; i < graph->node_count; i++) {
        const struct dependencies *before = &graph->nodes[i]->before;
        for (size_t d = 0; d < before->count; d++)
            dependencies_add(&copy->nodes[i]->before, copy->nodes[before->nodes[d]->place],
                             &before->edges[d]);
    }
    holdings_copy(copy, graph);
    return copy;
}

bool graph_has_memory(const struct graph *graph) {
    for (size_t i = 0; i < graph->node_count; i++) {
        const struct node *node = graph->nodes[i];
        if (node->memory != NULL || (node->child != NULL && graph_has_memory(node->child)))
            return true;
    }
    return false;
}

/* The node, here or if `deep` in a child graph, that was made as a copy of the one with this id. */
struct node *graph_find_copy(const struct graph *graph, uint64_t original, bool deep) {
    for (size_t i = 0; i < graph->node_count; i++) {
        struct node *node = graph->nodes[i], *inner = NULL;
        if (node->original == original) return node;
        if (deep && node->child != NULL) inner = graph_find_copy(node->child, original, true);
        if (inner != NULL) return inner;
    }
    return NULL;
}

/* All nodes, each after those that it depends on; as they were added, where that is such an order
 * already. */
bool graph_order(struct graph *graph, struct node **order) {
    size_t count = graph->node_count, done = 0,
           *missing = alloc_need((count + 1) * sizeof *missing);
    for (size_t i = 0; i < count; i++) graph->nodes[i]->place = i;
    for (size_t i = 0; i < count; i++) missing[i] = graph->nodes[i]->before.count;
    /* one pass suffices unless edges lead back to older nodes */
    for (size_t before = SIZE_MAX; before != done;) {
        before = done;
        for (size_t i = 0; i < count; i++) {
            const struct dependencies *needs = &graph->nodes[i]->before;
            bool ready = missing[i] != SIZE_MAX;
            for (size_t d = 0; ready && d < needs->count; d++)
                ready = missing[needs->nodes[d]->place] == SIZE_MAX;
            if (ready) {
                missing[i] = SIZE_MAX;
                order[done++] = graph->nodes[i];
            }
        }
    }
    free(missing);
    return done == count;
}

static size_t count_nodes(const struct graph *graph) {
    size_t count = graph->node_count;
    for (size_t i = 0; i < graph->node_count; i++)
        if (graph->nodes[i]->child != NULL) count += count_nodes(graph->nodes[i]->child);
    return count;
}

bool graph_has_room(const struct graph *graph) {
    return alloc_has(count_nodes(graph), 2 * sizeof(struct node));
}

/* --- the calls --- */

EXPORT CUresult cuGraphCreate(CUgraph *out, unsigned flags) {
    ENTER(cuGraphCreate, 0);
    if (out == NULL || flags != 0) return leave(INVALID_VALUE);
    *out = graph_new(false);
    return leave(OK);
}

EXPORT CUresult cuGraphDestroy(CUgraph handle) {
    ENTER(cuGraphDestroy, FREES);
    struct graph *graph = object_find(handle, OBJECT_GRAPH);
    if (graph == NULL || graph->owner != NULL) return leave(INVALID_VALUE);
    if (capture_inside(graph) != NULL)
        return leave(ILLEGAL_STATE); /* not before the capture has ended */
    graph_free(graph);
    return leave(OK);
}

EXPORT CUresult cuGraphClone(CUgraph *out, CUgraph handle) {
    ENTER(cuGraphClone, 0);
    const struct graph *graph = object_find(handle, OBJECT_GRAPH);
    if (out == NULL || graph == NULL) return leave(INVALID_VALUE);
    if (graph_has_memory(graph)) return leave(NOT_SUPPORTED);
    if (!graph_has_room(graph)) return leave(OUT_OF_MEMORY);
    *out = graph_copy(graph, false);
    return leave(OK);
}

EXPORT CUresult cuGraphNodeFindInClone(CUgraphNode *out, CUgraphNode handle, CUgraph clone_handle) {
    ENTER(cuGraphNodeFindInClone, 0);
    const struct node *node = object_find(handle, OBJECT_NODE);
    const struct graph *clone = object_find(clone_handle, OBJECT_GRAPH);
    if (node == NULL || clone == NULL) return leave(clone == NULL ? INVALID_VALUE : INVALID_HANDLE);
    /* a child graph's copies are not found, on an H200 neither */
    struct node *found = graph_find_copy(clone, node->id, false);
    if (found == NULL || out == NULL) return leave(INVALID_VALUE);
    *out = found;
    return leave(OK);
}

EXPORT CUresult cuGraphDestroyNode(CUgraphNode handle) {
    ENTER(cuGraphDestroyNode, FREES);
    struct node *node = object_find(handle, OBJECT_NODE);
    if (node == NULL) return leave(INVALID_HANDLE);
    if (capture_into(node->graph) != NULL ||
        (node->child != NULL && capture_inside(node->child) != NULL))
        return leave(ILLEGAL_STATE); /* of a graph that is captured into, no node may go */
    struct graph *graph = node->graph;
    if (graph_has_memory(graph))
        return leave(NOT_SUPPORTED); /* of a graph that allocates, neither nodes nor edges may go */
    size_t kept = 0;
    for (size_t i = 0; i < graph->node_count; i++) {
        struct node *other = graph->nodes[i];
        for (size_t d = 0; d < other->before.count; d++)
            if (other->before.nodes[d] == node) {
                dependencies_remove(&other->before, d);
                break;
            }
        if (other != node) graph->nodes[kept++] = other;
    }
    graph->node_count = kept;
    node_free(node);
    return leave(OK);
}

/* With `nodes` NULL the count alone; else as many as fit, and NULL for the rest of the room, which
 * cannot be none. */
static CUresult list(const struct graph *graph, CUgraphNode *nodes, size_t *count, bool roots) {
    if (graph == NULL || count == NULL || (nodes != NULL && *count == 0))
        return leave(INVALID_VALUE);
    size_t found = 0, space = nodes != NULL ? *count : 0;
    for (size_t i = 0; i < graph->node_count; i++) {
        if (roots && graph->nodes[i]->before.count > 0) continue;
        if (found < space) nodes[found] = graph->nodes[i];
        found++;
    }
    for (size_t i = found; i < space; i++) nodes[i] = NULL;
    return leave(copy_out_count(count, found, nodes != NULL));
}

EXPORT CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode *nodes, size_t *count) {
    ENTER(cuGraphGetNodes, 0);
    return list(object_find(handle, OBJECT_GRAPH), nodes, count, false);
}

EXPORT CUresult cuGraphGetRootNodes(CUgraph handle, CUgraphNode *nodes, size_t *count) {
    ENTER(cuGraphGetRootNodes, 0);
    return list(object_find(handle, OBJECT_GRAPH), nodes, count, true);
}

EXPORT CUresult cuGraphNodeGetType(CUgraphNode handle, int *out) {
    ENTER(cuGraphNodeGetType, 0);
    const struct node *node = object_find(handle, OBJECT_NODE);
    if (node == NULL || out == NULL) return leave(node == NULL ? INVALID_HANDLE : INVALID_VALUE);
    *out = node->type;
    return leave(OK);
}

EXPORT CUresult cuGraphGetId(CUgraph handle, unsigned *out) {
    ENTER(cuGraphGetId, 0);
    const struct graph *graph = object_find(handle, OBJECT_GRAPH);
    if (graph == NULL || out == NULL) return leave(INVALID_VALUE);
    *out = graph->id;
    return leave(OK);
}

EXPORT CUresult cuGraphNodeGetLocalId(CUgraphNode handle, unsigned *out) {
    ENTER(cuGraphNodeGetLocalId, 0);
    const struct node *node = object_find(handle, OBJECT_NODE);
    if (node == NULL || out == NULL) return leave(node == NULL ? INVALID_HANDLE : INVALID_VALUE);
    *out = node->local_id;
    return leave(OK);
}

EXPORT CUresult cuGraphNodeGetContainingGraph(CUgraphNode handle, CUgraph *out) {
    ENTER(cuGraphNodeGetContainingGraph, 0);
    const struct node *node = object_find(handle, OBJECT_NODE);
    if (node == NULL || out == NULL) return leave(node == NULL ? INVALID_HANDLE : INVALID_VALUE);
    *out = node->graph;
    return leave(OK);
}

/* --- a drawing --- */

static const char *const labels[NODE_TYPES] = {
    "KERNEL",       "MEMCPY", "MEMSET", "HOST",      "GRAPH",    "EMPTY",        "WAIT_EVENT",
    "EVENT_RECORD", NULL,     NULL,     "MEM_ALLOC", "MEM_FREE", "BATCH_MEM_OP",
};

static void draw(FILE *file, const struct graph *graph) {
    fprintf(file, "subgraph cluster_%u {\nlabel=\"graph_%u\"\n", graph->id, graph->id);
    for (size_t i = 0; i < graph->node_count; i++) {
        const struct node *node = graph->nodes[i];
        const char *kernel = node->type == NODE_KERNEL ? node->ops[0]->u.kernel.kernel->name : "";
        fprintf(file, "\"graph_%u_node_%u\" [label=\"%u %s %s\"]\n", graph->id, node->local_id,
                node->local_id, labels[node->type], kernel);
        for (size_t d = 0; d < node->before.count; d++)
            fprintf(file, "\"graph_%u_node_%u\" -> \"graph_%u_node_%u\"\n", graph->id,
                    node->before.nodes[d]->local_id, graph->id, node->local_id);
        if (node->child != NULL) draw(file, node->child);
    }
    fprintf(file, "}\n");
}

EXPORT CUresult cuGraphDebugDotPrint(CUgraph handle, const char *path, unsigned flags) {
    ENTER(cuGraphDebugDotPrint, 0);
    (void)flags; /* how much to write: always the same here */
    const struct graph *graph = object_find(handle, OBJECT_GRAPH);
    FILE *file = graph != NULL && path != NULL ? fopen(path, "w") : NULL;
    if (file == NULL) return leave(INVALID_VALUE);
    fprintf(file, "digraph dot {\n");
    draw(file, graph);
    fprintf(file, "}\n");
    fclose(file);
    return leave(OK);
}
