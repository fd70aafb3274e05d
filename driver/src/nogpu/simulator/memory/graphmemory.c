/* Memory that belongs to graphs, whose nodes allocate and free it.
 *
 * A node gets its address when it is made, and memory is there from then on. (A GPU maps it at the
 * first launch.) The memory counts as allocated (`live`) from a launch that does not free it until
 * the call that does. Work in streams only needs the memory to be there. So every node, in a graph
 * or in an executable, holds a reference, and so does every life until the work that ends it is
 * done.
 */
#include "../driver.h"

#include "../api.h"
#include "../graph.h"

#include <stdlib.h>
#include <string.h>

enum { USED = 0, USED_HIGH = 1, RESERVED = 2, RESERVED_HIGH = 3 }; /* CUgraphMem_attribute */

/* Under sim.lock. What graphs have, what they had since the last trim (which counts as used and
 * reserved), and the most of that. */
static size_t used[MAX_DEVICES], kept[MAX_DEVICES], most[MAX_DEVICES];

CUresult graph_memory_new(struct context *context, size_t bytes, struct graph_memory **out) {
    void *base;
    CUresult code =
        bytes == 0 ? INVALID_VALUE : memory_make(context, bytes, MEMORY_DEVICE, 0, &base);
    if (code != OK) return code;
    struct graph_memory *memory = alloc_need(sizeof *memory);
    memory->references = 1;
    memory->device = context->device;
    memory->base = base;
    memory->bytes = bytes;
    find_allocation(base)->graph_memory = memory;
    used[memory->device] += bytes;
    if (used[memory->device] > kept[memory->device]) kept[memory->device] = used[memory->device];
    if (kept[memory->device] > most[memory->device]) most[memory->device] = kept[memory->device];
    *out = memory;
    return OK;
}

void graph_memory_release(struct graph_memory *memory) {
    if (--memory->references > 0) return;
    used[memory->device] -= memory->bytes;
    if (memory->base != NULL) { /* else it went with its context */
        find_allocation(memory->base)->graph_memory = NULL;
        memory_free_device(memory->base);
    }
    free(memory);
}

/* For a call that frees it. The life's reference is the caller's to give back when that comes to
 * pass. */
CUresult graph_memory_end(struct graph_memory *memory) {
    if (!memory->live) return INVALID_VALUE;
    memory->live = false;
    return OK;
}

/* The work that frees memory has been done. For a graph's memory a life has ended. */
void memory_freed(void *base) {
    const struct allocation *found = find_allocation(base);
    if (found != NULL && found->graph_memory != NULL) graph_memory_release(found->graph_memory);
    else memory_free_device(base);
}

/* --- the devices' accounts --- */

EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int which, void *out) {
    ENTER(cuDeviceGetGraphMemAttribute, 0);
    if (device < 0 || device >= sim.device_count) return leave(INVALID_DEVICE);
    if (out == NULL || which < USED || which > RESERVED_HIGH) return leave(INVALID_VALUE);
    uint64_t value = which == USED || which == RESERVED ? kept[device] : most[device];
    memcpy(out, &value, sizeof value);
    return leave(OK);
}

EXPORT CUresult cuDeviceSetGraphMemAttribute(CUdevice device, int which, void *value) {
    ENTER(cuDeviceSetGraphMemAttribute, 0);
    uint64_t number = 1;
    if (device < 0 || device >= sim.device_count) return leave(INVALID_DEVICE);
    if (value != NULL) memcpy(&number, value, sizeof number);
    if (number != 0 || (which != USED_HIGH && which != RESERVED_HIGH)) return leave(INVALID_VALUE);
    most[device] = kept[device];
    return leave(OK);
}

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device) {
    ENTER(cuDeviceGraphMemTrim, 0);
    if (device < 0 || device >= sim.device_count) return leave(INVALID_DEVICE);
    kept[device] = used[device];
    return leave(OK);
}
