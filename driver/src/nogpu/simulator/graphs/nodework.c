/* The work of a graph's node: its parameters become ops, as patterns for each launch, and ops
 * become parameters again. nodes.c has the calls of the driver.
 */
#include "../driver.h"

#include "../graph.h"

#include <string.h>

static CUresult make_kernel(struct node *node, const struct kernel_params *params) {
    const struct function *function =
        object_find(params->function != NULL ? params->function : params->kernel, OBJECT_FUNCTION);
    if (function == NULL) return INVALID_HANDLE;
    CUresult code = kernel_context(function, params->context, &node->context);
    struct op *op = code == OK ? kernel_op(params, function) : NULL;
    if (op == NULL) return code == OK ? INVALID_VALUE : code;
    node_add_op(node, op);
    node_describe_kernel(node);
    attributes_start(&node->attributes, 0);
    return OK;
}

static CUresult chosen_context(CUcontext handle, struct context **out) {
    return handle == NULL ? current_context(out) : find_context(handle, out);
}

/* Where the copy begins at this end. Arrays are not simulated. A pitch of 0 becomes that of rows
 * without a gap, as on an H200, which ignores the level of detail of what is no array. */
static CUresult end_of(struct copy_end *end, const struct copy_params *params, char **out) {
    if (end->type == 3) return NOT_SUPPORTED;
    if (end->type != 1 && end->type != 2 && end->type != 4) return INVALID_VALUE;
    if (end->x > SIZE_MAX - params->width) return INVALID_VALUE;
    if (end->pitch == 0) end->pitch = end->x + params->width;
    if (end->x + params->width > end->pitch || (params->depth > 1 && end->height < params->height))
        return INVALID_VALUE;
    char *base = end->type == 1 ? end->host : (char *)(uintptr_t)end->device;
    *out = base + end->x + end->y * end->pitch + end->z * end->pitch * end->height;
    return base != NULL ? OK : INVALID_VALUE;
}

/* A device's memory must be there, from the first row to this one. A host pointer is trusted unless
 * it lies in memory that we know. */
static CUresult check_end(const struct copy_end *end, const char *first, const char *at,
                          size_t bytes, bool *known) {
    *known = find_allocation(first) != NULL;
    if (!*known) return end->type == 2 ? INVALID_VALUE : OK;
    return check_device_memory((uintptr_t)first, (size_t)(at - first) + bytes);
}

static CUresult make_copy(struct node *node, const struct copy_params *given, CUcontext context) {
    char *from, *to;
    struct copy_params copy = *given, *params = &copy; /* whose pitches may change */
    CUresult code = chosen_context(context, &node->context);
    if (code == OK && (params->width == 0 || params->height == 0 || params->depth == 0))
        code = INVALID_VALUE;
    if (code == OK) code = end_of(&params->from, params, &from);
    if (code == OK) code = end_of(&params->to, params, &to);
    for (size_t z = 0; code == OK && z < params->depth; z++)
        for (size_t y = 0; code == OK && y < params->height; y++) {
            if (!alloc_ready()) return OUT_OF_MEMORY;
            struct op *op = op_new(OP_COPY, 0);
            node_add_op(node, op);
            op->u.copy.from = from + (z * params->from.height + y) * params->from.pitch;
            op->u.copy.to = to + (z * params->to.height + y) * params->to.pitch;
            op->u.copy.bytes = params->width;
            code = check_end(&params->from, from, op->u.copy.from, params->width,
                             &op->u.copy.known_from);
            if (code == OK)
                code =
                    check_end(&params->to, to, op->u.copy.to, params->width, &op->u.copy.known_to);
        }
    node->copy = *given;
    return code;
}

