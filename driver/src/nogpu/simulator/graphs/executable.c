/* Executables: graphs made ready to launch. Private copies, whose nodes answer to the originals'
 * names and may be changed. */
#include "../driver.h"

#include "../api.h"
#include "../graph.h"

#include <stdlib.h>

/* As in the ABI. */
enum { AUTO_FREE = 1, UPLOAD = 2, DEVICE_LAUNCH = 4, NODE_PRIORITY = 8 };
enum {
    INSTANTIATED = 0,
    INSTANTIATE_ERROR = 1,
    INVALID_STRUCTURE = 2,
    OPERATION_NOT_SUPPORTED = 3
};

/* --- making and unmaking --- */

static void executable_free(struct executable *executable) {
    object_unregister(executable);
    executable_unlay(executable);
    graph_free(executable->graph);
    if (executable->launch_refs != NULL) launch_refs_release(executable->launch_refs);
    if (executable->last != NULL) marker_release(executable->last);
    free(executable);
}

/* The first node that no kernel could launch, or NULL. The host can still launch the executable. */
static struct node *not_for_devices(const struct graph *graph) {
    for (size_t i = 0; i < graph->node_count; i++) {
        struct node *node = graph->nodes[i],
                    *inner = node->type == NODE_CHILD ? not_for_devices(node->child) : NULL;
        if (node->type != NODE_KERNEL && node->type != NODE_COPY && node->type != NODE_FILL &&
            node->type != NODE_CHILD)
            return node;
        if (inner != NULL) return inner;
    }
    return NULL;
}

static bool graph_memory_instantiated(const struct graph *graph) {
    for (size_t i = 0; i < graph->node_count; i++) {
        const struct node *node = graph->nodes[i];
        if (node->type == NODE_ALLOC && node->memory->executables > 0) return true;
        if (node->child != NULL && graph_memory_instantiated(node->child)) return true;
    }
    return false;
}

static CUresult instantiate(CUgraphExec *out, CUgraph handle, uint64_t flags, int *result) {
    const struct graph *graph = object_find(handle, OBJECT_GRAPH);
    *result = INSTANTIATE_ERROR;
    if (out == NULL || graph == NULL ||
        (flags & ~(uint64_t)(AUTO_FREE | UPLOAD | DEVICE_LAUNCH | NODE_PRIORITY)))
        return INVALID_VALUE;
    if ((flags & DEVICE_LAUNCH) && ((flags & AUTO_FREE) || graph->node_count == 0))
        return INVALID_VALUE;
    if (graph_memory_instantiated(graph))
        return NOT_SUPPORTED; /* what allocates has one executable at a time */
    if ((flags & DEVICE_LAUNCH) && not_for_devices(graph) != NULL) {
        *result = OPERATION_NOT_SUPPORTED;
        return NOT_SUPPORTED;
    }
    if (!graph_has_room(graph)) return OUT_OF_MEMORY;
    struct executable *executable = object_new(OBJECT_EXECUTABLE, sizeof *executable);
    executable->graph = graph_copy(graph, true);
    executable->id = executable->graph->id;
    executable->flags = flags & ~(uint64_t)UPLOAD;
    if (!executable_lay_out(executable)) {
        executable_free(executable);
        *result = INVALID_STRUCTURE;
        return INVALID_VALUE;
    }
    flight_renew(executable);
    *out = executable;
    *result = INSTANTIATED;
    return OK;
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph,
                                            unsigned long long flags) {
    ENTER(cuGraphInstantiateWithFlags, UNSAFE);
    int result;
    return leave(flags & UPLOAD ? INVALID_VALUE : instantiate(out, graph, flags, &result));
}

/* A node of a cycle, to be named: one that the others of its graph cannot be put in order
 * without. */
static struct node *offender(struct graph *graph) {
    struct node **order = alloc_need((graph->node_count + 1) * sizeof *order), *found = NULL;
    if (!graph_order(graph, order) && graph->node_count > 0) {
        uint64_t mark = ++sim.next_id;
        struct node *at = graph->nodes[0];
        for (size_t i = 0; i < graph->node_count; i++)
            if (graph->nodes[i]->before.count > 0) at = graph->nodes[i];
        while (at->mark != mark && at->before.count > 0) {
            at->mark = mark;
            at = at->before.nodes[0];
        }
        found = at;
    }
    free(order);
    return found;
}

EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph_handle,
                                             struct instantiate_params *params) {
    ENTER(cuGraphInstantiateWithParams, UNSAFE);
    struct stream *stream;
    CUresult code = params == NULL ? INVALID_VALUE : OK;
    if (code == OK && (params->flags & UPLOAD)) code = find_stream(params->upload, &stream);
    int result = INSTANTIATE_ERROR;
    if (code == OK) code = instantiate(out, graph_handle, params->flags, &result);
    if (params != NULL) {
        params->result = result;
        struct graph *graph = object_find(graph_handle, OBJECT_GRAPH);
        params->error = result == INVALID_STRUCTURE         ? offender(graph)
                        : result == OPERATION_NOT_SUPPORTED ? not_for_devices(graph)
                                                            : NULL;
    }
    return leave(code);
}

/* A launch in flight finishes, because its ops are in the streams, and its launch_refs keep what
 * they refer to. */
EXPORT CUresult cuGraphExecDestroy(CUgraphExec handle) {
    ENTER(cuGraphExecDestroy, UNSAFE | FREES);
    struct executable *executable = object_find(handle, OBJECT_EXECUTABLE);
    if (executable == NULL) return leave(INVALID_VALUE);
    executable_free(executable);
    return leave(OK);
}

EXPORT CUresult cuGraphExecGetFlags(CUgraphExec handle, uint64_t *out) {
    ENTER(cuGraphExecGetFlags, 0);
    const struct executable *executable = object_find(handle, OBJECT_EXECUTABLE);
    if (executable == NULL || out == NULL) return leave(INVALID_VALUE);
    *out = executable->flags & ~(uint64_t)NODE_PRIORITY; /* which an H200 does not give back */
    return leave(OK);
}

EXPORT CUresult cuGraphExecGetId(CUgraphExec handle, unsigned *out) {
    ENTER(cuGraphExecGetId, 0);
    const struct executable *executable = object_find(handle, OBJECT_EXECUTABLE);
    if (executable == NULL || out == NULL) return leave(INVALID_VALUE);
    *out = executable->id;
    return leave(OK);
}

/* --- pairing the nodes of two graphs ---
 *
 * As the manual says for updates: from the last nodes back, in the order of edges. */

struct pairing {
    struct graph *old, *new;
    struct node **partner; /* of the old graph's nodes, by place */
    /* the old graph's nodes in the order in which they found theirs: ends first */
    struct node **queue;
    bool *taken; /* of the new graph's nodes, by place */
    int result;
    struct node *error, *error_from; /* in the new graph */
};

static size_t find_ends(struct graph *graph, struct node **ends) {
    size_t count = 0;
    uint64_t mark = ++sim.next_id;
    for (size_t i = 0; i < graph->node_count; i++)
        for (size_t d = 0; d < graph->nodes[i]->before.count; d++)
            graph->nodes[i]->before.nodes[d]->mark = mark;
    for (size_t i = 0; i < graph->node_count; i++) {
        graph->nodes[i]->place = i;
        if (graph->nodes[i]->mark != mark) ends[count++] = graph->nodes[i];
    }
    return count;
}

static bool mismatch(struct pairing *pairing, int result, struct node *error,
                     struct node *error_from) {
    pairing->result = result;
    pairing->error = error;
    pairing->error_from = error_from;
    return false;
}

/* Pairs what the two come after; the queue collects the old graph's nodes whose turn that is. */
static bool pair_before(struct pairing *pairing, struct node *old, struct node *new,
                        size_t *queued) {
    if (old->before.count != new->before.count)
        return mismatch(pairing, TOPOLOGY_CHANGED, new, NULL);
    for (size_t i = 0; i < old->before.count; i++) {
        struct node *first = old->before.nodes[i], *second = new->before.nodes[i];
        struct node *partner = pairing->partner[first->place];
        bool same_edge = old->before.edges[i].type == new->before.edges[i].type &&
                         old->before.edges[i].from_port == new->before.edges[i].from_port;
        if (!same_edge || (partner != NULL ? partner != second : pairing->taken[second->place]))
            return mismatch(pairing, TOPOLOGY_CHANGED, new, second);
        if (partner != NULL) continue;
        pairing->partner[first->place] = second;
        pairing->taken[second->place] = true;
        pairing->queue[(*queued)++] = first;
    }
    return true;
}

static bool pair(struct pairing *pairing) {
    size_t count = pairing->old->node_count, queued = 0;
    if (count != pairing->new->node_count) return mismatch(pairing, TOPOLOGY_CHANGED, NULL, NULL);
    struct node **queue = pairing->queue, **ends = alloc_need((count + 1) * sizeof *ends);
    queued = find_ends(pairing->old, queue);
    size_t new_ends = find_ends(pairing->new, ends);
    bool fine = true;
    if (new_ends != queued)
        fine = mismatch(pairing, TOPOLOGY_CHANGED, new_ends > queued ? ends[new_ends - 1] : NULL,
                        NULL);
    for (size_t i = 0; fine && i < queued; i++) {
        pairing->partner[queue[i]->place] = ends[i];
        pairing->taken[ends[i]->place] = true;
    }
    for (size_t i = 0; fine && i < queued; i++)
        fine = pair_before(pairing, queue[i], pairing->partner[queue[i]->place], &queued);
    if (fine && queued != count) /* what no end comes after: cycles, which an executable has not */
        fine = mismatch(pairing, TOPOLOGY_CHANGED, NULL, NULL);
    free(ends);
    return fine;
}

