/* PTX text: whether a text is PTX, and what it declares. It is never executed. */
#include "../driver.h"

#include "ptx.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool in_word(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%' || c == '.';
}

char *ptx_copy(const char *text) {
    char *copy = alloc_text(text);
    for (char *at = copy; copy != NULL && *at != 0; at++) {
        bool line = at[0] == '/' && at[1] == '/', block = at[0] == '/' && at[1] == '*';
        const char *end = line ? strchr(at, '\n') : block ? strstr(at + 2, "*/") : at;
        if (end == NULL) end = at + strlen(at);
        else if (block) end += 2;
        for (; at < end; at++) *at = *at == '\n' ? '\n' : ' ';
        if (*at == 0) break;
    }
    return copy;
}

/* --- whether a compiler could take it --- */

static const char *skip_word(const char *at, const char *end) {
    while (at < end && in_word(*at)) at++;
    return at;
}

static const char *skip_space(const char *at, const char *end) {
    while (at < end && isspace((unsigned char)*at)) at++;
    return at;
}

/* What may come before an instruction: where its source is, labels, and a predicate. */
static const char *skip_prefixes(const char *at, const char *end) {
    for (;;) {
        at = skip_space(at, end);
        const char *after = skip_space(skip_word(at, end), end);
        if (end - at > 4 && strncmp(at, ".loc", 4) == 0)
            at = memchr(at, '\n', (size_t)(end - at)) != NULL ? memchr(at, '\n', (size_t)(end - at))
                                                              : end;
        else if (after > at && after < end && *after == ':' && after[1] != ':') at = after + 1;
        else break;
    }
    if (at < end && *at == '@') at = skip_space(skip_word(at + 1 + (at[1] == '!'), end), end);
    return at;
}

static bool stands_alone(const char *opcode, size_t length) {
    static const char *const alone[] = {"ret", "exit", "trap", "brkpt"};
    for (size_t i = 0; i < sizeof alone / sizeof alone[0]; i++)
        if (strlen(alone[i]) == length && memcmp(alone[i], opcode, length) == 0) return true;
    return memchr(opcode, '.', length) != NULL;
}

/* The shape of an instruction: an opcode, and operands between which there is something else than
 * space. Which opcodes there are, and what operands each takes, is not looked at. */
static bool is_statement(const char *at, const char *end) {
    at = skip_prefixes(at, end);
    if (at == end || *at == '.') return true; /* a directive, or nothing */
    if (!islower((unsigned char)*at)) return false;
    const char *opcode = at;
    while (at < end && (in_word(*at) || *at == ':')) at++;
    const char *operand = skip_space(at, end);
    if (operand == end) return stands_alone(opcode, (size_t)(at - opcode));
    while (operand < end) {
        const char *after = skip_word(operand, end);
        const char *next = skip_space(after, end);
        if (after > operand && next > after && next < end && in_word(*next))
            return false; /* two words with only space between */
        operand = after > operand ? next : operand + 1;
    }
    return true;
}

/* Whether the braces match, and each statement inside of a body has the shape of one. */
static bool bodies_fit(const char *text) {
    /* of bodies and blocks; of the braces round operands or initial values */
    size_t depth = 0, lists = 0;
    const char *start = text;
    for (const char *at = text; *at != 0; at++) {
        const char *first = skip_prefixes(start, at);
        bool blank = first == at, directive = !blank && (*first == '.' || depth == 0);
        if (*at == '"') {
            at = strchr(at + 1, '"');
            if (at == NULL) return false;
        } else if (lists > 0) {
            lists += (size_t)(*at == '{') - (size_t)(*at == '}');
        } else if (*at == '{' && !blank &&
                   (!directive || memchr(first, '=', (size_t)(at - first)) != NULL)) {
            lists = 1;
        } else if (*at == '{') {
            depth++;
            start = at + 1;
        } else if (*at == '}') {
            if (depth-- == 0 || !(blank || directive)) return false;
            start = at + 1;
        } else if (*at == ';') {
            if (depth > 0 && !is_statement(start, at)) return false;
            start = at + 1;
        }
    }
    return depth == 0 && lists == 0;
}

/* The PTX that came with a version of CUDA: 7.x with 11.x, 9.x with 13.x. 12.6 brought none,
 * so 12.9 has 8.8. */
static int newest_version(int driver) {
    int major = driver / 1000, minor = driver % 1000 / 10;
    return (major - 4) * 10 + minor - (major == 12 && minor >= 6);
}

enum { OWN_ARCHITECTURE = 90 };

/* The PTX that brought an architecture, by the release notes of PTX. What is older than sm_70 is
 * not looked at. */
static unsigned oldest_version(unsigned architecture) {
    static const struct {
        unsigned architecture, version;
    } brought[] = {{89, 78}, {87, 74}, {86, 71}, {80, 70}, {75, 63}, {72, 61}, {70, 60}};
    for (size_t i = 0; i < sizeof brought / sizeof brought[0]; i++)
        if (architecture >= brought[i].architecture) return brought[i].version;
    return 0;
}

