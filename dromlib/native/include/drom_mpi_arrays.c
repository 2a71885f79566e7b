/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays of adaptive MPI programs: see drom_mpi.h. Which rank has which indices, and how elements move between two maps. */
#include "drom_mpi_internal.h"

#include <sys/mman.h>

/* --- which part has which indices ------------------------------------------------------------------------------------- */

/* Consecutive indices of one part, and the position of the first one among the part's own. */
struct run {
    long begin, end, own;
};

static long least(long a, long b)
{
    return a < b ? a : b;
}

/* Number `number` of `of` parts: of an axis, or of the ranks of a map. */
struct part {
    int number, of;
};

static long count_runs(const drom_mpi_axis *axis, struct part part)
{
    if (axis->split != DROM_MPI_CYCLIC)
        return 1;
    long blocks = (axis->size + axis->block - 1) / axis->block;
    return (blocks - part.number + part.of - 1) / part.of;
}

static struct run get_run(const drom_mpi_axis *axis, struct part part, long k)
{
    long begin, n = axis->size;
    switch (axis->split) {
    case DROM_MPI_BLOCK:
        return (struct run){n * part.number / part.of, n * (part.number + 1) / part.of, 0};
    case DROM_MPI_CYCLIC:
        begin = (k * part.of + part.number) * axis->block;
        return (struct run){begin, least(begin + axis->block, n), k * axis->block};
    case DROM_MPI_GIVEN:
        return (struct run){axis->bound(axis->context, part.number, part.of),
                            axis->bound(axis->context, part.number + 1, part.of), 0};
    default:
        return (struct run){0, n, 0};
    }
}

static long count_own(const drom_mpi_axis *axis, struct part part)
{
    long runs = count_runs(axis, part);
    struct run last = runs > 0 ? get_run(axis, part, runs - 1) : (struct run){0, 0, 0};
    return last.own + last.end - last.begin;
}

/* Consecutive indices that two parts share: how many, and their position among the own ones of each. */
struct overlap {
    long length, own[2];
};

/* A walk over all overlaps of a part of one split with a part of another, ascending (step 1) or descending (step -1). */
struct walk {
    const drom_mpi_axis *axis;
    struct part parts[2];
    int step;
    long k[2], runs[2];
    struct run at[2];
};

static bool fetch_run(struct walk *w, int side)
{
    bool there = w->k[side] >= 0 && w->k[side] < w->runs[side];
    if (there)
        w->at[side] = get_run(w->axis, w->parts[side], w->k[side]);
    return there;
}

static struct walk begin_walk(const drom_mpi_axis *axis, struct part from, struct part to, int step)
{
    struct walk w = {.axis = axis, .parts = {from, to}, .step = step};
    for (int side = 0; side < 2; side++) {
        w.runs[side] = count_runs(axis, w.parts[side]);
        w.k[side] = step > 0 ? 0 : w.runs[side] - 1;
    }
    if (!fetch_run(&w, 0) || !fetch_run(&w, 1))
        w.runs[0] = w.runs[1] = 0;
    return w;
}

static bool next_overlap(struct walk *w, struct overlap *o)
{
    while (w->k[0] >= 0 && w->k[0] < w->runs[0] && w->k[1] >= 0 && w->k[1] < w->runs[1]) {
        const struct run *a = &w->at[0], *b = &w->at[1];
        long begin = a->begin > b->begin ? a->begin : b->begin, end = least(a->end, b->end);
        *o = (struct overlap){end - begin, {a->own + begin - a->begin, b->own + begin - b->begin}};
        int side = w->step > 0 ? b->end < a->end : b->begin > a->begin; /* the run that ends first */
        w->k[side] += w->step;
        fetch_run(w, side);
        if (begin < end)
            return true;
    }
    return false;
}

static long count_shared(const drom_mpi_axis *axis, struct part from, struct part to)
{
    long shared = 0;
    struct overlap o;
    for (struct walk w = begin_walk(axis, from, to, 1); next_overlap(&w, &o);)
        shared += o.length;
    return shared;
}

/* --- arrays ----------------------------------------------------------------------------------------------------------- */

/* Elements of a constant array that are on their way to the next map: new memory if nothing of the old part stays, otherwise the
 * elements that are received; and those that are sent, if they are not contiguous. */
