/* SPDX-License-Identifier: Apache-2.0 */
/* Objects of adaptive MPI programs: see drom_mpi.h. The first rank that runs decides where they go, by a strategy, from the
 * measurements of all ranks; drom_mpi_balance.c has the strategies. */
#include "drom_mpi_internal.h"

#include <float.h>
#include <sys/mman.h>
#include <time.h>

enum { MOST_OBJECTS = 1 << 20 };
static const double FORGETS = 0.5;     /* weight of older measurements after a decision */
static const double LEAST_BUSY = 0.01; /* seconds in objects, below which the speed of a rank is unknown */
static const double LEAST_WORK = 0.01; /* of the mean, for an object that was not measured */

struct drom_mpi_objects {
    drom_mpi_objects *next;
    drom_mpi *m;
    drom_mpi_kind kind;
    int *place, *next_place; /* of each object, the number of its rank among those that run; in one piece of memory */
    double *work;            /* measured of each own object; 0 for others */
    double speed;            /* of this rank, as the program describes it */
    double busy, done;       /* seconds in own objects, and the work done in them */
    double wall, cpu;        /* when the last object began */
};

/* Sent before an object. */
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

/* Add the CPU time since the last object began to its work. */
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

/* Return the index of a rank among those of a map, -1 if it is not there. */
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

/* Give objects without a measurement some work, so that they are distributed as well. */
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

/* Write into `next_place` the rank that has each object now, by its index in the new map: -1 if that rank leaves. */
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
        print_once(o->m, "a strategy has given an object to no rank that will run, so drom_mpi_refine() decides: correct it.");
        renumber(o, old, new);
        drom_mpi_refine(o->kind.count, work, new->count, speeds, o->next_place);
    }
    must_have(o->m, are_placed(o, new->count) ? o : NULL, (size_t)o->kind.count * sizeof *work);
    free(speeds);
}

/* Distribute to all ranks of both maps where each object is and where it goes. */
static void agree(drom_mpi_objects *o, const struct side *old, const struct side *new)
{
    const drom_mpi *m = o->m;
    int objects = (int)o->kind.count;
    if (old->me < 0) {
        MPI_Send(&o->speed, 1, MPI_DOUBLE, old->ranks[0], TAG_PLACES, m->all);
        MPI_Recv(o->place, 2 * objects, MPI_INT, old->ranks[0], TAG_PLACES, m->all, MPI_STATUS_IGNORE);
        return;
    }
    bool is_first = old->me == 0;
    int count = objects + 2 * old->count; /* work of objects and paces of ranks: each has zeros for what is of others */
    double *work = must_have(m, calloc((size_t)count, sizeof *work), 1);
    struct pace *paces = (struct pace *)(work + objects);
    memcpy(work, o->work, (size_t)objects * sizeof *work);
    paces[old->me] = (struct pace){o->busy >= LEAST_BUSY ? o->done / o->busy : 0, o->speed};
    MPI_Reduce(is_first ? MPI_IN_PLACE : work, work, count, MPI_DOUBLE, MPI_SUM, 0, m->comm);
    if (is_first)
        decide(o, old, new, work, paces);
    free(work);
    MPI_Bcast(o->next_place, objects, MPI_INT, 0, m->comm);
    for (int i = 0; is_first && i < new->count; i++)
        if (number_of(old, new->ranks[i]) < 0)
            MPI_Send(o->place, 2 * objects, MPI_INT, new->ranks[i], TAG_PLACES, m->all);
    o->busy *= FORGETS;
    o->done *= FORGETS;
    for (long i = 0; i < objects; i++)
        o->work[i] *= FORGETS;
}

/* --- moving ----------------------------------------------------------------------------------------------------------- */

enum { MOST_UNDER_WAY = 64, LEAST_RING = 1 << 18, ALIGNMENT = 16 };

/* An object that this rank sends or receives, and its index (`turn`) among those of the sender. */
struct item {
    long object, turn;
    int rank; /* the other one */
    struct head *head;
    char *at; /* where its bytes are sent from, or received */
    struct traffic messages;
};

/* The objects that this rank sends, or those that it receives. Those from `first` to before `next` are under way. Packed ones lie
 * one after the other in a ring, which has room for the two largest. */
struct lane {
    bool sends;
    struct item *items;
    struct head *heads;
    long count, first, next;
    char *ring, *end; /* where the next one goes */
    size_t size;
};

/* Return whether this rank sends (or receives) an object; write the other rank. */
static bool takes(const drom_mpi_objects *o, const struct side *old, const struct side *new, bool sends, long object, int *other)
{
    int from = old->ranks[o->place[object]], to = new->ranks[o->next_place[object]];
    *other = sends ? to : from;
    return from != to && (sends ? from : to) == o->m->rank;
}

