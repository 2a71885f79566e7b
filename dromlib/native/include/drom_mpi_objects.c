/* SPDX-License-Identifier: Apache-2.0 */
/* Objects of adaptive MPI programs: see drom_mpi.h. The first rank that runs decides where they go, by a strategy, from what
 * all have measured; drom_mpi_balance.c has the strategies. */
#include "drom_mpi_internal.h"

#include <float.h>
#include <time.h>

enum { MOST_OBJECTS = 1 << 20 };
static const double FORGETS = 0.5;     /* what a decision leaves of the measurements before it */
static const double LEAST_BUSY = 0.01; /* seconds in objects, below which the speed of a rank is unknown */
static const double LEAST_WORK = 0.01; /* of the mean: an object that was not measured has some too */

struct drom_mpi_objects {
    drom_mpi_objects *next;
    drom_mpi *m;
    drom_mpi_kind kind;
    int *place, *next_place; /* of each object, the number of its rank among those that run */
    double *work;            /* measured of each own object; 0 for others */
    double speed;            /* of this rank, as the program describes it */
    double busy, done;       /* seconds in own objects, and the work done in them */
    double wall, cpu;        /* when the last object began */
};

/* What goes in front of an object. */
struct head {
    long bytes;
    double work;
};

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Count what the rank did since the last object began as work of that one. */
static void measure(drom_mpi_objects *o, long object)
{
    double work = (cpu_seconds() - o->cpu) * o->speed;
    o->work[object] += work;
    o->done += work;
    o->busy += MPI_Wtime() - o->wall;
}

long drom_mpi_next(drom_mpi_objects *o, long object)
{
    int me;
    MPI_Comm_rank(o->m->comm, &me);
    if (object >= 0)
        measure(o, object);
    do
        object++;
    while (object < o->kind.count && o->place[object] != me);
    o->wall = MPI_Wtime();
    o->cpu = cpu_seconds();
    return object < o->kind.count ? object : -1;
}

int drom_mpi_owner(const drom_mpi_objects *o, long object)
{
    return o->place[object];
}

/* --- decisions -------------------------------------------------------------------------------------------------------- */

/* Return the number of a rank among those of a map, -1 if it is not there. */
static int number_of(const struct side *side, int rank)
{
    int from = 0, end = side->count;
    while (from < end) {
        int middle = (from + end) / 2;
        if (side->ranks[middle] < rank)
            from = middle + 1;
        else
            end = middle;
    }
    return from < side->count && side->ranks[from] == rank ? from : -1;
}

/* Objects without a measurement count too, so that they are spread as well. */
static void fill_gaps(double *work, long objects)
{
    double all = 0;
    for (long i = 0; i < objects; i++)
        all += work[i];
    double least = all > 0 ? LEAST_WORK * all / (double)objects : 1;
    for (long i = 0; i < objects; i++)
        work[i] = work[i] > least ? work[i] : least;
}

/* How fast a rank is: its work in a second as measured, 0 if it is unknown, and as the program describes it. */
struct pace {
    double rate, speed;
};

/* Turn the described speed of each rank of `new` into its work in a second: as was measured where it ran before (`paces`),
 * otherwise as described beside those that were measured. */
static void estimate_speeds(const struct side *old, const struct side *new, const struct pace *paces, double *speeds)
{
    double sum = 0;
    int measured = 0;
    for (int i = 0; i < old->count; i++) {
        sum += paces[i].rate / paces[i].speed;
        measured += paces[i].rate > 0;
    }
    for (int i = 0; i < new->count; i++) {
        int before = number_of(old, new->ranks[i]);
        bool is_known = before >= 0 && paces[before].rate > 0;
        speeds[i] = is_known ? paces[before].rate : speeds[i] * (measured ? sum / measured : 1);
    }
}

/* Return the described speeds of the ranks of `new`, for the caller to free: those that did not run before send theirs. */
static double *collect_speeds(const drom_mpi *m, const struct side *old, const struct side *new, const struct pace *paces)
{
    double *speeds = must_have(m, malloc((size_t)new->count * sizeof *speeds), 1);
    for (int i = 0; i < new->count; i++) {
        int before = number_of(old, new->ranks[i]);
        if (before >= 0)
            speeds[i] = paces[before].speed;
        else
            MPI_Recv(&speeds[i], 1, MPI_DOUBLE, new->ranks[i], TAG_PLACES, m->all, MPI_STATUS_IGNORE);
    }
    return speeds;
}

/* Write into `next_place` who has each object now, by its number in the new map: -1 if that rank leaves. */
static void renumber(drom_mpi_objects *o, const struct side *old, const struct side *new)
{
    int *numbers = must_have(o->m, malloc((size_t)old->count * sizeof *numbers), 1);
    for (int i = 0; i < old->count; i++)
        numbers[i] = number_of(new, old->ranks[i]);
    for (long i = 0; i < o->kind.count; i++)
        o->next_place[i] = numbers[o->place[i]];
    free(numbers);
}

