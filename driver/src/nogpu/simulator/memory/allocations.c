/* Allocations: host memory that plays the device's; device pointers are host pointers. memory.c has
 * the driver's calls. */
#include "../driver.h"

#include "../graph.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Sorted by base, under sim.lock. */
static struct allocation *allocations;
static size_t allocation_count, allocation_space;

/* The index of the last allocation that begins at or before the address, plus one. */
static size_t position(uintptr_t address) {
    size_t low = 0, high = allocation_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (allocations[middle].base <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* The last one that begins at or before the address, or NULL. */
struct allocation *allocation_before(uintptr_t address) {
    size_t i = position(address);
    return i > 0 ? &allocations[i - 1] : NULL;
}

struct allocation *find_allocation(const void *address) {
    struct allocation *found = allocation_before((uintptr_t)address);
    return found != NULL && (uintptr_t)address - found->base < found->bytes ? found : NULL;
}

CUresult check_device_memory(CUdeviceptr address, size_t bytes) {
    const struct allocation *found = find_allocation((void *)(uintptr_t)address);
    bool inside = found != NULL && bytes <= found->bytes - ((uintptr_t)address - found->base);
    return inside ? OK : INVALID_VALUE;
}

struct allocation *allocation_add(void *base, size_t bytes, struct context *context, int kind,
                                  unsigned flags) {
    allocations = alloc_room(allocations, allocation_count, &allocation_space, sizeof *allocations);
    size_t i = position((uintptr_t)base);
    memmove(&allocations[i + 1], &allocations[i], (allocation_count - i) * sizeof *allocations);
    allocation_count++;
    allocations[i] = (struct allocation){(uintptr_t)base,
                                         bytes,
                                         context->device,
                                         context,
                                         NULL,
                                         NULL,
                                         kind,
                                         flags,
                                         ++sim.next_id,
                                         NULL,
                                         false};
    return &allocations[i];
}

bool is_on_device(const struct allocation *allocation) {
    return allocation->kind == MEMORY_DEVICE || allocation->kind == MEMORY_MANAGED;
}

/* The simulator's memory has pages of its own, because programs register whole pages around memory
 * of the heap, and a page that both shared would be registered already. 0: there is no such number
 * of bytes. */
static size_t whole_pages(size_t bytes) {
    return bytes > SIZE_MAX - 4095 ? 0 : (bytes + 4095) / 4096 * 4096;
}

void allocation_remove(struct allocation *allocation) {
    if (allocation->graph_memory != NULL) allocation->graph_memory->base = NULL;
    if (allocation->pool != NULL) pool_give(allocation->pool, allocation->bytes);
    else if (is_on_device(allocation)) sim.devices[allocation->device].used -= allocation->bytes;
    free(allocation->hints);
    if (allocation->kind != MEMORY_REGISTERED)
        munmap((void *)allocation->base, whole_pages(allocation->bytes));
    size_t i = (size_t)(allocation - allocations);
    allocation_count--;
    memmove(allocation, allocation + 1, (allocation_count - i) * sizeof *allocations);
}

void memory_free_device(void *base) {
    struct allocation *found = find_allocation(base);
    if (found != NULL) allocation_remove(found);
}

void memory_release_context(struct context *context) {
    for (size_t i = allocation_count; i > 0; i--)
        if (allocations[i - 1].context == context) allocation_remove(&allocations[i - 1]);
}

static CUresult map_memory(size_t bytes, void **out) {
    size_t pages = whole_pages(bytes);
    *out = pages == 0
               ? MAP_FAILED
               : mmap(NULL, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return *out == MAP_FAILED ? OUT_OF_MEMORY : OK;
}

CUresult memory_make(struct context *context, size_t bytes, int kind, unsigned flags, void **out) {
    struct device *device = &sim.devices[context->device];
    void *memory;
    if (bytes == 0 || out == NULL) return INVALID_VALUE;
    bool counts = kind == MEMORY_DEVICE || kind == MEMORY_MANAGED;
    if (counts && bytes > device->total - device->used) return OUT_OF_MEMORY;
    CUresult code = map_memory(bytes, &memory);
    if (code != OK) return code;
    if (counts) device->used += bytes;
    allocation_add(memory, bytes, context, kind, flags);
    *out = memory;
    return OK;
}

CUresult memory_make_from(struct pool *pool, struct context *context, size_t bytes, void **out) {
    if (bytes == 0) return INVALID_VALUE;
    CUresult code = pool_take(pool, bytes);
    if (code != OK) return code;
    code = map_memory(bytes, out);
    if (code != OK) {
        pool_give(pool, bytes);
        return code;
    }
    struct allocation *made = allocation_add(*out, bytes, context, pool_kind(pool), 0);
    made->pool = pool;
    if (pool_device(pool) >= 0) made->device = pool_device(pool);
    return OK;
}
