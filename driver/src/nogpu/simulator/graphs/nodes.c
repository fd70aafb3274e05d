/* The driver's calls that add, set and read the nodes of graphs by their parameters, with one form
 * for each type and one for all. nodework.c has what the parameters mean. */
#include "../driver.h"

#include "../api.h"
#include "../graph.h"

#include <string.h>

/* --- adding --- */

static CUresult add_with(CUgraphNode *out, CUgraph handle, const CUgraphNode *before,
                         const struct edge *edges, size_t count, const struct node_params *params) {
    struct graph *graph = object_find(handle, OBJECT_GRAPH);
    struct dependencies dependencies;
    struct node *node;
    if (graph == NULL || out == NULL) return leave(INVALID_VALUE);
    CUresult code = dependencies_read(graph, before, edges, count, &dependencies);
    if (code != OK) return leave(code);
    /* refuse before a child graph has been moved into the node */
    const struct node probe = {.type = params->type};
    for (size_t i = 0; i < count; i++)
        if (!edge_fits(&dependencies.edges[i], dependencies.nodes[i], &probe)) code = INVALID_VALUE;
    for (const struct graph *above = graph; code == OK && above != NULL;
         above = above->owner != NULL ? above->owner->graph : NULL)
        if (params->type == NODE_CHILD && params->u.child.ownership == 1 &&
            above == params->u.child.graph)
            code = INVALID_VALUE; /* it cannot be moved into itself */
    if (code == OK) code = node_make(params->type, params, &node);
    if (code == OK) code = graph_link(graph, node, &dependencies);
    dependencies_clear(&dependencies);
    if (code == OK) *out = node;
    if (code == OK && params->type == NODE_ALLOC) /* the one field that the call writes */
        ((struct node_params *)params)->u.alloc.address = (uintptr_t)node->memory->base;
    return leave(code);
}

static CUresult add(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count,
                    const struct node_params *params) {
    return add_with(out, graph, before, NULL, count, params);
}

EXPORT CUresult cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *before,
                                        size_t count, const struct kernel_params *params) {
    ENTER(cuGraphAddKernelNode, 0);
    return params == NULL ? leave(INVALID_VALUE)
                          : add(out, graph, before, count,
                                &(struct node_params){.type = NODE_KERNEL, .u.kernel = *params});
}

struct node_params copy_node_params(const struct copy_params *params, CUcontext context) {
    struct node_params node = {.type = NODE_COPY};
    node.u.copy.context = context;
    node.u.copy.params = *params;
    return node;
}

EXPORT CUresult cuGraphAddMemcpyNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before,
                                     size_t count, const struct copy_params *params,
                                     CUcontext context) {
    ENTER(cuGraphAddMemcpyNode, 0);
    if (params == NULL) return leave(INVALID_VALUE);
    struct node_params node = copy_node_params(params, context);
    return add(out, graph, before, count, &node);
}

/* CUDA_MEMSET_NODE_PARAMS ends before the context. */
struct node_params fill_node_params(const struct fill_params *params, CUcontext context) {
    struct node_params node = {.type = NODE_FILL};
    memcpy(&node.u.fill, params, offsetof(struct fill_params, context));
    node.u.fill.context = context;
    return node;
}

EXPORT CUresult cuGraphAddMemsetNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before,
                                     size_t count, const struct fill_params *params,
                                     CUcontext context) {
    ENTER(cuGraphAddMemsetNode, 0);
    if (params == NULL) return leave(INVALID_VALUE);
    struct node_params node = fill_node_params(params, context);
    return add(out, graph, before, count, &node);
}

/* CUDA_HOST_NODE_PARAMS ends after the data. */
struct node_params host_node_params(const struct host_params *params) {
    struct node_params node = {.type = NODE_HOST};
    node.u.host.function = params->function;
    node.u.host.user_data = params->user_data;
    return node;
}

EXPORT CUresult cuGraphAddHostNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before,
                                   size_t count, const struct host_params *params) {
    ENTER(cuGraphAddHostNode, 0);
    if (params == NULL) return leave(INVALID_VALUE);
    struct node_params node = host_node_params(params);
    return add(out, graph, before, count, &node);
}

