/* Memory that belongs to graphs: nodes that allocate and free it.
 *
 * A node gets its address when it is made, and memory is there from then on. (A GPU maps it at the
 * first launch.) The memory counts as allocated (`live`) from a launch that does not free it until
 * the call that does. Work in streams only needs the memory to be there. So every node, in a graph
 * or in an executable, holds a reference, and so does every life until the work that ends it is
 * done.
 */
#include "../driver.h"

#include "../api.h"
#include "../graph.h"

#include <stdlib.h>
#include <string.h>

enum { USED = 0, USED_HIGH = 1, RESERVED = 2, RESERVED_HIGH = 3 }; /* CUgraphMem_attribute */

/* Under sim.lock. What graphs have, what they had since the last trim (which counts as used and
 * reserved), and the most of that. */
static size_t used[MAX_DEVICES], kept[MAX_DEVICES], most[MAX_DEVICES];

CUresult graph_memory_new(struct context *context, size_t bytes, struct graph_memory **out) {
    void *base;
    CUresult code = bytes == 0 ? INVALID_VALUE : memory_make_device(context, bytes, &base);
    if (code != OK) return code;
    struct graph_memory *memory = alloc_need(sizeof *memory);
    memory->references = 1;
    memory->device = context->device;
    memory->base = base;
    memory->bytes = bytes;
    find_allocation(base)->graph_memory = memory;
    used[memory->device] += bytes;
    if (used[memory->device] > kept[memory->device]) kept[memory->device] = used[memory->device];
    if (kept[memory->device] > most[memory->device]) most[memory->device] = kept[memory->device];
    *out = memory;
    return OK;
}

void graph_memory_release(struct graph_memory *memory) {
    if (--memory->references > 0) return;
    used[memory->device] -= memory->bytes;
    if (memory->base != NULL) { /* else it went with its context */
        find_allocation(memory->base)->graph_memory = NULL;
        memory_free_device(memory->base);
    }
    free(memory);
}

/* For a call that frees it. The life's reference is the caller's to give back when that comes to
 * pass. */
CUresult graph_memory_end(struct graph_memory *memory) {
    if (!memory->live) return INVALID_VALUE;
    memory->live = false;
    return OK;
}

bool graph_has_memory(const struct graph *graph) {
    for (size_t i = 0; i < graph->node_count; i++) {
        const struct node *node = graph->nodes[i];
        if (node->memory != NULL || (node->child != NULL && graph_has_memory(node->child)))
            return true;
    }
    return false;
}

bool graph_memory_instantiated(const struct graph *graph) {
    for (size_t i = 0; i < graph->node_count; i++) {
        const struct node *node = graph->nodes[i];
        if (node->type == NODE_ALLOC && node->memory->executables > 0) return true;
        if (node->child != NULL && graph_memory_instantiated(node->child)) return true;
    }
    return false;
}

static bool frees(const struct executable *executable, const struct graph_memory *memory,
                  int type) {
    for (size_t i = 0; i < executable->step_count; i++) {
        const struct node *node = executable->steps[i].node;
        if (node != NULL && node->type == type && node->memory == memory) return true;
    }
    return false;
}

/* Before a launch: what it allocates must be free, unless the executable frees it first, and what
 * it only frees must not be. */
CUresult graph_memory_can_launch(const struct executable *executable, bool frees_first) {
    for (size_t i = 0; i < executable->step_count; i++) {
        const struct node *node = executable->steps[i].node;
        if (node != NULL && node->type == NODE_ALLOC && node->memory->live && !frees_first)
            return INVALID_VALUE;
        if (node != NULL && node->type == NODE_FREE && !node->memory->live &&
            !frees(executable, node->memory, NODE_ALLOC))
            return INVALID_VALUE;
    }
    return OK;
}

/* Of a launch that comes: each life has its reference, which a free node's op gives back. */
void graph_memory_launch(const struct executable *executable) {
    for (size_t i = 0; i < executable->step_count; i++) {
        const struct node *node = executable->steps[i].node;
        if (node == NULL || (node->type != NODE_ALLOC && node->type != NODE_FREE)) continue;
        bool freed = frees(executable, node->memory, NODE_FREE);
        if (node->type == NODE_ALLOC && !node->memory->live) node->memory->references++;
        node->memory->live = !freed;
    }
}

