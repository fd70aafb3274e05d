/* Hardware queues: a device has a few (CUDA_DEVICE_MAX_CONNECTIONS), and a pending host function or
 * memory operation holds one.
 *
 * The model. A stream with such an op pending is a *request*, dated by the sequence number of the
 * first such op. The N oldest requests of a device have its N queues. While all are held, an op
 * waits in two cases:
 *
 *   - its stream is a request without a queue, and the ops with the N queues are all older than it;
 *   - its stream is no request, and the op that holds "its" queue (stream id mod N) is older.
 *
 * An op waits only for an op that was enqueued earlier, and events only ever point backwards too.
 * So the oldest unfinished op can always move, and only the outside (a gate's memory word) can hold
 * everything. On the H200, 128 streams of a 5 ms kernel each make 1,600 completions per second with
 * a host function behind every kernel, and 23,000 with an event.
 */
#include "../driver.h"

#include <string.h>

bool needs_queue(const struct op *op) {
    switch (op->kind) {
    case OP_HOST:
    case OP_CALLBACK:
    case OP_WAIT_VALUE:
    case OP_WRITE_VALUE:
        return true;
    case OP_RECORD:
        return op->u.mark.needs_queue; /* of a blocking-sync event */
    default:
        return false;
    }
}

static struct device *device_of(const struct stream *stream) {
    return &sim.devices[stream->context->device];
}

static uint64_t date(const struct stream *stream) { return stream->first_needing->sequence; }

/* Requests are sorted by date. New ones are nearly always the youngest, so look from the end. */
static void insert(struct stream *stream) {
    struct device *device = device_of(stream);
    device->requests = alloc_room(device->requests, device->request_count, &device->request_space,
                                  sizeof *device->requests);
    size_t i = device->request_count++;
    for (; i > 0 && date(device->requests[i - 1]) > date(stream); i--)
        device->requests[i] = device->requests[i - 1];
    device->requests[i] = stream;
}

static void take_out(struct stream *stream) {
    struct device *device = device_of(stream);
    for (size_t i = 0; i < device->request_count; i++)
        if (device->requests[i] == stream) {
            device->request_count--;
            memmove(&device->requests[i], &device->requests[i + 1],
                    (device->request_count - i) * sizeof *device->requests);
            return;
        }
}

static void look_again(int device) {
    for (size_t c = 0; c < sim.context_count; c++)
        if (sim.contexts[c]->device == device)
            for (struct stream *stream = sim.contexts[c]->streams; stream != NULL;
                 stream = stream->next)
                if (stream->queue_blocked) make_ready(stream);
}

void queue_request(struct stream *stream, struct op *op) {
    op->next_needing = NULL;
    if (stream->first_needing != NULL) {
        stream->last_needing->next_needing = op;
        stream->last_needing = op;
        return;
    }
    stream->first_needing = stream->last_needing = op;
    insert(stream);
}

/* The stream's first holding op is done. Its next one, if any, queues up by its own date, because a
 * queue kept under the old date could hold up the work that the op depends on. */
void queue_release(struct stream *stream, struct op *op) {
    bool full = device_of(stream)->request_count >= sim.queues;
    take_out(stream);
    stream->first_needing = op->next_needing;
    if (stream->first_needing != NULL) insert(stream);
    else stream->last_needing = NULL;
    if (full) /* otherwise no stream was waiting */
        look_again(stream->context->device);
}

/* The stream's queue was abandoned. */
void queue_unregister(struct stream *stream) {
    if (stream->first_needing == NULL) return;
    take_out(stream);
    stream->first_needing = stream->last_needing = NULL;
}

bool queue_blocks(struct stream *stream, const struct op *op) {
    const struct device *device = device_of(stream);
    if (sim.queues == 0 || device->request_count < sim.queues) return false;
    if (stream->first_needing == NULL)
        return date(device->requests[stream->id % sim.queues]) < op->sequence;
    const struct stream *youngest = device->requests[sim.queues - 1];
    return date(stream) > date(youngest) && date(youngest) < op->sequence;
}
