/* What is asked of kernels and functions, and set: names, attributes, parameters, occupancy. And
 * how the launch of one becomes an op. */
#include "../driver.h"

#include "../api.h"
#include "ptx.h"

#include <string.h>

/* As an H200 has them. */
enum {
    DEFAULT_DYNAMIC_SHARED = 49152,
    BLOCK_SHARED = 232448,
    PROCESSOR_SHARED = 233472,
    RESERVED_SHARED = 1024,
    BLOCK_THREADS = 1024,
    PROCESSOR_THREADS = 2048,
    PROCESSOR_BLOCKS = 32,
    WARP = 32,
};

void function_start(struct function *function) {
    const char *text = function->module->image;
    const int values[FUNCTION_ATTRIBUTES] = {
        [MAX_THREADS] = BLOCK_THREADS,
        [2] = (int)ptx_constant_bytes(text),
        [4] = 4 /* registers: those of an empty kernel */,
        [5] = (int)ptx_architecture(text),
        [6] = 90,
        [MAX_DYNAMIC_SHARED] = DEFAULT_DYNAMIC_SHARED,
        [CARVEOUT] = -1,
    };
    memcpy(function->attributes, values, sizeof values);
}

bool function_can_launch(const struct function *function, unsigned shared_bytes, uint64_t threads) {
    return shared_bytes <= (unsigned)function->attributes[MAX_DYNAMIC_SHARED] &&
           threads <= (uint64_t)function->attributes[MAX_THREADS];
}

static bool valid_shape(const unsigned *grid, const unsigned *block) {
    for (int i = 0; i < 3; i++)
        if (grid[i] == 0 || block[i] == 0 || block[i] > 1024 || (i > 0 && grid[i] > 65535))
            return false;
    return (uint64_t)block[0] * block[1] * block[2] <= 1024 && grid[0] <= 0x7fffffffu &&
           block[2] <= 64;
}

/* NULL: the shape or the arguments will not do. */
struct op *kernel_op(const struct kernel_params *params, const struct function *function) {
    if (!valid_shape(params->grid, params->block) ||
        (params->parameters != NULL && params->extra != NULL))
        return NULL;
    if (!function_can_launch(function, params->shared_bytes,
                             (uint64_t)params->block[0] * params->block[1] * params->block[2]))
        return NULL;
    struct op *op = kernel_pack(function->kernel, params->parameters, params->extra);
    if (op == NULL) return NULL;
    op->u.kernel.function = params->function != NULL ? params->function : params->kernel;
    memcpy(op->u.kernel.grid, params->grid, sizeof params->grid);
    memcpy(op->u.kernel.block, params->block, sizeof params->block);
    op->u.kernel.shared_bytes = params->shared_bytes;
    return op;
}

/* The context that a function belongs to; a library's kernel goes with any. */
bool function_fits(const struct function *function, const struct context *context) {
    const struct module *module = function->module;
    return module->context == NULL ||
           (module->context == context && module->generation == context->generation);
}

/* Where a kernel node runs: in the context named, or its function's own, or the current one. */
CUresult kernel_context(const struct function *function, CUcontext handle, struct context **out) {
    CUresult code;
    if (handle == NULL && function->module->context == NULL) code = current_context(out);
    else code = find_context(handle != NULL ? handle : function->module->context, out);
    return code == OK && !function_fits(function, *out) ? INVALID_HANDLE : code;
}

/* The manual has NULL as an invalid value where other handles that are none are invalid handles. */
static CUresult find(const void *handle, struct function **out) {
    *out = object_find(handle, OBJECT_FUNCTION);
    return *out != NULL ? OK : INVALID_HANDLE;
}

static CUresult check_device(CUdevice device) {
    return device >= 0 && device < sim.device_count ? OK : INVALID_DEVICE;
}

/* --- names and where they belong --- */

static CUresult name_of(const char **out, void *handle) {
    struct function *function;
    CUresult code = out == NULL || handle == NULL ? INVALID_VALUE : find(handle, &function);
    if (code == OK) *out = function->kernel->name;
    return leave(code);
}

EXPORT CUresult cuFuncGetName(const char **out, CUfunction handle) {
    ENTER(cuFuncGetName, 0);
    return name_of(out, handle);
}

EXPORT CUresult cuKernelGetName(const char **out, CUkernel handle) {
    ENTER(cuKernelGetName, 0);
    return name_of(out, handle);
}

