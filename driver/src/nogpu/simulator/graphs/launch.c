/* Launching executables. Their nodes are laid out on the launch's stream and on hidden streams, as
 * in a capture that forks and joins. So everything that holds for streams, faults and hardware
 * queues included, holds for graphs. */
#include "../driver.h"

#include "../api.h"
#include "../graph.h"

#include <stdlib.h>

/* --- what executables and their launches keep alive --- */

static size_t count_objects(const struct graph *graph) {
    size_t count = graph->holding_count;
    for (size_t i = 0; i < graph->node_count; i++)
        if (graph->nodes[i]->child != NULL) count += count_objects(graph->nodes[i]->child);
    return count;
}

static void collect_objects(const struct graph *graph, struct launch_refs *launch_refs) {
    for (size_t i = 0; i < graph->holding_count; i++) {
        user_object_retain(graph->holdings[i].object);
        launch_refs->objects[launch_refs->count++] = graph->holdings[i].object;
    }
    for (size_t i = 0; i < graph->node_count; i++)
        if (graph->nodes[i]->child != NULL) collect_objects(graph->nodes[i]->child, launch_refs);
}

/* For the launches to come. Those in flight keep what they have. */
void flight_renew(struct executable *executable) {
    struct launch_refs *launch_refs = alloc_need(
        sizeof *launch_refs + count_objects(executable->graph) * sizeof launch_refs->objects[0]);
    launch_refs->references = 1;
    collect_objects(executable->graph, launch_refs);
    if (executable->launch_refs != NULL) launch_refs_release(executable->launch_refs);
    executable->launch_refs = launch_refs;
}

/* --- laying out flat --- */

static size_t count_steps(const struct graph *graph) {
    size_t count = graph->node_count;
    for (size_t i = 0; i < graph->node_count; i++)
        if (graph->nodes[i]->child != NULL) count += 1 + count_steps(graph->nodes[i]->child);
    return count;
}

static size_t add_step(struct executable *executable, struct node *node, size_t room) {
    size_t at = executable->step_count++;
    executable->steps[at] = (struct step){node, alloc_need((room + 1) * sizeof(size_t)), 0, true};
    return at;
}

static void comes_after(struct executable *executable, size_t step, size_t before) {
    struct step *it = &executable->steps[step];
    it->before[it->before_count++] = before;
    executable->steps[before].last = false;
}

/* `entry`: the step that the graph's first nodes come after; SIZE_MAX: none. False: there is a
 * cycle. */
static bool lay_out(struct executable *executable, struct graph *graph, size_t entry) {
    struct node **order = alloc_need((graph->node_count + 1) * sizeof *order);
    /* by place: the step after which the node is done */
    size_t *ends = alloc_need((graph->node_count + 1) * sizeof *ends);
    bool whole = graph_order(graph, order);
    for (size_t i = 0; whole && i < graph->node_count; i++) {
        struct node *node = order[i];
        size_t step =
            add_step(executable, node->child != NULL ? NULL : node, node->before.count + 1);
        for (size_t d = 0; d < node->before.count; d++)
            comes_after(executable, step, ends[node->before.nodes[d]->place]);
        if (node->before.count == 0 && entry != SIZE_MAX) comes_after(executable, step, entry);
        ends[node->place] = step;
        if (node->child == NULL) continue;
        size_t place = node->place;
        whole = lay_out(executable, node->child, step);
        /* every step of the child, and the entry */
        size_t end = executable->step_count, inside = end - step;
        add_step(executable, NULL, inside);
        for (size_t s = step; s < end; s++)
            if (executable->steps[s].last) comes_after(executable, end, s);
        ends[place] = end;
    }
    free(order);
    free(ends);
    return whole;
}

bool executable_lay_out(struct executable *executable) {
    executable->steps =
        alloc_need((count_steps(executable->graph) + 1) * sizeof *executable->steps);
    executable->step_count = 0;
    return lay_out(executable, executable->graph, SIZE_MAX);
}

void executable_unlay(struct executable *executable) {
    for (size_t i = 0; i < executable->step_count; i++) free(executable->steps[i].before);
    free(executable->steps);
}

/* --- one launch --- */

#define NOWHERE SIZE_MAX

struct lane {
    struct stream *stream;
    struct context *context;
    size_t tail;
};

