/* Hints about managed memory: where it should be, and who reads it. They are kept and given back.
 * They change nothing here, because host and device use the same memory.
 *
 * By the manual a driver keeps them by page. Here each part of 64 KiB has its own. A hint for a
 * range goes to every part that the range touches, and a question about a range looks at the same
 * parts.
 */
#include "../driver.h"

#include "../api.h"

enum { PART = 1 << 16 };
enum { NOWHERE_TYPE = 0, ON_DEVICE = 1, ON_HOST = 2 };    /* CUmemLocationType */
enum { CPU = -1, NOWHERE = -2 };                          /* CUdevice */
enum { READ_MOSTLY = 1, PREFERRED = 3, ACCESSED_BY = 5 }; /* CUmem_advise; one more takes it back */
enum { READERS = 3, LAST_PREFETCH = 4, TYPES = 5, LAST_ATTRIBUTE = 8 }; /* CUmem_range_attribute */

struct hint {
    unsigned char read_mostly;
    signed char preferred, prefetched; /* CUdevice, plus 2: zero is NOWHERE */
    uint32_t accessed_by;              /* a bit for each device, and the last for the host */
};

static uint32_t bit_of(CUdevice place) { return place == CPU ? 1u << 31 : 1u << place; }

static bool is_place(CUdevice place) { return place >= CPU && place < sim.device_count; }

/* For the forms with a location. */
static CUdevice place_of(struct location location) {
    if (location.type == ON_HOST) return CPU;
    return location.type == ON_DEVICE && location.id >= 0 ? location.id : NOWHERE;
}

/* The parts of a range of managed memory: the first, and how many. */
static CUresult find_parts(CUdeviceptr address, size_t bytes, struct hint **first, size_t *count) {
    struct allocation *found = find_allocation((void *)(uintptr_t)address);
    if (bytes == 0 || found == NULL || found->kind != MEMORY_MANAGED ||
        check_device_memory(address, bytes) != OK)
        return INVALID_VALUE;
    if (found->hints == NULL)
        found->hints = alloc_try((found->bytes / PART + 1) * sizeof *found->hints);
    if (found->hints == NULL) return OUT_OF_MEMORY;
    size_t from = (size_t)(address - found->base) / PART;
    *first = found->hints + from;
    *count = (size_t)(address - found->base + bytes - 1) / PART - from + 1;
    return OK;
}

static void advise_part(struct hint *hint, int advice, CUdevice place) {
    switch (advice) {
    case READ_MOSTLY:
    case READ_MOSTLY + 1:
        hint->read_mostly = advice == READ_MOSTLY;
        break;
    case PREFERRED:
    case PREFERRED + 1:
        hint->preferred = (signed char)(advice == PREFERRED ? place - NOWHERE : 0);
        break;
    case ACCESSED_BY:
        hint->accessed_by |= bit_of(place);
        break;
    case ACCESSED_BY + 1:
        hint->accessed_by &= ~bit_of(place);
        break;
    }
}

static CUresult advise(CUdeviceptr address, size_t bytes, int advice, CUdevice place) {
    struct hint *hint;
    size_t count;
    bool needs_place = advice >= PREFERRED && advice != PREFERRED + 1;
    if (advice < READ_MOSTLY || advice > ACCESSED_BY + 1) return INVALID_VALUE;
    if (needs_place && !is_place(place)) return INVALID_DEVICE;
    CUresult code = find_parts(address, bytes, &hint, &count);
    for (; code == OK && count > 0; count--) advise_part(hint++, advice, place);
    return code;
}

EXPORT CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, int advice, CUdevice place) {
    ENTER(cuMemAdvise, 0);
    return leave(advise(address, bytes, advice, place));
}

EXPORT CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, int advice,
                               struct location location) {
    ENTER(cuMemAdvise, 0);
    if (location.type > ON_HOST) return leave(NOT_SUPPORTED); /* a NUMA node of the host */
    return leave(advise(address, bytes, advice, place_of(location)));
}

/* Nothing is carried anywhere. What remains is the place in the stream's order, and the note. */
static CUresult prefetch(CUdeviceptr address, size_t bytes, CUdevice place, CUstream handle) {
    struct stream *stream;
    struct hint *hint;
    size_t count;
    CUresult code = find_stream(handle, &stream);
    if (code == OK && !is_place(place)) code = INVALID_DEVICE;
    if (code == OK) code = find_parts(address, bytes, &hint, &count);
    if (code == OK) code = capture_forbids_legacy(stream);
    if (code == OK && stream->capture != NULL) code = capture_unsupported(stream);
    if (code != OK) return leave(code);
    for (; count > 0; count--) (hint++)->prefetched = (signed char)(place - NOWHERE);
    return leave(enqueue(stream, op_new(OP_EMPTY, 0)));
}

