/* User objects: counted things of the program's that graphs keep alive, and the threads that
 * destroy them.
 *
 * A graph, a clone, an executable and a launch in flight each hold references. When the last of all
 * is gone, the destructor runs, once. As on an H200, it runs in the thread whose call released the
 * last reference, before that call returns. If a launch in flight held it, the destructor runs on a
 * thread of its own. CUDA calls in it answer 800, as in a host function.
 */
#include "../driver.h"

#include "../api.h"
#include "../graph.h"

#include <limits.h>
#include <stdlib.h>
#include <sys/prctl.h>

struct user_object {
    uint64_t references; /* all of them */
    uint64_t owned;      /* of these, the program's own */
    CUhostFn destroy;
    void *pointer;
    struct user_object *next; /* among the dead */
};

/* Under sim.lock. */
static struct user_object *first_dead, *last_dead;
static bool started;
static unsigned running; /* destructors; and those that a call will run when it is over */
static pthread_cond_t some_died = PTHREAD_COND_INITIALIZER;
static struct waiter *idle_waiters;

static void *destructor_thread(void *unused) {
    (void)unused;
    prctl(PR_SET_NAME, "sim-destructor");
    pthread_mutex_lock(&sim.lock);
    for (;;) {
        while (first_dead == NULL || host_exiting()) pthread_cond_wait(&some_died, &sim.lock);
        struct user_object *object = first_dead;
        first_dead = object->next;
        running++;
        pthread_mutex_unlock(&sim.lock);
        me.in_host_function = true;
        object->destroy(object->pointer);
        me.in_host_function = false;
        free(object);
        pthread_mutex_lock(&sim.lock);
        running--;
        sim.pending--;
        wake(&idle_waiters, UINT64_MAX);
    }
    return NULL;
}

/* When the process exits, no more functions of the user's are called, as on the other threads. */
static void user_objects_destroy(void) {
    struct user_object *object = me.dead.first;
    bool before = me.in_host_function;
    me.dead.first = me.dead.last = NULL;
    while (object != NULL) {
        struct user_object *next = object->next;
        me.in_host_function = true;
        if (!host_exiting()) object->destroy(object->pointer);
        me.in_host_function = before;
        free(object);
        object = next;
        pthread_mutex_lock(&sim.lock);
        running--;
        sim.pending--;
        wake(&idle_waiters, UINT64_MAX);
        pthread_mutex_unlock(&sim.lock);
    }
}

static void append(struct user_object *object, struct user_object **first,
                   struct user_object **last) {
    object_unregister(object);
    object->next = NULL;
    if (*first == NULL) *first = object;
    else (*last)->next = object;
    *last = object;
    sim.pending++;
}

void user_object_release(struct user_object *object, unsigned count) {
    object->references -= count;
    if (object->references > 0) return;
    append(object, &me.dead.first, &me.dead.last);
    me.dead.destroy = user_objects_destroy;
    running++;
}

void user_object_drop(struct user_object *object) {
    if (--object->references > 0) return;
    append(object, &first_dead, &last_dead);
    if (!started) start_host_thread(destructor_thread, NULL);
    started = true;
    pthread_cond_signal(&some_died);
}

void launch_refs_release(struct launch_refs *launch_refs) {
    if (--launch_refs->references > 0) return;
    for (size_t i = 0; i < launch_refs->count; i++) user_object_release(launch_refs->objects[i], 1);
    free(launch_refs);
}

void launch_refs_drop(struct launch_refs *launch_refs) {
    if (--launch_refs->references > 0) return;
    for (size_t i = 0; i < launch_refs->count; i++) user_object_drop(launch_refs->objects[i]);
    free(launch_refs);
}

/* Until every destructor that is due has returned. */
void user_objects_wait(void) {
    if (me.dead.first != NULL) {
        pthread_mutex_unlock(&sim.lock);
        user_objects_destroy();
        pthread_mutex_lock(&sim.lock);
    }
    while (first_dead != NULL || running > 0) wait_on(&idle_waiters, 0);
}

void user_object_retain(struct user_object *object) { object->references++; }

static bool valid(unsigned count) { return count > 0 && count <= INT_MAX; }

