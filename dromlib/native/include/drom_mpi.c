/* SPDX-License-Identifier: Apache-2.0 */
/* Adaptive MPI programs: see drom_mpi.h. Compiled with the program, by the program's MPI compiler.
 *
 * The other drom_mpi_*.c are parts of this file, so that programs compile one.
 *
 * At a point the running ranks combine their wishes (who leaves, who is to join) and so all know the same next map. What
 * leads from one map to the next are messages between single ranks, since those that rest take part in nothing collective. */
#include "drom_mpi_internal.h"

#include <errno.h>
#include <mpi.h>
#include <time.h>

enum { REST_MS = 100, RETURN_MS = 1 }; /* between two looks for messages: while resting, and with a core again */

struct value {
    struct value *next;
    void *at;
    int count;
    MPI_Datatype type;
};

static void *must_have(const drom_mpi *m, void *memory, size_t bytes)
{
    if (memory || bytes == 0)
        return memory;
    fprintf(stderr, "drom: rank %d has no memory for %zu bytes of moved data: use more nodes or a larger min_ranks.\n", m->rank,
            bytes);
    MPI_Abort(m->all, 1);
    abort();
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

/* Ranks that return learn both maps, the range and the values from the first rank that has run so far. */
static void invite(const drom_mpi *m, const struct side *new)
{
    for (int i = 0; i < new->count; i++) {
        if (has(m->map, new->ranks[i]))
            continue;
        MPI_Send(m->map, 2 * m->words, MPI_UINT64_T, new->ranks[i], TAG_JOIN, m->all);
        MPI_Send(m->want, 3, MPI_INT, new->ranks[i], TAG_VALUE, m->all);
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
    move_arrays(m, &old, &new);
    move_objects(m, &old, &new);
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

static void report_want(drom_mpi *m)
{
    m->min_ranks = m->want[1];
    drom_may_rest(m->handle, (uint32_t)m->want[1], (uint32_t)m->want[2]);
}

/* Receive a range of ranks, unless a newer one is known. */
static void receive_want(drom_mpi *m, int source)
{
    int want[3];
    MPI_Recv(want, 3, MPI_INT, source, TAG_WANT, m->all, MPI_STATUS_IGNORE);
    if (want[0] > m->want[0]) {
        memcpy(m->want, want, sizeof want);
        report_want(m);
    }
}

static int join(drom_mpi *m, int source)
{
    MPI_Recv(m->map, 2 * m->words, MPI_UINT64_T, source, TAG_JOIN, m->all, MPI_STATUS_IGNORE);
    MPI_Recv(m->want, 3, MPI_INT, source, TAG_VALUE, m->all, MPI_STATUS_IGNORE);
    for (const struct value *v = m->values; v; v = v->next)
        MPI_Recv(v->at, v->count, v->type, source, TAG_VALUE, m->all, MPI_STATUS_IGNORE);
    report_want(m);
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
        if (is_there(m, TAG_WANT, &status))
            receive_want(m, status.MPI_SOURCE);
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
    m->want[1] = min_ranks;
    report_want(m);
    return m;
}

int drom_mpi_want(drom_mpi *m, int min_ranks, int max_ranks)
{
    if (min_ranks < 1 || max_ranks < min_ranks || max_ranks > m->size) {
        if (first_of(m, m->map) == m->rank)
            fprintf(stderr, "drom: %d to %d of %d ranks cannot run: choose numbers from 1 to %d, the smaller one first.\n",
                    min_ranks, max_ranks, m->size, m->size);
        return -EINVAL;
    }
    m->want[0]++;
    m->want[1] = min_ranks;
    m->want[2] = max_ranks;
    report_want(m);
    for (int rank = 0; first_of(m, m->map) == m->rank && rank < m->size; rank++)
        if (!has(m->map, rank))
            MPI_Send(m->want, 3, MPI_INT, rank, TAG_WANT, m->all);
    return 0;
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
    while (is_there(m, TAG_WANT, &status))
        receive_want(m, status.MPI_SOURCE);
    MPI_Comm_free(&m->all);
    drom_detach(m->handle);
    free_arrays(m);
    free_objects(m);
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

#include "drom_mpi_arrays.c"
#include "drom_mpi_balance.c"
#include "drom_mpi_objects.c"
