/* The exports: one jump for each symbol of a real libcuda.so.1, and cuGetProcAddress. */
#define _GNU_SOURCE
#include "forward.h"

#include <dlfcn.h>
#include <string.h>

/* A jump keeps all registers and the stack, so no signature is needed. Each symbol has a row: where
 * to jump, the symbol, and the function's name. A symbol that has two rows in functions.h gets one
 * jump (.ifndef). */
#if defined(__x86_64__)
#define JUMP(row) " endbr64\n jmp *" row "(%rip)\n"
#elif defined(__aarch64__)
#define JUMP(row) " hint #34\n adrp x16, " row "\n ldr x16, [x16, :lo12:" row "]\n br x16\n"
#else
#error "the forwards are written for x86-64 and aarch64"
#endif
#define FORWARD(name, symbol) FORWARD_(name, #symbol)
#define FORWARD_(name, symbol)                                                                     \
    ".ifndef " symbol "\n"                                                                         \
    ".pushsection .data.nogpu_rows,\"aw\"\n .balign 8\n"                                           \
    "row_" symbol ": .quad no_driver, symbol_" symbol ", name_" symbol "\n"                        \
    ".popsection\n"                                                                                \
    ".pushsection .rodata\n"                                                                       \
    "symbol_" symbol ": .asciz \"" symbol "\"\n name_" symbol ": .asciz \"" name "\"\n"            \
    ".popsection\n"                                                                                \
    ".globl " symbol "\n .type " symbol ", %function\n" symbol                                     \
    ":\n" JUMP("row_" symbol) " .size " symbol ", . - " symbol "\n"                                \
                              ".endif\n"

#define FORMS_none(name, symbol) FORWARD(name, symbol)
#define FORMS_ptsz(name, symbol) FORWARD(name, symbol) FORWARD(name, symbol##_ptsz)
#define FORMS_own FORMS_ptsz
#define FORMS_ptds(name, symbol) FORWARD(name, symbol) FORWARD(name, symbol##_ptds)
#define LACK(name, version, symbol, forms) FORMS_##forms(#name, symbol)
#define LACK_AGAIN LACK
#define CALL(name, version, symbol, forms, parameters) LACK(name, version, symbol, forms)
#define AGAIN CALL
/* The section's first and last row, and this library's own cuGetProcAddress, which is no jump. */
__asm__(".pushsection .data.nogpu_rows,\"aw\"\n .balign 8\n"
        ".globl nogpu_rows\n .hidden nogpu_rows\n nogpu_rows:\n .popsection\n"
        ".set cuGetProcAddress, get_proc_address\n .globl cuGetProcAddress\n"
        ".set cuGetProcAddress_v2, get_proc_address_v2\n .globl cuGetProcAddress_v2\n"
        ".text\n"
#include "older.h"
#include "../simulator/functions.h"
        ".pushsection .data.nogpu_rows,\"aw\"\n"
        ".globl nogpu_rows_end\n .hidden nogpu_rows_end\n nogpu_rows_end:\n"
        ".popsection\n");

struct row {
    function jump; /* written by nogpu_forward_bind, before the first call of a program */
    const char *symbol, *name;
};
extern struct row nogpu_rows[], nogpu_rows_end[];

static void *real; /* of dlopen; written once, before the first call of a program */

static __attribute__((used)) int no_driver(void) { return NO_DEVICE; }
static int lacking(void) { return NOT_SUPPORTED; }

/* Python has loaded the library of this path, and calls this once. */
EXPORT void nogpu_forward_bind(const char *path) {
    real = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    for (struct row *row = nogpu_rows; row < nogpu_rows_end; row++) {
        function address = (function)dlsym(real, row->symbol);
        row->jump = address != NULL ? wrapper_of(row->name, address) : (function)lacking;
    }
}

/* --- what is looked up by name --- */

typedef int (*old_form)(const char *, void **, int, uint64_t);
typedef int (*new_form)(const char *, void **, int, uint64_t, int *);

static int get_proc_address(const char *, void **, int, uint64_t);
static int get_proc_address_v2(const char *, void **, int, uint64_t, int *);

/* What the real driver has found may be a version or a form that no export has. */
static int found(int code, const char *name, int version, void **address) {
    if (code != OK || *address == NULL) return code;
    function to = wrapper_of(name, (function)*address);
    if (strcmp(name, "cuGetProcAddress") == 0)
        to = version < 12000 ? (function)get_proc_address : (function)get_proc_address_v2;
    *address = (void *)to;
    return code;
}

static void *asked(const char *symbol) { return real != NULL ? dlsym(real, symbol) : NULL; }

static __attribute__((used)) int get_proc_address(const char *name, void **address, int version,
                                                  uint64_t flags) {
    old_form ask = (old_form)asked("cuGetProcAddress");
    if (ask == NULL) return NO_DEVICE;
    return found(ask(name, address, version, flags), name, version, address);
}

static __attribute__((used)) int get_proc_address_v2(const char *name, void **address, int version,
                                                     uint64_t flags, int *status) {
    new_form ask = (new_form)asked("cuGetProcAddress_v2");
    if (ask == NULL) return NO_DEVICE;
    return found(ask(name, address, version, flags, status), name, version, address);
}
