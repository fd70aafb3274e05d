/* Memory operations: streams wait for words in memory and write them. The gates of tests. */
#include "../driver.h"

#include "../api.h"
#include "../graph.h"

#include <stdlib.h>
#include <string.h>

enum {
    WAIT_32 = 1,
    WRITE_32 = 2,
    FLUSH = 3,
    WAIT_64 = 4,
    WRITE_64 = 5,
    BARRIER = 6,
    REDUCTION = 8
};

/* The work of one operation. A barrier orders what is ordered here anyway. */
static CUresult make(const union word_params *params, struct op **out) {
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
        CUresult code = make(&words[i], &op);
        if (op != NULL) node_add_op(node, op);
        if (code != OK) return code;
    }
    return OK;
}

/* As a node first: that checks all of them before any is enqueued. */
static CUresult enqueue_words(CUstream handle, const union word_params *words, size_t count) {
    struct stream *stream;
    struct node *node = node_new(NODE_WORDS);
    CUresult code = word_ops(words, count, node);
    if (code == OK) code = find_stream(handle, &stream);
    if (code == OK) code = capture_forbids_legacy(stream);
    if (code == OK && stream->capture != NULL) {
        node->context = stream->context;
        return leave(capture_add_node(stream, node));
    }
    if (code == OK) code = enqueue_room(stream, LAUNCH_DEPTH);
    for (size_t i = 0; code == OK && i < count; i++) enqueue_now(stream, op_copy(node->ops[i]));
    node_free(node);
    return leave(code);
}

static CUresult enqueue_word(CUstream handle, int operation, CUdeviceptr address, uint64_t value,
                             unsigned flags) {
    union word_params params = {.word = {operation, address, value, flags, 0}};
    return enqueue_words(handle, &params, 1);
}

EXPORT CUresult cuStreamWaitValue32_v2(CUstream handle, CUdeviceptr address, uint32_t value,
                                       unsigned flags) {
    ENTER(cuStreamWaitValue32, ENQUEUES);
    return enqueue_word(handle, WAIT_32, address, value, flags);
}

EXPORT CUresult cuStreamWaitValue64_v2(CUstream handle, CUdeviceptr address, uint64_t value,
                                       unsigned flags) {
    ENTER(cuStreamWaitValue64, ENQUEUES);
    return enqueue_word(handle, WAIT_64, address, value, flags);
}

EXPORT CUresult cuStreamWriteValue32_v2(CUstream handle, CUdeviceptr address, uint32_t value,
                                        unsigned flags) {
    ENTER(cuStreamWriteValue32, ENQUEUES);
    return enqueue_word(handle, WRITE_32, address, value, flags);
}

EXPORT CUresult cuStreamWriteValue64_v2(CUstream handle, CUdeviceptr address, uint64_t value,
                                        unsigned flags) {
    ENTER(cuStreamWriteValue64, ENQUEUES);
    return enqueue_word(handle, WRITE_64, address, value, flags);
}

EXPORT CUresult cuStreamBatchMemOp_v2(CUstream handle, unsigned count,
                                      const union word_params *words, unsigned flags) {
    ENTER(cuStreamBatchMemOp, ENQUEUES);
    if (count >= MOST_WORDS || (words == NULL && count > 0) || flags != 0)
        return leave(INVALID_VALUE);
    struct stream *stream;
    if (count == 0) return leave(find_stream(handle, &stream));
    return enqueue_words(handle, words, count);
}