static bool are_placed(const drom_mpi_objects *o, int ranks)
{
    for (long i = 0; i < o->kind.count; i++)
        if (o->next_place[i] < 0 || o->next_place[i] >= ranks)
            return false;
    return true;
}

/* Decide, on the first rank of the old map, where each object goes. */
static void decide(drom_mpi_objects *o, const struct side *old, const struct side *new, double *work,
                   const struct pace *paces)
{
    double *speeds = collect_speeds(o->m, old, new, paces);
    fill_gaps(work, o->kind.count);
    estimate_speeds(old, new, paces, speeds);
    renumber(o, old, new);
    (o->kind.strategy ? o->kind.strategy : drom_mpi_refine)(o->kind.count, work, new->count, speeds, o->next_place);
    if (o->kind.strategy && !are_placed(o, new->count)) {
        say(o->m, "a strategy has given an object to no rank that will run, so drom_mpi_refine() decides: correct it.");
        renumber(o, old, new);
        drom_mpi_refine(o->kind.count, work, new->count, speeds, o->next_place);
    }
    must_have(o->m, are_placed(o, new->count) ? o : NULL, (size_t)o->kind.count * sizeof *work);
    free(speeds);
}

/* Learn on all ranks of both maps where each object is and where it goes. */
static void agree(drom_mpi_objects *o, const struct side *old, const struct side *new)
{
    const drom_mpi *m = o->m;
    int objects = (int)o->kind.count;
    if (old->me < 0) {
        MPI_Send(&o->speed, 1, MPI_DOUBLE, old->ranks[0], TAG_PLACES, m->all);
        MPI_Recv(o->place, objects, MPI_INT, old->ranks[0], TAG_PLACES, m->all, MPI_STATUS_IGNORE);
        MPI_Recv(o->next_place, objects, MPI_INT, old->ranks[0], TAG_PLACES, m->all, MPI_STATUS_IGNORE);
        return;
    }
    struct pace pace = {o->busy >= LEAST_BUSY ? o->done / o->busy : 0, o->speed};
    bool is_first = old->me == 0;
    struct pace *paces = is_first ? must_have(m, malloc((size_t)old->count * sizeof *paces), 1) : NULL;
    double *work = is_first ? must_have(m, malloc((size_t)objects * sizeof *work), 1) : NULL;
    MPI_Gather(&pace, 2, MPI_DOUBLE, paces, 2, MPI_DOUBLE, 0, m->comm);
    MPI_Reduce(o->work, work, objects, MPI_DOUBLE, MPI_SUM, 0, m->comm);
    if (is_first)
        decide(o, old, new, work, paces);
    free(paces);
    free(work);
    MPI_Bcast(o->next_place, objects, MPI_INT, 0, m->comm);
    for (int i = 0; is_first && i < new->count; i++) {
        if (number_of(old, new->ranks[i]) >= 0)
            continue;
        MPI_Send(o->place, objects, MPI_INT, new->ranks[i], TAG_PLACES, m->all);
        MPI_Send(o->next_place, objects, MPI_INT, new->ranks[i], TAG_PLACES, m->all);
    }
    o->busy *= FORGETS;
    o->done *= FORGETS;
    for (long i = 0; i < objects; i++)
        o->work[i] *= FORGETS;
}

/* --- moving ----------------------------------------------------------------------------------------------------------- */

/* Room for one object on its way, and a place for one without bytes. */
struct room {
    char *bytes;
    size_t size;
};

static void reserve(const drom_mpi *m, struct room *room, long bytes)
{
    if (bytes < 0) {
        fprintf(stderr, "drom: an object has %ld bytes: correct what pack() returns.\n", bytes);
        MPI_Abort(m->all, 1);
    }
    if (room->bytes && (size_t)bytes <= room->size)
        return;
    free(room->bytes);
    *room = (struct room){must_have(m, malloc((size_t)bytes + 1), (size_t)bytes + 1), (size_t)bytes};
}

static void send_object(drom_mpi_objects *o, long object, int rank, struct room *room)
{
    const drom_mpi *m = o->m;
    struct head head = {o->kind.pack(o->kind.context, object, NULL), o->work[object]};
    reserve(m, room, head.bytes);
    o->kind.pack(o->kind.context, object, room->bytes);
    o->work[object] = 0;
    MPI_Send(&head, sizeof head, MPI_BYTE, rank, TAG_OBJECT, m->all);
    for (long done = 0; done < head.bytes; done += PIECE)
        MPI_Send(room->bytes + done, piece((size_t)(head.bytes - done)), MPI_BYTE, rank, TAG_OBJECT, m->all);
}

