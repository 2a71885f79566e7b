/* SPDX-License-Identifier: Apache-2.0 */
/* Adaptive MPI programs: see drom_mpi.h. Compiled with the program, by the program's MPI compiler.
 *
 * The other drom_mpi_*.c are parts of this file, so that programs compile one.
 *
 * At a point the running ranks combine their requests (which ranks leave, which are to join), so that all compute the same next map.
 * The steps from one map to the next use messages between single ranks, since resting ranks take part in no collective operation. */
#include "drom_mpi_internal.h"

#include <errno.h>
#include <mpi.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { REST_MS = 100, RETURN_MS = 1 }; /* between two checks for messages: while resting, and at most with a core again */
enum { LEAST_US = 50 };                /* the same, at least with a core again */
enum { READ_MS = 1000 };               /* for a launcher to read what a rank has printed */

/* After this time without a malleability point of the others, a rank with a core again prints what may delay them. */
#ifndef DROM_MPI_LATE_MS
#define DROM_MPI_LATE_MS 30000
#endif

enum { UPDATE_INTS = sizeof(struct update) / sizeof(int) };
enum { BURST_MS = 3 }; /* ranks that get cores at the same time report that within this time after each other */
enum { SHIP_MS = 500 }; /* longest time for constant arrays before the ranks wait for them */

struct value {
    struct value *next;
    void *at;
    int count;
    MPI_Datatype type;
};

/* A sent message whose receiver checks for it from time to time. */
struct pending {
    struct pending *next;
    MPI_Request request;
    int data[UPDATE_INTS];
};

static void nap(int ms)
{
    struct timespec time = {0, ms * 1000000L};
    nanosleep(&time, NULL);
}

/* Sleep for an eighth of the time that a rank has waited since it got a core again: the others wait for it once they invite it. */
static void nap_while_waiting(double since)
{
    double us = (MPI_Wtime() - since) * 1e6 / 8;
    long most = RETURN_MS * 1000L, rounded = us < LEAST_US ? LEAST_US : us < (double)most ? (long)us : most;
    nanosleep(&(struct timespec){0, rounded * 1000}, NULL);
}

/* Return whether the launcher has not yet read all that this rank has printed to a pipe. */
static bool is_unread(void)
{
    struct stat is;
    int bytes = 0;
    return !fstat(STDERR_FILENO, &is) && S_ISFIFO(is.st_mode) && !ioctl(STDERR_FILENO, FIONREAD, &bytes) && bytes > 0;
}

static void end_all(MPI_Comm comm)
{
    for (int ms = 0; ms < READ_MS && is_unread(); ms++)
        nap(1);
    MPI_Abort(comm, 1);
    abort();
}

