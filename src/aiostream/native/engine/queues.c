/* Completion queues: the one way by which what has happened elsewhere comes into a loop.
 *
 * Each bridge opens a queue, and its loop has a reader on the queue's descriptor. A thread that
 * fires a point (the driver's, the watcher, or the loop's own) pushes an entry, and writes the
 * eventfd if the stack was empty. The loop's thread takes the whole stack in one step, oldest
 * first, so one wake-up serves all that has arrived. What it could not deliver it puts back. If the
 * queue is closed, what lies there and what still comes goes to queue 0, the orphans', which the
 * janitor takes.
 *
 * A push takes no lock, allocates nothing, waits for nothing and knows no Python, because the
 * driver's threads push. A queue is recycled and never freed, because a thread may come late and
 * look at it. Its descriptors are closed when no point refers to it any more, unless the next loop
 * is to get them.
 *
 * The queue also carries what else one loop has: its timer, its budget for waits that are ready,
 * how late it comes (its lateness), and spare points and waits, so that no two loops share a lock
 * on the way of a wait.
 */
#include "queues.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { MAX_QUEUES = 65536 };

/* guards the free list and the growth; never held across a driver call */
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct queue *) queues[MAX_QUEUES]; /* number 0 is the orphans' */
static int queue_count;
static struct queue *free_queues;

static bool listen_to(struct queue *queue, int descriptor) {
    struct epoll_event event = {.events = EPOLLIN};
    return epoll_ctl(queue->descriptor, EPOLL_CTL_ADD, descriptor, &event) == 0;
}

/* errno stays, because each of them is open. */
static void close_descriptors(struct queue *queue) {
    int *descriptors[] = {&queue->eventfd, &queue->timer.descriptor, &queue->descriptor};
    for (int i = 0; i < 3; i++) {
        if (*descriptors[i] >= 0) close(*descriptors[i]);
        *descriptors[i] = -1;
    }
}

/* Each step needs the one before it, so errno is that of the first step that failed. */
static bool open_descriptors(struct queue *queue) {
    queue->timer.descriptor = queue->descriptor = -1;
    queue->eventfd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (queue->eventfd >= 0)
        queue->timer.descriptor = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (queue->timer.descriptor >= 0) queue->descriptor = epoll_create1(EPOLL_CLOEXEC);
    bool opened = queue->descriptor >= 0 && listen_to(queue, queue->eventfd) &&
                  listen_to(queue, queue->timer.descriptor);
    if (!opened) close_descriptors(queue);
    return opened;
}

static struct queue *queue_allocate(void) { /* table_lock held */
    if (queue_count == MAX_QUEUES) {
        errno = EMFILE;
        return NULL;
    }
    struct queue *queue = calloc(1, sizeof *queue);
    if (!queue) return NULL;
    if (!open_descriptors(queue)) {
        free(queue); /* errno stays */
        return NULL;
    }
    pthread_mutex_init(&queue->spares.lock, NULL);
    pthread_mutex_init(&queue->timer.lock, NULL);
    queue->index = queue_count;
    queues[queue_count++] = queue;
    return queue;
}

struct queue *queue_open(void) {
    pthread_mutex_lock(&table_lock);
    struct queue *queue = free_queues;
    static uint64_t identities;
    if (!queue) queue = queue_allocate();
    else if (queue->descriptor >= 0 || open_descriptors(queue)) free_queues = queue->next_free;
    else queue = NULL;
    if (queue) queue->identity = ++identities;
    pthread_mutex_unlock(&table_lock);
    if (!queue) return NULL;
    descriptor_read(queue->eventfd);
    memset(&queue->turn, 0, sizeof queue->turn);
    queue->lateness = 0; /* the former owner's lateness says nothing of this one */
    /* an interrupt may have kept the former owner from the drain that ends this */
    queue->wakeup_suppressed = false;
    queue->loop.idle = false;
    queue->refs = 1;
    queue->closed = false;
    timer_open(&queue->timer);
    return queue;
}

struct queue *queue_orphans(void) {
    /* _runtime/process.py makes two threads start one after the other */
    struct queue *orphans = queues[0];
    return orphans ? orphans : queue_open();
}

struct queue *queue_at(int index) {
    return index < 0 || index >= MAX_QUEUES ? NULL : queues[index];
}

void queue_wake(struct queue *queue) { descriptor_wake(queue->eventfd); }

/* if a task has blocked the loop for long, that turn says little of the next */
static const int64_t LATENESS_MOST_NS = 5000000;
/* a lateness noted long ago says nothing of now, because a busy loop notes it in each turn */
static const int64_t LATENESS_LIFE_NS = 20000000;

int64_t queue_lateness(const struct queue *queue) {
    return now_ns() - atomic_load(&queue->lateness_noted) < LATENESS_LIFE_NS
               ? atomic_load(&queue->lateness)
               : 0;
}

void queue_note_lateness(struct queue *queue, int64_t lateness) {
    int64_t mean = queue_lateness(queue);
    if (lateness > LATENESS_MOST_NS) lateness = LATENESS_MOST_NS;
    atomic_store(&queue->lateness, mean + (lateness - mean) / 4);
    atomic_store(&queue->lateness_noted, now_ns());
}

