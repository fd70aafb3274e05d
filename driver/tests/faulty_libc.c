/* Preloaded (LD_PRELOAD): counts the calls that fail if a machine has no memory, descriptors or
 * threads left, and fails the n-th.
 *
 * Allocations count only if the library under test asked for them, so that Python is not hit. The
 * other calls count from any library, because Python's threads and the loops' descriptors are the
 * library's too. Those of the simulated driver do not count. faulty_watch() and faulty_exempt() set
 * the two libraries.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>

#define EXPORT __attribute__((visibility("default")))

enum function {
    ALLOCATION,
    EVENTFD,
    EPOLL_CREATE1,
    EPOLL_CTL,
    TIMERFD_CREATE,
    PTHREAD_CREATE,
    FUNCTIONS
};

/* which call fails, counted as `counts` does; 0: none. Any thread */
static _Atomic long counts[FUNCTIONS], failing[FUNCTIONS];
struct range { uintptr_t begin, end; };
static struct range watched, exempt; /* written before any fault is armed */

EXPORT long faulty_count(int function) { return atomic_load(&counts[function]); }

/* The n-th call from now on fails; 0: none does. Returns whether the one that was to fail before
 * has come. */
EXPORT int faulty_fail(int function, long nth) {
    long before =
        atomic_exchange(&failing[function], nth > 0 ? atomic_load(&counts[function]) + nth : 0);
    return before > 0 && atomic_load(&counts[function]) >= before;
}

/* The n-th call from now on fails, and all that follow, until the next of these two. */
static _Atomic bool for_good[FUNCTIONS];
EXPORT void faulty_fail_on(int function, long nth) {
    atomic_store(&for_good[function], nth > 0);
    faulty_fail(function, nth);
}

struct search {
    const char *name;
    struct range *found;
};

static int find_library(struct dl_phdr_info *info, size_t size, void *argument) {
    (void)size;
    const struct search *search = argument;
    if (!info->dlpi_name || !strstr(info->dlpi_name, search->name)) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X)) continue;
        search->found->begin = info->dlpi_addr + part->p_vaddr;
        search->found->end = search->found->begin + part->p_memsz;
    }
    return 1;
}

/* From now on the allocations of the library of this name count; from now on nothing of the other
 * one does. 0: it is not loaded. */
EXPORT int faulty_watch(const char *name) {
    return dl_iterate_phdr(find_library, &(struct search){name, &watched});
}
EXPORT int faulty_exempt(const char *name) {
    return dl_iterate_phdr(find_library, &(struct search){name, &exempt});
}

static bool is_in(struct range range, void *caller) {
    return (uintptr_t)caller >= range.begin && (uintptr_t)caller < range.end;
}

static bool fails(enum function function) {
    long number = atomic_fetch_add(&counts[function], 1) + 1;
    long first = atomic_load(&failing[function]);
    return number == first || (atomic_load(&for_good[function]) && first > 0 && number > first);
}

static bool allocation_fails(void *caller) {
    if (!is_in(watched, caller) || !fails(ALLOCATION)) return false;
    errno = ENOMEM;
    return true;
}

/* glibc's own names: dlsym() would allocate before the first allocation could be answered. */
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);

EXPORT void *malloc(size_t size) {
    return allocation_fails(__builtin_return_address(0)) ? NULL : __libc_malloc(size);
}
EXPORT void *calloc(size_t count, size_t size) {
    return allocation_fails(__builtin_return_address(0)) ? NULL : __libc_calloc(count, size);
}
EXPORT void *realloc(void *old, size_t size) {
    return allocation_fails(__builtin_return_address(0)) ? NULL : __libc_realloc(old, size);
}

#include <dlfcn.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int refuse(int error) {
    errno = error;
    return -1;
}

extern int eventfd(unsigned, int), timerfd_create(int, int);

EXPORT int eventfd(unsigned value, int flags) {
    return fails(EVENTFD) ? refuse(EMFILE) : REAL(eventfd)(value, flags);
}
EXPORT int timerfd_create(int clock, int flags) {
    return fails(TIMERFD_CREATE) ? refuse(EMFILE) : REAL(timerfd_create)(clock, flags);
}
EXPORT int epoll_create1(int flags) {
    return fails(EPOLL_CREATE1) ? refuse(EMFILE) : REAL(epoll_create1)(flags);
}
EXPORT int epoll_ctl(int epoll, int operation, int descriptor, struct epoll_event *event) {
    if (operation == EPOLL_CTL_ADD && fails(EPOLL_CTL)) return refuse(ENOSPC);
    return REAL(epoll_ctl)(epoll, operation, descriptor, event);
}
EXPORT int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*function)(void *), void *argument) {
    bool is_exempt = is_in(exempt, __builtin_return_address(0));
    return !is_exempt && fails(PTHREAD_CREATE)
               ? EAGAIN
               : REAL(pthread_create)(thread, attributes, function, argument);
}