static struct lane make_lane(const drom_mpi_objects *o, const struct side *old, const struct side *new, bool sends)
{
    struct lane l = {.sends = sends};
    int other;
    for (long i = 0; i < o->kind.count; i++)
        l.count += takes(o, old, new, sends, i, &other);
    size_t count = (size_t)l.count;
    long *turns = must_have(o->m, calloc((size_t)old->count, sizeof *turns), 1);
    l.items = must_have(o->m, malloc(count * sizeof *l.items), count);
    l.heads = must_have(o->m, malloc(count * sizeof *l.heads), count);
    for (long i = 0, n = 0; i < o->kind.count; i++) {
        long turn = turns[o->place[i]]++;
        if (takes(o, old, new, sends, i, &other))
            l.items[n++] = (struct item){.object = i, .turn = turn, .rank = other};
    }
    free(turns);
    return l;
}

static int order_of(long a, long b)
{
    return (a > b) - (a < b);
}

static int by_rank(const void *one, const void *other)
{
    const struct item *a = one, *b = other;
    return a->rank != b->rank ? order_of(a->rank, b->rank) : order_of(a->object, b->object);
}

static int by_turn(const void *one, const void *other)
{
    const struct item *a = one, *b = other;
    return a->turn != b->turn ? order_of(a->turn, b->turn) : order_of(a->object, b->object);
}

/* Return the head of an object, for the receiver; store where the object lies. */
static struct head describe(const drom_mpi_objects *o, struct item *item)
{
    const drom_mpi_kind *kind = &o->kind;
    struct head head = {.work = o->work[item->object]};
    if (kind->locate)
        item->at = kind->locate(kind->context, item->object, &head.bytes);
    else
        head.bytes = kind->pack(kind->context, item->object, NULL);
    if (head.bytes >= 0)
        return head;
    fprintf(stderr, "drom: an object has %ld bytes: correct what pack() or locate() returns.\n", head.bytes);
    end_all(o->m->all);
}

/* Start to send to each receiver the heads of all objects that it gets, or to receive these. */
static void exchange_heads(const drom_mpi_objects *o, struct lane *l, struct traffic *t)
{
    qsort(l->items, (size_t)l->count, sizeof *l->items, by_rank);
    for (long i = 0, first = 0; i < l->count; i++) {
        struct item *item = &l->items[i];
        item->head = &l->heads[i];
        if (l->sends)
            *item->head = describe(o, item);
        if (i + 1 < l->count && l->items[i + 1].rank == item->rank)
            continue;
        start_messages(o->m, t, (char *)&l->heads[first], (size_t)(i + 1 - first) * sizeof *l->heads, item->rank, TAG_OBJECT,
                       l->sends);
        first = i + 1;
    }
}

/* Return the bytes of an object in the ring: aligned for any type, and more than 0 for one without content. */
static size_t room_of(const struct item *item)
{
    return (size_t)item->head->bytes / ALIGNMENT * ALIGNMENT + ALIGNMENT;
}

