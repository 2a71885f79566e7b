/* SPDX-License-Identifier: Apache-2.0 */
/* Adaptive MPI programs: see drom_mpi.h. Compiled with the program, by the program's MPI compiler.
 *
 * A *map* is a set of ranks of the communicator given to drom_mpi_init(): those that run. At a point the running ranks
 * combine their wishes (who leaves, who is to join) and so all know the same next map. What leads from one map to the next
 * are messages between single ranks, since those that rest take part in nothing collective. */
#include "drom_mpi.h"

#include <errno.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { REST_MS = 100, RETURN_MS = 1 }; /* between two looks for messages: while resting, and with a core again */
enum { PIECE = 1 << 30 };             /* bytes of a message: MPI counts with int */
enum { TAG_READY = 1, TAG_JOIN, TAG_OVER, TAG_VALUE, TAG_MOVE, TAG_COMM };

/* --- which indices are whose ------------------------------------------------------------------------------------------ */

/* Consecutive indices of one part, and where the first of them stands among the part's own. */
struct run {
    long begin, end, own;
};

static long least(long a, long b)
{
    return a < b ? a : b;
}

/* One part of how many: of an axis, or of the ranks of a map. */
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

/* Consecutive indices that two parts share: how many, and where they stand among the own ones of each. */
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
        int side = w->step > 0 ? b->end < a->end : b->begin > a->begin; /* the run that is passed first */
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

struct drom_mpi_array {
    drom_mpi_array *next;
    drom_mpi_axis axes[2];
    size_t bytes; /* of an element */
    struct part parts[2];
    bool is_here; /* this rank runs and has a part */
    char *memory; /* with the halo */
};

struct value {
    struct value *next;
    void *at;
    int count;
    MPI_Datatype type;
};

struct drom_mpi {
    MPI_Comm all, comm;
    int rank, size, min_ranks, running;
    int words;                              /* 64-bit words of a map */
    uint64_t *map, *next, *leaving, *joining; /* the maps now and next, and the wishes; all in one piece of memory */
    bool leaves, has_changed, has_refused;
    drom_mpi_array *arrays;
    struct value *values;
    drom *handle;
    drom_grant grant;
};

/* The parts of an array's axes that rank `number` of a map of `ranks` ranks has. */
static void find_parts(const drom_mpi_axis axes[2], int number, int ranks, struct part parts[2])
{
    int grid[2] = {axes[0].split == DROM_MPI_WHOLE, axes[1].split == DROM_MPI_WHOLE}; /* 0: MPI chooses */
    MPI_Dims_create(ranks, 2, grid);
    parts[0] = (struct part){number / grid[1], grid[0]};
    parts[1] = (struct part){number % grid[1], grid[1]};
}

static long stride_of(const drom_mpi_array *a, const struct part parts[2])
{
    return count_own(&a->axes[1], parts[1]) + 2 * a->axes[1].halo;
}

/* Where own element (0, 0) stands in the memory. */
static long origin_of(const drom_mpi_array *a, long stride)
{
    return a->axes[0].halo * stride + a->axes[1].halo;
}

static size_t memory_of(const drom_mpi_array *a, const struct part parts[2])
{
    return (size_t)((count_own(&a->axes[0], parts[0]) + 2 * a->axes[0].halo) * stride_of(a, parts)) * a->bytes;
}

static void *must_have(const drom_mpi *m, void *memory, size_t bytes)
{
    if (memory || bytes == 0)
        return memory;
    fprintf(stderr, "drom: rank %d has no memory for %zu bytes of moved data: use more nodes or a larger min_ranks.\n", m->rank,
            bytes);
    MPI_Abort(m->all, 1);
    abort();
}

enum packing { PACK, UNPACK, SHIFT_DOWN, SHIFT_UP };

/* Copy all elements that part `from` of the old split shares with part `to` of the new one: to a message, from a message, or
 * within the memory. There each keeps its order, so that those which move down are moved first to last, and those which
 * move up last to first, and none is overwritten before it is moved. */