struct shipment {
    char *fresh, *incoming, *outgoing;
    struct traffic in, out;
};

struct drom_mpi_array {
    drom_mpi_array *next;
    drom_mpi_axis axes[2];
    size_t bytes; /* of an element */
    struct part parts[2];
    bool is_here; /* this rank runs and has a part */
    bool is_constant;
    char *memory; /* with the halo */
    struct shipment shipment;
};

/* Compute how many parts each axis of an array has for so many ranks. */
static void find_grid(const drom_mpi_axis axes[2], int ranks, int grid[2])
{
    for (int axis = 0; axis < 2; axis++)
        grid[axis] = axes[axis].split == DROM_MPI_WHOLE; /* 0: MPI_Dims_create() chooses */
    MPI_Dims_create(ranks, 2, grid);
}

/* Compute the parts of rank `number` in a grid. */
static void find_parts(const int grid[2], int number, struct part parts[2])
{
    parts[0] = (struct part){number / grid[1], grid[0]};
    parts[1] = (struct part){number % grid[1], grid[1]};
}

static long stride_of(const drom_mpi_array *a, const struct part parts[2])
{
    return count_own(&a->axes[1], parts[1]) + 2 * a->axes[1].halo;
}

/* Return the position of own element (0, 0) in the memory. */
static long origin_of(const drom_mpi_array *a, long stride)
{
    return a->axes[0].halo * stride + a->axes[1].halo;
}

static size_t memory_of(const drom_mpi_array *a, const struct part parts[2])
{
    return (size_t)((count_own(&a->axes[0], parts[0]) + 2 * a->axes[0].halo) * stride_of(a, parts)) * a->bytes;
}

enum packing { PACK, UNPACK, SHIFT_DOWN, SHIFT_UP };

/* Copy all elements that part `from` of the old split shares with part `to` of the new one: to a message, from a message, or
 * within the memory. There each keeps its order, so that those which move down are moved first to last, and those which
 * move up last to first, and none is overwritten before it is moved. Return the end of the message. */
static char *copy_shared(const drom_mpi_array *a, const struct part from[2], const struct part to[2], enum packing how,
                         char *message)
{
    long stride[2] = {stride_of(a, from), stride_of(a, to)};
    long origin[2] = {origin_of(a, stride[0]), origin_of(a, stride[1])};
    int step = how == SHIFT_UP ? -1 : 1;
    struct overlap row, column;
    for (struct walk rows = begin_walk(&a->axes[0], from[0], to[0], step); next_overlap(&rows, &row);)
        for (long i = step > 0 ? 0 : row.length - 1; i >= 0 && i < row.length; i += step)
            for (struct walk columns = begin_walk(&a->axes[1], from[1], to[1], step); next_overlap(&columns, &column);) {
                size_t old = (size_t)(origin[0] + (row.own[0] + i) * stride[0] + column.own[0]) * a->bytes;
                size_t new = (size_t)(origin[1] + (row.own[1] + i) * stride[1] + column.own[1]) * a->bytes;
                size_t length = (size_t)column.length * a->bytes;
                if (how == PACK)
                    memcpy(message, a->memory + old, length);
                else if (how == UNPACK)
                    memcpy(a->memory + new, message, length);
                else if (how == SHIFT_DOWN ? new < old : new > old)
                    memmove(a->memory + new, a->memory + old, length);
                message += message ? length : 0;
            }
    return message;
}

static size_t bytes_shared(const drom_mpi_array *a, const struct part from[2], const struct part to[2])
{
    return (size_t)(count_shared(&a->axes[0], from[0], to[0]) * count_shared(&a->axes[1], from[1], to[1])) * a->bytes;
}

/* Return whether the elements that any two parts share are contiguous in the memory of each. */
static bool is_contiguous(const drom_mpi_array *a)
{
    const drom_mpi_axis *rows = &a->axes[0], *columns = &a->axes[1];
    return rows->split != DROM_MPI_CYCLIC && columns->split != DROM_MPI_CYCLIC &&
           (rows->size <= 1 || (columns->split == DROM_MPI_WHOLE && columns->halo == 0));
}