static void refresh(struct node *old, const struct node *with);

/* With `apply` the old graph's nodes get the new ones' parameters. Without, this only finds out
 * whether they could. */
static bool update(struct pairing *pairing, bool apply) {
    size_t count = pairing->old->node_count;
    pairing->partner = alloc_need((count + 1) * sizeof *pairing->partner);
    pairing->taken = alloc_need((pairing->new->node_count + 1) * sizeof *pairing->taken);
    pairing->queue = alloc_need((count + 1) * sizeof *pairing->queue);
    bool fine = pair(pairing);
    for (size_t i = 0; fine && i < count; i++) {
        struct node *old = pairing->queue[i], *new = pairing->partner[old->place];
        int result;
        if (old->type != new->type) {
            fine = mismatch(pairing, TYPE_CHANGED, new, NULL);
        } else if (!apply && node_can_become(old, new, &result) != OK) {
            fine = mismatch(pairing, result, new, NULL);
        } else if (old->type == NODE_CHILD) {
            struct pairing inner = {.old = old->child, .new = new->child};
            fine = update(&inner, apply);
            if (!fine) mismatch(pairing, inner.result, inner.error, inner.error_from);
        } else if (apply) {
            refresh(old, new);
        }
    }
    free(pairing->partner);
    free(pairing->taken);
    free(pairing->queue);
    if (fine && apply) {
        holdings_release(pairing->old);
        holdings_copy(pairing->old, pairing->new);
    }
    return fine;
}

static void refresh(struct node *old, const struct node *with) {
    if (with->memory != NULL) return; /* it is the same */
    struct node *copy = node_copy(with, true);
    old->attributes = with->attributes;
    node_refill(old, copy);
}

/* All or nothing, and the references to user objects are those of the new graph from here on. */
static CUresult update_from(struct executable *executable, struct graph *old, struct graph *new,
                            struct update_info *info) {
    struct pairing pairing = {.old = old, .new = new};
    bool fine = update(&pairing, false);
    if (fine) {
        /* The old references outlive the new ones' coming: an object in both must not die in
         * between. */
        executable->launch_refs->references++;
        struct launch_refs *before = executable->launch_refs;
        update(&pairing, true);
        flight_renew(executable);
        launch_refs_release(before);
    }
    *info =
        (struct update_info){fine ? UPDATED : pairing.result, pairing.error, pairing.error_from};
    return fine ? OK : GRAPH_EXEC_UPDATE_FAILURE;
}

EXPORT CUresult cuGraphExecUpdate_v2(CUgraphExec handle, CUgraph graph_handle,
                                     struct update_info *info) {
    ENTER(cuGraphExecUpdate, 0);
    struct executable *executable = object_find(handle, OBJECT_EXECUTABLE);
    struct graph *graph = object_find(graph_handle, OBJECT_GRAPH);
    if (info != NULL) *info = (struct update_info){UPDATE_ERROR, NULL, NULL};
    if (executable == NULL || graph == NULL || info == NULL) return leave(INVALID_VALUE);
    return leave(update_from(executable, executable->graph, graph, info));
}

/* --- single nodes, named by those of the graph that the executable was made from --- */

static CUresult find(CUgraphExec handle, CUgraphNode node_handle, int type,
                     struct executable **executable, struct node **out) {
    *executable = object_find(handle, OBJECT_EXECUTABLE);
    const struct node *named = object_find(node_handle, OBJECT_NODE);
    if (*executable == NULL || named == NULL)
        return *executable == NULL ? INVALID_VALUE : INVALID_HANDLE;
    if (type >= 0 && named->type != type) return INVALID_VALUE;
    *out = graph_find_copy((*executable)->graph, named->id, true);
    return *out != NULL ? OK : INVALID_VALUE;
}

