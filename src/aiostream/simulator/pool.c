/* Memory pools, and allocation in stream order. A pool is an account: its memory is made and given back like all other, and what it
 * keeps reserved is kept from the device's free memory but not anywhere. So no address is used again because a pool remembers it. */
#include "driver.h"

#include "api.h"
#include "graph.h"

#include <stdlib.h>
#include <string.h>

/* As in the ABI. */
enum { ALLOCATION_PINNED = 1, LOCATION_DEVICE = 1, READ_WRITE = 3 };
enum {
    REUSE_FIRST = 1, REUSE_LAST = 3, RELEASE_THRESHOLD = 4, RESERVED = 5, RESERVED_HIGH = 6, USED = 7, USED_HIGH = 8,
};

/* Lives until it was destroyed and the last of its memory is free. */
struct pool {
    int device;
    bool is_default, destroyed;
    int reuse[3];
    uint64_t threshold;
    size_t used, used_high, reserved, reserved_high, most; /* most: 0, no bound but the device's memory */
    int access[MAX_DEVICES];
};

static struct pool *pool_new(int device, size_t most)
{
    struct pool *pool = object_new(OBJECT_POOL, sizeof *pool);
    pool->device = device;
    pool->most = most;
    pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
    pool->access[device] = READ_WRITE;
    return pool;
}

static struct pool *default_pool(int device)
{
    struct device *its = &sim.devices[device];
    if (its->default_pool == NULL) {
        its->default_pool = its->pool = pool_new(device, 0);
        its->default_pool->is_default = true;
    }
    return its->default_pool;
}

/* What cuMemAllocAsync takes from. */
static struct pool *device_pool(int device)
{
    struct pool *first = default_pool(device);
    return sim.devices[device].pool != NULL ? sim.devices[device].pool : first;
}

static void reserve(struct pool *pool, size_t bytes)
{
    sim.devices[pool->device].used += bytes;
    sim.devices[pool->device].used -= pool->reserved;
    pool->reserved = bytes;
    if (bytes > pool->reserved_high)
        pool->reserved_high = bytes;
}

int pool_device(const struct pool *pool)
{
    return pool->device;
}

CUresult pool_take(struct pool *pool, size_t bytes)
{
    const struct device *device = &sim.devices[pool->device];
    size_t unused = device->total - device->used + (pool->reserved - pool->used);
    if (bytes > unused || (pool->most > 0 && bytes > pool->most - pool->used))
        return OUT_OF_MEMORY;
    pool->used += bytes;
    if (pool->used > pool->reserved)
        reserve(pool, pool->used);
    if (pool->used > pool->used_high)
        pool->used_high = pool->used;
    return OK;
}

/* Keeps no more than it needs, or than `keep` if that is more. */
static void trim(struct pool *pool, uint64_t keep)
{
    size_t least = keep > pool->used ? keep : pool->used;
    if (pool->reserved > least)
        reserve(pool, least);
}

void pool_give(struct pool *pool, size_t bytes)
{
    pool->used -= bytes;
    trim(pool, pool->threshold);
    if (pool->destroyed && pool->used == 0)
        free(pool);
}

/* --- the calls --- */

static CUresult check_device(int device)
{
    return device >= 0 && device < sim.device_count ? OK : INVALID_DEVICE;
}