EXPORT CUresult cuUserObjectCreate(CUuserObject *out, void *pointer, CUhostFn destroy,
                                   unsigned count, unsigned flags) {
    ENTER(cuUserObjectCreate, 0);
    /* CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, the only one */
    if (out == NULL || destroy == NULL || !valid(count) || flags != 1) return leave(INVALID_VALUE);
    struct user_object *object = object_new(OBJECT_USER, sizeof *object);
    object->references = object->owned = count;
    object->destroy = destroy;
    object->pointer = pointer;
    *out = object;
    return leave(OK);
}

EXPORT CUresult cuUserObjectRetain(CUuserObject handle, unsigned count) {
    ENTER(cuUserObjectRetain, 0);
    struct user_object *object = object_find(handle, OBJECT_USER);
    if (object == NULL || !valid(count))
        return leave(object == NULL ? INVALID_HANDLE : INVALID_VALUE);
    object->references += count;
    object->owned += count;
    return leave(OK);
}

/* To release what belongs to a graph is undefined by the manual, and here an error. */
EXPORT CUresult cuUserObjectRelease(CUuserObject handle, unsigned count) {
    ENTER(cuUserObjectRelease, FREES);
    struct user_object *object = object_find(handle, OBJECT_USER);
    if (object == NULL || !valid(count) || count > object->owned)
        return leave(object == NULL ? INVALID_HANDLE : INVALID_VALUE);
    object->owned -= count;
    user_object_release(object, count);
    return leave(OK);
}

/* --- references that graphs hold --- */

static struct holding *find_holding(struct graph *graph, const struct user_object *object) {
    for (size_t i = 0; i < graph->holding_count; i++)
        if (graph->holdings[i].object == object) return &graph->holdings[i];
    return NULL;
}

static void hold(struct graph *graph, struct user_object *object, unsigned count) {
    struct holding *holding = find_holding(graph, object);
    if (holding != NULL) {
        holding->count += count;
        return;
    }
    graph->holdings =
        alloc_more(graph->holdings, (graph->holding_count + 1) * sizeof *graph->holdings);
    graph->holdings[graph->holding_count++] = (struct holding){object, count};
}

EXPORT CUresult cuGraphRetainUserObject(CUgraph graph_handle, CUuserObject handle, unsigned count,
                                        unsigned flags) {
    ENTER(cuGraphRetainUserObject, 0);
    struct graph *graph = object_find(graph_handle, OBJECT_GRAPH);
    struct user_object *object = object_find(handle, OBJECT_USER);
    bool move = flags == 1;
    if (graph == NULL || object == NULL)
        return leave(graph == NULL ? INVALID_VALUE : INVALID_HANDLE);
    if (!valid(count) || flags > 1 || (move && count > object->owned)) return leave(INVALID_VALUE);
    if (move) object->owned -= count;
    else object->references += count;
    hold(graph, object, count);
    return leave(OK);
}

EXPORT CUresult cuGraphReleaseUserObject(CUgraph graph_handle, CUuserObject handle,
                                         unsigned count) {
    ENTER(cuGraphReleaseUserObject, FREES);
    struct graph *graph = object_find(graph_handle, OBJECT_GRAPH);
    struct user_object *object = object_find(handle, OBJECT_USER);
    if (graph == NULL || object == NULL) return leave(INVALID_HANDLE);
    struct holding *holding = find_holding(graph, object);
    if (holding == NULL || !valid(count) || count > holding->count) return leave(INVALID_VALUE);
    holding->count -= count;
    if (holding->count == 0) *holding = graph->holdings[--graph->holding_count];
    user_object_release(object, count);
    return leave(OK);
}

void holdings_copy(struct graph *to, const struct graph *from) {
    for (size_t i = 0; i < from->holding_count; i++) {
        from->holdings[i].object->references += from->holdings[i].count;
        hold(to, from->holdings[i].object, from->holdings[i].count);
    }
}

void holdings_release(struct graph *graph) {
    for (size_t i = 0; i < graph->holding_count; i++)
        user_object_release(graph->holdings[i].object, graph->holdings[i].count);
    free(graph->holdings);
    graph->holdings = NULL;
    graph->holding_count = 0;
}
