/* What can be read from a text of PTX. It needs no lock, because it touches nothing of the
 * simulator's.
 */
#ifndef NOGPU_PTX_H
#define NOGPU_PTX_H

#include "../abi.h"

#include <stdbool.h>

char *ptx_copy(const char *text); /* without comments; the caller frees it; NULL: no memory */
CUresult ptx_check(const char *text);
bool ptx_has_entry(const char *text, const char *name);
/* the name of the first entry behind `before`, or of the first of all; NULL: there is none */
const char *ptx_next_entry(const char *text, const char *before, size_t *length);
unsigned ptx_count_entries(const char *text);
unsigned ptx_architecture(const char *text); /* 90 for sm_90 */
size_t ptx_constant_bytes(const char *text);
/* the caller frees `initial`, which is NULL if there is no memory */
size_t ptx_variable(const char *text, const char *name, unsigned char **initial);

#endif