/* Return where the piece that two parts share begins in the memory of the old part (side 0) or of the new one (side 1). */
static size_t offset_of(const drom_mpi_array *a, const struct part from[2], const struct part to[2], int side)
{
    struct overlap row = {0, {0, 0}}, column = {0, {0, 0}};
    struct walk rows = begin_walk(&a->axes[0], from[0], to[0], 1), columns = begin_walk(&a->axes[1], from[1], to[1], 1);
    long stride = stride_of(a, side == 0 ? from : to);
    next_overlap(&rows, &row);
    next_overlap(&columns, &column);
    return (size_t)(origin_of(a, stride) + row.own[side] * stride + column.own[side]) * a->bytes;
}

/* --- moving data ------------------------------------------------------------------------------------------------------ */

static void start_messages(const drom_mpi *m, struct traffic *t, char *at, size_t bytes, int rank, int tag, bool sends)
{
    size_t done = 0;
    do {
        t->requests = must_have(m, realloc(t->requests, (size_t)(t->count + 1) * sizeof *t->requests), 1);
        MPI_Request *request = &t->requests[t->count++];
        if (sends)
            MPI_Isend(at + done, piece(bytes - done), MPI_BYTE, rank, tag, m->all, request);
        else
            MPI_Irecv(at + done, piece(bytes - done), MPI_BYTE, rank, tag, m->all, request);
        done += PIECE;
    } while (done < bytes);
}

/* Start all messages of this rank with the other side: of its old part to the new owners, or of its new part from the old.
 * They are in `memory`, which has the part, or one after the other in `buffer` if that is not NULL. */
static struct traffic exchange(const drom_mpi *m, const drom_mpi_array *a, char *memory, char *buffer,
                               const struct part mine[2], const struct side *others, bool sends)
{
    struct traffic t = {NULL, 0};
    struct part theirs[2];
    int grid[2];
    find_grid(a->axes, others->count, grid);
    for (int i = 0; i < others->count; i++) {
        if (others->ranks[i] == m->rank)
            continue;
        find_parts(grid, i, theirs);
        const struct part *from = sends ? mine : theirs, *to = sends ? theirs : mine;
        size_t bytes = bytes_shared(a, from, to);
        if (bytes == 0)
            continue;
        if (buffer && sends)
            copy_shared(a, from, to, PACK, buffer);
        start_messages(m, &t, buffer ? buffer : memory + offset_of(a, from, to, sends ? 0 : 1), bytes, others->ranks[i],
                       TAG_ELEMENTS, sends);
        buffer += buffer ? bytes : 0;
    }
    return t;
}

static void finish(struct traffic *t)
{
    for (int i = 0; i < t->count; i++)
        MPI_Wait(&t->requests[i], MPI_STATUS_IGNORE);
    free(t->requests);
    *t = (struct traffic){NULL, 0};
}

/* The move of an array, on this rank. */
struct move {
    const struct side *old, *new;
    struct part before[2], after[2];
    size_t had, has;             /* bytes of memory, with the halo */
    size_t kept, sent, received; /* bytes of elements */
};

static struct move describe_move(const drom_mpi_array *a, const struct side *old, const struct side *new)
{
    struct move v = {.old = old, .new = new};
    int grid[2];
    if (old->me >= 0) {
        find_grid(a->axes, old->count, grid);
        find_parts(grid, old->me, v.before);
        v.had = memory_of(a, v.before);
        v.sent = bytes_shared(a, v.before, v.before);
    }
    if (new->me >= 0) {
        find_grid(a->axes, new->count, grid);
        find_parts(grid, new->me, v.after);
        v.has = memory_of(a, v.after);
        v.received = bytes_shared(a, v.after, v.after);
    }
    if (old->me >= 0 && new->me >= 0)
        v.kept = bytes_shared(a, v.before, v.after);
    v.sent -= v.kept;
    v.received -= v.kept;
    return v;
}

static struct traffic start_sending(const drom_mpi *m, const drom_mpi_array *a, const struct move *v, char *buffer)
{
    return v->old->me < 0 ? (struct traffic){NULL, 0} : exchange(m, a, a->memory, buffer, v->before, v->new, true);
}

static struct traffic start_receiving(const drom_mpi *m, const drom_mpi_array *a, const struct move *v, char *memory,
                                      char *buffer)
{
    return v->new->me < 0 ? (struct traffic){NULL, 0} : exchange(m, a, memory, buffer, v->after, v->old, false);
}

