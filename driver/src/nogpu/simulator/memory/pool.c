/* Memory pools. A pool is an account. Its memory is made and given back like all other. What the
 * pool reserves is taken from the device's free memory, but is nowhere, so no address is used again
 * because a pool remembers it. */
#include "../driver.h"

#include "../api.h"
#include "../graph.h"

#include <stdlib.h>
#include <string.h>

/* As in the ABI. */
/* CUmemAllocationType */
enum { PINNED = 1, MANAGED = 2 };
/* CUmemAllocationHandleType; the others are for Windows */
enum { FILE_DESCRIPTOR = 1, FABRIC = 8 };
/* CUmemLocationType */
enum { ON_DEVICE = 1, ON_HOST = 2, ON_NODE = 3, ON_CURRENT_NODE = 4, READ = 1, READ_WRITE = 3 };
enum {
    REUSE_FIRST = 1,
    REUSE_LAST = 3,
    RELEASE_THRESHOLD = 4,
    RESERVED = 5,
    RESERVED_HIGH = 6,
    USED = 7,
    USED_HIGH = 8,
};

/* Lives until it was destroyed and the last of its memory is free. */
struct pool {
    int device;  /* -1: memory of the host or managed memory, which no device accounts for */
    int handles; /* CUmemAllocationHandleType: how it could be shared. That is refused. */
    int kind;    /* of its allocations */
    bool is_default, destroyed;
    int reuse[3];
    uint64_t threshold;
    /* most: 0, no bound but the device's memory */
    size_t used, used_high, reserved, reserved_high, most;
    int access[MAX_DEVICES], host_access;
};

static struct pool *pool_new(int device, int kind, size_t most) {
    struct pool *pool = object_new(OBJECT_POOL, sizeof *pool);
    pool->device = device;
    pool->kind = kind;
    pool->most = most;
    pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
    for (int i = 0; i < MAX_DEVICES; i++)
        pool->access[i] = i == device || kind == MEMORY_MANAGED ? READ_WRITE : 0;
    pool->host_access = kind != MEMORY_DEVICE ? READ_WRITE : 0;
    return pool;
}

static struct pools of_host, of_managed;

/* The pools of one place: a device, the host, or all managed memory. */
static struct pools *pools_of(int device, int kind) {
    struct pools *pools = device >= 0           ? &sim.devices[device].pools
                          : kind == MEMORY_HOST ? &of_host
                                                : &of_managed;
    if (pools->first == NULL) {
        pools->first = pools->now = pool_new(device, kind, 0);
        pools->first->is_default = true;
    }
    return pools;
}

struct pool *pool_now(int device) { return pools_of(device, MEMORY_DEVICE)->now; }

static void reserve(struct pool *pool, size_t bytes) {
    if (pool->device >= 0)
        sim.devices[pool->device].used = sim.devices[pool->device].used + bytes - pool->reserved;
    pool->reserved = bytes;
    if (bytes > pool->reserved_high) pool->reserved_high = bytes;
}

int pool_device(const struct pool *pool) { return pool->device; }

int pool_kind(const struct pool *pool) { return pool->kind; }

int pool_handles(const struct pool *pool) { return pool->handles; }

/* The host's memory is reached by every device here, whatever was set. */
bool pool_lets(const struct pool *pool, int device) {
    return pool->device < 0 || pool->access[device] != 0;
}

CUresult pool_take(struct pool *pool, size_t bytes) {
    const struct device *device = pool->device >= 0 ? &sim.devices[pool->device] : NULL;
    size_t unused =
        device != NULL ? device->total - device->used + (pool->reserved - pool->used) : SIZE_MAX;
    if (bytes > unused || (pool->most > 0 && bytes > pool->most - pool->used)) return OUT_OF_MEMORY;
    pool->used += bytes;
    if (pool->used > pool->reserved) reserve(pool, pool->used);
    if (pool->used > pool->used_high) pool->used_high = pool->used;
    return OK;
}

/* Keeps no more than it needs, or than `keep` if that is more. */
static void trim(struct pool *pool, uint64_t keep) {
    size_t least = keep > pool->used ? keep : pool->used;
    if (pool->reserved > least) reserve(pool, least);
}

void pool_give(struct pool *pool, size_t bytes) {
    pool->used -= bytes;
    trim(pool, pool->threshold);
    if (pool->destroyed && pool->used == 0) free(pool);
}

/* --- the calls --- */

