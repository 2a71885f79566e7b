/* SPDX-License-Identifier: Apache-2.0 */
/* splits - move arrays between splits as drom_mpi.c does, all ranks in one process. For each line on stdin
 *
 *     BYTES  ROWS SPLIT BLOCK HALO  COLUMNS SPLIT BLOCK HALO  GRID OF OLD PARTS  GRID OF NEW PARTS
 *
 * it prints what each new part holds afterwards: the number in the whole array of each of its elements, row after row. Split 3
 * gives part p of P the indices from size * p^2 / P^2 on. Parts of equal number are on one rank. */
#include "drom_mpi.c"

static long growing(void *context, int part, int parts)
{
    return *(long *)context * part * part / ((long)parts * parts);
}

static bool read_axis(drom_mpi_axis *axis)
{
    axis->bound = growing;
    axis->context = &axis->size;
    return scanf("%ld %d %ld %ld", &axis->size, &axis->split, &axis->block, &axis->halo) == 4;
}

/* Call for each own element of a part: its place in the memory, and its number in the whole array. */
static void visit(drom_mpi_array *a, void (*each)(char *at, size_t bytes, long number))
{
    long stride = stride_of(a, a->parts);
    for (long i = 0; i < count_own(&a->axes[0], a->parts[0]); i++)
        for (long j = 0; j < count_own(&a->axes[1], a->parts[1]); j++)
            each(a->memory + (size_t)(origin_of(a, stride) + i * stride + j) * a->bytes, a->bytes,
                 drom_mpi_index(a, 0, i) * a->axes[1].size + drom_mpi_index(a, 1, j));
}

static void fill(char *at, size_t bytes, long number)
{
    for (size_t i = 0; i < bytes; i++)
        at[i] = (char)(number >> 8 * (i % 4));
}

static void print(char *at, size_t bytes, long number)
{
    long found = 0;
    (void)number;
    for (size_t i = 0; i < 4; i++)
        found |= (long)(unsigned char)at[i] << 8 * i;
    for (size_t i = 4; i < bytes; i++)
        found = at[i] == at[i % 4] ? found : -1;
    printf("%ld ", found);
}

/* Make rank `to` of the new parts from what it had, if anything, and the messages of all others. */
static void move(drom_mpi_array *before, const int old[2], const drom_mpi_array *kind, const int new[2], int to)
{
    struct part from[2], mine[2];
    drom_mpi_array a = *kind;
    find_parts(new, to, mine);
    size_t room = memory_of(&a, mine), had = 0;
    if (to < old[0] * old[1]) {
        find_parts(old, to, from);
        had = memory_of(&a, from);
    }
    a.memory = malloc(1 + (room > had ? room : had)); /* to the byte, for sanitizers */
    if (had)
        memcpy(a.memory, before[to].memory, had);
    if (to < old[0] * old[1]) {
        copy_shared(&a, from, mine, SHIFT_DOWN, NULL);
        copy_shared(&a, from, mine, SHIFT_UP, NULL);
    }
    for (int other = 0; other < old[0] * old[1]; other++) {
        if (other == to)
            continue;
        find_parts(old, other, from);
        size_t bytes = bytes_shared(&a, from, mine);
        char *message = malloc(bytes + !bytes);
        copy_shared(&before[other], from, mine, PACK, message);
        if (bytes > 0 && is_contiguous(&a) && /* then messages are sent from there, and received into the new part */
            memcmp(message, before[other].memory + offset_of(&a, from, mine, 0), bytes) != 0)
            printf("-1 ");
        if (bytes > 0 && is_contiguous(&a))
            memcpy(a.memory + offset_of(&a, from, mine, 1), message, bytes);
        else
            copy_shared(&a, from, mine, UNPACK, message);
        free(message);
    }
    memcpy(a.parts, mine, sizeof mine);
    visit(&a, print);
    printf("\n");
    free(a.memory);
}

int main(void)
{
    drom_mpi_array kind = {.is_here = true};
    int old[2], new[2];
    while (scanf("%zu", &kind.bytes) == 1 && read_axis(&kind.axes[0]) && read_axis(&kind.axes[1]) &&
           scanf("%d %d %d %d", &old[0], &old[1], &new[0], &new[1]) == 4) {
        drom_mpi_array *before = calloc((size_t)(old[0] * old[1]), sizeof *before);
        for (int i = 0; i < old[0] * old[1]; i++) {
            before[i] = kind;
            find_parts(old, i, before[i].parts);
            before[i].memory = calloc(memory_of(&before[i], before[i].parts) + 1, 1);
            visit(&before[i], fill);
        }
        for (int i = 0; i < new[0] * new[1]; i++)
            move(before, old, &kind, new, i);
        for (int i = 0; i < old[0] * old[1]; i++)
            free(before[i].memory);
        free(before);
        printf(".\n");
        fflush(stdout);
    }
    return 0;
}