EXPORT CUresult cuFuncGetModule(CUmodule *out, CUfunction handle) {
    ENTER(cuFuncGetModule, 0);
    struct function *function;
    CUresult code = out == NULL ? INVALID_VALUE : find(handle, &function);
    if (code == OK && function->module->context == NULL) code = INVALID_HANDLE;
    if (code == OK) *out = function->module;
    return leave(code);
}

EXPORT CUresult cuKernelGetLibrary(CUlibrary *out, CUkernel handle) {
    ENTER(cuKernelGetLibrary, 0);
    struct function *function;
    CUresult code = out == NULL ? INVALID_VALUE : find(handle, &function);
    if (code == OK && function->module->context != NULL) code = INVALID_HANDLE;
    if (code == OK) *out = function->module;
    return leave(code);
}

EXPORT CUresult cuFuncLoad(CUfunction handle) {
    ENTER(cuFuncLoad, 0);
    struct function *function;
    return leave(find(handle, &function));
}

EXPORT CUresult cuFuncIsLoaded(int *state, CUfunction handle) {
    ENTER(cuFuncIsLoaded, 0);
    struct function *function;
    CUresult code = state == NULL ? INVALID_VALUE : find(handle, &function);
    if (code == OK) *state = 1;
    return leave(code);
}

/* --- attributes --- */

static CUresult attribute_of(int *out, int which, void *handle) {
    struct function *function;
    CUresult code = find(handle, &function);
    if (code == OK && (out == NULL || which < 0 || which >= FUNCTION_ATTRIBUTES))
        code = INVALID_VALUE;
    if (code == OK) *out = function->attributes[which];
    return leave(code);
}

/* The others follow from the kernel's code. Attributes of clusters and the carve-out are kept, and
 * of no effect. */
static CUresult set_attribute(void *handle, int which, int value) {
    static const struct {
        int which, least, most;
    } settable[] = {
        {MAX_DYNAMIC_SHARED, 0, BLOCK_SHARED},
        {CARVEOUT, -1, 100},
        {11, 0, 8},
        {12, 0, 8},
        {13, 0, 8},
        {14, 0, 1},
        {15, 0, 2},
    };
    struct function *function;
    CUresult code = find(handle, &function);
    if (code != OK) return leave(code);
    for (size_t i = 0; i < sizeof settable / sizeof settable[0]; i++)
        if (settable[i].which == which && value >= settable[i].least && value <= settable[i].most) {
            function->attributes[which] = value;
            return leave(OK);
        }
    return leave(INVALID_VALUE);
}

EXPORT CUresult cuFuncGetAttribute(int *out, int which, CUfunction handle) {
    ENTER(cuFuncGetAttribute, 0);
    return attribute_of(out, which, handle);
}

EXPORT CUresult cuFuncSetAttribute(CUfunction handle, int which, int value) {
    ENTER(cuFuncSetAttribute, 0);
    return set_attribute(handle, which, value);
}

/* A kernel is the same on all devices here. */
EXPORT CUresult cuKernelGetAttribute(int *out, int which, CUkernel handle, CUdevice device) {
    ENTER(cuKernelGetAttribute, 0);
    CUresult code = check_device(device);
    return code == OK ? attribute_of(out, which, handle) : leave(code);
}

EXPORT CUresult cuKernelSetAttribute(int which, int value, CUkernel handle, CUdevice device) {
    ENTER(cuKernelSetAttribute, 0);
    CUresult code = check_device(device);
    return code == OK ? set_attribute(handle, which, value) : leave(code);
}

/* Preferences, which a GPU need not follow either. */
static CUresult set_preference(void *handle, int value, int most) {
    struct function *function;
    CUresult code = find(handle, &function);
    return leave(code == OK && (value < 0 || value > most) ? INVALID_VALUE : code);
}

EXPORT CUresult cuFuncSetCacheConfig(CUfunction handle, int config) {
    ENTER(cuFuncSetCacheConfig, 0);
    return set_preference(handle, config, 3);
}

EXPORT CUresult cuKernelSetCacheConfig(CUkernel handle, int config, CUdevice device) {
    ENTER(cuKernelSetCacheConfig, 0);
    CUresult code = check_device(device);
    return code == OK ? set_preference(handle, config, 3) : leave(code);
}

EXPORT CUresult cuFuncSetSharedMemConfig(CUfunction handle, int config) {
    ENTER(cuFuncSetSharedMemConfig, 0);
    return set_preference(handle, config, 2);
}

/* --- parameters --- */

