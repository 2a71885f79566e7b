/* SPDX-License-Identifier: Apache-2.0 */
/* Reads or writes every field of every record and mask by its C name: conform dump|fill FILE MASK_WORDS.
 * Record number n stands at byte n * 4096 of FILE; the slot's masks follow it. conform_fields.inc comes from the test. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drom.h"
#include "drom_layout.h"

_Static_assert(DROM_MAX_MASK_WORDS * 64 == DROM_MAX_MASK_BITS, "drom.h and drom_layout.h agree on the widest mask");

static unsigned char *bytes;
static int filling;
static uint64_t next_value;

#define VISIT(type, at, count, label)                                                                                   \
    for (size_t i = 0; i < (count); i++) {                                                                              \
        type *element = (type *)(at) + i;                                                                               \
        if (filling)                                                                                                    \
            *element = (type)(next_value += UINT64_C(0x9E3779B97F4A7C15));                                              \
        printf("%s %zu %" PRId64 "\n", label, i, (int64_t)*element);                                                    \
    }

#define FIELD(number, record, name, type, count)                                                                        \
    {                                                                                                                   \
        struct record *r = (void *)(bytes + (number) * 4096);                                                           \
        _Static_assert(sizeof r->name == sizeof(type) * (count), #record "." #name);                                    \
        VISIT(type, &r->name, count, #record "." #name)                                                                 \
    }

#define MASK(number, name, id)                                                                                          \
    {                                                                                                                   \
        unsigned char *slot = bytes + (number) * 4096;                                                                  \
        VISIT(uint64_t, slot + DROM_SLOT_FIXED + (id) * 8 * words, words, "mask." #name)                                \
    }

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    filling = strcmp(argv[1], "fill") == 0;
    size_t words = strtoul(argv[3], NULL, 10), size = (size_t)64 * 4096;
    bytes = calloc(1, size);
    FILE *file = fopen(argv[2], "r+b");
    if (!bytes || !file || fread(bytes, 1, size, file) != size)
        return 1;
#include "conform_fields.inc"
    rewind(file);
    if (filling && fwrite(bytes, 1, size, file) != size)
        return 1;
    free(bytes);
    return fclose(file);
}