static void copy_shared(const drom_mpi_array *a, const struct part from[2], const struct part to[2], enum packing how,
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
}

static size_t bytes_shared(const drom_mpi_array *a, const struct part from[2], const struct part to[2])
{
    return (size_t)(count_shared(&a->axes[0], from[0], to[0]) * count_shared(&a->axes[1], from[1], to[1])) * a->bytes;
}

/* --- maps ------------------------------------------------------------------------------------------------------------- */

static bool has(const uint64_t *map, int rank)
{
    return map[rank / 64] >> (rank % 64) & 1;
}

static void add(uint64_t *map, int rank)
{
    map[rank / 64] |= UINT64_C(1) << (rank % 64);
}

static int first_of(const drom_mpi *m, const uint64_t *map)
{
    int rank = 0;
    while (rank < m->size && !has(map, rank))
        rank++;
    return rank;
}

/* --- moving data ------------------------------------------------------------------------------------------------------ */

/* Messages under way with the other side of a move, all of them in one piece of memory. */
struct traffic {
    char *bytes;
    MPI_Request *requests;
    int count;
};

static size_t count_messages(size_t bytes)
{
    return (bytes + PIECE - 1) / PIECE;
}

static void start_messages(const drom_mpi *m, struct traffic *t, char *at, size_t bytes, int rank, bool sends)
{
    for (size_t done = 0; done < bytes; done += PIECE) {
        int length = (int)(bytes - done < PIECE ? bytes - done : PIECE);
        MPI_Request *request = &t->requests[t->count++];
        if (sends)
            MPI_Isend(at + done, length, MPI_BYTE, rank, TAG_MOVE, m->all, request);
        else
            MPI_Irecv(at + done, length, MPI_BYTE, rank, TAG_MOVE, m->all, request);
    }
}

/* One side of a move: the ranks of a map, ascending, for the caller to free, and the number of this rank among them, or -1. */
struct side {
    int *ranks, count, me;
};

static struct side side_of(const drom_mpi *m, const uint64_t *map)
{
    struct side s = {must_have(m, malloc((size_t)m->size * sizeof *s.ranks), 1), 0, -1};
    for (int rank = 0; rank < m->size; rank++) {
        if (!has(map, rank))
            continue;
        if (rank == m->rank)
            s.me = s.count;
        s.ranks[s.count++] = rank;
    }
    return s;
}

/* Start all messages of this rank with the other side: of its old part to the new owners, or of its new part from the old. */
static struct traffic exchange(const drom_mpi *m, const drom_mpi_array *a, const struct part mine[2], const struct side *others,
                               bool sends)
{
    struct traffic t = {NULL, NULL, 0};
    size_t *bytes = must_have(m, calloc((size_t)others->count, sizeof *bytes), 1), all = 0, messages = 0;
    struct part theirs[2];
    for (int i = 0; i < others->count; i++) {
        if (others->ranks[i] == m->rank)
            continue;
        find_parts(a->axes, i, others->count, theirs);
        bytes[i] = sends ? bytes_shared(a, mine, theirs) : bytes_shared(a, theirs, mine);
        all += bytes[i];
        messages += count_messages(bytes[i]);
    }
    t.bytes = must_have(m, malloc(all), all);
    t.requests = must_have(m, malloc(messages * sizeof *t.requests), messages);
    char *at = t.bytes;
    for (int i = 0; i < others->count; at += bytes[i++]) {
        if (bytes[i] == 0)
            continue;
        find_parts(a->axes, i, others->count, theirs);
        if (sends)
            copy_shared(a, mine, theirs, PACK, at);
        start_messages(m, &t, at, bytes[i], others->ranks[i], sends);
    }
    free(bytes);
    return t;
}

static void finish_traffic(struct traffic *t)
{
    for (int i = 0; i < t->count; i++)
        MPI_Wait(&t->requests[i], MPI_STATUS_IGNORE);
    free(t->requests);
}

