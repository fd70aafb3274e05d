/* Graphs: what a capture collects. Instantiation and launch are not simulated yet and answer 801. */
#include "driver.h"

#include "api.h"

#include <stdlib.h>
#include <string.h>

struct graph *graph_new(void)
{
    return object_new(OBJECT_GRAPH, sizeof(struct graph));
}

struct node *graph_add(struct graph *graph, int type, struct op *op, struct node **dependencies, size_t count)
{
    struct node *node = object_new(OBJECT_NODE, sizeof *node);
    node->graph = graph;
    node->type = type;
    node->op = op;
    node->dependencies = count > 0 ? malloc(count * sizeof *dependencies) : NULL;
    for (size_t i = 0; i < count; i++)
        node->dependencies[i] = dependencies[i];
    node->dependency_count = count;
    graph->nodes = realloc(graph->nodes, (graph->node_count + 1) * sizeof *graph->nodes);
    graph->nodes[graph->node_count++] = node;
    return node;
}

void graph_free(struct graph *graph)
{
    for (size_t i = 0; i < graph->node_count; i++) {
        struct node *node = graph->nodes[i];
        object_forget(node);
        if (node->op != NULL)
            op_free(node->op);
        free(node->dependencies);
        free(node);
    }
    object_forget(graph);
    free(graph->nodes);
    free(graph);
}

EXPORT CUresult cuGraphCreate(CUgraph *out, unsigned flags)
{
    ENTER(cuGraphCreate, 0);
    if (out == NULL || flags != 0)
        return leave(INVALID_VALUE);
    *out = graph_new();
    return leave(OK);
}

static bool being_captured(const struct graph *graph)
{
    for (const struct capture *capture = sim.captures; capture != NULL; capture = capture->next)
        if (capture->graph == graph)
            return true;
    return false;
}

EXPORT CUresult cuGraphDestroy(CUgraph handle)
{
    ENTER(cuGraphDestroy, 0);
    struct graph *graph = object_find(handle, OBJECT_GRAPH);
    if (graph == NULL || being_captured(graph))
        return leave(graph == NULL ? INVALID_HANDLE : INVALID_VALUE);
    graph_free(graph);
    return leave(OK);
}

/* With `nodes` NULL the count alone; else as many as fit, and NULL for the rest of the room. */
static CUresult list(const struct graph *graph, CUgraphNode *nodes, size_t *count, bool roots)
{
    if (graph == NULL || count == NULL)
        return leave(graph == NULL ? INVALID_HANDLE : INVALID_VALUE);
    size_t found = 0, space = nodes != NULL ? *count : 0;
    for (size_t i = 0; i < graph->node_count; i++) {
        if (roots && graph->nodes[i]->dependency_count > 0)
            continue;
        if (found < space)
            nodes[found] = graph->nodes[i];
        found++;
    }
    for (size_t i = found; i < space; i++)
        nodes[i] = NULL;
    if (nodes == NULL || found < space)
        *count = found;
    return leave(OK);
}

EXPORT CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode *nodes, size_t *count)
{
    ENTER(cuGraphGetNodes, 0);
    return list(object_find(handle, OBJECT_GRAPH), nodes, count, false);
}

EXPORT CUresult cuGraphGetRootNodes(CUgraph handle, CUgraphNode *nodes, size_t *count)
{
    ENTER(cuGraphGetRootNodes, 0);
    return list(object_find(handle, OBJECT_GRAPH), nodes, count, true);
}

EXPORT CUresult cuGraphNodeGetType(CUgraphNode handle, int *out)
{
    ENTER(cuGraphNodeGetType, 0);
    const struct node *node = object_find(handle, OBJECT_NODE);
    if (node == NULL || out == NULL)
        return leave(node == NULL ? INVALID_HANDLE : INVALID_VALUE);
    *out = node->type;
    return leave(OK);
}