static void *must_have(const drom_mpi *m, void *memory, size_t bytes)
{
    if (memory || bytes == 0)
        return memory;
    fprintf(stderr, "drom: rank %d has no memory for %zu bytes of moved data: use more nodes or a larger min_ranks.\n", m->rank,
            bytes);
    end_all(m->all);
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

static bool runs(const drom_mpi *m)
{
    return has(m->map, m->rank);
}

static int first_of(const drom_mpi *m, const uint64_t *map)
{
    int rank = 0;
    while (rank < m->size && !has(map, rank))
        rank++;
    return rank;
}

/* Make empty maps for all ranks, in place of those before; return whether there is memory. */
static bool make_maps(drom_mpi *m)
{
    size_t words = ((size_t)m->size + 63) / 64;
    uint64_t *maps = calloc(5 * words + 1, sizeof *maps);
    if (!maps)
        return false;
    free(m->map);
    m->words = (int)words;
    m->map = maps;
    m->next = maps + words;
    m->leaving = maps + 2 * words;
    m->joining = maps + 3 * words;
    m->ready = maps + 4 * words + 1;
    return true;
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

/* --- messages whose sender does not wait ------------------------------------------------------------------------------ */

static bool is_there(const drom_mpi *m, int tag, MPI_Status *status)
{
    int flag;
    MPI_Iprobe(MPI_ANY_SOURCE, tag, m->all, &flag, status);
    return flag;
}

/* Free the messages that have been received, and return whether all have. */
static bool are_received(drom_mpi *m)
{
    for (struct pending **p = &m->pending; *p;) {
        struct pending *one = *p;
        int is_received;
        MPI_Test(&one->request, &is_received, MPI_STATUS_IGNORE);
        if (is_received) {
            *p = one->next;
            free(one);
        } else {
            p = &one->next;
        }
    }
    return !m->pending;
}

/* Send some numbers without waiting for the receiver. */
static void send_numbers(drom_mpi *m, const int *data, int count, int rank, int tag)
{
    struct pending *p = must_have(m, malloc(sizeof *p), sizeof *p);
    memcpy(p->data, data, (size_t)count * sizeof *data);
    MPI_Issend(p->data, count, MPI_INT, rank, tag, m->all, &p->request);
    p->next = m->pending;
    m->pending = p;
}

/* Report that `rank` has a core again to the first running rank, according to this rank's last update. */
static void send_ready(drom_mpi *m, int rank)
{
    are_received(m);
    send_numbers(m, &rank, 1, m->update.first, TAG_READY);
}

/* Receive from `source` a report, and return which rank has a core again. */
static int receive_ready(const drom_mpi *m, int source)
{
    int rank;
    MPI_Recv(&rank, 1, MPI_INT, source, TAG_READY, m->all, MPI_STATUS_IGNORE);
    return rank;
}

static void report_want(drom_mpi *m)
{
    drom_may_rest(m->handle, (uint32_t)m->update.min_ranks, (uint32_t)m->update.max_ranks);
}

/* Send an update to the ranks that continue to rest, from the first one that runs. */
static void send_update(drom_mpi *m)
{
    m->update.number++;
    if (first_of(m, m->map) != m->rank)
        return;
    are_received(m);
    for (int rank = 0; rank < m->size; rank++)
        if (!has(m->map, rank) && !has(m->next, rank))
            send_numbers(m, (const int *)&m->update, UPDATE_INTS, rank, TAG_UPDATE);
}

/* Receive all updates that have arrived, and keep the newest. */
static void receive_updates(drom_mpi *m)
{
    MPI_Status status;
    struct update update;
    while (is_there(m, TAG_UPDATE, &status)) {
        MPI_Recv(&update, UPDATE_INTS, MPI_INT, status.MPI_SOURCE, TAG_UPDATE, m->all, MPI_STATUS_IGNORE);
        if (update.number <= m->update.number)
            continue;
        bool is_range = update.min_ranks != m->update.min_ranks || update.max_ranks != m->update.max_ranks;
        m->update = update;
        if (is_range)
            report_want(m);
    }
}

/* --- from one map to the next ----------------------------------------------------------------------------------------- */

static void drop_comm(drom_mpi *m)
{
    if (m->comm != MPI_COMM_NULL && m->comm != m->whole)
        MPI_Comm_free(&m->comm);
    m->comm = MPI_COMM_NULL;
}

static void make_comm(drom_mpi *m, const struct side *new)
{
    bool is_whole = new->count == m->size;
    MPI_Group all, running;
    drop_comm(m);
    if (is_whole)
        m->comm = m->whole;
    if (new->me < 0 || m->comm != MPI_COMM_NULL)
        return;
    MPI_Comm_group(m->all, &all);
    MPI_Group_incl(all, new->count, new->ranks, &running);
    MPI_Comm_create_group(m->all, running, TAG_COMM, &m->comm);
    MPI_Group_free(&running);
    MPI_Group_free(&all);
    if (is_whole)
        m->whole = m->comm;
}

/* Send both maps, the update and the values to the ranks that return, from the first rank of the old map. */
static void invite(const drom_mpi *m, const struct side *new)
{
    for (int i = 0; i < new->count; i++) {
        if (has(m->map, new->ranks[i]))
            continue;
        MPI_Send(m->map, 2 * m->words, MPI_UINT64_T, new->ranks[i], TAG_JOIN, m->all);
        MPI_Send(&m->update, UPDATE_INTS, MPI_INT, new->ranks[i], TAG_VALUE, m->all);
        for (const struct value *v = m->values; v; v = v->next)
            MPI_Send(v->at, v->count, v->type, new->ranks[i], TAG_VALUE, m->all);
    }
}

/* Start to move constant arrays to the ranks of the map `next`, on every rank that is in one of both; return whether there are
 * any. The first rank of the old map sends both maps to those that return. */
static bool begin_change(drom_mpi *m)
{
    if (!has_constants(m))
        return false;
    struct side old = side_of(m, m->map), new = side_of(m, m->next);
    for (int i = 0; old.me == 0 && i < new.count; i++)
        if (!has(m->map, new.ranks[i]))
            MPI_Send(m->map, 2 * m->words, MPI_UINT64_T, new.ranks[i], TAG_CONSTANTS, m->all);
    ship_constants(m, &old, &new);
    m->is_shipping = true;
    m->ships_until = MPI_Wtime() + SHIP_MS / 1e3;
    free(old.ranks);
    free(new.ranks);
    return true;
}

/* Go from `map` to `next`, on every rank that is in one of them. */
static void change(drom_mpi *m)
{
    struct side old = side_of(m, m->map), new = side_of(m, m->next);
    if (old.me == 0)
        invite(m, &new);
    if (m->update.first != new.ranks[0]) {
        m->update.first = new.ranks[0];
        send_update(m);
    }
    move_arrays(m, &old, &new);
    move_objects(m, &old, &new);
    make_comm(m, &new);
    memcpy(m->map, m->next, (size_t)m->words * sizeof *m->map);
    m->running = new.count;
    m->has_changed = true;
    m->is_shipping = false;
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

/* Return when no message between ranks is under way; collective over all ranks. Late messages are received and ignored. */
static void settle(drom_mpi *m)
{
    MPI_Request all_received = MPI_REQUEST_NULL;
    MPI_Status status;
    for (int is_over = 0; !is_over;) {
        while (is_there(m, TAG_READY, &status))
            receive_ready(m, status.MPI_SOURCE);
        receive_updates(m);
        if (all_received == MPI_REQUEST_NULL && are_received(m))
            MPI_Ibarrier(m->all, &all_received);
        if (all_received != MPI_REQUEST_NULL)
            MPI_Test(&all_received, &is_over, MPI_STATUS_IGNORE);
        if (!is_over)
            nap(RETURN_MS);
    }
}

/* Start to receive constant arrays, on a rank that returns, if they have been announced. */
static void receive_constants(drom_mpi *m)
{
    MPI_Status status;
    if (!is_there(m, TAG_CONSTANTS, &status))
        return;
    MPI_Recv(m->map, 2 * m->words, MPI_UINT64_T, status.MPI_SOURCE, TAG_CONSTANTS, m->all, MPI_STATUS_IGNORE);
    begin_change(m);
}

static int join(drom_mpi *m, int source)
{
    MPI_Recv(m->map, 2 * m->words, MPI_UINT64_T, source, TAG_JOIN, m->all, MPI_STATUS_IGNORE);
    MPI_Recv(&m->update, UPDATE_INTS, MPI_INT, source, TAG_VALUE, m->all, MPI_STATUS_IGNORE);
    for (const struct value *v = m->values; v; v = v->next)
        MPI_Recv(v->at, v->count, v->type, source, TAG_VALUE, m->all, MPI_STATUS_IGNORE);
    report_want(m);
    change(m);
    return DROM_MPI_CHANGED;
}

#include "drom_mpi_nodes.c"

/* Print a message, once, if the program has sent this resting rank a message on MPI_COMM_WORLD. */
static void look_for_stray(drom_mpi *m)
{
    MPI_Status status;
    int is_stray, me;
    if (!m->has_world || m->has_stray)
        return;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &is_stray, &status);
    if (!is_stray)
        return;
    m->has_stray = true;
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    fprintf(stderr, "drom: rank %d has sent rank %d, which rests, a message (tag %d) on MPI_COMM_WORLD: use drom_mpi_comm().\n",
            status.MPI_SOURCE, me, status.MPI_TAG);
}

/* Print a message, once, if this rank has had a core since `since`, and the running ranks have not invited it for long. */
static void look_for_delay(drom_mpi *m, double since)
{
    if (m->has_waited || MPI_Wtime() - since < DROM_MPI_LATE_MS / 1e3)
        return;
    m->has_waited = true;
    fprintf(stderr, "drom: rank %d has a core, but the running ranks have come to no malleability point for %g s: if they wait "
            "in a call on MPI_COMM_WORLD, use drom_mpi_comm() there.\n", m->rank, DROM_MPI_LATE_MS / 1e3);
}

/* Wait for a core until it is time to check for messages again. Messages that others sent before this rank rested arrive soon after it
 * began to rest, so it waits for half of the time since then. */
static void wait_at_rest(drom_mpi *m, bool is_ready, double since)
{
    double ms = (MPI_Wtime() - since) * 1e3 / 2;
    if (is_ready || drom_mode(m->handle) == DROM_UNMANAGED)
        nap_while_waiting(since);
    else
        drom_wait(m->handle, ms < RETURN_MS ? RETURN_MS : ms < REST_MS ? (int)ms : REST_MS);
}

/* Wait for a core, report it to the first rank that runs, and wait until the others invite this one. A resting rank forwards such a
 * report according to its own update, which is newer than the sender's, so that no report is forwarded in a circle. */
static int rest(drom_mpi *m)
{
    bool is_ready = false;
    double since = MPI_Wtime();
    MPI_Status status;
    if (m->leaves)
        drom_acknowledge(m->handle, &m->grant);
    for (;;) {
        if (!is_ready) {
            take_grant(m);
            is_ready = !m->leaves;
            if (is_ready) {
                since = MPI_Wtime();
                is_there(m, TAG_UPDATE, &status); /* a probe makes Open MPI process messages that have arrived */
                receive_updates(m);
                send_ready(m, m->rank);
            }
        }
        if (is_ready)
            look_for_delay(m, since);
        look_for_stray(m);
        if (!m->is_shipping && !is_there(m, MPI_ANY_TAG, &status)) { /* the usual case */
            wait_at_rest(m, is_ready, since);
            continue;
        }
        bool is_invited = is_there(m, TAG_JOIN, &status), is_over = !is_invited && is_there(m, TAG_OVER, &status);
        int source = status.MPI_SOURCE;
        receive_constants(m); /* their announcement was sent before an invitation, or the end */
        if (m->is_shipping && !have_constants_arrived(m))
            continue;
        if (is_invited)
            return join(m, source);
        if (is_over) {
            MPI_Recv(NULL, 0, MPI_BYTE, source, TAG_OVER, m->all, MPI_STATUS_IGNORE);
            return DROM_MPI_OVER;
        }
        receive_updates(m);
        if (is_there(m, TAG_GROUP, &status)) {
            receive_order(m, status.MPI_SOURCE);
            if (m->is_released)
                return DROM_MPI_OVER;
            is_ready = false;
            continue;
        }
        if (is_there(m, TAG_READY, &status))
            send_ready(m, receive_ready(m, status.MPI_SOURCE));
        else
            wait_at_rest(m, is_ready, since);
    }
}

static void print_once(const drom_mpi *m, const char *message)
{
    if (first_of(m, m->map) == m->rank)
        fprintf(stderr, "drom: %s\n", message);
}

/* Compute the next map from the ranks that leave and join; return whether it differs. If too few ranks would run for the program,
 * none leaves, and a message is printed. */
static bool find_next(drom_mpi *m)
{
    int ranks = 0;
    for (int i = 0; i < m->words; i++) {
        m->next[i] = (m->map[i] & ~m->leaving[i]) | m->joining[i];
        ranks += __builtin_popcountll(m->next[i]);
    }
    if (ranks < m->update.min_ranks) {
        if (!m->has_refused)
            print_once(m, "too few ranks would have cores, so none rests now: give the job at least as many cores as min_ranks.");
        m->has_refused = true;
        for (int i = 0; i < m->words; i++)
            m->next[i] = m->map[i] | m->joining[i];
    }
    return memcmp(m->map, m->next, (size_t)m->words * sizeof *m->map) != 0;
}

/* Complete a change, if there is one, and carry out the order that follows it. */
static int end_change(drom_mpi *m, bool changes)
{
    char *text = m->order_text;
    m->order_text = NULL;
    if (text)
        send_order(m, &m->order, text);
    if (changes)
        change(m);
    if (text)
        regroup(m, &m->order, text);
    free(text);
    return m->is_released ? DROM_MPI_OVER : !runs(m) ? rest(m) : changes ? DROM_MPI_CHANGED : DROM_MPI_SAME;
}

/* Receive the order of the first running rank to release and spawn ranks; return whether other ranks run then. Ranks that are about
 * to join do so at a later point. */
static bool pass_order(drom_mpi *m)
{
    m->order_text = share_order(m, &m->order);
    memset(m->joining, 0, (size_t)m->words * sizeof *m->joining);
    leave_by(m, &m->order, m->order_text);
    bool changes = find_next(m);
    for (int i = 0; i < m->words; i++)
        m->order.releases &= !(m->leaving[i] & m->next[i]); /* false: it is refused */
    return changes;
}

/* Return whether a change is to be completed now: its constant arrays have arrived, or have taken too long. */
static bool is_shipment_over(const drom_mpi *m)
{
    int late[2] = {!have_constants_arrived(m), MPI_Wtime() >= m->ships_until};
    MPI_Allreduce(MPI_IN_PLACE, late, 2, MPI_INT, MPI_MAX, m->comm);
    return !late[0] || late[1];
}

/* Admit the ranks that have reported to this one that they have a core again. More may follow soon, and each change is expensive, so
 * between points in short succession it waits for them; but not if this rank leaves, as it cannot admit any later. */
static void admit(drom_mpi *m)
{
    MPI_Status status;
    double now = MPI_Wtime(), burst = BURST_MS / 1e3;
    while (is_there(m, TAG_READY, &status)) {
        add(m->ready, receive_ready(m, status.MPI_SOURCE));
        m->last_ready = now;
    }
    if (m->leaves || now - m->last_admitted >= burst || now - m->last_ready >= burst) {
        memcpy(m->joining, m->ready, (size_t)m->words * sizeof *m->joining);
        memset(m->ready, 0, (size_t)m->words * sizeof *m->ready);
    }
    m->last_admitted = now;
}

int drom_mpi_point(drom_mpi *m)
{
    uint64_t any = 0;
    take_grant(m);
    if (!runs(m)) /* spawned */
        return rest(m);
    if (m->is_shipping)
        return is_shipment_over(m) ? end_change(m, true) : DROM_MPI_SAME;
    memset(m->leaving, 0, (2 * (size_t)m->words + 1) * sizeof *m->leaving);
    if (m->leaves)
        add(m->leaving, m->rank);
    if (m->running < m->size)
        admit(m);
    m->joining[m->words] = is_regrouping_due(m, &m->order);
    MPI_Allreduce(MPI_IN_PLACE, m->leaving, 2 * m->words + 1, MPI_UINT64_T, MPI_BOR, m->comm);
    bool is_ordered = m->joining[m->words];
    for (int i = 0; i < 2 * m->words; i++)
        any |= m->leaving[i];
    bool changes = is_ordered ? pass_order(m) : any && find_next(m);
    return changes && begin_change(m) ? DROM_MPI_SAME : end_change(m, changes);
}

/* --- beginning and end ------------------------------------------------------------------------------------------------ */

static drom_mpi *make(MPI_Comm comm, int min_ranks)
{
    drom_mpi *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    MPI_Comm_rank(comm, &m->rank);
    MPI_Comm_size(comm, &m->size);
    m->running = m->size;
    m->comm = m->whole = MPI_COMM_NULL;
    m->update.min_ranks = min_ranks;
    if (!make_maps(m)) {
        free(m);
        return NULL;
    }
    for (int rank = 0; rank < m->size; rank++)
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
    int rank, size, compared;
    MPI_Comm parent;
    bool is_new = is_spawned(&parent);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    bool is_right = all_agree(comm, min_ranks >= 1 && (is_new || min_ranks <= size));
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
    m->whole = m->comm;
    m->handle = drom_attach();
    report_want(m);
    MPI_Comm_compare(comm, MPI_COMM_WORLD, &compared);
    m->has_world = compared == MPI_IDENT || compared == MPI_CONGRUENT;
    begin_nodes(m, parent);
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
    m->update.min_ranks = min_ranks;
    m->update.max_ranks = max_ranks;
    report_want(m);
    send_update(m);
    return 0;
}

int drom_mpi_add_value(drom_mpi *m, void *value, int count, MPI_Datatype type)
{
    if (m->has_changed) {
        print_once(m, "values are described before the first change of ranks: do that right after drom_mpi_init().");
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
    end_shipments(m);
    drop_comm(m);
    if (!m->is_released) {
        if (first_of(m, m->map) == m->rank)
            end_rests(m);
        settle(m);
        use_all(m, MPI_COMM_NULL);
    }
    drom_detach(m->handle);
    free_arrays(m);
    free_objects(m);
    free_nodes(m);
    for (struct value *v = m->values, *next; v; v = next) {
        next = v->next;
        free(v);
    }
    free(m->order_text);
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

drom_mpi_array *drom_mpi_add_constant_f(drom_mpi *m, MPI_Fint type, drom_mpi_axis rows, drom_mpi_axis columns)
{
    return drom_mpi_add_constant(m, MPI_Type_f2c(type), rows, columns);
}

int drom_mpi_add_value_f(drom_mpi *m, void *value, int count, MPI_Fint type)
{
    return drom_mpi_add_value(m, value, count, MPI_Type_f2c(type));
}

MPI_Fint drom_mpi_comm_f(const drom_mpi *m)
{
    return MPI_Comm_c2f(m->comm);
}

void drom_mpi_abort_f(MPI_Fint comm)
{
    end_all(MPI_Comm_f2c(comm));
}

#include "drom_mpi_arrays.c"
#include "drom_mpi_balance.c"
#include "drom_mpi_objects.c"