/* --- nodes --- */

CUresult make_alloc(struct node *node, const struct alloc_params *params) {
    const struct pool_props *props = &params->props;
    bool valid = props->allocation != 0 && props->location.type != 0 && params->bytes > 0;
    CUresult code = !valid                                                ? INVALID_VALUE
                    : props->allocation == 1 && props->location.type == 1 ? OK
                                                                          : NOT_SUPPORTED;
    if (code == OK && (props->location.id < 0 || props->location.id >= sim.device_count))
        code = INVALID_VALUE;
    if (code == OK && props->handles != 0) code = NOT_SUPPORTED;
    struct context *context;
    if (code == OK) code = current_context(&context);
    if (code == OK && context->device != props->location.id)
        code = NOT_SUPPORTED; /* memory of another device than the current context's */
    return code == OK ? graph_memory_new(context, params->bytes, &node->memory) : code;
}

CUresult make_free(struct node *node, CUdeviceptr address) {
    const struct allocation *found = find_allocation((void *)(uintptr_t)address);
    if (found == NULL || found->base != address || found->graph_memory == NULL)
        return INVALID_VALUE;
    node->memory = found->graph_memory;
    node->memory->references++;
    struct op *op = op_new(OP_FREE, 0);
    op->u.memory = (void *)found->base;
    node_add_op(node, op);
    return OK;
}

void describe_memory(const struct node *node, struct alloc_params *out) {
    *out = (struct alloc_params){.props = {.allocation = 1, .location = {1, node->memory->device}},
                                 .bytes = node->memory->bytes,
                                 .address = (uintptr_t)node->memory->base};
}

/* For cuMemAllocAsync and cuMemFreeAsync on a stream that captures. */
CUresult graph_memory_capture(struct stream *stream, size_t bytes, CUdeviceptr *out) {
    struct node *node = node_new(NODE_ALLOC);
    CUresult code = stream->capture->invalid ? CAPTURE_INVALIDATED : OK;
    if (code == OK) /* NVIDIA's own tests allocate nothing in a graph, too */
        code = graph_memory_new(stream->context, bytes > 0 ? bytes : 1, &node->memory);
    if (code != OK) {
        node_free(node);
        return code;
    }
    node->context = stream->context;
    *out = (uintptr_t)node->memory->base;
    return capture_add_node(stream, node);
}

CUresult graph_memory_capture_free(struct stream *stream, CUdeviceptr address) {
    struct node *node = node_new(NODE_FREE);
    CUresult code = make_free(node, address);
    if (code != OK) {
        node_free(node);
        return code;
    }
    node->context = stream->context;
    return capture_add_node(stream, node);
}

/* --- the devices' accounts --- */

EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int which, void *out) {
    ENTER(cuDeviceGetGraphMemAttribute, 0);
    if (device < 0 || device >= sim.device_count) return leave(INVALID_DEVICE);
    if (out == NULL || which < USED || which > RESERVED_HIGH) return leave(INVALID_VALUE);
    uint64_t value = which == USED || which == RESERVED ? kept[device] : most[device];
    memcpy(out, &value, sizeof value);
    return leave(OK);
}

EXPORT CUresult cuDeviceSetGraphMemAttribute(CUdevice device, int which, void *value) {
    ENTER(cuDeviceSetGraphMemAttribute, 0);
    uint64_t number = 1;
    if (device < 0 || device >= sim.device_count) return leave(INVALID_DEVICE);
    if (value != NULL) memcpy(&number, value, sizeof number);
    if (number != 0 || (which != USED_HIGH && which != RESERVED_HIGH)) return leave(INVALID_VALUE);
    most[device] = kept[device];
    return leave(OK);
}

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device) {
    ENTER(cuDeviceGraphMemTrim, 0);
    if (device < 0 || device >= sim.device_count) return leave(INVALID_DEVICE);
    kept[device] = used[device];
    return leave(OK);
}