EXPORT CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice place,
                                   CUstream stream) {
    ENTER(cuMemPrefetchAsync, ENQUEUES);
    return prefetch(address, bytes, place, stream);
}

EXPORT CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, struct location location,
                                      unsigned flags, CUstream stream) {
    ENTER(cuMemPrefetchAsync, ENQUEUES);
    if (flags != 0 || location.type == NOWHERE_TYPE) return leave(INVALID_VALUE);
    if (location.type > ON_HOST) return leave(NOT_SUPPORTED);
    return prefetch(address, bytes, place_of(location), stream);
}

/* --- batches --- */

/* Ranges, and for a prefetch where to: place k is for the ranges from starts[k] on. */
struct batch {
    const CUdeviceptr *addresses;
    const size_t *sizes;
    size_t count;
    const struct location *places; /* NULL: they stay where they are */
    const size_t *starts;
    size_t place_count;
};

static CUresult check_places(const struct batch *batch) {
    if (batch->places == NULL || batch->starts == NULL || batch->place_count == 0 ||
        batch->place_count > batch->count)
        return INVALID_VALUE;
    for (size_t k = 0; k < batch->place_count; k++) {
        bool fits = k == 0 ? batch->starts[0] == 0 : batch->starts[k] > batch->starts[k - 1];
        if (!fits || batch->starts[k] >= batch->count) return INVALID_VALUE;
        if (batch->places[k].type > ON_HOST) return NOT_SUPPORTED;
        if (!is_place(place_of(batch->places[k]))) return INVALID_DEVICE;
    }
    return OK;
}

/* What is discarded keeps its contents here, and a program must not rely on them. */
static CUresult run_batch(const struct batch *batch, unsigned long long flags, CUstream handle) {
    struct stream *stream;
    struct hint *hint;
    size_t parts;
    CUresult code =
        batch->addresses == NULL || batch->sizes == NULL || batch->count == 0 || flags != 0
            ? INVALID_VALUE
            : find_stream(handle, &stream);
    for (size_t i = 0; i < batch->count && code == OK; i++)
        code = find_parts(batch->addresses[i], batch->sizes[i], &hint, &parts);
    if (code == OK) code = capture_forbids_legacy(stream);
    if (code == OK && stream->capture != NULL) code = capture_unsupported(stream);
    if (code != OK) return leave(code);
    for (size_t i = 0, k = 0; i < batch->count && batch->places != NULL; i++) {
        if (k + 1 < batch->place_count && batch->starts[k + 1] <= i) k++;
        if (find_parts(batch->addresses[i], batch->sizes[i], &hint, &parts) != OK) continue;
        CUdevice place = place_of(batch->places[k]);
        for (; parts > 0; parts--) (hint++)->prefetched = (signed char)(place - NOWHERE);
    }
    return leave(enqueue(stream, op_new(OP_EMPTY, 0)));
}

EXPORT CUresult cuMemPrefetchBatchAsync(CUdeviceptr *addresses, size_t *sizes, size_t count,
                                        struct location *places, size_t *starts, size_t place_count,
                                        unsigned long long flags, CUstream stream) {
    ENTER(cuMemPrefetchBatchAsync, ENQUEUES);
    const struct batch batch = {addresses, sizes, count, places, starts, place_count};
    CUresult code = check_places(&batch);
    return code == OK ? run_batch(&batch, flags, stream) : leave(code);
}

EXPORT CUresult cuMemDiscardBatchAsync(CUdeviceptr *addresses, size_t *sizes, size_t count,
                                       unsigned long long flags, CUstream stream) {
    ENTER(cuMemDiscardBatchAsync, ENQUEUES);
    const struct batch batch = {addresses, sizes, count, NULL, NULL, 0};
    return run_batch(&batch, flags, stream);
}

EXPORT CUresult cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr *addresses, size_t *sizes,
                                                  size_t count, struct location *places,
                                                  size_t *starts, size_t place_count,
                                                  unsigned long long flags, CUstream stream) {
    ENTER(cuMemDiscardAndPrefetchBatchAsync, ENQUEUES);
    const struct batch batch = {addresses, sizes, count, places, starts, place_count};
    CUresult code = check_places(&batch);
    return code == OK ? run_batch(&batch, flags, stream) : leave(code);
}

