/* The files of the library with memory that interleavings.c has to know. Compiled, as the other
 * files are, for explore.h. */
#include "contexts.c"
#include "queues.c"

/* How late a loop is. How long its next wait is polled depends on that, and nothing else. */
bool is_lateness(const struct queue *queue, const void *address) {
    return address == &queue->pushed || address == &queue->lateness ||
           address == &queue->lateness_noted;
}

/* How many points are pending. Only the watcher reads that. */
bool is_pending(const void *address) {
    const char *first = (const char *)contexts, *end = (const char *)(contexts + MAX_CONTEXTS);
    return address == &pending_total ||
           ((const char *)address >= first && (const char *)address < end);
}

const size_t queue_size = sizeof(struct queue);