static CUresult make_fill(struct node *node, const struct fill_params *params) {
    unsigned width = params->width;
    CUresult code = chosen_context(params->context, &node->context);
    bool valid = (width == 1 || width == 2 || width == 4) && params->to % width == 0 &&
                 params->count > 0 && params->height > 0 && params->count <= SIZE_MAX / width &&
                 (params->height == 1 ||
                  (params->pitch >= params->count * width && params->pitch % width == 0));
    if (code == OK && !valid) code = INVALID_VALUE;
    for (size_t y = 0; code == OK && y < params->height; y++) {
        if (!alloc_ready()) return OUT_OF_MEMORY;
        struct op *op = op_new(OP_FILL, 0);
        node_add_op(node, op);
        op->u.fill.to = (void *)(uintptr_t)(params->to + y * params->pitch);
        op->u.fill.value = params->value;
        op->u.fill.width = width;
        op->u.fill.count = params->count;
        code = check_device_memory((uintptr_t)op->u.fill.to, params->count * width);
    }
    node->fill = *params;
    return code;
}

static CUresult make_host(struct node *node, const struct host_params *params) {
    if (params->function == NULL || params->sync_mode > 1) return INVALID_VALUE;
    if (params->green != NULL) return NOT_SUPPORTED;
    CUresult code = params->context != NULL ? find_context(params->context, &node->context) : OK;
    struct op *op = op_new(OP_HOST, 0);
    op->u.host.host = params->function;
    op->u.host.user_data = params->user_data;
    node_add_op(node, op);
    return code;
}

static CUresult make_child(struct node *node, CUgraph handle, int ownership) {
    struct graph *graph = object_find(handle, OBJECT_GRAPH);
    if (graph == NULL || ownership < 0 || ownership > 1) return INVALID_VALUE;
    if (ownership == 1 && (graph->owner != NULL || capture_inside(graph) != NULL))
        return INVALID_VALUE;
    if (ownership == 0 && graph_has_memory(graph))
        return NOT_SUPPORTED; /* a graph that allocates cannot be copied */
    if (ownership == 0 && !graph_has_room(graph)) return OUT_OF_MEMORY;
    node->child = ownership == 1 ? graph : graph_copy(graph, false);
    node->child->owner = node;
    return OK;
}

static CUresult make_event(struct node *node, CUevent handle, CUgreenCtx green) {
    struct event *event = find_event(handle);
    if (event == NULL || green != NULL) return event == NULL ? INVALID_HANDLE : NOT_SUPPORTED;
    node->event = event;
    event->references++;
    return OK;
}

/* The work of one operation. A barrier orders what is ordered here anyway. */
static CUresult make_word(const union word_params *params, struct op **out) {
    int kind = params->operation;
    if (kind == BARRIER) {
        *out = op_new(OP_EMPTY, 0);
        return params->barrier.flags <= 1 ? OK : INVALID_VALUE;
    }
    if (kind == FLUSH || kind == REDUCTION)
        return NOT_SUPPORTED; /* no device here claims that it can */
    bool waits = kind == WAIT_32 || kind == WAIT_64;
    if (!waits && kind != WRITE_32 && kind != WRITE_64) return INVALID_VALUE;
    unsigned width = kind == WAIT_32 || kind == WRITE_32 ? 4 : 8;
    /* an H200 knows no write without a barrier */
    bool valid = waits ? (params->word.flags & ~3u) == 0 : params->word.flags == 0;
    if (!valid || params->word.address % width != 0 ||
        check_device_memory(params->word.address, width) != OK)
        return INVALID_VALUE;
    struct op *op = op_new(waits ? OP_WAIT_VALUE : OP_WRITE_VALUE, 0);
    op->u.word.address = (void *)(uintptr_t)params->word.address;
    op->u.word.value = width == 4 ? (uint32_t)params->word.value : params->word.value;
    op->u.word.width = width;
    op->u.word.flags = params->word.flags;
    *out = op;
    return OK;
}

/* Gives the node the work of all of them, and a copy of the array. The node is the caller's to free
 * on an error. */
CUresult word_ops(const union word_params *words, size_t count, struct node *node) {
    node->words = alloc_need(count * sizeof *words);
    memcpy(node->words, words, count * sizeof *words);
    for (size_t i = 0; i < count; i++) {
        struct op *op = NULL;
        CUresult code = make_word(&words[i], &op);
        if (op != NULL) node_add_op(node, op);
        if (code != OK) return code;
    }
    return OK;
}

