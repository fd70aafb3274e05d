/* Modules and libraries of PTX text, their functions, and launches. */
#include "../driver.h"

#include "../api.h"
#include "../graph.h"
#include "ptx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* NULL: there is no memory for the image. */
static struct module *module_new(enum object_kind kind, const char *image) {
    char *copy = ptx_copy(image);
    if (copy == NULL) return NULL;
    struct module *module = object_new(kind, sizeof *module);
    module->image = copy;
    return module;
}

/* Binary images (cubin, fatbin) hold code for a GPU that is not there. */
static CUresult check_image(const void *image) {
    if (image == NULL) return INVALID_VALUE;
    const unsigned char *bytes = image;
    for (size_t i = 0; i < 64 && bytes[i] != 0; i++)
        if (bytes[i] < 9) return INVALID_IMAGE;
    char *text = ptx_copy(image);
    CUresult code = text != NULL ? ptx_check(text) : OUT_OF_MEMORY;
    free(text);
    return code;
}

static CUresult read_file(const char *path, char **out) {
    if (path == NULL) return INVALID_VALUE;
    FILE *file = fopen(path, "rb");
    if (file == NULL) return FILE_NOT_FOUND;
    size_t count = 0, space = 0;
    char *text = NULL;
    while (!feof(file) && !ferror(file)) {
        if (count + 1 >= space) {
            char *larger = alloc_try(space = space != 0 ? space * 2 : 1 << 16);
            if (larger != NULL && text != NULL) memcpy(larger, text, count);
            free(text);
            text = larger;
            if (text == NULL) break;
        }
        count += fread(text + count, 1, space - count - 1, file);
    }
    fclose(file);
    *out = text; /* it ends with a zero, because the memory was zeroed */
    return text != NULL ? OK : OUT_OF_MEMORY;
}

static CUresult load(CUmodule *out, const void *image) {
    struct context *context;
    CUresult code = out == NULL ? INVALID_VALUE : current_context(&context);
    if (code == OK) code = check_image(image);
    if (code != OK) return leave(code);
    host_wait_idle(context);
    if (sim.sticky != OK) return leave(sim.sticky);
    struct module *module = module_new(OBJECT_MODULE, image);
    if (module == NULL) return leave(OUT_OF_MEMORY);
    module->context = context;
    module->generation = context->generation;
    *out = module;
    return leave(OK);
}

EXPORT CUresult cuModuleLoad(CUmodule *out, const char *path) {
    ENTER(cuModuleLoad, 0);
    char *text;
    CUresult code = read_file(path, &text);
    if (code != OK) return leave(code);
    code = load(out, text);
    free(text);
    return code;
}

EXPORT CUresult cuModuleLoadData(CUmodule *out, const void *image) {
    ENTER(cuModuleLoadData, 0);
    return load(out, image);
}

/* The compiler's options have nothing to act upon. */
EXPORT CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned count, int *options,
                                   void **values) {
    ENTER(cuModuleLoadDataEx, 0);
    (void)count, (void)options, (void)values;
    return load(out, image);
}

static void unload(struct module *module) {
    object_unregister(module);
    for (size_t i = 0; i < module->function_count; i++) {
        object_unregister(module->functions[i]);
        free(module->functions[i]);
    }
    if (module->loaded != NULL) unload(module->loaded);
    while (module->variables != NULL) {
        struct variable *variable = module->variables;
        module->variables = variable->next;
        /* else it went with its context */
        if (module->context->active && module->generation == module->context->generation)
            memory_free_device(variable->memory);
        free(variable->name);
        free(variable);
    }
    free(module->functions);
    free(module->image);
    free(module);
}

EXPORT CUresult cuModuleUnload(CUmodule handle) {
    ENTER(cuModuleUnload, UNSAFE | FREES);
    struct module *module = object_find(handle, OBJECT_MODULE);
    if (module == NULL) return leave(INVALID_HANDLE);
    /* its code may be running */
    CUresult code = module->context->active ? context_drain(module->context) : OK;
    if (code != OK) return leave(code);
    if (object_find(handle, OBJECT_MODULE) != module)
        return leave(INVALID_HANDLE); /* another thread unloaded it meanwhile */
    unload(module);
    return leave(OK);
}

