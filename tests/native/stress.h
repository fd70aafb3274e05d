/* What the stresses share: how they end when a promise is broken, and their dice. */
#ifndef AIOSTREAM_STRESS_H
#define AIOSTREAM_STRESS_H

#include "handles.h"
#include "policy.h"
#include "waits.h"
#include "watcher.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void broken(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fflush(stdout); /* what went well before shows where it broke */
    fprintf(stderr, "broken: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    _Exit(1);
}

#define REQUIRE(condition, ...)                                                                    \
    do {                                                                                           \
        if (!(condition)) broken(__VA_ARGS__);                                                     \
    } while (0)

static inline const struct strategy *strategy_named(const char *name) {
    for (int i = 0; i < strategy_count; i++)
        if (!strcmp(strategies[i].name, name)) return &strategies[i];
    broken("there is no strategy %s", name);
    return NULL;
}

#define WAIT_AUTO strategy_named("auto")
#define WAIT_EVENT strategy_named("event")
#define WAIT_SPIN strategy_named("spin")

static _Thread_local uint64_t random_state = 88172645463325252ull;

static uint32_t chance(uint32_t of) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32) % of;
}

static void seed_thread(uint64_t seed, uint64_t number) {
    random_state = (seed + 1) * 0x9e3779b97f4a7c15ull ^ (number + 1) * 0xbf58476d1ce4e5b9ull;
    for (int i = 0; i < 8; i++) chance(2);
}

/* Waits with a task, as the loops count them. */
static inline int waits_pending(void) {
    struct queue *queue;
    int pending = 0;
    for (int i = 0; (queue = queue_at(i)); i++) pending += atomic_load(&queue->waits);
    return pending;
}

#endif