EXPORT CUresult cuGraphAddChildGraphNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before,
                                         size_t count, CUgraph child) {
    ENTER(cuGraphAddChildGraphNode, 0);
    return add(out, graph, before, count,
               &(struct node_params){.type = NODE_CHILD, .u.child = {child, 0}});
}

EXPORT CUresult cuGraphAddEmptyNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before,
                                    size_t count) {
    ENTER(cuGraphAddEmptyNode, 0);
    return add(out, graph, before, count, &(struct node_params){.type = NODE_EMPTY});
}

EXPORT CUresult cuGraphAddEventRecordNode(CUgraphNode *out, CUgraph graph,
                                          const CUgraphNode *before, size_t count, CUevent event) {
    ENTER(cuGraphAddEventRecordNode, 0);
    return add(out, graph, before, count,
               &(struct node_params){.type = NODE_RECORD_EVENT, .u.event = {event, NULL, NULL}});
}

EXPORT CUresult cuGraphAddEventWaitNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before,
                                        size_t count, CUevent event) {
    ENTER(cuGraphAddEventWaitNode, 0);
    return add(out, graph, before, count,
               &(struct node_params){.type = NODE_WAIT_EVENT, .u.event = {event, NULL, NULL}});
}

EXPORT CUresult cuGraphAddBatchMemOpNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before,
                                         size_t count, const struct words_params *params) {
    ENTER(cuGraphAddBatchMemOpNode, 0);
    return params == NULL ? leave(INVALID_VALUE)
                          : add(out, graph, before, count,
                                &(struct node_params){.type = NODE_WORDS, .u.words = *params});
}

EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before,
                                       size_t count, struct alloc_params *params) {
    ENTER(cuGraphAddMemAllocNode, 0);
    if (params == NULL) return leave(INVALID_VALUE);
    struct node_params node = {.type = NODE_ALLOC, .u.alloc = *params};
    CUresult code = add(out, graph, before, count, &node);
    if (code == OK) params->address = node.u.alloc.address;
    return code;
}

EXPORT CUresult cuGraphAddMemFreeNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before,
                                      size_t count, CUdeviceptr address) {
    ENTER(cuGraphAddMemFreeNode, 0);
    return add(out, graph, before, count,
               &(struct node_params){.type = NODE_FREE, .u.free = address});
}

bool node_params_valid(const struct node_params *params) {
    return params != NULL && params->reserved0[0] == 0 && params->reserved0[1] == 0 &&
           params->reserved0[2] == 0 && params->reserved2 == 0;
}

EXPORT CUresult cuGraphAddNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before,
                               size_t count, const struct node_params *params) {
    ENTER(cuGraphAddNode, 0);
    return node_params_valid(params) ? add(out, graph, before, count, params)
                                     : leave(INVALID_VALUE);
}

EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *before,
                                  const void *edges, size_t count,
                                  const struct node_params *params) {
    ENTER(cuGraphAddNode, 0);
    return node_params_valid(params) ? add_with(out, graph, before, edges, count, params)
                                     : leave(INVALID_VALUE);
}

/* --- reading --- */

static CUresult get_params(CUgraphNode handle, int type, struct node_params *out,
                           const void *wanted) {
    struct node *node = object_find(handle, OBJECT_NODE);
    if (node == NULL || wanted == NULL || (type >= 0 && node->type != type))
        return node == NULL ? INVALID_HANDLE : INVALID_VALUE;
    node_describe(node, out);
    return OK;
}

#define GETTERS(call, kind, type, field, bytes)                                                    \
    EXPORT CUresult call(CUgraphNode node, kind *out) {                                            \
        ENTER(call, 0);                                                                            \
        ;                                                                                          \
        struct node_params params;                                                                 \
        CUresult code = get_params(node, type, &params, out);                                      \
        if (code == OK) memcpy(out, &params.u.field, bytes);                                       \
        return leave(code);                                                                        \
    }
GETTERS(cuGraphMemcpyNodeGetParams, struct copy_params, NODE_COPY, copy.params, sizeof *out)
GETTERS(cuGraphMemsetNodeGetParams, struct fill_params, NODE_FILL, fill,
        offsetof(struct fill_params, context))
GETTERS(cuGraphHostNodeGetParams, struct host_params, NODE_HOST, host,
        offsetof(struct host_params, sync_mode))
