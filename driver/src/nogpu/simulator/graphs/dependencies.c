/* Dependencies: what a node comes after, and the edges of graphs that they make. */
#include "../driver.h"

#include "../api.h"
#include "../graph.h"

#include <stdlib.h>
#include <string.h>

static const struct edge plain;

bool edge_is_plain(const struct edge *edge) { return memcmp(edge, &plain, sizeof plain) == 0; }

bool edges_plain(const struct dependencies *dependencies) {
    for (size_t i = 0; i < dependencies->count; i++)
        if (!edge_is_plain(&dependencies->edges[i])) return false;
    return true;
}

/* Edge data has a meaning behind kernels alone. Port 1 is where a kernel lets its dependants begin,
 * which they can by programmatic edges only; port 2, where all of it has begun, takes either type.
 * Programmatic edges lead to kernels too. `to` NULL: not known yet. What an edge allows to overlap
 * may overlap and need not: here nothing does. */
bool edge_fits(const struct edge *edge, const struct node *from, const struct node *to) {
    if (edge_is_plain(edge)) return true;
    for (size_t i = 0; i < sizeof edge->reserved; i++)
        if (edge->reserved[i] != 0) return false;
    bool programmatic = edge->type == 1;
    return from->type == NODE_KERNEL && edge->from_port <= 2 && edge->to_port == 0 &&
           edge->type <= 1 &&
           (programmatic ? edge->from_port != 0 && (to == NULL || to->type == NODE_KERNEL)
                         : edge->from_port != 1);
}

void dependencies_clear(struct dependencies *dependencies) {
    free(dependencies->nodes);
    free(dependencies->edges);
    *dependencies = (struct dependencies){0};
}

static void append(struct dependencies *dependencies, struct node *node, const struct edge *edge) {
    size_t count = dependencies->count;
    if ((count & (count - 1)) == 0) { /* full at every power of two */
        size_t space = count > 0 ? count * 2 : 1;
        dependencies->nodes = alloc_more(dependencies->nodes, space * sizeof *dependencies->nodes);
        dependencies->edges = alloc_more(dependencies->edges, space * sizeof *dependencies->edges);
    }
    dependencies->nodes[count] = node;
    dependencies->edges[count] = *edge;
    dependencies->count++;
}

void dependencies_set(struct dependencies *to, const struct dependencies *from) {
    struct dependencies copy = {0};
    for (size_t i = 0; i < from->count; i++) append(&copy, from->nodes[i], &from->edges[i]);
    dependencies_clear(to);
    *to = copy;
}

bool dependencies_add(struct dependencies *dependencies, struct node *node,
                      const struct edge *edge) {
    for (size_t i = 0; i < dependencies->count; i++)
        if (dependencies->nodes[i] == node) return false;
    append(dependencies, node, edge != NULL ? edge : &plain);
    return true;
}

/* Keeps the order. */
void dependencies_remove(struct dependencies *dependencies, size_t i) {
    size_t behind = --dependencies->count - i;
    memmove(&dependencies->nodes[i], &dependencies->nodes[i + 1],
            behind * sizeof *dependencies->nodes);
    memmove(&dependencies->edges[i], &dependencies->edges[i + 1],
            behind * sizeof *dependencies->edges);
}

/* What a caller names as dependencies of a node of the graph: all in it, none twice. On an error
 * `out` is empty. */
CUresult dependencies_read(const struct graph *graph, const CUgraphNode *handles,
                           const struct edge *edges, size_t count, struct dependencies *out) {
    *out = (struct dependencies){0};
    if (count > 0 && handles == NULL) return INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        struct node *node = object_find(handles[i], OBJECT_NODE);
        const struct edge *edge = edges != NULL ? &edges[i] : &plain;
        if (node == NULL || node->graph != graph || !edge_fits(edge, node, NULL) ||
            !dependencies_add(out, node, edge)) {
            dependencies_clear(out);
            return INVALID_VALUE;
        }
    }
    return OK;
}