static CUresult find(CUmemoryPool handle, struct pool **out)
{
    *out = object_find(handle, OBJECT_POOL);
    return *out != NULL ? OK : INVALID_VALUE;
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *out, const struct pool_props *props)
{
    ENTER(cuMemPoolCreate, 0);
    if (out == NULL || props == NULL || props->allocation == 0 || props->location.type == 0)
        return leave(INVALID_VALUE);
    if (props->allocation != ALLOCATION_PINNED || props->location.type != LOCATION_DEVICE || props->handles != 0)
        return leave(NOT_SUPPORTED); /* managed memory, the host's, and other processes' */
    CUresult code = check_device(props->location.id) == OK ? OK : INVALID_VALUE;
    if (code == OK)
        *out = pool_new(props->location.id, props->most);
    return leave(code);
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
    ENTER(cuMemPoolDestroy, 0);
    struct pool *pool;
    CUresult code = find(handle, &pool);
    if (code == OK && pool->is_default)
        code = INVALID_VALUE;
    if (code != OK)
        return leave(code);
    struct device *device = &sim.devices[pool->device];
    if (device->pool == pool)
        device->pool = device->default_pool;
    object_unregister(pool);
    pool->threshold = 0;
    trim(pool, 0);
    pool->destroyed = true;
    if (pool->used == 0)
        free(pool);
    return leave(OK);
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
    ENTER(cuMemPoolTrimTo, 0);
    struct pool *pool;
    CUresult code = find(handle, &pool);
    if (code == OK)
        trim(pool, keep);
    return leave(code);
}

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool handle, int which, void *out)
{
    ENTER(cuMemPoolGetAttribute, 0);
    struct pool *pool;
    CUresult code = out == NULL || which < REUSE_FIRST || which > USED_HIGH ? INVALID_VALUE : find(handle, &pool);
    if (code != OK)
        return leave(code);
    if (which <= REUSE_LAST) {
        memcpy(out, &pool->reuse[which - REUSE_FIRST], sizeof(int));
        return leave(OK);
    }
    const uint64_t values[] = {pool->threshold, pool->reserved, pool->reserved_high, pool->used, pool->used_high};
    memcpy(out, &values[which - RELEASE_THRESHOLD], sizeof(uint64_t));
    return leave(OK);
}

/* The high-water marks can be set to 0 alone, which makes them what is there now. */
EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool handle, int which, const void *value)
{
    ENTER(cuMemPoolSetAttribute, 0);
    struct pool *pool;
    uint64_t number = 0;
    CUresult code = value == NULL || which < REUSE_FIRST || which > USED_HIGH ? INVALID_VALUE : find(handle, &pool);
    if (code != OK)
        return leave(code);
    memcpy(&number, value, which <= REUSE_LAST ? sizeof(int) : sizeof number);
    if (which <= REUSE_LAST)
        pool->reuse[which - REUSE_FIRST] = number != 0;
    else if (which == RELEASE_THRESHOLD)
        pool->threshold = number;
    else if (which == RESERVED_HIGH && number == 0)
        pool->reserved_high = pool->reserved;
    else if (which == USED_HIGH && number == 0)
        pool->used_high = pool->used;
    else
        code = INVALID_VALUE;
    return leave(code);
}

/* --- access: kept and told; every device here reaches all memory --- */

EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool handle, const struct access *map, size_t count)
{
    ENTER(cuMemPoolSetAccess, 0);
    struct pool *pool;
    CUresult code = map == NULL && count > 0 ? INVALID_VALUE : find(handle, &pool);
    for (size_t i = 0; code == OK && i < count; i++) {
        bool valid = map[i].flags == 0 || map[i].flags == 1 || map[i].flags == READ_WRITE;
        if (!valid || map[i].location.type != LOCATION_DEVICE || check_device(map[i].location.id) != OK)
            code = INVALID_VALUE;
        else if (map[i].location.id == pool->device && map[i].flags != READ_WRITE)
            code = INVALID_VALUE; /* a device cannot be kept from its own memory */
    }
    for (size_t i = 0; code == OK && i < count; i++)
        pool->access[map[i].location.id] = map[i].flags;
    return leave(code);
}

EXPORT CUresult cuMemPoolGetAccess(int *out, CUmemoryPool handle, const struct location *location)
{
    ENTER(cuMemPoolGetAccess, 0);
    struct pool *pool;
    CUresult code = out == NULL || location == NULL ? INVALID_VALUE : find(handle, &pool);
    if (code == OK && (location->type != LOCATION_DEVICE || check_device(location->id) != OK))
        code = INVALID_VALUE;
    if (code == OK)
        *out = pool->access[location->id];
    return leave(code);
}