CUresult ptx_check(const char *text) {
    unsigned major, minor;
    const char *version = strstr(text, ".version");
    if (version == NULL || sscanf(version, ".version %u.%u", &major, &minor) != 2)
        return INVALID_IMAGE; /* it is not taken for PTX */
    if (major * 10 + minor > (unsigned)newest_version(sim.driver_version))
        return UNSUPPORTED_PTX_VERSION;
    unsigned architecture = ptx_architecture(text);
    bool fits = strstr(text, ".target") != NULL && architecture <= OWN_ARCHITECTURE &&
                major * 10 + minor >= oldest_version(architecture);
    return fits && bodies_fit(text) ? OK : INVALID_PTX;
}

/* --- what it declares --- */

static bool is_word(const char *text, const char *at, const char *word) {
    size_t length = strlen(word);
    return length > 0 && strncmp(at, word, length) == 0 && !in_word(at[length]) &&
           (at == text || !in_word(at[-1]));
}

const char *ptx_next_entry(const char *text, const char *before, size_t *length) {
    const char *at = strstr(before != NULL ? before : text, ".entry");
    if (at == NULL) return NULL;
    at += strlen(".entry");
    at += strspn(at, " \t\r\n");
    *length = (size_t)(skip_word(at, at + strlen(at)) - at);
    return at;
}

bool ptx_has_entry(const char *text, const char *name) {
    size_t length;
    for (const char *at = NULL; (at = ptx_next_entry(text, at, &length)) != NULL;)
        if (length == strlen(name) && memcmp(at, name, length) == 0) return true;
    return false;
}

unsigned ptx_count_entries(const char *text) {
    size_t length;
    unsigned count = 0;
    for (const char *at = NULL; (at = ptx_next_entry(text, at, &length)) != NULL;) count++;
    return count;
}

unsigned ptx_architecture(const char *text) {
    unsigned architecture;
    const char *target = strstr(text, ".target");
    bool named = target != NULL && sscanf(target, ".target sm_%u", &architecture) == 1;
    return named ? architecture : OWN_ARCHITECTURE;
}

/* The bytes of one element: .b8 to .f64, times .v2 or .v4. The letter is f for floating point. */
static size_t element_of(const char *at, const char *end, char *letter) {
    size_t bytes = 0, count = 1;
    for (; at < end; at++) {
        unsigned number;
        char kind;
        if (*at != '.' || sscanf(at, ".%c%u", &kind, &number) != 2) continue;
        if (kind == 'v') count = number;
        if (kind == 'v' || strchr("bsuf", kind) == NULL) continue;
        bytes = number / 8;
        *letter = kind;
    }
    return bytes * count;
}

/* What all variables in constant memory take. */
size_t ptx_constant_bytes(const char *text) {
    static const char word[] = ".const";
    size_t all = 0;
    for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word)) {
        const char *end = at + strcspn(at, ";[=");
        char letter;
        if (!is_word(text, at, word)) continue; /* of an instruction */
        size_t bytes = element_of(at, end, &letter);
        for (; *end == '['; end += strcspn(end, "]") + 1) bytes *= strtoull(end + 1, NULL, 0);
        all += bytes;
    }
    return all;
}

static void put_values(const char *at, const char *end, size_t width, char letter,
                       unsigned char *out, size_t bytes) {
    for (size_t i = 0; i + width <= bytes && at < end; i += width) {
        at += strcspn(at, "-0123456789");
        if (at >= end) break;
        bool real = letter == 'f' && at[0] == '0' &&
                    (at[1] == 'f' || at[1] == 'F' || at[1] == 'd' || at[1] == 'D');
        char *after;
        uint64_t value = real ? strtoull(at + 2, &after, 16) : strtoull(at, &after, 0);
        /* little-endian, as every GPU and every machine that this is built for */
        memcpy(out + i, &value, width);
        at = after;
    }
}

/* A variable in global or constant memory: its size, 0 if there is none of that name, and what it
 * holds at first. */
size_t ptx_variable(const char *text, const char *name, unsigned char **initial) {
    size_t depth = 0;
    const char *start = text;
    for (const char *at = text; *at != 0; at++) {
        depth += (size_t)(*at == '{') - (size_t)(*at == '}');
        if (depth == 0 && (*at == ';' || *at == '}'))
            start = *at == ';' || at[1 + strspn(at + 1, " \t\r\n")] != ';' ? at + 1 : start;
        if (depth > 0 || !is_word(text, at, name)) continue;
        const char *after = at + strlen(name), *end = after + strcspn(after, ";");
        const char *space = strstr(start, ".global"), *constant = strstr(start, ".const");
        char letter = 'b';
        size_t width = element_of(start, at, &letter), bytes = width;
        if (!((space != NULL && space < at) || (constant != NULL && constant < at)) || width == 0)
            continue;
        for (; *after == '['; after += strcspn(after, "]") + 1)
            bytes *= strtoull(after + 1, NULL, 0);
        *initial = bytes < SIZE_MAX ? alloc_try(bytes + 1) : NULL;
        if (*initial == NULL) return bytes;
        const char *equals = memchr(after, '=', (size_t)(end - after));
        if (equals != NULL && width <= 8) put_values(equals, end, width, letter, *initial, bytes);
        return bytes;
    }
    return 0;
}