/* Lane 0 is the launch's stream; the others' streams are made when something is put there. */
struct launch {
    const struct executable *executable;
    struct lane *lanes;
    size_t lane_count;
    size_t *lane_of; /* by step */
    /* by step: recorded behind it; NULL: nothing on another lane waits for it */
    struct marker **marker;
    struct marker *begin;
};

static void put(const struct launch *launch, struct stream *stream, struct op *op) {
    op->launch_refs = launch->executable->launch_refs;
    op->launch_refs->references++;
    enqueue_now(stream, op);
}

static struct marker *put_record(const struct launch *launch, struct stream *stream) {
    struct op *op = op_new(OP_RECORD, 0);
    struct marker *marker = op->u.mark.marker = marker_new();
    marker->references++;
    put(launch, stream, op);
    return marker;
}

static void put_wait(const struct launch *launch, struct stream *stream, struct marker *marker) {
    if (marker->done) return;
    struct op *op = op_new(OP_WAIT_EVENT, 0);
    op->u.mark.marker = marker;
    marker->references++;
    put(launch, stream, op);
}

static bool comes_right_before(const struct step *step, size_t other) {
    for (size_t i = 0; i < step->before_count; i++)
        if (step->before[i] == other) return true;
    return false;
}

/* Whether a lane that ends with `tail` can take the step without making it wait for more than it
 * must. */
static bool can_follow(const struct executable *executable, const struct step *step, size_t tail) {
    if (tail == NOWHERE || comes_right_before(step, tail)) return true;
    for (size_t i = 0; i < step->before_count; i++)
        if (comes_right_before(&executable->steps[step->before[i]], tail)) return true;
    return false;
}

static size_t choose_lane(struct launch *launch, size_t at) {
    const struct step *step = &launch->executable->steps[at];
    struct context *context = step->node != NULL ? step->node->context : NULL;
    if (context == NULL) context = launch->lanes[0].context;
    /* a lane that ends with what it comes after, if there is one */
    for (size_t i = 0; i < step->before_count; i++) {
        size_t lane = launch->lane_of[step->before[i]];
        if (launch->lanes[lane].context == context && launch->lanes[lane].tail == step->before[i])
            return lane;
    }
    for (size_t lane = 0; lane < launch->lane_count; lane++)
        if (launch->lanes[lane].context == context &&
            can_follow(launch->executable, step, launch->lanes[lane].tail))
            return lane;
    launch->lanes[launch->lane_count] = (struct lane){NULL, context, NOWHERE};
    return launch->lane_count++;
}

static void put_work(const struct launch *launch, struct stream *stream, const struct node *node) {
    if (node == NULL || node->disabled) return;
    struct op *event_op = node->type == NODE_RECORD_EVENT ? event_record_op(node->event)
                          : node->type == NODE_WAIT_EVENT ? event_wait_op(node->event, false)
                                                          : NULL;
    if (event_op != NULL) put(launch, stream, event_op);
    for (size_t i = 0; i < node->op_count; i++) put(launch, stream, op_copy(node->ops[i]));
}

static void put_step(struct launch *launch, size_t at) {
    const struct step *step = &launch->executable->steps[at];
    struct lane *lane = &launch->lanes[launch->lane_of[at]];
    if (lane->stream == NULL)
        lane->stream =
            stream_make_hidden(lane->context, launch->lanes[0].stream->attributes.priority);
    if (step->before_count == 0 && lane != &launch->lanes[0])
        put_wait(launch, lane->stream, launch->begin);
    for (size_t i = 0; i < step->before_count; i++)
        if (launch->marker[step->before[i]] != NULL &&
            launch->lane_of[step->before[i]] != launch->lane_of[at])
            put_wait(launch, lane->stream, launch->marker[step->before[i]]);
    put_work(launch, lane->stream, step->node);
    if (launch->marker[at] != NULL) { /* a mark: a step behind this one needs a record */
        launch->marker[at] = put_record(launch, lane->stream);
    }
}

static void plan(struct launch *launch) {
    static struct marker NEEDED;
    const struct executable *executable = launch->executable;
    for (size_t at = 0; at < executable->step_count; at++) {
        const struct step *step = &executable->steps[at];
        size_t lane = launch->lane_of[at] = choose_lane(launch, at);
        launch->lanes[lane].tail = at;
        if (step->last && lane != 0) launch->marker[at] = &NEEDED;
        for (size_t i = 0; i < step->before_count; i++)
            if (launch->lane_of[step->before[i]] != lane) launch->marker[step->before[i]] = &NEEDED;
    }
}