CUresult copy_out_count(size_t *count, size_t found, bool listed) {
    if (!listed || found < *count) *count = found;
    return OK;
}

/* --- editing --- */

static CUresult find_ends(const struct graph *graph, CUgraphNode from_handle, CUgraphNode to_handle,
                          struct node **from, struct node **to) {
    *from = object_find(from_handle, OBJECT_NODE);
    *to = object_find(to_handle, OBJECT_NODE);
    bool both = *from != NULL && *to != NULL && (*from)->graph == graph && (*to)->graph == graph;
    return both && *from != *to ? OK : INVALID_VALUE;
}

static size_t find_edge(const struct node *from, const struct node *to) {
    size_t i = 0;
    while (i < to->before.count && to->before.nodes[i] != from) i++;
    return i;
}

/* All or none: what was added before a bad one is taken back. A cycle shows at instantiation. */
static CUresult add(CUgraph handle, const CUgraphNode *from, const CUgraphNode *to,
                    const struct edge *edges, size_t count) {
    const struct graph *graph = object_find(handle, OBJECT_GRAPH);
    if (graph == NULL || (count > 0 && (from == NULL || to == NULL))) return leave(INVALID_VALUE);
    struct node *first, *second;
    CUresult code = OK;
    size_t i = 0;
    for (; i < count && code == OK; i++) {
        const struct edge *edge = edges != NULL ? &edges[i] : &plain;
        code = find_ends(graph, from[i], to[i], &first, &second);
        if (code == OK &&
            (!edge_fits(edge, first, second) || !dependencies_add(&second->before, first, edge)))
            code = INVALID_VALUE;
    }
    while (code != OK && --i > 0) {
        find_ends(graph, from[i - 1], to[i - 1], &first, &second);
        dependencies_remove(&second->before, find_edge(first, second));
    }
    return leave(code);
}

EXPORT CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from,
                                       const CUgraphNode *to, size_t count) {
    ENTER(cuGraphAddDependencies, 0);
    return add(graph, from, to, NULL, count);
}

EXPORT CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from,
                                          const CUgraphNode *to, const void *edges, size_t count) {
    ENTER(cuGraphAddDependencies, 0);
    return add(graph, from, to, edges, count);
}

static CUresult take_away(CUgraph handle, const CUgraphNode *from, const CUgraphNode *to,
                          const struct edge *edges, size_t count) {
    const struct graph *graph = object_find(handle, OBJECT_GRAPH);
    if (graph == NULL || (count > 0 && (from == NULL || to == NULL))) return leave(INVALID_VALUE);
    struct node *first, *second;
    for (size_t i = 0; i < count; i++) { /* first look whether all are there */
        if (find_ends(graph, from[i], to[i], &first, &second) != OK) return leave(INVALID_VALUE);
        size_t at = find_edge(first, second);
        bool there = at < second->before.count;
        if (!there ||
            (edges != NULL && memcmp(&second->before.edges[at], &edges[i], sizeof *edges) != 0))
            return leave(INVALID_VALUE); /* without edge data, whatever the edge has will do */
    }
    for (size_t i = 0; i < count; i++) {
        find_ends(graph, from[i], to[i], &first, &second);
        size_t at = find_edge(first, second);
        if (at == second->before.count) continue; /* named twice */
        dependencies_remove(&second->before, at);
        struct capture *capture = capture_into(graph);
        if (capture != NULL) dependencies_add(&capture->exempt, first, NULL);
    }
    return leave(OK);
}

EXPORT CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from,
                                          const CUgraphNode *to, size_t count) {
    ENTER(cuGraphRemoveDependencies, 0);
    return take_away(graph, from, to, NULL, count);
}

EXPORT CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode *from,
                                             const CUgraphNode *to, const void *edges,
                                             size_t count) {
    ENTER(cuGraphRemoveDependencies, 0);
    return take_away(graph, from, to, edges, count);
}

/* --- asking ---
 *
 * Without room for a list, a call answers the count alone. Else it lists as many as fit, and writes
 * NULL into the rest of the room. */

