/* Which streams may move: the ready ring, and markers, which make the streams that wait for them
 * ready. engine.c takes them from here. */
#include "../driver.h"

#include <stdlib.h>
#include <time.h>

/* All under sim.lock. The ring holds each stream at most once (stream->ready). */
static struct stream **ring;
static size_t ring_start, ring_count, ring_space;
static pthread_cond_t wake_engine;
static bool asleep;

/* Where a seed puts an op among those that could run: a hash of the seed and of the op's place in
 * the order of enqueues, because that depends on the program alone. Numbers drawn one after another
 * would depend on how far the engine has come. */
uint64_t shuffled_place(const struct op *op) {
    uint64_t x =
        (op->sequence - sim.seed_start) * 0x9E3779B97F4A7C15u + sim.seed * 0xD1B54A32D192ED03u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

void make_ready(struct stream *stream) {
    if (stream->ready) return;
    stream->ready = true;
    if (ring_count == ring_space) {
        size_t space = ring_space ? ring_space * 2 : 64;
        struct stream **larger = alloc_need(space * sizeof *larger);
        for (size_t i = 0; i < ring_count; i++) larger[i] = ring[(ring_start + i) % ring_space];
        free(ring);
        ring = larger;
        ring_space = space;
        ring_start = 0;
    }
    ring[(ring_start + ring_count++) % ring_space] = stream;
    if (asleep) pthread_cond_signal(&wake_engine);
    asleep = false;
}

struct stream *take_ready(void) {
    if (ring_count == 0) return NULL;
    size_t best = ring_start;
    for (size_t i = 0; sim.seeded && i < ring_count; i++) {
        size_t other = (ring_start + i) % ring_space;
        const struct op *mine = ring[best]->head, *its = ring[other]->head;
        if (its == NULL || (mine != NULL && shuffled_place(its) < shuffled_place(mine)))
            best = other;
    }
    struct stream *stream = ring[best];
    ring[best] = ring[ring_start];
    ring_start = (ring_start + 1) % ring_space;
    ring_count--;
    stream->ready = false;
    return stream;
}

/* Of the engine: until a stream is ready, or until this time. */
void ready_wait(uint64_t until) {
    if (ring_count > 0) return;
    asleep = true;
    struct timespec time = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    if (until == UINT64_MAX) pthread_cond_wait(&wake_engine, &sim.lock);
    else pthread_cond_timedwait(&wake_engine, &sim.lock, &time);
    asleep = false;
}

void ready_start(void) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&wake_engine, &monotonic);
}

/* --- markers --- */

struct marker *marker_new(void) {
    struct marker *marker = alloc_need(sizeof *marker);
    marker->references = 1;
    return marker;
}

void marker_release(struct marker *marker) {
    if (--marker->references == 0) free(marker);
}

void marker_finish(struct marker *marker, uint64_t time) {
    marker->done = true;
    marker->time = time;
    wake(&marker->waiters, UINT64_MAX);
    while (marker->blocked != NULL) {
        struct stream *stream = marker->blocked;
        marker->blocked = stream->marker_next;
        make_ready(stream);
    }
}

CUresult marker_wait(struct marker *marker) {
    CUresult code = OK;
    marker->references++;
    while (!marker->done && code == OK) code = wait_on(&marker->waiters, 0);
    marker_release(marker);
    return code;
}