static CUresult parameter_of(void *handle, size_t index, size_t *offset, size_t *bytes) {
    struct function *function;
    CUresult code = find(handle, &function);
    if (code == OK && (index >= function->kernel->parameter_count || offset == NULL))
        code = INVALID_VALUE;
    if (code != OK) return leave(code);
    size_t at = 0;
    for (unsigned i = 0; i <= index; i++) {
        size_t align = kernel_alignment(function->kernel, i);
        *offset = (at + align - 1) / align * align;
        at = *offset + function->kernel->sizes[i];
    }
    if (bytes != NULL) *bytes = function->kernel->sizes[index];
    return leave(OK);
}

EXPORT CUresult cuFuncGetParamInfo(CUfunction handle, size_t index, size_t *offset, size_t *bytes) {
    ENTER(cuFuncGetParamInfo, 0);
    if (handle == NULL) return leave(INVALID_VALUE);
    return parameter_of(handle, index, offset, bytes);
}

/* A library's kernel is loaded into the current context to answer. */
EXPORT CUresult cuKernelGetParamInfo(CUkernel handle, size_t index, size_t *offset, size_t *bytes) {
    ENTER(cuKernelGetParamInfo, 0);
    struct context *context;
    CUresult code = current_context(&context);
    return code == OK ? parameter_of(handle, index, offset, bytes) : leave(code);
}

static CUresult parameter_count(void *handle, size_t *count) {
    struct function *function;
    CUresult code = count == NULL ? INVALID_VALUE : find(handle, &function);
    if (code == OK) *count = function->kernel->parameter_count;
    return leave(code);
}

EXPORT CUresult cuFuncGetParamCount(CUfunction handle, size_t *count) {
    ENTER(cuFuncGetParamCount, 0);
    return parameter_count(handle, count);
}

EXPORT CUresult cuKernelGetParamCount(CUkernel handle, size_t *count) {
    ENTER(cuKernelGetParamCount, 0);
    return parameter_count(handle, count);
}

/* --- occupancy ---
 *
 * Computed from the attributes of the device and of the kernel. Registers are no limit here. */

/* As the device's attribute says. */
enum { MULTIPROCESSORS = 132 };

static int least(int first, int second) { return first < second ? first : second; }

/* How many blocks of this size one multiprocessor runs at a time. */
static int blocks_that_fit(const struct function *function, int block_size, size_t shared_bytes) {
    int warps = (block_size + WARP - 1) / WARP;
    size_t shared = shared_bytes + (size_t)function->attributes[STATIC_SHARED] + RESERVED_SHARED;
    if (block_size > function->attributes[MAX_THREADS] ||
        shared_bytes > (size_t)function->attributes[MAX_DYNAMIC_SHARED])
        return 0;
    return least(least(PROCESSOR_BLOCKS, PROCESSOR_THREADS / (warps * WARP)),
                 (int)(PROCESSOR_SHARED / shared));
}

/* A cooperative launch needs all of its blocks at a time. */
bool function_runs_at_once(const struct function *function, const CUlaunchConfig *config) {
    const unsigned *grid = config->grid, *block = config->block;
    int fit =
        blocks_that_fit(function, (int)(block[0] * block[1] * block[2]), config->shared_bytes);
    return (uint64_t)grid[0] * grid[1] * grid[2] <= (uint64_t)fit * MULTIPROCESSORS;
}

/* The device that is asked about is that of the current context. */
static CUresult find_here(void *handle, struct function **out) {
    struct context *context;
    CUresult code = current_context(&context);
    return code == OK ? find(handle, out) : code;
}

static CUresult occupancy(int *out, CUfunction handle, int block_size, size_t shared_bytes,
                          unsigned flags) {
    struct function *function;
    CUresult code =
        out == NULL || block_size < 1 || flags > 1 ? INVALID_VALUE : find_here(handle, &function);
    if (code == OK) *out = blocks_that_fit(function, block_size, shared_bytes);
    return leave(code);
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *out, CUfunction function,
                                                            int block_size, size_t shared_bytes) {
    ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessor, 0);
    return occupancy(out, function, block_size, shared_bytes, 0);
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *out, CUfunction function,
                                                                     int block_size,
                                                                     size_t shared_bytes,
                                                                     unsigned flags) {
    ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 0);
    return occupancy(out, function, block_size, shared_bytes, flags);
}

/* The block size with the most threads at a time, the largest of those. `shared_of` says what a
 * block of a size needs, if given. */
