/* SPDX-License-Identifier: Apache-2.0 */
/* mpi_particles.c - particles that drift around a ring of cells, which are objects of the MPI ranks that run: most work is
 * where most particles are, and a balancer moves cells between ranks.
 *
 *     mpicc -O2 mpi_particles.c $(drom flags --mpi) -o mpi_particles
 *     mpirun -n 4 --bind-to none drom run -- ./mpi_particles [PARTICLES [STEPS]]
 *
 * All begin in an eighth of the ring and keep their velocities, so that their places are known at any time. Exit 0: right.
 */
#include <drom_mpi.h> /* malleable */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 1 << 16, CELLS = 64, WIDTH = 1 << 16, RING = CELLS * WIDTH, REACH = 16, BALANCE = 20 };
typedef struct { long number, place; } particle;
typedef struct { long count, close; particle at[MOST]; } list; /* in memory only as far as it is used */
static list cells[CELLS], leavers, arrivals;
static int me; /* the rank in the communicator of the last step */
static drom_mpi_objects *objects; /* malleable */

static long pack(void *context, long cell, void *bytes) /* malleable */
{
    list *c = (list *)context + cell; /* malleable */
    long length = (char *)&c->at[c->count] - (char *)c; /* malleable */
    if (bytes) memcpy(bytes, c, (size_t)length), c->count = c->close = 0; /* malleable */
    return length; /* malleable */
}
static void unpack(void *to, long cell, const void *bytes, long length) { memcpy((list *)to + cell, bytes, (size_t)length); } /* malleable */

static void put(list *to, particle p) { to->at[to->count++] = p; }
static long start(long number) { return number * 7919 % (RING / 8); }
static long velocity(long number) { return 500 + number % 7; }

/* Count the pairs of a cell that are close, and move its particles. */
static void step(list *c)
{
    for (particle *p = c->at + c->count - 1; p >= c->at; p--) {
        for (particle *q = c->at; q < p; q++)
            c->close += labs(p->place - q->place) < REACH;
        p->place = (p->place + velocity(p->number)) % RING;
        if (p->place / WIDTH != c - cells)
            put(&leavers, *p), *p = c->at[--c->count];
    }
}

/* Show all ranks the particles that have left their cells; each takes those that are now in its own. */
static void exchange(MPI_Comm comm)
{
    int ranks, mine = (int)leavers.count * (int)sizeof(particle), all = 0;
    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &ranks);
    int bytes[ranks], from[ranks];
    MPI_Allgather(&mine, 1, MPI_INT, bytes, 1, MPI_INT, comm);
    for (int i = 0; i < ranks; all += bytes[i++]) from[i] = all;
    MPI_Allgatherv(leavers.at, mine, MPI_BYTE, arrivals.at, bytes, from, MPI_BYTE, comm);
    for (particle *p = arrivals.at; p < arrivals.at + all / (int)sizeof *p; p++)
        if (drom_mpi_owner(objects, p->place / WIDTH) == me) /* malleable */
            put(&cells[p->place / WIDTH], *p);
    leavers.count = 0;
}

int main(int argc, char **argv)
{
    long n = argc > 1 ? atol(argv[1]) : 8000, steps = argc > 2 ? atol(argv[2]) : 1000, t = 0, sums[3] = {0, 0, 0};
    MPI_Comm comm = MPI_COMM_WORLD;
    int right = 1;
    if (n < 1 || n > MOST || steps < 1)
        return fputs("mpi_particles: PARTICLES is a number from 1 to 65536, STEPS one from 1.\n", stderr), 2;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(comm, &me);
    drom_mpi *m = drom_mpi_init(comm, 1); /* malleable */
    objects = m ? drom_mpi_add_objects(m, (drom_mpi_kind){CELLS, pack, unpack, .context = cells}) : NULL; /* malleable */
    if (!objects) MPI_Abort(MPI_COMM_WORLD, 1); /* there is no memory */
    drom_mpi_add_value(m, &t, 1, MPI_LONG); /* malleable */
    for (long i = 0; i < n; i++)
        if (drom_mpi_owner(objects, start(i) / WIDTH) == me) /* malleable */
            put(&cells[start(i) / WIDTH], (particle){i, start(i)});
    for (; t < steps && drom_mpi_point(m) != DROM_MPI_OVER; t++) { /* malleable */
        if (t % BALANCE == 0)
            drom_mpi_balance(objects); /* malleable */
        for (long cell = -1; (cell = drom_mpi_next(objects, cell)) >= 0;) /* malleable */
            step(&cells[cell]);
        exchange(comm = drom_mpi_comm(m)); /* malleable */
    }
    if (t == steps) { /* malleable */
        for (list *c = cells; c < cells + CELLS; sums[0] += c->count, sums[1] += c++->close)
            for (particle *p = c->at; p < c->at + c->count; p++)
                sums[2] += p->place != (start(p->number) + steps * velocity(p->number)) % RING;
        MPI_Allreduce(MPI_IN_PLACE, sums, 3, MPI_LONG, MPI_SUM, comm);
        right = sums[0] == n && sums[2] == 0;
        if (me == 0)
            printf("mpi_particles: %ld particles, %ld steps, %ld close %s\n", n, steps, sums[1], right ? "ok" : "WRONG");
    }
    drom_mpi_finalize(m); /* malleable */
    MPI_Finalize();
    return !right;
}