static void launch_on(struct executable *executable, struct stream *stream) {
    size_t count = executable->step_count;
    struct launch launch = {.executable = executable, .lane_count = 1};
    launch.lanes = alloc_need((count + 1) * sizeof *launch.lanes);
    launch.lane_of = alloc_need((count + 1) * sizeof *launch.lane_of);
    launch.marker = alloc_need((count + 1) * sizeof *launch.marker);
    launch.lanes[0] = (struct lane){stream, stream->context, NOWHERE};
    plan(&launch);
    struct op *begin = op_new(OP_EMPTY, 0);
    begin->counted = true; /* a launch of a graph is one launch, however much it does */
    put(&launch, stream, begin);
    if (executable->last != NULL) {
        put_wait(&launch, stream, executable->last);
        marker_release(executable->last);
    }
    launch.begin = put_record(&launch, stream);
    for (size_t at = 0; at < count; at++) put_step(&launch, at);
    for (size_t at = 0; at < count; at++)
        if (executable->steps[at].last && launch.lane_of[at] != 0)
            put_wait(&launch, stream, launch.marker[at]);
    executable->last = put_record(&launch, stream);
    marker_release(launch.begin);
    for (size_t at = 0; at < count; at++)
        if (launch.marker[at] != NULL) marker_release(launch.marker[at]);
    free(launch.lanes);
    free(launch.lane_of);
    free(launch.marker);
}

static bool contexts_live(const struct executable *executable) {
    for (size_t i = 0; i < executable->step_count; i++) {
        const struct node *node = executable->steps[i].node;
        if (node != NULL && node->context != NULL && !node->context->active) return false;
    }
    return true;
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
static CUresult graph_memory_can_launch(const struct executable *executable, bool frees_first) {
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
static void graph_memory_launch(const struct executable *executable) {
    for (size_t i = 0; i < executable->step_count; i++) {
        const struct node *node = executable->steps[i].node;
        if (node == NULL || (node->type != NODE_ALLOC && node->type != NODE_FREE)) continue;
        bool freed = frees(executable, node->memory, NODE_FREE);
        if (node->type == NODE_ALLOC && !node->memory->live) node->memory->references++;
        node->memory->live = !freed;
    }
}

EXPORT CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
    ENTER(cuGraphLaunch, ENQUEUES);
    struct executable *executable = object_find(handle, OBJECT_EXECUTABLE);
    struct stream *stream;
    CUresult code = executable == NULL ? INVALID_VALUE : find_stream(stream_handle, &stream);
    if (code == OK) code = capture_forbids_legacy(stream);
    if (code == OK && stream->capture != NULL)
        code = capture_unsupported(stream); /* an H200 makes no child graph of it */
    if (code == OK) code = enqueue_room(stream, GRAPH_DEPTH);
    if (code == OK && object_find(handle, OBJECT_EXECUTABLE) != executable)
        code = INVALID_VALUE; /* destroyed while this thread waited */
    if (code == OK && !alloc_has(executable->step_count, 2 * sizeof(struct node)))
        code = OUT_OF_MEMORY;
    if (code == OK && !contexts_live(executable)) code = CONTEXT_IS_DESTROYED;
    if (code == OK)
        code = graph_memory_can_launch(executable, executable->flags & 1 /* AUTO_FREE_ON_LAUNCH */);
    if (code == OK) {
        graph_memory_launch(executable);
        launch_on(executable, stream);
        if (sim.launch_blocking && stream->tail != NULL)
            code = stream_wait(stream, stream->tail->sequence);
    }
    return leave(code);
}

/* There is nothing to carry to a device; what remains is its place in the order. */
EXPORT CUresult cuGraphUpload(CUgraphExec handle, CUstream stream_handle) {
    ENTER(cuGraphUpload, ENQUEUES);
    struct executable *executable = object_find(handle, OBJECT_EXECUTABLE);
    struct stream *stream;
    CUresult code = executable == NULL ? INVALID_VALUE : find_stream(stream_handle, &stream);
    if (code == OK) code = capture_forbids_legacy(stream);
    if (code == OK && stream->capture != NULL) code = capture_unsupported(stream);
    if (code == OK && executable->last != NULL && !executable->last->done) {
        struct op *op = op_new(OP_WAIT_EVENT, 0);
        op->u.mark.marker = executable->last;
        executable->last->references++;
        enqueue_now(stream, op);
    }
    return leave(code);
}