static CUresult check_device(int device) {
    return device >= 0 && device < sim.device_count ? OK : INVALID_DEVICE;
}

static CUresult find(CUmemoryPool handle, struct pool **out) {
    *out = object_find(handle, OBJECT_POOL);
    return *out != NULL ? OK : INVALID_VALUE;
}

/* Where such memory is, and of what kind. Of managed memory the location is a preference, and of no
 * effect. */
static CUresult place_of(const struct location *location, int allocation, int *device, int *kind) {
    if (location == NULL || location->type < 0 || location->type > ON_CURRENT_NODE)
        return INVALID_VALUE;
    if (location->type == ON_DEVICE && check_device(location->id) != OK) return INVALID_VALUE;
    if ((allocation != PINNED && allocation != MANAGED) ||
        (allocation == PINNED && location->type == 0))
        return INVALID_VALUE;
    *kind = allocation == MANAGED         ? MEMORY_MANAGED
            : location->type == ON_DEVICE ? MEMORY_DEVICE
                                          : MEMORY_HOST;
    *device = *kind == MEMORY_DEVICE ? location->id : -1;
    return OK;
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *out, const struct pool_props *props) {
    ENTER(cuMemPoolCreate, 0);
    int device, kind;
    CUresult code = out == NULL || props == NULL
                        ? INVALID_VALUE
                        : place_of(&props->location, props->allocation, &device, &kind);
    if (code == OK && (props->location.type == ON_CURRENT_NODE ||
                       (props->handles & ~(FILE_DESCRIPTOR | FABRIC)) != 0))
        code = INVALID_VALUE;
    if (code == OK && device >= 0 && props->most > sim.devices[device].total) code = OUT_OF_MEMORY;
    if (code != OK) return leave(code);
    struct pool *pool = pool_new(device, kind, props->most);
    pool->handles = props->handles;
    *out = pool;
    return leave(OK);
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool handle) {
    ENTER(cuMemPoolDestroy, FREES);
    struct pool *pool;
    CUresult code = find(handle, &pool);
    if (code == OK && pool->is_default) code = INVALID_VALUE;
    if (code != OK) return leave(code);
    struct pools *pools = pools_of(pool->device, pool->kind);
    if (pools->now == pool) pools->now = pools->first;
    object_unregister(pool);
    pool->threshold = 0;
    trim(pool, 0);
    pool->destroyed = true;
    if (pool->used == 0) free(pool);
    return leave(OK);
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
    ENTER(cuMemPoolTrimTo, FREES);
    struct pool *pool;
    CUresult code = find(handle, &pool);
    if (code == OK) trim(pool, keep);
    return leave(code);
}

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool handle, int which, void *out) {
    ENTER(cuMemPoolGetAttribute, 0);
    struct pool *pool;
    CUresult code = out == NULL || which < REUSE_FIRST || which > USED_HIGH ? INVALID_VALUE
                                                                            : find(handle, &pool);
    if (code != OK) return leave(code);
    if (which <= REUSE_LAST) {
        memcpy(out, &pool->reuse[which - REUSE_FIRST], sizeof(int));
        return leave(OK);
    }
    const uint64_t values[] = {pool->threshold, pool->reserved, pool->reserved_high, pool->used,
                               pool->used_high};
    memcpy(out, &values[which - RELEASE_THRESHOLD], sizeof(uint64_t));
    return leave(OK);
}

/* The high-water marks can be set to 0 alone, which makes them what is there now. */
EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool handle, int which, const void *value) {
    ENTER(cuMemPoolSetAttribute, 0);
    struct pool *pool;
    uint64_t number = 0;
    CUresult code = value == NULL || which < REUSE_FIRST || which > USED_HIGH ? INVALID_VALUE
                                                                              : find(handle, &pool);
    if (code != OK) return leave(code);
    memcpy(&number, value, which <= REUSE_LAST ? sizeof(int) : sizeof number);
    if (which <= REUSE_LAST) pool->reuse[which - REUSE_FIRST] = number != 0;
    else if (which == RELEASE_THRESHOLD) pool->threshold = number;
    else if (which == RESERVED_HIGH && number == 0) pool->reserved_high = pool->reserved;
    else if (which == USED_HIGH && number == 0) pool->used_high = pool->used;
    else code = INVALID_VALUE;
    return leave(code);
}

/* --- access: checked by copies and fills of one row; kernels here reach all memory --- */