static void unpack(const drom_mpi *m, const drom_mpi_array *a, const struct part mine[2], const struct side *old, char *at)
{
    struct part theirs[2];
    for (int i = 0; i < old->count; i++) {
        if (old->ranks[i] == m->rank)
            continue;
        find_parts(a->axes, i, old->count, theirs);
        copy_shared(a, theirs, mine, UNPACK, at);
        at += bytes_shared(a, theirs, mine);
    }
}

/* Besides the part itself this takes the memory of what is sent and received. */
static void move_array(const drom_mpi *m, drom_mpi_array *a, const struct side *old, const struct side *new)
{
    struct part before[2], after[2];
    struct traffic out = {NULL, NULL, 0}, in = {NULL, NULL, 0};
    size_t had = 0, has = 0;
    if (old->me >= 0) {
        find_parts(a->axes, old->me, old->count, before);
        had = memory_of(a, before);
        out = exchange(m, a, before, new, true);
    }
    if (new->me >= 0) {
        find_parts(a->axes, new->me, new->count, after);
        has = memory_of(a, after);
        in = exchange(m, a, after, old, false);
        if (has > had)
            a->memory = must_have(m, realloc(a->memory, has), has);
    }
    if (old->me >= 0 && new->me >= 0) {
        copy_shared(a, before, after, SHIFT_DOWN, NULL);
        copy_shared(a, before, after, SHIFT_UP, NULL);
    }
    finish_traffic(&in);
    if (new->me >= 0)
        unpack(m, a, after, old, in.bytes);
    free(in.bytes);
    finish_traffic(&out);
    free(out.bytes);
    a->is_here = new->me >= 0;
    if (!a->is_here) {
        free(a->memory);
        a->memory = NULL;
        return;
    }
    if (has < had)
        a->memory = must_have(m, realloc(a->memory, has), has);
    memcpy(a->parts, after, sizeof after);
}

/* --- from one map to the next ----------------------------------------------------------------------------------------- */

static void make_comm(drom_mpi *m, const struct side *new)
{
    MPI_Group all, running;
    if (m->comm != MPI_COMM_NULL)
        MPI_Comm_free(&m->comm);
    if (new->me < 0)
        return;
    MPI_Comm_group(m->all, &all);
    MPI_Group_incl(all, new->count, new->ranks, &running);
    MPI_Comm_create_group(m->all, running, TAG_COMM, &m->comm);
    MPI_Group_free(&running);
    MPI_Group_free(&all);
}

/* Ranks that return learn both maps and the values from the first rank that has run so far. */
static void invite(const drom_mpi *m, const struct side *new)
{
    for (int i = 0; i < new->count; i++) {
        if (has(m->map, new->ranks[i]))
            continue;
        MPI_Send(m->map, 2 * m->words, MPI_UINT64_T, new->ranks[i], TAG_JOIN, m->all);
        for (const struct value *v = m->values; v; v = v->next)
            MPI_Send(v->at, v->count, v->type, new->ranks[i], TAG_VALUE, m->all);
    }
}

/* Go from `map` to `next`, on every rank that is in one of them. */
static void change(drom_mpi *m)
{
    struct side old = side_of(m, m->map), new = side_of(m, m->next);
    if (old.me == 0)
        invite(m, &new);
    for (drom_mpi_array *a = m->arrays; a; a = a->next)
        move_array(m, a, &old, &new);
    make_comm(m, &new);
    memcpy(m->map, m->next, (size_t)m->words * sizeof *m->map);
    m->running = new.count;
    m->has_changed = true;
    free(old.ranks);
    free(new.ranks);
}

/* Take a new grant, and put it in force unless it is empty. */
static void take_grant(drom_mpi *m)
{
    if (!drom_poll(m->handle))
        return;
    if (drom_take(m->handle, &m->grant)) {
        m->leaves = m->grant.ncpus == 0;
        if (!m->leaves)
            drom_apply(m->handle, &m->grant);
    } else if (drom_mode(m->handle) == DROM_UNMANAGED) {
        m->leaves = false; /* the agent has stopped: all run */
    }
}

