/* Kernels: the built-in ones, and those that a user registers. A kernel is known by its name. */
#include "../driver.h"

#include <stdlib.h>
#include <string.h>

enum { SPIN = 1, TRAP, ILLEGAL, SAXPY, FILL32, STAMP, EMPTY };

static struct kernel builtins[] = {
    {.name = "spin", .builtin = SPIN, .parameter_count = 1, .sizes = {8}},
    {.name = "trap", .builtin = TRAP},
    {.name = "illegal_address", .builtin = ILLEGAL},
    {.name = "saxpy", .builtin = SAXPY, .parameter_count = 4, .sizes = {4, 8, 8, 4}},
    {.name = "fill32", .builtin = FILL32, .parameter_count = 3, .sizes = {8, 4, 4}},
    {.name = "stamp", .builtin = STAMP, .parameter_count = 1, .sizes = {8}},
    {.name = "empty", .builtin = EMPTY},
};
/* under sim.lock; entries are never freed, functions may point to them */
static struct kernel *registered;

const struct kernel *find_kernel(const char *name, size_t length) {
    for (const struct kernel *kernel = registered; kernel != NULL; kernel = kernel->next)
        if (strlen(kernel->name) == length && memcmp(kernel->name, name, length) == 0)
            return kernel;
    for (size_t i = 0; i < sizeof builtins / sizeof builtins[0]; i++)
        if (strlen(builtins[i].name) == length && memcmp(builtins[i].name, name, length) == 0)
            return &builtins[i];
    return NULL;
}

/* Whether there is a kernel of this name, built in or registered. */
EXPORT int nogpu_has_kernel(const char *name) {
    pthread_mutex_lock(&sim.lock);
    bool found = find_kernel(name, strlen(name)) != NULL;
    leave(OK);
    return found;
}

/* A later registration of a name hides the earlier one, except for functions that were already
 * looked up. Without a function it does nothing when it runs. */
EXPORT CUresult nogpu_register_kernel(const char *name, void (*function)(void **),
                                      const unsigned *sizes, const unsigned *aligns,
                                      unsigned count) {
    if (name == NULL || count > MAX_PARAMETERS) return INVALID_VALUE;
    struct kernel *kernel = alloc_try(sizeof *kernel);
    char *copy = alloc_text(name);
    if (kernel == NULL || copy == NULL) {
        free(kernel);
        free(copy);
        return OUT_OF_MEMORY;
    }
    kernel->name = copy;
    kernel->function = function;
    kernel->builtin = function == NULL ? EMPTY : 0;
    kernel->parameter_count = count;
    for (unsigned i = 0; i < count; i++) {
        kernel->sizes[i] = sizes[i];
        kernel->aligns[i] = aligns != NULL ? aligns[i] : 0;
    }
    pthread_mutex_lock(&sim.lock);
    kernel->next = registered;
    registered = kernel;
    return leave(OK);
}

/* In the driver's argument buffer. */
size_t kernel_alignment(const struct kernel *kernel, unsigned parameter) {
    size_t bytes = kernel->sizes[parameter], align = bytes & (~bytes + 1);
    if (kernel->aligns[parameter] != 0) return kernel->aligns[parameter];
    return align > 16 ? 16 : align;
}

/* Finds the argument buffer in `extra`: CU_LAUNCH_PARAM_BUFFER_POINTER (1), _BUFFER_SIZE (2), _END
 * (0). False: there is something else in it. */
static bool argument_buffer(void **extra, const unsigned char **buffer, size_t *bytes) {
    *buffer = NULL;
    *bytes = 0;
    for (; extra != NULL && extra[0] != NULL; extra += 2) {
        if ((uintptr_t)extra[0] == 1) *buffer = extra[1];
        else if ((uintptr_t)extra[0] == 2) *bytes = *(size_t *)extra[1];
        else return false;
    }
    return true;
}

/* Arguments are copied, so the caller may let go of them when it returns. NULL: they are not all
 * there. */