static void use_huge_pages(char *memory, size_t bytes)
{
    uintptr_t begin = ((uintptr_t)memory + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    uintptr_t end = ((uintptr_t)memory + bytes) / HUGE_PAGE * HUGE_PAGE;
    if (begin < end)
        madvise(memory + (begin - (uintptr_t)memory), end - begin, MADV_HUGEPAGE);
}

static char *allocate(const drom_mpi *m, char *memory, size_t bytes)
{
    memory = must_have(m, realloc(memory, bytes + !bytes), bytes);
    use_huge_pages(memory, bytes);
    return memory;
}

/* For a part of which nothing stays: elements are sent from the old memory and received into new memory, without a buffer. This
 * takes as much more memory as the smaller of both, which is less than what moves. */
static void replace(const drom_mpi *m, drom_mpi_array *a, const struct move *v)
{
    char *fresh = v->has > 0 ? allocate(m, NULL, v->has) : NULL;
    struct traffic in = start_receiving(m, a, v, fresh, NULL), out = start_sending(m, a, v, NULL);
    finish(&in);
    finish(&out);
    free(a->memory);
    a->memory = fresh;
}

static void unpack(const drom_mpi *m, const drom_mpi_array *a, const struct move *v, char *at)
{
    struct part theirs[2];
    int grid[2];
    find_grid(a->axes, v->old->count, grid);
    for (int i = 0; i < v->old->count; i++) {
        find_parts(grid, i, theirs);
        if (v->old->ranks[i] != m->rank)
            at = copy_shared(a, theirs, v->after, UNPACK, at);
    }
}

/* Return whether nothing of this rank's part stays, and the new one can be received in place. */
static bool is_replaced(const drom_mpi_array *a, const struct move *v)
{
    return v->kept == 0 && is_contiguous(a);
}

/* Move the elements that stay to their new positions. The memory is large enough for both parts. */
static void shift(const drom_mpi_array *a, const struct move *v)
{
    if (v->kept == 0)
        return;
    copy_shared(a, v->before, v->after, SHIFT_DOWN, NULL);
    copy_shared(a, v->before, v->after, SHIFT_UP, NULL);
}

/* For a part of which elements stay: they are moved within the memory once all elements to be sent have been, or, if the rank also
 * receives, have been copied to a buffer. */
static void rearrange(const drom_mpi *m, drom_mpi_array *a, const struct move *v)
{
    bool copies = v->sent > 0 && (v->received > 0 || !is_contiguous(a)), collects = v->received > 0 && !is_contiguous(a);
    char *outgoing = copies ? allocate(m, NULL, v->sent) : NULL, *incoming = collects ? allocate(m, NULL, v->received) : NULL;
    struct traffic out = start_sending(m, a, v, outgoing);
    if (!copies)
        finish(&out);
    if (v->has > v->had)
        a->memory = allocate(m, a->memory, v->has);
    shift(a, v);
    struct traffic in = start_receiving(m, a, v, a->memory, incoming);
    finish(&in);
    if (collects)
        unpack(m, a, v, incoming);
    free(incoming);
    finish(&out);
    free(outgoing);
    if (v->has < v->had)
        a->memory = allocate(m, a->memory, v->has);
}

/* Start to move a constant array, while the program continues to read its old part. */
static void ship(const drom_mpi *m, drom_mpi_array *a, const struct move *v)
{
    struct shipment *s = &a->shipment;
    if (is_replaced(a, v))
        s->fresh = v->has > 0 ? allocate(m, NULL, v->has) : NULL;
    else if (v->received > 0)
        s->incoming = allocate(m, NULL, v->received);
    if (!is_contiguous(a) && v->sent > 0)
        s->outgoing = allocate(m, NULL, v->sent);
    s->in = start_receiving(m, a, v, s->fresh, s->incoming);
    s->out = start_sending(m, a, v, s->outgoing);
}

/* Wait for a constant array that was shipped, and put it in place. */
static void unload(const drom_mpi *m, drom_mpi_array *a, const struct move *v)
{
    struct shipment *s = &a->shipment;
    finish(&s->in);
    finish(&s->out);
    if (is_replaced(a, v)) {
        free(a->memory);
        a->memory = s->fresh;
    } else {
        if (v->has > v->had)
            a->memory = allocate(m, a->memory, v->has);
        shift(a, v);
        if (s->incoming)
            unpack(m, a, v, s->incoming);
        if (v->has < v->had)
            a->memory = allocate(m, a->memory, v->has);
    }
    free(s->incoming);
    free(s->outgoing);
    *s = (struct shipment){.fresh = NULL};
}

static void move_array(const drom_mpi *m, drom_mpi_array *a, const struct side *old, const struct side *new)
{
    struct move v = describe_move(a, old, new);
    if (a->is_constant)
        unload(m, a, &v);
    else if (is_replaced(a, &v))
        replace(m, a, &v);
    else
        rearrange(m, a, &v);
    a->is_here = new->me >= 0;
    if (a->is_here)
        memcpy(a->parts, v.after, sizeof v.after);
}

/* Return whether an axis is valid: for all numbers of ranks up to `most` its parts are adjacent. */
static bool is_axis(const drom_mpi_axis *axis, int most)
{
    bool is_right = axis->size >= 0 && axis->size <= INT64_C(1) << 40 && axis->halo >= 0 && axis->halo <= INT64_C(1) << 20 &&
                    axis->split >= DROM_MPI_WHOLE && axis->split <= DROM_MPI_GIVEN &&
                    (axis->split != DROM_MPI_CYCLIC || axis->block >= 1) && (axis->split != DROM_MPI_GIVEN || axis->bound);
    for (int parts = 1; is_right && axis->split == DROM_MPI_GIVEN && parts <= most; parts++) {
        is_right = axis->bound(axis->context, 0, parts) == 0 && axis->bound(axis->context, parts, parts) == axis->size;
        for (int part = 0; is_right && part < parts; part++)
            is_right = axis->bound(axis->context, part, parts) <= axis->bound(axis->context, part + 1, parts);
    }
    return is_right;
}

enum { ABOUT = 10 }; /* numbers that describe an array */

static bool is_same_everywhere(const drom_mpi *m, const drom_mpi_array *a)
{
    long about[2][ABOUT] = {{(long)a->bytes, a->is_constant}};
    for (int axis = 0; axis < 2; axis++) {
        const drom_mpi_axis *one = &a->axes[axis];
        memcpy(&about[0][2 + 4 * axis], (long[]){one->size, one->split, one->block, one->halo}, 4 * sizeof(long));
    }
    for (int i = 0; i < ABOUT; i++)
        about[1][i] = -about[0][i];
    MPI_Allreduce(MPI_IN_PLACE, about, 2 * ABOUT, MPI_LONG, MPI_MAX, m->comm);
    bool is_same = true;
    for (int i = 0; i < ABOUT; i++)
        is_same &= about[0][i] == -about[1][i];
    return is_same;
}

/* Return the message about a fault of an array, NULL if there is none; collective. */
static const char *fault_of(const drom_mpi *m, drom_mpi_array *a, MPI_Aint low)
{
    const drom_mpi_axis *rows = &a->axes[0], *columns = &a->axes[1];
    long elements, bytes;
    int grid[2];
    if (!all_agree(m->comm, is_axis(rows, m->size) && is_axis(columns, m->size)))
        return "an axis of an array has sizes or bounds that no split can have: see drom_mpi_axis in drom_mpi.h.";
    if (!is_same_everywhere(m, a))
        return "an array is described differently by different ranks: describe it with the same numbers on all.";
    if (rows->split == DROM_MPI_WHOLE && columns->split == DROM_MPI_WHOLE)
        return "an array is split along neither axis: describe it with drom_mpi_add_value().";
    if (low != 0 || __builtin_mul_overflow(rows->size + 2 * rows->halo, columns->size + 2 * columns->halo, &elements) ||
        __builtin_mul_overflow(elements, (long)a->bytes, &bytes))
        return "an array is too large, or its elements do not begin at their address: choose another type or size.";
    find_grid(a->axes, a->is_here ? m->size : 1, grid);
    find_parts(grid, a->is_here ? m->rank : 0, a->parts);
    a->memory = calloc(a->is_here ? memory_of(a, a->parts) + 1 : 1, 1);
    if (!all_agree(m->comm, a->memory != NULL))
        return "there is no memory for an array: use more nodes.";
    return NULL;
}

static drom_mpi_array *add_array(drom_mpi *m, MPI_Datatype type, drom_mpi_axis rows, drom_mpi_axis columns, bool is_constant)
{
    MPI_Aint low, extent;
    MPI_Type_get_extent(type, &low, &extent);
    drom_mpi_array *a = calloc(1, sizeof *a);
    const char *fault = "arrays are described before the first change of ranks: do that right after drom_mpi_init().";
    if (!m->has_changed && !all_agree(m->comm, a != NULL))
        fault = "there is no memory for an array: use more nodes.";
    else if (!m->has_changed) {
        *a = (drom_mpi_array){.axes = {rows, columns}, .bytes = (size_t)extent, .is_here = runs(m), .is_constant = is_constant};
        fault = fault_of(m, a, low);
    }
    if (fault) {
        print_once(m, fault);
        if (a)
            free(a->memory);
        free(a);
        return NULL;
    }
    drom_mpi_array **last = &m->arrays;
    while (*last)
        last = &(*last)->next;
    return *last = a;
}

drom_mpi_array *drom_mpi_add_array(drom_mpi *m, MPI_Datatype type, drom_mpi_axis rows, drom_mpi_axis columns)
{
    return add_array(m, type, rows, columns, false);
}

drom_mpi_array *drom_mpi_add_constant(drom_mpi *m, MPI_Datatype type, drom_mpi_axis rows, drom_mpi_axis columns)
{
    return add_array(m, type, rows, columns, true);
}

void *drom_mpi_data(const drom_mpi_array *a)
{
    return a->is_here ? a->memory + (size_t)origin_of(a, stride_of(a, a->parts)) * a->bytes : NULL;
}

void *drom_mpi_memory(const drom_mpi_array *a)
{
    return a->is_here ? a->memory : NULL;
}

long drom_mpi_stride(const drom_mpi_array *a)
{
    return stride_of(a, a->parts);
}

long drom_mpi_count(const drom_mpi_array *a, int axis)
{
    return a->is_here ? count_own(&a->axes[axis], a->parts[axis]) : 0;
}

long drom_mpi_index(const drom_mpi_array *a, int axis, long own)
{
    const drom_mpi_axis *one = &a->axes[axis];
    if (one->split != DROM_MPI_CYCLIC)
        return get_run(one, a->parts[axis], 0).begin + own;
    return get_run(one, a->parts[axis], own / one->block).begin + own % one->block;
}

static bool has_constants(const drom_mpi *m)
{
    const drom_mpi_array *a = m->arrays;
    while (a && !a->is_constant)
        a = a->next;
    return a != NULL;
}

static void ship_constants(const drom_mpi *m, const struct side *old, const struct side *new)
{
    for (drom_mpi_array *a = m->arrays; a; a = a->next) {
        struct move v = describe_move(a, old, new);
        if (a->is_constant)
            ship(m, a, &v);
    }
}

static bool is_over(struct traffic *t)
{
    int all = 1;
    for (int i = 0, one; i < t->count; i++) {
        MPI_Test(&t->requests[i], &one, MPI_STATUS_IGNORE);
        all &= one;
    }
    return all;
}

static bool have_constants_arrived(const drom_mpi *m)
{
    bool all = true;
    for (drom_mpi_array *a = m->arrays; a; a = a->next)
        all = is_over(&a->shipment.in) & is_over(&a->shipment.out) & all; /* without short-circuit: each call makes progress */
    return all;
}

static void end_shipments(const drom_mpi *m)
{
    for (drom_mpi_array *a = m->arrays; a; a = a->next) {
        struct shipment *s = &a->shipment;
        finish(&s->in);
        finish(&s->out);
        free(s->fresh);
        free(s->incoming);
        free(s->outgoing);
    }
}

static void move_arrays(const drom_mpi *m, const struct side *old, const struct side *new)
{
    for (drom_mpi_array *a = m->arrays; a; a = a->next)
        move_array(m, a, old, new);
}

static void free_arrays(drom_mpi *m)
{
    for (drom_mpi_array *a = m->arrays, *next; a; a = next) {
        next = a->next;
        free(a->memory);
        free(a);
    }
}
