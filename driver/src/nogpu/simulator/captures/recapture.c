/* Recapturing: the same nodes come again, in the order in which they were made, into the graph that
 * has them. Their parameters may differ. And which parameters an executable's node can take over.
 */
#include "../driver.h"

#include "../graph.h"

#include <string.h>

struct recapture {
    CUrecaptureFn function; /* NULL: differences are taken over without asking */
    void *user_data;
    size_t position; /* of the next node, in the order of the graph */
};

/* As in the ABI: whether an executable could take the new parameters over. */
enum { ELIGIBLE = 0, INELIGIBLE = 1 };

struct recapture *recapture_new(CUrecaptureFn function, void *user_data) {
    struct recapture *recapture = alloc_need(sizeof *recapture);
    recapture->function = function;
    recapture->user_data = user_data;
    return recapture;
}

static bool same_dependencies(const struct dependencies *first, const struct dependencies *second) {
    if (first->count != second->count) return false;
    for (size_t i = 0; i < first->count; i++) {
        size_t other = 0;
        while (other < second->count && second->nodes[other] != first->nodes[i]) other++;
        if (other == second->count ||
            memcmp(&first->edges[i], &second->edges[other], sizeof *first->edges) != 0)
            return false;
    }
    return true;
}

static bool same_op(const struct op *first, const struct op *second) {
    if (first->kind != second->kind || first->payload_bytes != second->payload_bytes) return false;
    switch (first->kind) {
    case OP_KERNEL:
        return first->u.kernel.kernel == second->u.kernel.kernel &&
               memcmp(first->u.kernel.grid, second->u.kernel.grid, sizeof first->u.kernel.grid) ==
                   0 &&
               memcmp(first->u.kernel.block, second->u.kernel.block,
                      sizeof first->u.kernel.block) == 0 &&
               first->u.kernel.shared_bytes == second->u.kernel.shared_bytes &&
               memcmp(first->payload, second->payload, first->payload_bytes) == 0;
    case OP_COPY:
        return first->u.copy.to == second->u.copy.to && first->u.copy.from == second->u.copy.from &&
               first->u.copy.bytes == second->u.copy.bytes;
    case OP_FILL:
        return first->u.fill.to == second->u.fill.to &&
               first->u.fill.value == second->u.fill.value &&
               first->u.fill.width == second->u.fill.width &&
               first->u.fill.count == second->u.fill.count;
    case OP_HOST:
        return first->u.host.host == second->u.host.host &&
               first->u.host.user_data == second->u.host.user_data;
    case OP_WAIT_VALUE:
    case OP_WRITE_VALUE:
        return first->u.word.address == second->u.word.address &&
               first->u.word.value == second->u.word.value &&
               first->u.word.width == second->u.word.width &&
               first->u.word.flags == second->u.word.flags;
    default:
        return true;
    }
}

static bool same_work(const struct node *first, const struct node *second) {
    if (first->context != second->context || first->event != second->event ||
        first->op_count != second->op_count)
        return false;
    for (size_t i = 0; i < first->op_count; i++)
        if (!same_op(first->ops[i], second->ops[i])) return false;
    /* a child graph's contents are not compared: it counts as different */
    return first->child == NULL;
}

/* --- what may change in an executable's node --- */

/* Where memory is: on a device, in a context's pinned memory, or anywhere else. */
static bool same_place(const void *old, const void *new) {
    const struct allocation *first = find_allocation(old), *second = find_allocation(new);
    if (first == NULL || second == NULL) return first == second;
    return first->device == second->device && first->context == second->context &&
           first->kind == second->kind;
}

static bool copy_can_become(const struct node *old, const struct node *new) {
    return old->op_count == 1 && new->op_count == 1 &&
           same_place(old->ops[0]->u.copy.from, new->ops[0]->u.copy.from) &&
           same_place(old->ops[0]->u.copy.to, new->ops[0]->u.copy.to);
}

static bool fill_can_become(const struct node *old, const struct node *new) {
    bool one = old->fill.height == 1 && new->fill.height == 1;
    bool same = old->fill.height == new->fill.height && old->fill.count == new->fill.count &&
                old->fill.width == new->fill.width && old->fill.pitch == new->fill.pitch;
    return (one || same) && same_place(old->ops[0]->u.fill.to, new->ops[0]->u.fill.to);
}

static bool words_can_become(const struct node *old, const struct node *new) {
    if (old->op_count != new->op_count || old->context != new->context) return false;
    for (size_t i = 0; i < old->op_count; i++)
        if (old->words[i].operation != new->words[i].operation) return false;
    return true;
}

CUresult node_can_become(const struct node *old, const struct node *new, int *result) {
    *result = PARAMETERS_CHANGED;
    switch (old->type) {
    case NODE_KERNEL:
        *result = old->context != new->context                                 ? FUNCTION_CHANGE
                  : old->attributes.cooperative != new->attributes.cooperative ? ATTRIBUTES_CHANGED
                                                                               : UPDATED;
        break;
    case NODE_COPY:
        *result = copy_can_become(old, new) ? UPDATED : PARAMETERS_CHANGED;
        break;
    case NODE_FILL:
        *result = fill_can_become(old, new) ? UPDATED : PARAMETERS_CHANGED;
        break;
    case NODE_WORDS:
        *result = words_can_become(old, new) ? UPDATED : PARAMETERS_CHANGED;
        break;
    case NODE_ALLOC:
    case NODE_FREE:
        *result = old->memory == new->memory ? UPDATED : PARAMETERS_CHANGED;
        break;
    default:
        *result = UPDATED;
    }
    return *result == UPDATED ? OK : GRAPH_EXEC_UPDATE_FAILURE;
}

/* --- asking the program --- */

/* Asks the program, without the lock. Neither node can go meanwhile: a graph that is captured into
 * keeps its nodes. */
static CUresult ask(const struct recapture *recapture, struct node *before, struct node *now) {
    struct node_params first, second;
    int result, status = node_can_become(before, now, &result) == OK ? ELIGIBLE : INELIGIBLE;
    CUrecaptureFn function = recapture->function;
    void *user_data = recapture->user_data;
    if (function == NULL) return OK;
    node_describe(before, &first);
    node_describe(now, &second);
    pthread_mutex_unlock(&sim.lock);
    CUresult code = function(user_data, before, &first, &second, status);
    pthread_mutex_lock(&sim.lock);
    return code;
}

CUresult recapture_node(struct stream *stream, struct node *node, struct node **out) {
    struct capture *capture = stream->capture;
    struct graph *graph = capture->graph;
    size_t at = capture->recapture->position;
    struct node *before = at < graph->node_count ? graph->nodes[at] : NULL;
    if (before == NULL || before->type != node->type ||
        !same_dependencies(&before->before, &stream->dependencies)) {
        node_free(node);
        capture_invalidate(capture);
        return GRAPH_RECAPTURE_FAILURE;
    }
    capture->references++; /* the capture may be ended while the program is asked */
    CUresult code = same_work(before, node) ? OK : ask(capture->recapture, before, node);
    bool ended = capture->ended;
    capture_release(capture);
    if (code != OK || ended) {
        node_free(node);
        if (!ended) capture_invalidate(capture);
        return ended ? CAPTURE_INVALIDATED : GRAPH_RECAPTURE_FAILURE;
    }
    capture->recapture->position++;
    before->attributes = node->attributes;
    node_refill(before, node);
    *out = before;
    return OK;
}

/* Whether all of the graph's nodes have come again. */
CUresult recapture_end(struct capture *capture) {
    return capture->recapture->position == capture->graph->node_count ? OK
                                                                      : GRAPH_RECAPTURE_FAILURE;
}