EXPORT CUresult cuModuleGetLoadingMode(int *out) {
    ENTER(cuModuleGetLoadingMode, 0);
    if (out == NULL) return leave(INVALID_VALUE);
    *out = 1; /* eager: there is nothing to defer */
    return leave(OK);
}

static CUresult function_of(struct module *module, const struct kernel *kernel, void **out) {
    if (kernel == NULL) return NOT_FOUND;
    for (size_t i = 0; i < module->function_count; i++)
        if (module->functions[i]->kernel == kernel) {
            *out = module->functions[i];
            return OK;
        }
    struct function *function = object_new(OBJECT_FUNCTION, sizeof *function);
    function->module = module;
    function->kernel = kernel;
    function_start(function);
    module->functions =
        alloc_more(module->functions, (module->function_count + 1) * sizeof *module->functions);
    module->functions[module->function_count++] = function;
    *out = function;
    return OK;
}

static bool is_name(const char *name) { return name != NULL && *name != 0; }

static CUresult get_function(struct module *module, const char *name, void **out) {
    if (out == NULL || !is_name(name)) return INVALID_VALUE;
    bool here = ptx_has_entry(module->image, name);
    return function_of(module, here ? find_kernel(name, strlen(name)) : NULL, out);
}

EXPORT CUresult cuModuleGetFunction(CUfunction *out, CUmodule handle, const char *name) {
    ENTER(cuModuleGetFunction, 0);
    struct module *module = object_find(handle, OBJECT_MODULE);
    if (module == NULL) return leave(INVALID_HANDLE);
    return leave(get_function(module, name, out));
}

static CUresult count_functions(const struct module *module, unsigned *out) {
    if (module == NULL) return leave(INVALID_HANDLE);
    if (out == NULL) return leave(INVALID_VALUE);
    *out = ptx_count_entries(module->image);
    return leave(OK);
}

/* In the order of the text, as many as there is room for. */
static CUresult list_functions(struct module *module, void **out, unsigned room) {
    if (module == NULL) return leave(INVALID_HANDLE);
    if (out == NULL || room == 0) return leave(INVALID_VALUE);
    CUresult code = OK;
    const char *at = NULL;
    for (size_t length; code == OK && room > 0; room--, out++) {
        at = ptx_next_entry(module->image, at, &length);
        if (at == NULL) break;
        code = function_of(module, find_kernel(at, length), out);
    }
    return leave(code);
}

EXPORT CUresult cuModuleGetFunctionCount(unsigned *out, CUmodule handle) {
    ENTER(cuModuleGetFunctionCount, 0);
    return count_functions(object_find(handle, OBJECT_MODULE), out);
}

EXPORT CUresult cuModuleEnumerateFunctions(CUfunction *out, unsigned room, CUmodule handle) {
    ENTER(cuModuleEnumerateFunctions, 0);
    return list_functions(object_find(handle, OBJECT_MODULE), out, room);
}

/* --- global variables --- */

/* Made and filled when it is first asked for: kernels here do not know of it. */
static CUresult get_variable(struct module *module, const char *name, CUdeviceptr *out,
                             size_t *bytes) {
    struct variable *variable = module->variables;
    while (variable != NULL && strcmp(variable->name, name) != 0) variable = variable->next;
    if (variable == NULL) {
        unsigned char *initial;
        void *memory;
        size_t size = ptx_variable(module->image, name, &initial);
        CUresult none = ptx_has_entry(module->image, name) ? INVALID_VALUE : NOT_FOUND;
        CUresult code = size == 0 ? none
                        : initial == NULL
                            ? OUT_OF_MEMORY
                            : memory_make(module->context, size, MEMORY_DEVICE, 0, &memory);
        char *copy = code == OK ? alloc_text(name) : NULL;
        if (code == OK && copy == NULL) {
            memory_free_device(memory);
            code = OUT_OF_MEMORY;
        }
        if (code == OK) memcpy(memory, initial, size);
        if (size > 0) free(initial);
        if (code != OK) return code;
        variable = alloc_need(sizeof *variable);
        *variable = (struct variable){copy, memory, size, module->variables};
        module->variables = variable;
    }
    if (out != NULL) *out = (uintptr_t)variable->memory;
    if (bytes != NULL) *bytes = variable->bytes;
    return OK;
}

EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *out, size_t *bytes, CUmodule handle,
                                     const char *name) {
    ENTER(cuModuleGetGlobal, 0);
    struct module *module = object_find(handle, OBJECT_MODULE);
    if (module == NULL) return leave(INVALID_HANDLE);
    if (!is_name(name) || (out == NULL && bytes == NULL)) return leave(INVALID_VALUE);
    if (!module->context->active || module->generation != module->context->generation)
        return leave(CONTEXT_IS_DESTROYED);
    return leave(get_variable(module, name, out, bytes));
}

/* --- libraries: modules without a context --- */

static CUresult load_library(CUlibrary *out, const void *image) {
    CUresult code = out == NULL ? INVALID_VALUE : check_image(image);
    if (code != OK) return leave(code);
    struct module *library = module_new(OBJECT_LIBRARY, image);
    if (library != NULL) *out = library;
    return leave(library != NULL ? OK : OUT_OF_MEMORY);
}

EXPORT CUresult cuLibraryLoadData(CUlibrary *out, const void *image, int *jit, void **jit_values,
                                  unsigned jit_count, int *options, void **values, unsigned count) {
    ENTER(cuLibraryLoadData, 0);
    (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return load_library(out, image);
}

EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *out, const char *path, int *jit, void **jit_values,
                                      unsigned jit_count, int *options, void **values,
                                      unsigned count) {
    ENTER(cuLibraryLoadFromFile, 0);
    (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    char *text;
    CUresult code = read_file(path, &text);
    if (code != OK) return leave(code);
    code = load_library(out, text);
    free(text);
    return code;
}

EXPORT CUresult cuLibraryUnload(CUlibrary handle) {
    ENTER(cuLibraryUnload, UNSAFE | FREES);
    struct module *library = object_find(handle, OBJECT_LIBRARY);
    if (library == NULL) return leave(INVALID_HANDLE);
    /* Its code may be running in any context, because a kernel of a library needs no module. */
    CUresult code = OK;
    for (size_t i = 0; i < sim.context_count && code == OK; i++)
        if (sim.contexts[i]->active) code = context_drain(sim.contexts[i]);
    if (code != OK) return leave(code);
    if (object_find(handle, OBJECT_LIBRARY) != library)
        return leave(INVALID_HANDLE); /* another thread unloaded it meanwhile */
    unload(library);
    return leave(OK);
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary handle, const char *name) {
    ENTER(cuLibraryGetKernel, 0);
    struct module *library = object_find(handle, OBJECT_LIBRARY);
    if (library == NULL) return leave(INVALID_HANDLE);
    return leave(get_function(library, name, out));
}

EXPORT CUresult cuLibraryGetKernelCount(unsigned *out, CUlibrary handle) {
    ENTER(cuLibraryGetKernelCount, 0);
    return count_functions(object_find(handle, OBJECT_LIBRARY), out);
}

EXPORT CUresult cuLibraryEnumerateKernels(CUkernel *out, unsigned room, CUlibrary handle) {
    ENTER(cuLibraryEnumerateKernels, 0);
    return list_functions(object_find(handle, OBJECT_LIBRARY), out, room);
}

static CUresult load_into(struct module *library, struct context *context) {
    if (library->loaded != NULL && library->loaded->context != context)
        return NOT_SUPPORTED; /* one context per library */
    if (library->loaded == NULL) {
        library->loaded = module_new(OBJECT_MODULE, library->image);
        if (library->loaded == NULL) return OUT_OF_MEMORY;
        library->loaded->context = context;
        library->loaded->generation = context->generation;
    }
    return OK;
}

EXPORT CUresult cuLibraryGetModule(CUmodule *out, CUlibrary handle) {
    ENTER(cuLibraryGetModule, 0);
    struct module *library = object_find(handle, OBJECT_LIBRARY);
    struct context *context;
    CUresult code = library == NULL ? INVALID_HANDLE
                    : out == NULL   ? INVALID_VALUE
                                    : current_context(&context);
    if (code != OK) return leave(code);
    code = load_into(library, context);
    if (code == OK) *out = library->loaded;
    return leave(code);
}

EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr *out, size_t *bytes, CUlibrary handle,
                                   const char *name) {
    ENTER(cuLibraryGetGlobal, 0);
    struct module *library = object_find(handle, OBJECT_LIBRARY);
    struct context *context;
    CUresult code = library == NULL                                    ? INVALID_HANDLE
                    : !is_name(name) || (out == NULL && bytes == NULL) ? INVALID_VALUE
                                                                       : current_context(&context);
    if (code == OK) code = load_into(library, context);
    return leave(code == OK ? get_variable(library->loaded, name, out, bytes) : code);
}