static bool is_there(const drom_mpi *m, int tag, MPI_Status *status)
{
    int flag;
    MPI_Iprobe(MPI_ANY_SOURCE, tag, m->all, &flag, status);
    return flag;
}

/* Receive from `source` which rank has a core again. */
static int receive_ready(const drom_mpi *m, int source)
{
    int rank;
    MPI_Recv(&rank, 1, MPI_INT, source, TAG_READY, m->all, MPI_STATUS_IGNORE);
    return rank;
}

static void nap(int ms)
{
    struct timespec time = {0, ms * 1000000L};
    nanosleep(&time, NULL);
}

static int join(drom_mpi *m, int source)
{
    MPI_Recv(m->map, 2 * m->words, MPI_UINT64_T, source, TAG_JOIN, m->all, MPI_STATUS_IGNORE);
    for (const struct value *v = m->values; v; v = v->next)
        MPI_Recv(v->at, v->count, v->type, source, TAG_VALUE, m->all, MPI_STATUS_IGNORE);
    change(m);
    return DROM_MPI_CHANGED;
}

/* Wait for a core, tell a rank that runs, and wait until the others invite this one. A rank that rests passes on what it is
 * told to one that ran when it began to rest: these times grow along the way, so that no message runs in a circle. */
static int rest(drom_mpi *m)
{
    bool is_ready = false;
    MPI_Status status;
    int contact = first_of(m, m->map);
    drom_acknowledge(m->handle, &m->grant);
    for (;;) {
        if (!is_ready) {
            take_grant(m);
            is_ready = !m->leaves;
            if (is_ready)
                MPI_Send(&m->rank, 1, MPI_INT, contact, TAG_READY, m->all);
        }
        if (is_there(m, TAG_JOIN, &status))
            return join(m, status.MPI_SOURCE);
        if (is_there(m, TAG_OVER, &status)) {
            MPI_Recv(NULL, 0, MPI_BYTE, status.MPI_SOURCE, TAG_OVER, m->all, MPI_STATUS_IGNORE);
            return DROM_MPI_OVER;
        }
        if (is_there(m, TAG_READY, &status)) {
            int rank = receive_ready(m, status.MPI_SOURCE);
            MPI_Send(&rank, 1, MPI_INT, contact, TAG_READY, m->all);
        } else if (is_ready || drom_mode(m->handle) == DROM_UNMANAGED) {
            nap(RETURN_MS);
        } else {
            drom_wait(m->handle, REST_MS);
        }
    }
}

/* Say a sentence once, from the first of the running ranks. */
static void say(const drom_mpi *m, const char *sentence)
{
    if (first_of(m, m->map) == m->rank)
        fprintf(stderr, "drom: %s\n", sentence);
}

int drom_mpi_point(drom_mpi *m)
{
    MPI_Status status;
    uint64_t any = 0;
    int ranks = 0;
    take_grant(m);
    memset(m->leaving, 0, 2 * (size_t)m->words * sizeof *m->leaving);
    if (m->leaves)
        add(m->leaving, m->rank);
    while (m->running < m->size && is_there(m, TAG_READY, &status))
        add(m->joining, receive_ready(m, status.MPI_SOURCE));
    MPI_Allreduce(MPI_IN_PLACE, m->leaving, 2 * m->words, MPI_UINT64_T, MPI_BOR, m->comm);
    for (int i = 0; i < 2 * m->words; i++)
        any |= m->leaving[i];
    if (!any)
        return DROM_MPI_SAME;
    for (int i = 0; i < m->words; i++) {
        m->next[i] = (m->map[i] & ~m->leaving[i]) | m->joining[i];
        ranks += __builtin_popcountll(m->next[i]);
    }
    if (ranks < m->min_ranks) {
        if (!m->has_refused)
            say(m, "too few ranks would have cores, so none rests now: give the job at least as many cores as min_ranks.");
        m->has_refused = true;
        for (int i = 0; i < m->words; i++)
            m->next[i] = m->map[i] | m->joining[i];
        if (memcmp(m->map, m->next, (size_t)m->words * sizeof *m->map) == 0)
            return DROM_MPI_SAME;
    }
    change(m);
    return has(m->map, m->rank) ? DROM_MPI_CHANGED : rest(m);
}