struct list {
    CUgraphNode *from, *to;
    struct edge *edges;
    size_t space, found;
    bool lossy;
};

static void put(struct list *list, struct node *from, struct node *to, const struct edge *edge) {
    if (list->edges == NULL && !edge_is_plain(edge)) list->lossy = true;
    if (list->found < list->space) {
        if (list->from != NULL) list->from[list->found] = from;
        if (list->to != NULL) list->to[list->found] = to;
        if (list->edges != NULL) list->edges[list->found] = *edge;
    }
    list->found++;
}

static CUresult answer(struct list *list, size_t *count) {
    bool listed = list->from != NULL || list->to != NULL;
    if (listed && list->lossy) return leave(LOSSY_QUERY);
    for (size_t i = list->found; i < list->space; i++) {
        if (list->from != NULL) list->from[i] = NULL;
        if (list->to != NULL) list->to[i] = NULL;
    }
    return leave(copy_out_count(count, list->found, listed));
}

static CUresult all_edges(CUgraph handle, CUgraphNode *from, CUgraphNode *to, struct edge *edges,
                          size_t *count) {
    const struct graph *graph = object_find(handle, OBJECT_GRAPH);
    bool listed = from != NULL && to != NULL;
    if (graph == NULL || count == NULL ||
        (!listed && (from != NULL || to != NULL || edges != NULL)))
        return leave(INVALID_VALUE);
    struct list list = {from, to, edges, listed ? *count : 0, 0, false};
    for (size_t n = 0; n < graph->node_count; n++) {
        struct node *node = graph->nodes[n];
        for (size_t i = 0; i < node->before.count; i++)
            put(&list, node->before.nodes[i], node, &node->before.edges[i]);
    }
    return answer(&list, count);
}

EXPORT CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count) {
    ENTER(cuGraphGetEdges, 0);
    return all_edges(graph, from, to, NULL, count);
}

EXPORT CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, void *edges,
                                   size_t *count) {
    ENTER(cuGraphGetEdges, 0);
    return all_edges(graph, from, to, edges, count);
}

static CUresult before(CUgraphNode handle, CUgraphNode *nodes, struct edge *edges, size_t *count) {
    struct node *node = object_find(handle, OBJECT_NODE);
    if (node == NULL || count == NULL || (nodes == NULL && edges != NULL))
        return leave(node == NULL ? INVALID_HANDLE : INVALID_VALUE);
    struct list list = {nodes, NULL, edges, nodes != NULL ? *count : 0, 0, false};
    for (size_t i = 0; i < node->before.count; i++)
        put(&list, node->before.nodes[i], NULL, &node->before.edges[i]);
    return answer(&list, count);
}

static CUresult after(CUgraphNode handle, CUgraphNode *nodes, struct edge *edges, size_t *count) {
    struct node *node = object_find(handle, OBJECT_NODE);
    if (node == NULL || count == NULL || (nodes == NULL && edges != NULL))
        return leave(node == NULL ? INVALID_HANDLE : INVALID_VALUE);
    struct list list = {NULL, nodes, edges, nodes != NULL ? *count : 0, 0, false};
    for (size_t n = 0; n < node->graph->node_count; n++) {
        struct node *other = node->graph->nodes[n];
        size_t i = find_edge(node, other);
        if (i < other->before.count) put(&list, NULL, other, &other->before.edges[i]);
    }
    return answer(&list, count);
}

EXPORT CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *nodes, size_t *count) {
    ENTER(cuGraphNodeGetDependencies, 0);
    return before(node, nodes, NULL, count);
}

EXPORT CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *nodes, void *edges,
                                              size_t *count) {
    ENTER(cuGraphNodeGetDependencies, 0);
    return before(node, nodes, edges, count);
}

EXPORT CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *nodes, size_t *count) {
    ENTER(cuGraphNodeGetDependentNodes, 0);
    return after(node, nodes, NULL, count);
}

EXPORT CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *nodes, void *edges,
                                                size_t *count) {
    ENTER(cuGraphNodeGetDependentNodes, 0);
    return after(node, nodes, edges, count);
}