/* A kernel of a library serves as its function too, as the manual allows for launches. */
EXPORT CUresult cuKernelGetFunction(CUfunction *out, CUkernel kernel) {
    ENTER(cuKernelGetFunction, 0);
    if (object_find(kernel, OBJECT_FUNCTION) == NULL) return leave(INVALID_HANDLE);
    *out = kernel;
    return leave(OK);
}

/* --- launches --- */

static CUresult launch(const CUlaunchConfig *config, CUfunction handle, void **parameters,
                       void **extra) {
    const struct function *function = object_find(handle, OBJECT_FUNCTION);
    struct context *context;
    struct stream *stream;
    CUresult code = current_context(&context);
    if (code == OK && (function == NULL || !function_fits(function, context)))
        code = INVALID_HANDLE;
    if (code == OK) code = find_stream(config->stream, &stream);
    if (code == OK && stream->context != context) code = INVALID_HANDLE;
    struct attributes attributes = {0};
    if (code == OK) {
        attributes = stream->attributes;
        code = attributes_of_launch(&attributes, config, function);
    }
    struct kernel_params params = {handle, .shared_bytes = config->shared_bytes,
                                   .parameters = parameters, .extra = extra};
    memcpy(params.grid, config->grid, sizeof params.grid);
    memcpy(params.block, config->block, sizeof params.block);
    struct op *op = code == OK ? kernel_op(&params, function) : NULL;
    if (code == OK && op == NULL) code = INVALID_VALUE;
    if (code == OK && attributes.cooperative && !function_runs_at_once(function, config))
        code = COOPERATIVE_LAUNCH_TOO_LARGE;
    if (code == OK) code = capture_forbids_legacy(stream);
    if (code != OK && op != NULL) op_free(op);
    if (code != OK) return leave(code);
    if (stream->capture != NULL) return leave(capture_add_kernel(stream, op, &attributes));
    code = enqueue(stream, op);
    return leave(code == OK && sim.launch_blocking ? stream_wait(stream, op->sequence) : code);
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                               unsigned grid_z, unsigned block_x, unsigned block_y,
                               unsigned block_z, unsigned shared, CUstream stream,
                               void **parameters, void **extra) {
    ENTER(cuLaunchKernel, ENQUEUES);
    CUlaunchConfig config = {
        {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, stream, NULL, 0};
    return launch(&config, function, parameters, extra);
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function,
                                 void **parameters, void **extra) {
    ENTER(cuLaunchKernelEx, ENQUEUES);
    if (config == NULL) return leave(INVALID_VALUE);
    return launch(config, function, parameters, extra);
}

/* A GPU runs all of its blocks at a time, because they may wait for each other. Here a kernel is
 * one call of a function, which has nothing to wait for. */
EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                          unsigned grid_z, unsigned block_x, unsigned block_y,
                                          unsigned block_z, unsigned shared, CUstream stream,
                                          void **parameters) {
    enum { COOPERATIVE = 2 }; /* CUlaunchAttributeID */
    ENTER(cuLaunchCooperativeKernel, ENQUEUES);
    const struct launch_attribute cooperative = {.id = COOPERATIVE, .value = {1}};
    CUlaunchConfig config = {
        {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, stream, &cooperative, 1};
    return launch(&config, function, parameters, NULL);
}