static int *access_of(struct pool *pool, const struct location *location) {
    if (location->type == ON_DEVICE)
        return check_device(location->id) == OK ? &pool->access[location->id] : NULL;
    return location->type >= ON_HOST && location->type <= ON_CURRENT_NODE ? &pool->host_access
                                                                          : NULL;
}

/* A place cannot be kept from its own memory, and a device reads and writes or does neither. The
 * codes are an H200's. */
static CUresult check_access(struct pool *pool, const struct access *one) {
    const int *access = access_of(pool, &one->location);
    if (one->flags != 0 && one->flags != READ && one->flags != READ_WRITE) return INVALID_VALUE;
    if (one->location.type == ON_DEVICE) {
        if (access == NULL || (one->flags == 0 && one->location.id == pool->device))
            return INVALID_DEVICE;
        return one->flags == READ ? NOT_SUPPORTED : OK;
    }
    if (access != NULL && pool->kind == MEMORY_DEVICE)
        return NOT_SUPPORTED; /* the host reaches no device's memory */
    bool own = pool->kind == MEMORY_HOST && one->flags != READ_WRITE;
    return access == NULL || own ? INVALID_VALUE : OK;
}

EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool handle, const struct access *map, size_t count) {
    ENTER(cuMemPoolSetAccess, 0);
    struct pool *pool;
    CUresult code = map == NULL && count > 0 ? INVALID_VALUE : find(handle, &pool);
    for (size_t i = 0; code == OK && i < count; i++) code = check_access(pool, &map[i]);
    for (size_t i = 0; code == OK && i < count; i++)
        *access_of(pool, &map[i].location) = map[i].flags;
    return leave(code);
}

EXPORT CUresult cuMemPoolGetAccess(int *out, CUmemoryPool handle, const struct location *location) {
    ENTER(cuMemPoolGetAccess, 0);
    struct pool *pool;
    CUresult code = out == NULL || location == NULL ? INVALID_VALUE : find(handle, &pool);
    const int *access = code == OK ? access_of(pool, location) : NULL;
    if (access == NULL) return leave(INVALID_VALUE);
    *out = *access;
    return leave(OK);
}

/* --- the pools of places --- */

static CUresult give(CUmemoryPool *out, const struct location *location, int allocation,
                     bool first) {
    int device, kind;
    CUresult code = out == NULL ? INVALID_VALUE : place_of(location, allocation, &device, &kind);
    if (code == OK) *out = first ? pools_of(device, kind)->first : pools_of(device, kind)->now;
    return leave(code);
}

static CUresult set_pool(const struct location *location, int allocation, CUmemoryPool handle) {
    struct pool *pool;
    int device, kind;
    CUresult code = place_of(location, allocation, &device, &kind);
    if (code == OK) code = find(handle, &pool);
    if (code == OK && (pool->device != device || pool->kind != kind)) code = INVALID_VALUE;
    if (code == OK) pools_of(device, kind)->now = pool;
    return leave(code);
}

/* The forms for devices alone, which have a code of their own for one that is none. */
static const struct location *on_device(int device, struct location *space) {
    *space = (struct location){ON_DEVICE, device};
    return space;
}

EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device) {
    ENTER(cuDeviceGetDefaultMemPool, 0);
    struct location space;
    return check_device(device) == OK ? give(out, on_device(device, &space), PINNED, true)
                                      : leave(INVALID_DEVICE);
}

EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device) {
    ENTER(cuDeviceGetMemPool, 0);
    struct location space;
    return check_device(device) == OK ? give(out, on_device(device, &space), PINNED, false)
                                      : leave(INVALID_DEVICE);
}

EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    ENTER(cuDeviceSetMemPool, 0);
    struct location space;
    return check_device(device) == OK ? set_pool(on_device(device, &space), PINNED, pool)
                                      : leave(INVALID_DEVICE);
}

EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, const struct location *location,
                                       int allocation) {
    ENTER(cuMemGetDefaultMemPool, 0);
    return give(out, location, allocation, true);
}

EXPORT CUresult cuMemGetMemPool(CUmemoryPool *out, const struct location *location,
                                int allocation) {
    ENTER(cuMemGetMemPool, 0);
    return give(out, location, allocation, false);
}

EXPORT CUresult cuMemSetMemPool(const struct location *location, int allocation,
                                CUmemoryPool pool) {
    ENTER(cuMemSetMemPool, 0);
    return set_pool(location, allocation, pool);
}
