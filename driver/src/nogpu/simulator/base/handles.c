/* The table of live handles. It shows that a handle is unknown or stale, before anything follows
 * it. */
#include "../driver.h"

#include <stdlib.h>

/* Open addressing, linear probing. TOMBSTONE keeps probe chains whole after a removal; rebuilding
 * drops them. */
struct entry {
    uintptr_t key;
    enum object_kind kind;
};
#define TOMBSTONE ((uintptr_t)-1)
static struct entry *table; /* under sim.lock, as all of this */
static size_t space, used;  /* used: tombstones included */

static size_t hash(uintptr_t key) {
    return (size_t)(((uint64_t)key >> 4) * 0x9E3779B97F4A7C15u >> 20);
}

static void put(uintptr_t key, enum object_kind kind) {
    size_t i = hash(key) & (space - 1);
    while (table[i].key != 0 && table[i].key != TOMBSTONE) i = (i + 1) & (space - 1);
    if (table[i].key == 0) used++;
    table[i] = (struct entry){key, kind};
}

static void grow(void) {
    struct entry *old = table;
    size_t old_space = space, live = 0;
    for (size_t i = 0; i < old_space; i++) live += old[i].key != 0 && old[i].key != TOMBSTONE;
    space = 256;
    while (space < live * 4) space *= 2;
    table = alloc_need(space * sizeof *table);
    used = 0;
    for (size_t i = 0; i < old_space; i++)
        if (old[i].key != 0 && old[i].key != TOMBSTONE) put(old[i].key, old[i].kind);
    free(old);
}

static struct entry *find(const void *handle) {
    uintptr_t key = (uintptr_t)handle;
    if (key == 0 || key == TOMBSTONE || space == 0) return NULL;
    for (size_t i = hash(key) & (space - 1); table[i].key != 0; i = (i + 1) & (space - 1))
        if (table[i].key == key) return &table[i];
    return NULL;
}

void object_register(void *object, enum object_kind kind) {
    struct entry *buried = find(object); /* the memory of an object that had gone */
    if (buried != NULL) {
        buried->kind = kind;
        return;
    }
    if ((used + 1) * 2 > space) grow();
    put((uintptr_t)object, kind);
}

void *object_new(enum object_kind kind, size_t bytes) {
    void *object = alloc_need(bytes);
    object_register(object, kind);
    return object;
}

/* How many objects of a kind there are now: what a program has not destroyed. */
EXPORT size_t nogpu_objects(enum object_kind kind) {
    size_t count = 0;
    pthread_mutex_lock(&sim.lock);
    for (size_t i = 0; i < space; i++)
        count += table[i].key != 0 && table[i].key != TOMBSTONE && table[i].kind == kind;
    pthread_mutex_unlock(&sim.lock);
    return count;
}

void object_unregister(void *handle) {
    struct entry *entry = find(handle);
    if (entry != NULL) entry->key = TOMBSTONE;
}

void object_bury(void *handle) {
    struct entry *entry = find(handle);
    if (entry != NULL) entry->kind = OBJECT_GONE;
}

bool object_is_buried(const void *handle) {
    const struct entry *entry = find(handle);
    return entry != NULL && entry->kind == OBJECT_GONE;
}

static size_t uses_of_gone;
static const char *user_of_gone;

void note_use_of_gone(void) {
    uses_of_gone++;
    user_of_gone = me.call->name;
}

/* How many calls have used a stream, an event or a context that was gone, and which the latest was.
 * They were refused here. A GPU's driver crashes at some of them. */
EXPORT size_t nogpu_uses_of_gone(const char **latest) {
    pthread_mutex_lock(&sim.lock);
    size_t count = uses_of_gone;
    *latest = user_of_gone;
    pthread_mutex_unlock(&sim.lock);
    return count;
}

void *object_find(const void *handle, enum object_kind kind) {
    struct entry *entry = find(handle);
    return entry != NULL && entry->kind == kind ? (void *)(uintptr_t)entry->key : NULL;
}