/* --- beginning and end ------------------------------------------------------------------------------------------------ */

static drom_mpi *make(MPI_Comm comm, int min_ranks)
{
    drom_mpi *m = calloc(1, sizeof *m);
    int size;
    MPI_Comm_size(comm, &size);
    int words = (size + 63) / 64;
    uint64_t *maps = calloc(4 * (size_t)words, sizeof *maps);
    if (!m || !maps) {
        free(m);
        free(maps);
        return NULL;
    }
    *m = (drom_mpi){.size = size, .running = size, .min_ranks = min_ranks, .words = words, .map = maps, .next = maps + words,
                    .leaving = maps + 2 * words, .joining = maps + 3 * words};
    for (int rank = 0; rank < size; rank++)
        add(m->map, rank);
    return m;
}

/* Whether something is right on all ranks. */
static bool all_agree(MPI_Comm comm, bool mine)
{
    int all = mine;
    MPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_MIN, comm);
    return all;
}

drom_mpi *drom_mpi_init(MPI_Comm comm, int min_ranks)
{
    int rank, size;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    bool is_right = all_agree(comm, min_ranks >= 1 && min_ranks <= size);
    drom_mpi *m = is_right ? make(comm, min_ranks) : NULL;
    if (!all_agree(comm, m != NULL)) {
        if (rank == 0 && is_right)
            fprintf(stderr, "drom: there is no memory for an adaptive program: use more nodes.\n");
        else if (rank == 0)
            fprintf(stderr, "drom: min_ranks is %d of %d ranks: choose a number from 1 to %d.\n", min_ranks, size, size);
        if (m)
            free(m->map);
        free(m);
        return NULL;
    }
    MPI_Comm_dup(comm, &m->all);
    MPI_Comm_dup(comm, &m->comm);
    m->rank = rank;
    m->handle = drom_attach();
    drom_may_rest(m->handle, (uint32_t)min_ranks);
    return m;
}

/* Whether all numbers of ranks up to `most` have parts that follow on each other. */
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

static bool is_same_everywhere(const drom_mpi *m, const drom_mpi_array *a)
{
    long about[2][9] = {{(long)a->bytes}};
    for (int axis = 0; axis < 2; axis++) {
        const drom_mpi_axis *one = &a->axes[axis];
        memcpy(&about[0][1 + 4 * axis], (long[]){one->size, one->split, one->block, one->halo}, 4 * sizeof(long));
    }
    for (int i = 0; i < 9; i++)
        about[1][i] = -about[0][i];
    MPI_Allreduce(MPI_IN_PLACE, about, 18, MPI_LONG, MPI_MAX, m->comm);
    bool is_same = true;
    for (int i = 0; i < 9; i++)
        is_same &= about[0][i] == -about[1][i];
    return is_same;
}

/* Return what is wrong with an array, NULL if nothing is; collective. */
static const char *fault_of(const drom_mpi *m, drom_mpi_array *a, MPI_Aint low)
{
    const drom_mpi_axis *rows = &a->axes[0], *columns = &a->axes[1];
    long elements, bytes;
    if (!all_agree(m->comm, is_axis(rows, m->size) && is_axis(columns, m->size)))
        return "an axis of an array has sizes or bounds that no split can have: see drom_mpi_axis in drom_mpi.h.";
    if (!is_same_everywhere(m, a))
        return "an array is described differently by different ranks: describe it with the same numbers on all.";
    if (rows->split == DROM_MPI_WHOLE && columns->split == DROM_MPI_WHOLE)
        return "an array is split along neither axis: describe it with drom_mpi_add_value().";
    if (low != 0 || __builtin_mul_overflow(rows->size + 2 * rows->halo, columns->size + 2 * columns->halo, &elements) ||
        __builtin_mul_overflow(elements, (long)a->bytes, &bytes))
        return "an array is too large, or its elements do not begin at their address: choose another type or size.";
    find_parts(a->axes, m->rank, m->size, a->parts);
    a->memory = calloc(memory_of(a, a->parts) + 1, 1);
    if (!all_agree(m->comm, a->memory != NULL))
        return "there is no memory for an array: use more nodes.";
    return NULL;
}