/* --- asking --- */

/* What all parts have in common; NOWHERE if that is nothing. */
static CUdevice common_place(const struct hint *hint, size_t count, bool prefetched) {
    int first = prefetched ? hint->prefetched : hint->preferred;
    for (size_t i = 1; i < count; i++)
        if ((prefetched ? hint[i].prefetched : hint[i].preferred) != first) return NOWHERE;
    return first + NOWHERE;
}

static CUresult answer_accessed_by(const struct hint *hint, size_t count, int *out, size_t room) {
    uint32_t all = UINT32_MAX;
    for (size_t i = 0; i < count; i++) all &= hint[i].accessed_by;
    size_t at = 0;
    for (CUdevice place = CPU; place < sim.device_count && at < room; place++)
        if (all & bit_of(place)) out[at++] = place;
    while (at < room) out[at++] = NOWHERE;
    return OK;
}

static CUresult answer(void *data, size_t bytes, int which, const struct hint *hint, size_t count) {
    int *out = data;
    if (data == NULL || which < READ_MOSTLY || which > LAST_ATTRIBUTE || bytes == 0 ||
        bytes % sizeof(int) != 0)
        return INVALID_VALUE;
    if (which == READERS) return answer_accessed_by(hint, count, out, bytes / sizeof(int));
    if (bytes != sizeof(int)) return INVALID_VALUE;
    if (which == READ_MOSTLY) {
        *out = 1;
        for (size_t i = 0; i < count; i++) *out = *out && hint[i].read_mostly;
        return OK;
    }
    CUdevice place = common_place(hint, count, which == LAST_PREFETCH || which > TYPES + 1);
    if (which < TYPES) *out = place;
    else if (which % 2 == 1) /* the type; the id otherwise */
        *out = place == NOWHERE ? NOWHERE_TYPE : place == CPU ? ON_HOST : ON_DEVICE;
    else *out = place == CPU ? 0 : place; /* an H200 says NOWHERE here too */
    return OK;
}

EXPORT CUresult cuMemRangeGetAttribute(void *data, size_t data_bytes, int which,
                                       CUdeviceptr address, size_t bytes) {
    ENTER(cuMemRangeGetAttribute, 0);
    struct hint *hint;
    size_t count;
    CUresult code = find_parts(address, bytes, &hint, &count);
    return leave(code == OK ? answer(data, data_bytes, which, hint, count) : code);
}

EXPORT CUresult cuMemRangeGetAttributes(void **data, size_t *data_bytes, int *which, size_t asked,
                                        CUdeviceptr address, size_t bytes) {
    ENTER(cuMemRangeGetAttributes, 0);
    struct hint *hint;
    size_t count;
    if (data == NULL || data_bytes == NULL || which == NULL || asked == 0)
        return leave(INVALID_VALUE);
    CUresult code = find_parts(address, bytes, &hint, &count);
    for (size_t i = 0; code == OK && i < asked; i++)
        code = answer(data[i], data_bytes[i], which[i], hint, count);
    return leave(code);
}

/* Managed memory, all of an allocation. An H200 refused pageable memory. */
static bool can_attach(CUstream stream, CUdeviceptr address, size_t bytes, unsigned flags) {
    const struct allocation *allocation = find_allocation((void *)(uintptr_t)address);
    /* to a single stream, but not to 0; an H200 takes the legacy stream by its own handle */
    bool valid = flags == 1 || flags == 2 || (flags == 4 && stream != NULL);
    if (!valid || address == 0) return false;
    return allocation != NULL && allocation->kind == MEMORY_MANAGED &&
           address == allocation->base && (bytes == 0 || bytes == allocation->bytes);
}

/* Association with a stream changes nothing here, because host and device may touch memory at the
 * same time. */
EXPORT CUresult cuStreamAttachMemAsync(CUstream handle, CUdeviceptr address, size_t bytes,
                                       unsigned flags) {
    ENTER(cuStreamAttachMemAsync, ENQUEUES);
    struct stream *stream;
    CUresult code = find_stream(handle, &stream);
    if (code == OK && !can_attach(handle, address, bytes, flags)) code = INVALID_VALUE;
    if (code == OK && stream->capture != NULL) code = capture_unsupported(stream);
    if (code == OK) code = capture_forbids_legacy(stream);
    return leave(code == OK ? enqueue(stream, op_new(OP_EMPTY, 0)) : code);
}