static CUresult make_words(struct node *node, const struct words_params *params) {
    CUresult code = chosen_context(params->context, &node->context);
    if (code == OK && (params->flags != 0 || params->count == 0 || params->count >= MOST_WORDS ||
                       params->words == NULL))
        code = INVALID_VALUE;
    return code == OK ? word_ops(params->words, params->count, node) : code;
}

static CUresult make_alloc(struct node *node, const struct alloc_params *params) {
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

/* A node that is in no graph yet. */
CUresult node_make(int type, const struct node_params *params, struct node **out) {
    CUresult code;
    struct node *node = node_new(type);
    switch (type) {
    case NODE_KERNEL:
        code = make_kernel(node, &params->u.kernel);
        break;
    case NODE_COPY:
        code = make_copy(node, &params->u.copy.params, params->u.copy.context);
        break;
    case NODE_FILL:
        code = make_fill(node, &params->u.fill);
        break;
    case NODE_HOST:
        code = make_host(node, &params->u.host);
        break;
    case NODE_CHILD:
        code = make_child(node, params->u.child.graph, params->u.child.ownership);
        break;
    case NODE_EMPTY:
        code = OK;
        break;
    case NODE_WAIT_EVENT:
        code = make_event(node, params->u.event.event, NULL);
        break;
    case NODE_RECORD_EVENT:
        code = make_event(node, params->u.event.event, params->u.event.green);
        break;
    case NODE_WORDS:
        code = make_words(node, &params->u.words);
        break;
    case NODE_ALLOC:
        code = make_alloc(node, &params->u.alloc);
        break;
    case NODE_FREE:
        code = make_free(node, params->u.free);
        break;
    /* semaphores, conditions */
    default:
        code = type < 0 || type > 18 ? INVALID_VALUE : NOT_SUPPORTED;
        break;
    }
    if (code != OK) node_free(node);
    else *out = node;
    return code;
}

void node_describe(struct node *node, struct node_params *out) {
    memset(out, 0, sizeof *out);
    out->type = node->type;
    const struct op *op = node->op_count > 0 ? node->ops[0] : NULL;
    switch (node->type) {
    case NODE_KERNEL:
        out->u.kernel.function = op->u.kernel.function;
        memcpy(out->u.kernel.grid, op->u.kernel.grid, sizeof op->u.kernel.grid);
        memcpy(out->u.kernel.block, op->u.kernel.block, sizeof op->u.kernel.block);
        out->u.kernel.shared_bytes = op->u.kernel.shared_bytes;
        out->u.kernel.parameters =
            op->u.kernel.kernel->parameter_count > 0 ? node->parameters : NULL;
        out->u.kernel.context = node->context;
        break;
    case NODE_COPY:
        out->u.copy.context = node->context;
        out->u.copy.params = node->copy;
        break;
    case NODE_FILL:
        out->u.fill = node->fill;
        out->u.fill.context = node->context;
        break;
    case NODE_HOST:
        out->u.host.function = op->u.host.host;
        out->u.host.user_data = op->u.host.user_data;
        out->u.host.context = node->context;
        break;
    case NODE_CHILD:
        out->u.child.graph = node->child;
        break;
    case NODE_WAIT_EVENT:
    case NODE_RECORD_EVENT:
        out->u.event.event = node->event;
        break;
    case NODE_WORDS:
        out->u.words =
            (struct words_params){node->context, (unsigned)node->op_count, node->words, 0};
        break;
    case NODE_ALLOC:
        out->u.alloc.props.allocation = 1;
        out->u.alloc.props.location = (struct location){1, node->memory->device};
        out->u.alloc.bytes = node->memory->bytes;
        out->u.alloc.address = (uintptr_t)node->memory->base;
        break;
    case NODE_FREE:
        out->u.free = (uintptr_t)node->memory->base;
        break;
    }
}