drom_mpi_array *drom_mpi_add_array(drom_mpi *m, MPI_Datatype type, drom_mpi_axis rows, drom_mpi_axis columns)
{
    MPI_Aint low, extent;
    MPI_Type_get_extent(type, &low, &extent);
    drom_mpi_array *a = calloc(1, sizeof *a);
    const char *fault = "arrays are described before the first change of ranks: do that right after drom_mpi_init().";
    if (!m->has_changed && !all_agree(m->comm, a != NULL))
        fault = "there is no memory for an array: use more nodes.";
    else if (!m->has_changed) {
        *a = (drom_mpi_array){.axes = {rows, columns}, .bytes = (size_t)extent, .is_here = true};
        fault = fault_of(m, a, low);
    }
    if (fault) {
        say(m, fault);
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

int drom_mpi_add_value(drom_mpi *m, void *value, int count, MPI_Datatype type)
{
    if (m->has_changed) {
        say(m, "values are described before the first change of ranks: do that right after drom_mpi_init().");
        return -EINVAL;
    }
    struct value *v = malloc(sizeof *v), **last = &m->values;
    if (!v)
        return -ENOMEM;
    *v = (struct value){NULL, value, count, type};
    while (*last)
        last = &(*last)->next;
    *last = v;
    return 0;
}

MPI_Comm drom_mpi_comm(const drom_mpi *m)
{
    return m->comm;
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

static void end_rests(const drom_mpi *m)
{
    for (int rank = 0; rank < m->size; rank++)
        if (!has(m->map, rank))
            MPI_Send(NULL, 0, MPI_BYTE, rank, TAG_OVER, m->all);
}

void drom_mpi_finalize(drom_mpi *m)
{
    MPI_Status status;
    if (first_of(m, m->map) == m->rank)
        end_rests(m);
    if (m->comm != MPI_COMM_NULL)
        MPI_Comm_free(&m->comm);
    MPI_Barrier(m->all);
    while (is_there(m, TAG_READY, &status)) /* too late */
        receive_ready(m, status.MPI_SOURCE);
    MPI_Comm_free(&m->all);
    drom_detach(m->handle);
    for (drom_mpi_array *a = m->arrays, *next; a; a = next) {
        next = a->next;
        free(a->memory);
        free(a);
    }
    for (struct value *v = m->values, *next; v; v = next) {
        next = v->next;
        free(v);
    }
    free(m->map);
    free(m);
}

/* --- for other languages ---------------------------------------------------------------------------------------------- */

drom_mpi *drom_mpi_init_f(MPI_Fint comm, int min_ranks)
{
    return drom_mpi_init(MPI_Comm_f2c(comm), min_ranks);
}

drom_mpi_array *drom_mpi_add_array_f(drom_mpi *m, MPI_Fint type, drom_mpi_axis rows, drom_mpi_axis columns)
{
    return drom_mpi_add_array(m, MPI_Type_f2c(type), rows, columns);
}

int drom_mpi_add_value_f(drom_mpi *m, void *value, int count, MPI_Fint type)
{
    return drom_mpi_add_value(m, value, count, MPI_Type_f2c(type));
}

MPI_Fint drom_mpi_comm_f(const drom_mpi *m)
{
    return MPI_Comm_c2f(m->comm);
}
