/* Memory operations: streams wait for words in memory and write them. The gates of tests. */
#include "../driver.h"

#include "../api.h"
#include "../graph.h"

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