static void receive_object(drom_mpi_objects *o, long object, int rank, struct room *room)
{
    const drom_mpi *m = o->m;
    struct head head;
    MPI_Recv(&head, sizeof head, MPI_BYTE, rank, TAG_OBJECT, m->all, MPI_STATUS_IGNORE);
    reserve(m, room, head.bytes);
    for (long done = 0; done < head.bytes; done += PIECE)
        MPI_Recv(room->bytes + done, piece((size_t)(head.bytes - done)), MPI_BYTE, rank, TAG_OBJECT, m->all,
                 MPI_STATUS_IGNORE);
    o->kind.unpack(o->kind.context, object, room->bytes, head.bytes);
    o->work[object] = head.work;
}

/* Move objects one after the other, in the same order on all ranks: so none waits for another in a circle, and a rank needs
 * memory for one object on its way. */
static long redistribute(drom_mpi_objects *o, const struct side *old, const struct side *new)
{
    struct room room = {NULL, 0};
    long moved = 0;
    agree(o, old, new);
    for (long i = 0; i < o->kind.count; i++) {
        int from = old->ranks[o->place[i]], to = new->ranks[o->next_place[i]];
        o->place[i] = o->next_place[i];
        if (from == to)
            continue;
        moved++;
        if (from == o->m->rank)
            send_object(o, i, to, &room);
        else if (to == o->m->rank)
            receive_object(o, i, from, &room);
    }
    free(room.bytes);
    return moved;
}

static void move_objects(const drom_mpi *m, const struct side *old, const struct side *new)
{
    for (drom_mpi_objects *o = m->objects; o; o = o->next)
        redistribute(o, old, new);
}

long drom_mpi_balance(drom_mpi_objects *o)
{
    struct side side = side_of(o->m, o->m->map);
    long moved = redistribute(o, &side, &side);
    free(side.ranks);
    return moved;
}

/* --- beginning and end ------------------------------------------------------------------------------------------------ */

static void release_objects(drom_mpi_objects *o)
{
    if (!o)
        return;
    free(o->place);
    free(o->work);
    free(o);
}

/* Return objects that are shared out evenly, NULL without memory. */
static drom_mpi_objects *make_objects(drom_mpi *m, const drom_mpi_kind *kind)
{
    size_t count = (size_t)kind->count;
    drom_mpi_objects *o = calloc(1, sizeof *o);
    int *places = calloc(2 * count, sizeof *places);
    double *numbers = calloc(count, sizeof *numbers);
    if (!o || !places || !numbers) {
        free(o);
        free(places);
        free(numbers);
        return NULL;
    }
    *o = (drom_mpi_objects){.m = m, .kind = *kind, .place = places, .next_place = places + count, .work = numbers,
                            .speed = kind->speed > 0 ? kind->speed : 1};
    for (long i = 0; i < kind->count; i++)
        places[i] = runs(m) ? (int)(i * m->size / kind->count) : -1;
    return o;
}

/* Return what is wrong with a description, NULL if nothing is; collective. */
static const char *fault_of_objects(const drom_mpi *m, const drom_mpi_kind *kind)
{
    if (m->has_changed)
        return "objects are described before the first change of ranks: do that right after drom_mpi_init().";
    long counts[2] = {kind->count, -kind->count};
    MPI_Allreduce(MPI_IN_PLACE, counts, 2, MPI_LONG, MPI_MAX, m->comm);
    if (counts[0] != -counts[1] || kind->count < 1 || kind->count > MOST_OBJECTS)
        return "objects are 1 to 1048576 in number, the same on all ranks: describe so many.";
    bool is_right = kind->pack && kind->unpack && kind->speed >= 0 && kind->speed <= DBL_MAX;
    if (!all_agree(m->comm, is_right))
        return "objects need functions to pack and unpack them, and a speed that is not negative: see drom_mpi_kind.";
    return NULL;
}

drom_mpi_objects *drom_mpi_add_objects(drom_mpi *m, drom_mpi_kind kind)
{
    const char *fault = fault_of_objects(m, &kind);
    drom_mpi_objects *o = fault ? NULL : make_objects(m, &kind);
    if (!fault && !all_agree(m->comm, o != NULL))
        fault = "there is no memory for objects: use more nodes.";
    if (fault) {
        say(m, fault);
        release_objects(o);
        return NULL;
    }
    drom_mpi_objects **last = &m->objects;
    while (*last)
        last = &(*last)->next;
    return *last = o;
}

static void free_objects(drom_mpi *m)
{
    for (drom_mpi_objects *o = m->objects, *next; o; o = next) {
        next = o->next;
        release_objects(o);
    }
}