static CUresult best_block(int *grid, int *block, CUfunction handle, CUoccupancyB2DSize shared_of,
                           size_t shared_bytes, int limit, unsigned flags) {
    struct function *function;
    CUresult code = grid == NULL || block == NULL || limit < 0 || flags > 1
                        ? INVALID_VALUE
                        : find_here(handle, &function);
    const struct function copy = code == OK ? *function : (struct function){0};
    if (leave(code) != OK) /* without the lock from here on: `shared_of` is the program's */
        return code;
    int most = copy.attributes[MAX_THREADS], best = 0;
    if (limit > 0 && limit < most) most = limit;
    *grid = *block = 0;
    for (int size = most; size > 0; size = size % WARP != 0 ? size / WARP * WARP : size - WARP) {
        int fit = blocks_that_fit(&copy, size, shared_of != NULL ? shared_of(size) : shared_bytes);
        if (fit * size <= best) continue;
        best = fit * size;
        *block = size;
        *grid = fit * MULTIPROCESSORS;
    }
    return OK;
}

EXPORT CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function,
                                                 CUoccupancyB2DSize shared_of, size_t shared_bytes,
                                                 int limit) {
    ENTER(cuOccupancyMaxPotentialBlockSize, 0);
    return best_block(grid, block, function, shared_of, shared_bytes, limit, 0);
}

EXPORT CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block,
                                                          CUfunction function,
                                                          CUoccupancyB2DSize shared_of,
                                                          size_t shared_bytes, int limit,
                                                          unsigned flags) {
    ENTER(cuOccupancyMaxPotentialBlockSizeWithFlags, 0);
    return best_block(grid, block, function, shared_of, shared_bytes, limit, flags);
}

EXPORT CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *out, CUfunction handle, int blocks,
                                                        int block_size) {
    ENTER(cuOccupancyAvailableDynamicSMemPerBlock, 0);
    struct function *function;
    CUresult code =
        out == NULL || blocks < 1 || block_size < 1 ? INVALID_VALUE : find_here(handle, &function);
    if (code == OK && blocks > blocks_that_fit(function, block_size, 0)) code = INVALID_VALUE;
    if (code != OK) return leave(code);
    /* As the H200 has it: without the share that is reserved, so that a block may fit once less
     * with what this answers. */
    size_t each = (size_t)(PROCESSOR_SHARED / blocks) - (size_t)function->attributes[STATIC_SHARED];
    *out = (size_t)least((int)each, function->attributes[MAX_DYNAMIC_SHARED]);
    return leave(OK);
}

/* How many clusters run at a time. An H200 was asked about clusters of 1, 2, 4 and 8 blocks, of 32
 * to 1,024 threads. A multiprocessor runs at most 8 blocks in clusters, and a cluster of more than
 * 2 blocks stays within a group of multiprocessors. These groups give all of the H200's answers,
 * but its real groups are not known. */
static int clusters_at_once(int fit, int blocks) {
    static const int groups[] = {18, 18, 16, 16, 16, 16, 16, 8};
    int each = least(fit, 8), sum = 0;
    if (blocks <= 2) return MULTIPROCESSORS * each / blocks;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) sum += groups[i] * each / blocks;
    return sum;
}

EXPORT CUresult cuOccupancyMaxActiveClusters(int *out, CUfunction handle,
                                             const CUlaunchConfig *config) {
    ENTER(cuOccupancyMaxActiveClusters, 0);
    struct function *function;
    struct attributes attributes = {0};
    CUresult code = out == NULL || config == NULL ? INVALID_VALUE : find_here(handle, &function);
    if (code == OK) code = attributes_of_launch(&attributes, config, function);
    if (code != OK) return leave(code);
    const unsigned *size = attributes.cluster;
    unsigned blocks = size[0] == 0 ? 1 : size[0] * size[1] * size[2];
    unsigned threads = config->block[0] * config->block[1] * config->block[2];
    int fit = blocks_that_fit(function, (int)threads, config->shared_bytes);
    *out = clusters_at_once(fit, (int)blocks);
    return leave(OK);
}

EXPORT CUresult cuOccupancyMaxPotentialClusterSize(int *out, CUfunction handle,
                                                   const CUlaunchConfig *config) {
    ENTER(cuOccupancyMaxPotentialClusterSize, 0);
    struct function *function;
    CUresult code = out == NULL || config == NULL ? INVALID_VALUE : find_here(handle, &function);
    if (code == OK) *out = (int)largest_cluster(function);
    return leave(code);
}

/* --- profilers: there is none to be started, and none misses it --- */

EXPORT CUresult cuProfilerStart(void) {
    ENTER(cuProfilerStart, 0);
    struct context *context;
    return leave(current_context(&context));
}

EXPORT CUresult cuProfilerStop(void) {
    ENTER(cuProfilerStop, 0);
    struct context *context;
    return leave(current_context(&context));
}