static CUresult set(CUgraphExec handle, CUgraphNode node_handle, const struct node_params *params) {
    struct executable *executable;
    struct node *node, *with = NULL;
    int result;
    CUresult code = find(handle, node_handle, params->type, &executable, &node);
    if (code == OK && node->type == NODE_CHILD) {
        struct graph *graph = object_find(params->u.child.graph, OBJECT_GRAPH);
        struct update_info info;
        return leave(graph != NULL && update_from(executable, node->child, graph, &info) == OK
                         ? OK
                         : INVALID_VALUE);
    }
    if (code == OK) code = node_make(params->type, params, &with);
    if (code != OK) return leave(code);
    with->attributes = node->attributes;
    if (node_can_become(node, with, &result) != OK) {
        node_free(with);
        return leave(INVALID_VALUE);
    }
    node_refill(node, with);
    return leave(OK);
}

EXPORT CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec handle, CUgraphNode node,
                                                  const struct kernel_params *params) {
    ENTER(cuGraphExecKernelNodeSetParams, 0);
    return params == NULL
               ? leave(INVALID_VALUE)
               : set(handle, node, &(struct node_params){.type = NODE_KERNEL, .u.kernel = *params});
}

EXPORT CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec handle, CUgraphNode node,
                                               const struct copy_params *params,
                                               CUcontext context) {
    ENTER(cuGraphExecMemcpyNodeSetParams, 0);
    if (params == NULL) return leave(INVALID_VALUE);
    struct node_params all = copy_node_params(params, context);
    return set(handle, node, &all);
}

EXPORT CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec handle, CUgraphNode node,
                                               const struct fill_params *params,
                                               CUcontext context) {
    ENTER(cuGraphExecMemsetNodeSetParams, 0);
    if (params == NULL) return leave(INVALID_VALUE);
    struct node_params all = fill_node_params(params, context);
    return set(handle, node, &all);
}

EXPORT CUresult cuGraphExecHostNodeSetParams(CUgraphExec handle, CUgraphNode node,
                                             const struct host_params *params) {
    ENTER(cuGraphExecHostNodeSetParams, 0);
    if (params == NULL) return leave(INVALID_VALUE);
    struct node_params all = host_node_params(params);
    return set(handle, node, &all);
}

EXPORT CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec handle, CUgraphNode node,
                                                   CUgraph child) {
    ENTER(cuGraphExecChildGraphNodeSetParams, 0);
    return set(handle, node, &(struct node_params){.type = NODE_CHILD, .u.child = {child, 0}});
}

EXPORT CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec handle, CUgraphNode node,
                                                   CUevent event) {
    ENTER(cuGraphExecEventRecordNodeSetEvent, 0);
    return set(handle, node,
               &(struct node_params){.type = NODE_RECORD_EVENT, .u.event = {event, NULL, NULL}});
}

EXPORT CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec handle, CUgraphNode node,
                                                 CUevent event) {
    ENTER(cuGraphExecEventWaitNodeSetEvent, 0);
    return set(handle, node,
               &(struct node_params){.type = NODE_WAIT_EVENT, .u.event = {event, NULL, NULL}});
}

EXPORT CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec handle, CUgraphNode node,
                                                   const struct words_params *params) {
    ENTER(cuGraphExecBatchMemOpNodeSetParams, 0);
    return params == NULL
               ? leave(INVALID_VALUE)
               : set(handle, node, &(struct node_params){.type = NODE_WORDS, .u.words = *params});
}

EXPORT CUresult cuGraphExecNodeSetParams(CUgraphExec handle, CUgraphNode node,
                                         const struct node_params *params) {
    ENTER(cuGraphExecNodeSetParams, 0);
    return node_params_valid(params) ? set(handle, node, params) : leave(INVALID_VALUE);
}

/* Only work of a GPU's can be switched off. */
static bool can_be_disabled(const struct node *node) {
    return node->type == NODE_KERNEL || node->type == NODE_COPY || node->type == NODE_FILL;
}

EXPORT CUresult cuGraphNodeSetEnabled(CUgraphExec handle, CUgraphNode node_handle,
                                      unsigned enabled) {
    ENTER(cuGraphNodeSetEnabled, 0);
    struct executable *executable;
    struct node *node;
    CUresult code = find(handle, node_handle, -1, &executable, &node);
    if (code == OK && !can_be_disabled(node)) code = INVALID_VALUE;
    if (code == OK) node->disabled = enabled == 0;
    return leave(code);
}

EXPORT CUresult cuGraphNodeGetEnabled(CUgraphExec handle, CUgraphNode node_handle, unsigned *out) {
    ENTER(cuGraphNodeGetEnabled, 0);
    struct executable *executable;
    struct node *node;
    CUresult code = out == NULL ? INVALID_VALUE : find(handle, node_handle, -1, &executable, &node);
    if (code == OK && !can_be_disabled(node)) code = INVALID_VALUE;
    if (code == OK) *out = !node->disabled;
    return leave(code);
}