void queue_unref(struct queue *queue) {
    if (atomic_fetch_sub(&queue->refs, 1) != 1) return;
    pthread_mutex_lock(&table_lock);
    queue->next_free = free_queues;
    free_queues = queue;
    pthread_mutex_unlock(&table_lock);
}

void queues_trim(void) {
    pthread_mutex_lock(&table_lock);
    struct queue *queue = free_queues ? free_queues->next_free : NULL;
    /* those that were freed later come first */
    for (; queue && queue->descriptor >= 0; queue = queue->next_free) close_descriptors(queue);
    pthread_mutex_unlock(&table_lock);
}

/* Links a chain, of which first is the newest, onto a stack. True if the stack was empty. */
static bool stack_push(struct queue *queue, struct queue_entry *first, struct queue_entry *last) {
    struct queue_entry *head = atomic_load(&queue->head);
    do last->next = head;
    while (!atomic_compare_exchange_weak(&queue->head, &head, first));
    return head == NULL;
}

static void push_to_orphans(struct queue *queue) {
    struct queue_entry *first = atomic_exchange(&queue->head, NULL);
    if (!first) return;
    struct queue_entry *last = first;
    while (last->next) last = last->next;
    if (stack_push(queues[0], first, last)) queue_wake(queues[0]);
}

/* A pusher pushes, then reads `closed`. The closer sets `closed`, then drains. The second of the
 * two sees the first (both are sequentially consistent), so no ticket stays on a queue that no
 * thread reads. */
void queue_push(struct queue *queue, struct queue_entry *entry) {
    /* The time is noted before the push, because the consumer may take the point at once. Two
     * pushers that find the stack empty note nearly the same time. A push by the consumer itself,
     * or while it is about to drain, says nothing of the loop's lateness. */
    if (!atomic_load(&queue->head))
        atomic_store(&queue->pushed, atomic_load(&queue->wakeup_suppressed) ? 0 : now_ns());
    bool was_empty = stack_push(queue, entry, entry);
    if (atomic_load(&queue->closed)) push_to_orphans(queue);
    else if (was_empty && !atomic_load(&queue->wakeup_suppressed)) queue_wake(queue);
}

void queue_close(struct queue *queue) {
    if (queue->index == 0 || atomic_exchange(&queue->closed, true)) return;
    push_to_orphans(queue);
    queue_unref(queue);
}

int queue_spend_turn(struct queue *queue, const void *task) {
    int64_t now = now_ns();
    int flags = 0;
    if (!queue->turn.open) {
        queue->turn.open = true;
        queue->turn.task = NULL;
        queue->turn.latest = now;
        flags = TURN_BEGAN;
    }
    if (task != queue->turn.task || queue->turn.ops == 0) {
        queue->turn.task = task;
        /* this task began when the one before it yielded */
        queue->turn.since = queue->turn.latest;
        queue->turn.ops = 0;
        queue->turn.tasks++;
    }
    queue->turn.ops++;
    queue->turn.latest = now;
    int tasks =
        queue->turn.last_tasks > queue->turn.tasks ? queue->turn.last_tasks : queue->turn.tasks;
    if (policy_keep_turn(now - queue->turn.since, queue->turn.ops, tasks)) return flags;
    queue->turn.ops = 0;
    return flags | TURN_YIELD;
}

void queue_new_turn(struct queue *queue) {
    queue->turn.open = false;
    queue->turn.last_tasks = queue->turn.tasks;
    queue->turn.tasks = 0;
}

/* If the stack is empty, `pushed` is of an earlier arrival. A point is marked before it is pushed,
 * and if its task has gone, it is pushed to the orphans. */
int64_t queue_unread_since(struct queue *queue) {
    return atomic_load(&queue->head) ? atomic_load(&queue->pushed) : 0;
}

void queue_ref(struct queue *queue) { atomic_fetch_add(&queue->refs, 1); }

static struct queue_entry *reversed(struct queue_entry *entry) {
    struct queue_entry *result = NULL;
    while (entry) {
        struct queue_entry *next = entry->next;
        entry->next = result;
        result = entry;
        entry = next;
    }
    return result;
}

struct queue_entry *queue_take(struct queue *queue) {
    descriptor_read(queue->eventfd);
    /* A pusher that read `wakeup_suppressed` before this store has already pushed (both are
     * sequentially consistent). */
    atomic_store(&queue->wakeup_suppressed, false);
    struct queue_entry *entry = reversed(atomic_exchange(&queue->head, NULL));
    int64_t pushed = atomic_load(&queue->pushed);
    if (!entry || !pushed) return entry;
    /* Several arrivals together came in a turn of the loop. A single one may have come to a loop
     * that slept, and slow waking says nothing of its turns, except that they are no longer than
     * that. */
    int64_t lateness = now_ns() - pushed, mean = atomic_load(&queue->lateness);
    if (entry->next && entry->next->next) queue_note_lateness(queue, lateness);
    else if (lateness < mean) atomic_store(&queue->lateness, (lateness + mean) / 2);
    return entry;
}

void queue_put_back(struct queue *queue, struct queue_entry *oldest) {
    struct queue_entry *newest = reversed(oldest);
    stack_push(queue, newest, oldest);
    if (atomic_load(&queue->closed)) push_to_orphans(queue);
    else queue_wake(queue);
}