struct op *kernel_pack(const struct kernel *kernel, void **parameters, void **extra) {
    size_t space = 0, buffer_bytes, at = 0;
    for (unsigned i = 0; i < kernel->parameter_count; i++)
        space += (kernel->sizes[i] + 15u) / 16u * 16u;
    const unsigned char *buffer;
    if (!argument_buffer(extra, &buffer, &buffer_bytes) ||
        (kernel->parameter_count > 0 && parameters == NULL && buffer == NULL))
        return NULL;
    struct op *op = op_new(OP_KERNEL, space);
    unsigned char *next = op->payload;
    op->u.kernel.kernel = kernel;
    for (unsigned i = 0; i < kernel->parameter_count; i++) {
        size_t bytes = kernel->sizes[i], align = kernel_alignment(kernel, i);
        at = (at + align - 1) / align * align;
        const void *from = parameters != NULL           ? parameters[i]
                           : at + bytes <= buffer_bytes ? buffer + at
                                                        : NULL;
        if (from == NULL) {
            op_free(op);
            return NULL;
        }
        memcpy(next, from, bytes);
        at += bytes;
        next += (bytes + 15) / 16 * 16;
    }
    return op;
}

/* The payload holds the parameters one after another, each aligned to 16. */
void kernel_unpack(struct op *op, void **parameters) {
    unsigned char *next = op->payload;
    const struct kernel *kernel = op->u.kernel.kernel;
    for (unsigned i = 0; i < kernel->parameter_count; i++) {
        parameters[i] = next;
        next += (kernel->sizes[i] + 15u) / 16u * 16u;
    }
}

bool kernel_is_timed(const struct op *op, uint64_t *duration) {
    if (op->u.kernel.kernel->builtin != SPIN) return false;
    memcpy(duration, op->payload, sizeof *duration);
    return true;
}

static uint64_t argument(const struct op *op, unsigned index, size_t bytes) {
    uint64_t value = 0;
    memcpy(&value, op->payload + (size_t)index * 16, bytes);
    return value;
}

/* The sticky error that the kernel raises when it runs: a bad pointer is an illegal address, as on
 * a GPU. */
CUresult kernel_fault(const struct op *op) {
    CUresult code = OK;
    switch (op->u.kernel.kernel->builtin) {
    case TRAP:
        return LAUNCH_FAILED;
    case ILLEGAL:
        return ILLEGAL_ADDRESS;
    case SAXPY:
        for (unsigned i = 1; i <= 2 && code == OK && argument(op, 3, 4) > 0; i++)
            code = check_device_memory(argument(op, i, 8), argument(op, 3, 4) * 4);
        break;
    case FILL32:
        if (argument(op, 2, 4) > 0)
            code = check_device_memory(argument(op, 0, 8), argument(op, 2, 4) * 4);
        break;
    case STAMP:
        code = check_device_memory(argument(op, 0, 8), 8);
        break;
    default:
        break;
    }
    return code == OK ? OK : ILLEGAL_ADDRESS;
}

static void saxpy(float a, const float *x, float *y, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) y[i] = a * x[i] + y[i];
}

void kernel_run(struct op *op) {
    void *parameters[MAX_PARAMETERS];
    kernel_unpack(op, parameters);
    const struct kernel *kernel = op->u.kernel.kernel;
    switch (kernel->builtin) {
    case SAXPY:
        saxpy(*(float *)parameters[0], *(float **)parameters[1], *(float **)parameters[2],
              *(uint32_t *)parameters[3]);
        break;
    case FILL32:
        for (uint32_t i = 0; i < *(uint32_t *)parameters[2]; i++)
            (*(uint32_t **)parameters[0])[i] = *(uint32_t *)parameters[1];
        break;
    case STAMP:
        **(uint64_t **)parameters[0] = now_ns();
        break;
    case EMPTY:
        break;
    default:
        kernel->function(parameters);
    }
}