/* --- the pools of devices --- */

static CUresult tell(CUmemoryPool *out, int device, struct pool *(*which)(int device))
{
    CUresult code = out == NULL ? INVALID_VALUE : check_device(device);
    if (code == OK)
        *out = which(device);
    return leave(code);
}

static CUresult set_pool(int device, CUmemoryPool handle)
{
    struct pool *pool;
    CUresult code = check_device(device);
    if (code == OK)
        code = find(handle, &pool);
    if (code == OK && pool->device != device)
        code = INVALID_VALUE;
    if (code != OK)
        return leave(code);
    default_pool(device);
    sim.devices[device].pool = pool;
    return leave(OK);
}

EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device)
{
    ENTER(cuDeviceGetDefaultMemPool, 0);
    return tell(out, device, default_pool);
}

EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device)
{
    ENTER(cuDeviceGetMemPool, 0);
    return tell(out, device, device_pool);
}

EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    ENTER(cuDeviceSetMemPool, 0);
    return set_pool(device, pool);
}

/* The forms that came with CUDA 13 know the host's pools and managed ones too, which are not simulated. */
static CUresult check_location(const struct location *location, int allocation)
{
    if (location == NULL)
        return INVALID_VALUE;
    return location->type == LOCATION_DEVICE && allocation == ALLOCATION_PINNED ? OK : NOT_SUPPORTED;
}

EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, const struct location *location, int allocation)
{
    ENTER(cuMemGetDefaultMemPool, 0);
    CUresult code = check_location(location, allocation);
    return code == OK ? tell(out, location->id, default_pool) : leave(code);
}

EXPORT CUresult cuMemGetMemPool(CUmemoryPool *out, const struct location *location, int allocation)
{
    ENTER(cuMemGetMemPool, 0);
    CUresult code = check_location(location, allocation);
    return code == OK ? tell(out, location->id, device_pool) : leave(code);
}

EXPORT CUresult cuMemSetMemPool(const struct location *location, int allocation, CUmemoryPool pool)
{
    ENTER(cuMemSetMemPool, 0);
    CUresult code = check_location(location, allocation);
    return code == OK ? set_pool(location->id, pool) : leave(code);
}

/* --- allocation in stream order --- */

/* The memory is there at once, for use in stream order; cuMemFreeAsync gives it back in stream order. */
static CUresult allocate(CUdeviceptr *out, size_t bytes, struct pool *pool, struct stream *stream)
{
    void *memory;
    CUresult code = capture_forbids_legacy(stream);
    if (code == OK && stream->capture != NULL)
        return leave(graph_memory_capture(stream, bytes, out));
    if (code == OK && bytes == 0) {
        *out = 0; /* NVIDIA's own tests allocate nothing, and free it */
        return leave(OK);
    }
    if (code == OK)
        code = memory_make_from(pool, stream->context, bytes, &memory);
    if (code == OK)
        *out = (uintptr_t)memory;
    return leave(code);
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream handle)
{
    ENTER(cuMemAllocAsync, ENQUEUES);
    struct stream *stream;
    CUresult code = out == NULL ? INVALID_VALUE : find_stream(handle, &stream);
    return code == OK ? allocate(out, bytes, device_pool(stream->context->device), stream) : leave(code);
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, CUmemoryPool handle, CUstream stream_handle)
{
    ENTER(cuMemAllocFromPoolAsync, ENQUEUES);
    struct pool *pool;
    struct stream *stream;
    CUresult code = out == NULL ? INVALID_VALUE : find(handle, &pool);
    if (code == OK)
        code = find_stream(stream_handle, &stream);
    return code == OK ? allocate(out, bytes, pool, stream) : leave(code);
}
