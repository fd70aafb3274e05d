/* Copies and fills of several rows: 2D and 3D, on streams. Each row is an op of its own; together
 * they count as one launch. */
#include "../driver.h"

#include "../api.h"
#include "../graph.h"

#include <string.h>

/* As asynchronous copies of one row: a pageable source is read now; a copy to pageable memory is
 * carried out before the call returns. */
static struct op *row_of(const struct op *pattern, bool snapshot) {
    if (!snapshot) return op_copy(pattern);
    struct op *op = op_new(OP_COPY, pattern->u.copy.bytes);
    op->u = pattern->u;
    memcpy(op->payload, pattern->u.copy.from, pattern->u.copy.bytes);
    op->u.copy.from = op->payload;
    return op;
}

static CUresult enqueue_rows(struct stream *stream, struct node *node, bool wait) {
    CUresult code = enqueue_room(stream, LAUNCH_DEPTH);
    size_t row =
        node->op_count > 0 && node->ops[0]->kind == OP_COPY ? node->ops[0]->u.copy.bytes : 0;
    if (code == OK && !alloc_has(node->op_count, sizeof(struct op) + row)) code = OUT_OF_MEMORY;
    bool pageable_to = false;
    for (size_t i = 0; code == OK && i < node->op_count; i++) {
        const struct op *pattern = node->ops[i];
        bool copies = pattern->kind == OP_COPY;
        struct op *op = row_of(pattern, copies && !wait && !pattern->u.copy.known_from);
        pageable_to = pageable_to || (copies && !pattern->u.copy.known_to);
        op->counted = i == 0;
        enqueue_now(stream, op);
    }
    node_free(node);
    return code == OK && (wait || pageable_to) ? stream_wait(stream, stream->tail->sequence) : code;
}

/* The work is that of a graph's node. Under capture it becomes one. `params` ends with the context,
 * which is the stream's. */
static CUresult submit(CUstream handle, struct node_params *params, bool wait) {
    struct stream *stream;
    struct node *node;
    CUresult code = find_stream(handle, &stream);
    if (code == OK) code = capture_forbids_legacy(stream);
    if (code != OK) return leave(code);
    if (stream->capture != NULL && wait) return leave(capture_unsupported(stream));
    if (params->type == NODE_COPY) params->u.copy.context = stream->context;
    else params->u.fill.context = stream->context;
    code = node_make(params->type, params, &node);
    if (code != OK) return leave(code);
    return leave(stream->capture != NULL ? capture_add_node(stream, node)
                                         : enqueue_rows(stream, node, wait));
}

/* --- copies --- */

static CUresult copy(CUstream stream, const struct copy_params *params, bool wait) {
    if (params == NULL) return leave(INVALID_VALUE);
    if (params->width == 0 || params->height == 0 || params->depth == 0) return leave(OK);
    struct node_params node = copy_node_params(params, NULL);
    return submit(stream, &node, wait);
}

static struct copy_end end_of(const struct copy_end_2d *end) {
    return (struct copy_end){.x = end->x,
                             .y = end->y,
                             .type = end->type,
                             .host = end->host,
                             .device = end->device,
                             .array = end->array,
                             .pitch = end->pitch};
}

static CUresult copy_2d(CUstream stream, const struct copy_params_2d *params, bool wait) {
    if (params == NULL) return leave(INVALID_VALUE);
    const struct copy_params all = {end_of(&params->from), end_of(&params->to), params->width,
                                    params->height, 1};
    return copy(stream, &all, wait);
}

CUresult on_cuMemcpy2D_v2(CUstream stream, const struct copy_params_2d *params) {
    ENTER(cuMemcpy2D, 0);
    return copy_2d(stream, params, true);
}

CUresult on_cuMemcpy2DUnaligned_v2(CUstream stream, const struct copy_params_2d *params) {
    ENTER(cuMemcpy2DUnaligned, 0);
    return copy_2d(stream, params, true);
}

CUresult on_cuMemcpy3D_v2(CUstream stream, const struct copy_params *params) {
    ENTER(cuMemcpy3D, 0);
    return copy(stream, params, true);
}

EXPORT CUresult cuMemcpy2DAsync_v2(const struct copy_params_2d *params, CUstream stream) {
    ENTER(cuMemcpy2DAsync, ENQUEUES);
    return copy_2d(stream, params, false);
}

EXPORT CUresult cuMemcpy3DAsync_v2(const struct copy_params *params, CUstream stream) {
    ENTER(cuMemcpy3DAsync, ENQUEUES);
    return copy(stream, params, false);
}

/* --- fills --- */

static CUresult fill(CUstream stream, CUdeviceptr to, size_t pitch, unsigned value, unsigned width,
                     size_t count, size_t height, bool wait) {
    if (count == 0 || height == 0) return leave(OK);
    struct node_params node = {.type = NODE_FILL,
                               .u.fill = {to, pitch, value, width, count, height, NULL}};
    return submit(stream, &node, wait);
}

#define FILLS(name, type, width)                                                                   \
    CUresult on_##name##_v2(CUstream stream, CUdeviceptr to, size_t pitch, type value,             \
                            size_t count, size_t height) {                                         \
        ENTER(name, 0);                                                                            \
        ;                                                                                          \
        return fill(stream, to, pitch, value, width, count, height, true);                         \
    }                                                                                              \
    EXPORT CUresult name##Async(CUdeviceptr to, size_t pitch, type value, size_t count,            \
                                size_t height, CUstream stream) {                                  \
        ENTER(name##Async, ENQUEUES);                                                              \
        return fill(stream, to, pitch, value, width, count, height, false);                        \
    }
FILLS(cuMemsetD2D8, unsigned char, 1)
FILLS(cuMemsetD2D16, unsigned short, 2)
FILLS(cuMemsetD2D32, unsigned, 4)
