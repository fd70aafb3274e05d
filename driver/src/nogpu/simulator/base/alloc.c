/* The simulator's own memory, and what happens when there is none left.
 *
 * A driver call that has begun cannot always stop half-way, because it would leave streams, queues
 * and graphs in a state that no driver has. So the simulator keeps a reserve:
 *
 * - An allocation in the middle of a call gets the memory of the reserve if there is no other.
 * - A call that would begin without the reserve answers CUDA_ERROR_OUT_OF_MEMORY and changes
 *   nothing (see enter() in entry.c). Calls that free or query begin without it, because a program
 *   needs them to get memory back.
 * - Before a call allocates what the program's own sizes ask for, it checks that they are there
 *   (alloc_has), or it uses alloc_try and undoes what it did.
 *
 * Only if one call needs more than the reserve after that does the process end, with a message.
 */
#include "../driver.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RESERVE = 1 << 20 };
static void *_Atomic reserve; /* any thread takes it by an exchange */

bool alloc_ready(void) {
    if (atomic_load_explicit(&reserve, memory_order_relaxed) != NULL) return true;
    void *block = malloc(RESERVE), *none = NULL;
    if (block == NULL) return false;
    if (!atomic_compare_exchange_strong(&reserve, &none, block)) free(block);
    return true;
}

/* By write(), because printf may allocate. */
_Noreturn void give_up(const char *message) {
    const char *parts[] = {"nogpu: ", message, "\n"};
    for (int i = 0; i < 3; i++)
        if (write(STDERR_FILENO, parts[i], strlen(parts[i])) < 0) break;
    abort();
}

/* Gives the reserve back to malloc. Without one, nothing is left to do but to end. */
static void open_reserve(void) {
    void *block = atomic_exchange(&reserve, NULL);
    if (block == NULL) give_up("no memory is left in the middle of a driver call");
    free(block);
}

void *alloc_need(size_t bytes) {
    void *memory;
    while ((memory = calloc(1, bytes)) == NULL) open_reserve();
    return memory;
}

void *alloc_more(void *old, size_t bytes) {
    void *memory;
    while ((memory = realloc(old, bytes)) == NULL) open_reserve();
    return memory;
}

void *alloc_room(void *array, size_t count, size_t *space, size_t size) {
    if (count < *space) return array;
    *space = *space ? *space * 2 : 64;
    return alloc_more(array, *space * size);
}

void *alloc_try(size_t bytes) { return calloc(1, bytes); }

char *alloc_text(const char *text) {
    size_t bytes = strlen(text) + 1;
    char *copy = malloc(bytes);
    return copy != NULL ? memcpy(copy, text, bytes) : NULL;
}

bool alloc_has(size_t count, size_t bytes) {
    if (bytes != 0 && count > SIZE_MAX / bytes) return false;
    if (count * bytes < RESERVE / 4) return true; /* within the reserve */
    void *block = malloc(count * bytes);
    free(block);
    return block != NULL;
}
