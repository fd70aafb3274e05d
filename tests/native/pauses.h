/* Random pauses at the atomic operations and unlocks of a program, for `gcc -include`.
 *
 * A thread then stops for some milliseconds in places where it would otherwise stop once in a
 * million runs, such as between two steps that another thread must not take for one.
 *
 * AIOSTREAM_TEST_SEED is where the choices begin.
 */
#ifndef AIOSTREAM_PAUSES_H
#define AIOSTREAM_PAUSES_H

#define _GNU_SOURCE /* as the files do that it comes before */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

enum { OPERATIONS_PER_PAUSE = 1500, LONGEST_PAUSE_NS = 8000000 };

__attribute__((unused)) static void pause_at_random(void) {
    static _Atomic unsigned thread_count; /* of this file's threads; each chooses differently */
    static __thread unsigned state;
    if (!state) {
        const char *seed = getenv("AIOSTREAM_TEST_SEED");
        unsigned thread = atomic_fetch_add(&thread_count, 1) + 1;
        state = thread * 2654435761u + (seed ? (unsigned)atoi(seed) : 1u) * 40503u + 1u;
    }
    state = state * 1664525u + 1013904223u;
    if ((state >> 10) % OPERATIONS_PER_PAUSE) return;
    nanosleep(&(struct timespec){.tv_nsec = (state >> 8) % LONGEST_PAUSE_NS}, NULL);
}

/* With the pause behind a change, where other threads see it already, and before a load, which then
 * finds what has changed since. */
#define PAUSE_BEHIND(operation)                                                                    \
    ({                                                                                             \
        __auto_type answer_ = operation;                                                           \
        pause_at_random();                                                                         \
        answer_;                                                                                   \
    })
#undef atomic_load
#undef atomic_store
#undef atomic_exchange
#undef atomic_compare_exchange_strong
#undef atomic_compare_exchange_weak
#undef atomic_fetch_add
#undef atomic_fetch_sub
#undef atomic_fetch_and
#define ORDER memory_order_seq_cst
#define atomic_load(at) (pause_at_random(), atomic_load_explicit(at, ORDER))
#define atomic_store(at, value) (atomic_store_explicit(at, value, ORDER), pause_at_random())
#define atomic_exchange(at, value) PAUSE_BEHIND(atomic_exchange_explicit(at, value, ORDER))
#define atomic_compare_exchange_strong(at, old, value)                                             \
    PAUSE_BEHIND(atomic_compare_exchange_strong_explicit(at, old, value, ORDER, ORDER))
#define atomic_compare_exchange_weak(at, old, value)                                               \
    PAUSE_BEHIND(atomic_compare_exchange_weak_explicit(at, old, value, ORDER, ORDER))
#define atomic_fetch_add(at, value) PAUSE_BEHIND(atomic_fetch_add_explicit(at, value, ORDER))
#define atomic_fetch_sub(at, value) PAUSE_BEHIND(atomic_fetch_sub_explicit(at, value, ORDER))
#define atomic_fetch_and(at, value) PAUSE_BEHIND(atomic_fetch_and_explicit(at, value, ORDER))
#define pthread_mutex_unlock(lock) PAUSE_BEHIND(pthread_mutex_unlock(lock))

#endif