GETTERS(cuGraphChildGraphNodeGetGraph, CUgraph, NODE_CHILD, child.graph, sizeof *out)
GETTERS(cuGraphEventRecordNodeGetEvent, CUevent, NODE_RECORD_EVENT, event.event, sizeof *out)
GETTERS(cuGraphEventWaitNodeGetEvent, CUevent, NODE_WAIT_EVENT, event.event, sizeof *out)
GETTERS(cuGraphMemAllocNodeGetParams, struct alloc_params, NODE_ALLOC, alloc, sizeof *out)
GETTERS(cuGraphMemFreeNodeGetParams, CUdeviceptr, NODE_FREE, free, sizeof *out)
GETTERS(cuGraphBatchMemOpNodeGetParams, struct words_params, NODE_WORDS, words, sizeof *out)

EXPORT CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, struct kernel_params *out) {
    ENTER(cuGraphKernelNodeGetParams, 0);
    struct node_params params;
    CUresult code = get_params(node, NODE_KERNEL, &params, out);
    if (code == OK) *out = params.u.kernel;
    return leave(code);
}

EXPORT CUresult cuGraphNodeGetParams(CUgraphNode node, struct node_params *out) {
    ENTER(cuGraphNodeGetParams, 0);
    struct node_params params;
    CUresult code = get_params(node, -1, &params, out);
    if (code == OK) *out = params;
    return leave(code);
}

/* --- setting: of a graph's node; executables made of it keep theirs --- */

static CUresult set(CUgraphNode handle, const struct node_params *params) {
    struct node *node = object_find(handle, OBJECT_NODE), *with;
    if (node == NULL || node->type != params->type || node->memory != NULL ||
        (node->child != NULL && capture_inside(node->child) != NULL))
        return leave(node == NULL ? INVALID_HANDLE : INVALID_VALUE);
    CUresult code = node_make(params->type, params, &with);
    if (code == OK) node_refill(node, with);
    return leave(code);
}

EXPORT CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node,
                                              const struct kernel_params *params) {
    ENTER(cuGraphKernelNodeSetParams, 0);
    return params == NULL
               ? leave(INVALID_VALUE)
               : set(node, &(struct node_params){.type = NODE_KERNEL, .u.kernel = *params});
}

/* For the forms that name no context: the node's own. */
static CUcontext context_of(CUgraphNode handle) {
    const struct node *node = object_find(handle, OBJECT_NODE);
    return node != NULL ? node->context : NULL;
}

EXPORT CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const struct copy_params *params) {
    ENTER(cuGraphMemcpyNodeSetParams, 0);
    if (params == NULL) return leave(INVALID_VALUE);
    struct node_params all = copy_node_params(params, context_of(node));
    return set(node, &all);
}

EXPORT CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const struct fill_params *params) {
    ENTER(cuGraphMemsetNodeSetParams, 0);
    if (params == NULL) return leave(INVALID_VALUE);
    struct node_params all = fill_node_params(params, context_of(node));
    return set(node, &all);
}

EXPORT CUresult cuGraphHostNodeSetParams(CUgraphNode node, const struct host_params *params) {
    ENTER(cuGraphHostNodeSetParams, 0);
    if (params == NULL) return leave(INVALID_VALUE);
    struct node_params all = host_node_params(params);
    return set(node, &all);
}

EXPORT CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event) {
    ENTER(cuGraphEventRecordNodeSetEvent, 0);
    return set(node,
               &(struct node_params){.type = NODE_RECORD_EVENT, .u.event = {event, NULL, NULL}});
}

EXPORT CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event) {
    ENTER(cuGraphEventWaitNodeSetEvent, 0);
    return set(node,
               &(struct node_params){.type = NODE_WAIT_EVENT, .u.event = {event, NULL, NULL}});
}

EXPORT CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode node,
                                               const struct words_params *params) {
    ENTER(cuGraphBatchMemOpNodeSetParams, 0);
    return params == NULL
               ? leave(INVALID_VALUE)
               : set(node, &(struct node_params){.type = NODE_WORDS, .u.words = *params});
}

EXPORT CUresult cuGraphNodeSetParams(CUgraphNode node, const struct node_params *params) {
    ENTER(cuGraphNodeSetParams, 0);
    return node_params_valid(params) ? set(node, params) : leave(INVALID_VALUE);
}