/* Allocate the ring by mmap(): at the end of malloc()'s heap it would keep freed memory from being reused for the objects. */
static void make_ring(const drom_mpi_objects *o, struct lane *l)
{
    size_t all = 0, largest = 0;
    for (long i = 0; i < l->count && !o->kind.locate; i++) {
        size_t room = room_of(&l->items[i]);
        all += room;
        largest = room > largest ? room : largest;
    }
    l->size = 2 * largest > LEAST_RING ? 2 * largest : LEAST_RING;
    l->size = l->size < all ? l->size : all;
    if (l->size > HUGE_PAGE / 2)
        l->size = (l->size + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    if (l->size == 0)
        return;
    void *ring = mmap(NULL, l->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    l->ring = must_have(o->m, ring == MAP_FAILED ? NULL : ring, l->size);
    use_huge_pages(l->ring, l->size);
}

/* Find a place in the ring for an object while others are under way there; return NULL if there is none now. */
static char *find_place(const struct lane *l, size_t room)
{
    char *begin = l->items[l->first].at, *limit = l->ring + l->size;
    if (l->first == l->next)
        return l->ring;
    if (l->end <= begin) /* they continue at the start of the ring */
        return (size_t)(begin - l->end) >= room ? l->end : NULL;
    return (size_t)(limit - l->end) >= room ? l->end : (size_t)(begin - l->ring) >= room ? l->ring : NULL;
}

/* Provide the memory from which the next object is sent, or into which it is received; return whether that is possible now. */
static bool prepare(const drom_mpi_objects *o, struct lane *l)
{
    const drom_mpi_kind *kind = &o->kind;
    struct item *item = &l->items[l->next];
    if (l->next - l->first == MOST_UNDER_WAY)
        return false;
    if (kind->locate) {
        if (!l->sends)
            item->at = kind->make(kind->context, item->object, item->head->bytes);
        return true;
    }
    if (!(item->at = find_place(l, room_of(item))))
        return false;
    l->end = item->at + room_of(item);
    if (l->sends)
        kind->pack(kind->context, item->object, item->at);
    return true;
}

/* Start the next objects, as long as there is room. */
static void start_objects(const drom_mpi_objects *o, struct lane *l)
{
    while (l->next < l->count && prepare(o, l)) {
        struct item *item = &l->items[l->next++];
        start_messages(o->m, &item->messages, item->at, (size_t)item->head->bytes, item->rank, TAG_OBJECT, l->sends);
    }
}

/* Finish the first object under way. */
static void finish_object(drom_mpi_objects *o, struct lane *l)
{
    const drom_mpi_kind *kind = &o->kind;
    struct item *item = &l->items[l->first++];
    finish(&item->messages);
    o->work[item->object] = l->sends ? 0 : item->head->work;
    if (kind->locate && l->sends)
        kind->drop(kind->context, item->object);
    else if (!kind->locate && !l->sends)
        kind->unpack(kind->context, item->object, item->at, item->head->bytes);
}

/* Return the last message of the first object under way, or a null one. */
static MPI_Request *message_of(const struct lane *l, MPI_Request *none)
{
    const struct traffic *messages = &l->items[l->first].messages;
    return l->first < l->next ? &messages->requests[messages->count - 1] : none;
}

/* Send and receive objects, several at a time. Senders and receivers have them in the same order, by turn and number, and start
 * each as soon as there is room. So the first of all that are left is always under way on both sides, and there is no
 * deadlock; and all ranks send at the same time. */
static void exchange_objects(drom_mpi_objects *o, struct lane lanes[2])
{
    for (;;) {
        int which;
        MPI_Request none = MPI_REQUEST_NULL;
        start_objects(o, &lanes[0]);
        start_objects(o, &lanes[1]);
        MPI_Request *last[2] = {message_of(&lanes[0], &none), message_of(&lanes[1], &none)};
        MPI_Request both[2] = {*last[0], *last[1]};
        MPI_Waitany(2, both, &which, MPI_STATUS_IGNORE);
        if (which == MPI_UNDEFINED)
            return;
        *last[which] = MPI_REQUEST_NULL;
        finish_object(o, &lanes[which]);
    }
}

static long redistribute(drom_mpi_objects *o, const struct side *old, const struct side *new)
{
    long moved = 0;
    agree(o, old, new);
    struct lane lanes[2] = {make_lane(o, old, new, false), make_lane(o, old, new, true)};
    struct traffic heads = {NULL, 0};
    for (int i = 0; i < 2; i++)
        exchange_heads(o, &lanes[i], &heads);
    finish(&heads);
    for (int i = 0; i < 2; i++) {
        make_ring(o, &lanes[i]);
        qsort(lanes[i].items, (size_t)lanes[i].count, sizeof *lanes[i].items, by_turn);
    }
    exchange_objects(o, lanes);
    for (int i = 0; i < 2; i++) {
        free(lanes[i].items);
        free(lanes[i].heads);
        if (lanes[i].ring)
            munmap(lanes[i].ring, lanes[i].size);
    }
    for (long i = 0; i < o->kind.count; i++) {
        moved += old->ranks[o->place[i]] != new->ranks[o->next_place[i]];
        o->place[i] = o->next_place[i];
    }
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

/* Return objects that are distributed evenly. NULL: no memory. */
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

/* Return the message about a fault of a description, NULL if there is none; collective. */
static const char *fault_of_objects(const drom_mpi *m, const drom_mpi_kind *kind)
{
    if (m->has_changed)
        return "objects are described before the first change of ranks: do that right after drom_mpi_init().";
    long counts[2] = {kind->count, -kind->count};
    MPI_Allreduce(MPI_IN_PLACE, counts, 2, MPI_LONG, MPI_MAX, m->comm);
    if (counts[0] != -counts[1] || kind->count < 1 || kind->count > MOST_OBJECTS)
        return "objects are 1 to 1048576 in number, the same on all ranks: describe so many.";
    bool has_functions = kind->locate ? kind->make && kind->drop : kind->pack && kind->unpack;
    bool is_right = has_functions && kind->speed >= 0 && kind->speed <= DBL_MAX;
    if (!all_agree(m->comm, is_right))
        return "objects need pack() and unpack(), or locate(), make() and drop(), and a speed from 0 on: see drom_mpi_kind.";
    return NULL;
}

drom_mpi_objects *drom_mpi_add_objects(drom_mpi *m, drom_mpi_kind kind)
{
    const char *fault = fault_of_objects(m, &kind);
    drom_mpi_objects *o = fault ? NULL : make_objects(m, &kind);
    if (!fault && !all_agree(m->comm, o != NULL))
        fault = "there is no memory for objects: use more nodes.";
    if (fault) {
        print_once(m, fault);
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
