/* SPDX-License-Identifier: Apache-2.0 */
/* mpi_heat.c - heat that spreads in a square plate, whose rows are split among the MPI ranks that run; the others rest.
 *
 *     mpicc -O2 mpi_heat.c $(drom flags --mpi) -lm -o mpi_heat
 *     mpirun -n 4 --bind-to none drom run -- ./mpi_heat [--size N] [--steps K]
 *
 * A plate that starts as a half wave in both directions keeps that form and cools by the same factor in each step, so that all
 * temperatures are known at any time. Exit 0: right. 1: wrong, or no memory. 2: wrong usage.
 */
#include <drom_mpi.h> /* malleable */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Fill the rows above and below the own ones with those of the neighbours. */
static void exchange(MPI_Comm comm, double *u, long rows, long size)
{
    int rank, ranks, n = (int)size;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &ranks);
    int up = rank > 0 ? rank - 1 : MPI_PROC_NULL, down = rank < ranks - 1 ? rank + 1 : MPI_PROC_NULL;
    MPI_Sendrecv(u, n, MPI_DOUBLE, up, 0, u + rows * size, n, MPI_DOUBLE, down, 0, comm, MPI_STATUS_IGNORE);
    MPI_Sendrecv(u + (rows - 1) * size, n, MPI_DOUBLE, down, 1, u - size, n, MPI_DOUBLE, up, 1, comm, MPI_STATUS_IGNORE);
}

/* The edges of the plate stay cold. */
static void step(const double *u, double *next, long first, long rows, long size)
{
    for (long i = first == 0; i < rows - (first + rows == size); i++)
        for (long j = 1; j < size - 1; j++) {
            const double *at = &u[i * size + j];
            next[i * size + j] = at[0] + 0.2 * (at[-1] + at[1] + at[-size] + at[size] - 4 * at[0]);
        }
}

static double form(long i, long size)
{
    return sin(acos(-1) * (double)i / (double)(size - 1));
}

static int is_right(const double *u, long first, long rows, long size, long steps)
{
    double factor = pow(1 - 0.8 * (1 - cos(acos(-1) / (double)(size - 1))), (double)steps), most = 0;
    for (long i = 0; i < rows; i++)
        for (long j = 0; j < size; j++)
            most = fmax(most, fabs(u[i * size + j] - factor * form(first + i, size) * form(j, size)));
    return most < 1e-9;
}

static int leave(int rank, const char *sentence, int status)
{
    if (rank == 0)
        fprintf(stderr, "mpi_heat: %s\n", sentence);
    MPI_Finalize();
    return status;
}

int main(int argc, char **argv)
{
    int rank, ranks, right = 1, outcome = 0;
    long size = 2000, steps = 1000, t = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int i = 1; i < argc; i += 2) {
        long *option = !strcmp(argv[i], "--size") ? &size : !strcmp(argv[i], "--steps") ? &steps : NULL;
        char *end = NULL;
        if (!option || i + 1 == argc || (*option = strtol(argv[i + 1], &end, 10)) < 1 || *end || size < 3 || size < ranks || size > 1L << 20)
            return leave(rank, "--size takes a number from 3 and from that of the ranks to 1048576, --steps one from 1.", 2);
    }
    drom_mpi *m = drom_mpi_init(MPI_COMM_WORLD, 1);                                        /* malleable */
    drom_mpi_axis rows = {.size = size, .split = DROM_MPI_BLOCK, .halo = 1}, columns = {.size = size}; /* malleable */
    drom_mpi_array *u[2]; /* at even and at odd times */                                   /* malleable */
    for (int i = 0; i < 2; i++)
        if (!m || !(u[i] = drom_mpi_add_array(m, MPI_DOUBLE, rows, columns)))              /* malleable */
            return leave(rank, "not enough memory; choose a smaller --size.", 1);
    drom_mpi_add_value(m, &t, 1, MPI_LONG);                                                /* malleable */
    for (long i = 0; i < drom_mpi_count(u[0], 0); i++)                                     /* malleable */
        for (long j = 0; j < size; j++)
            ((double *)drom_mpi_data(u[0]))[i * size + j] = form(drom_mpi_index(u[0], 0, i), size) * form(j, size); /* malleable */
    for (; t < steps && (outcome = drom_mpi_point(m)) != DROM_MPI_OVER; t++) {             /* malleable */
        double *now = drom_mpi_data(u[t % 2]), *next = drom_mpi_data(u[(t + 1) % 2]);      /* malleable */
        long own = drom_mpi_count(u[0], 0);                                                /* malleable */
        exchange(drom_mpi_comm(m), now, own, size);                                        /* malleable */
        step(now, next, drom_mpi_index(u[0], 0, 0), own, size);                            /* malleable */
    }
    if (outcome != DROM_MPI_OVER) {                                                        /* malleable */
        right = is_right(drom_mpi_data(u[t % 2]), drom_mpi_index(u[0], 0, 0), drom_mpi_count(u[0], 0), size, t); /* malleable */
        MPI_Allreduce(MPI_IN_PLACE, &right, 1, MPI_INT, MPI_LAND, drom_mpi_comm(m));       /* malleable */
        MPI_Comm_rank(drom_mpi_comm(m), &rank);                                            /* malleable */
        if (rank == 0)
            printf("mpi_heat: %ld x %ld, %ld steps %s\n", size, size, steps, right ? "ok" : "WRONG");
    }
    drom_mpi_finalize(m);                                                                  /* malleable */
    MPI_Finalize();
    return !right;
}
