/* SPDX-License-Identifier: Apache-2.0 */
/* mpi_openmp.c - a wave on a ring, MPI between the ranks and OpenMP within each: malleable in every rank between two steps.
 *
 *     mpicc -O2 -fopenmp mpi_openmp.c -ldrom -o mpi_openmp
 *     mpirun -n 2 --bind-to none drom run -- ./mpi_openmp [--size N] [--steps K]
 *
 * u(t+1, i) = u(t, i-1) + u(t, i+1) - u(t-1, i), the wave equation with a Courant number of 1, has whole numbers throughout: a form
 * f(i - t) only moves on, so every point is known at any time. Exit 0: right. 1: wrong, or no memory. 2: wrong usage.
 */
#include <drom.h> /* malleable */
#include <mpi.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* malleable begin */
static void malleability_point(drom *d, int most)
{
    drom_grant g;
    if (!drom_poll(d) || drom_take(d, &g) <= 0)
        return;
    omp_set_num_threads(g.ncpus < (uint32_t)most ? (int)g.ncpus : most);
    omp_pause_resource_all(omp_pause_soft); /* or surplus threads would spin on, on the CPUs that are kept */
    drom_apply(d, &g);                      /* binds every thread, then acknowledges */
}
/* malleable end */

static int form(long i, long size)
{
    return (int)((uint32_t)((i % size + size) % size) * 2654435761u >> 22);
}

static void step(int *before, const int *now, long n)
{
#pragma omp parallel for schedule(static)
    for (long i = 1; i <= n; i++)
        before[i] = now[i - 1] + now[i + 1] - before[i];
}

/* Fill the points beside the own ones, 0 and n + 1, with those of the neighbours. */
static void exchange(int *u, long n, int left, int right)
{
    MPI_Sendrecv(&u[n], 1, MPI_INT, right, 0, &u[0], 1, MPI_INT, left, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(&u[1], 1, MPI_INT, left, 1, &u[n + 1], 1, MPI_INT, right, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static int leave(int rank, const char *sentence, int status)
{
    if (rank == 0)
        fprintf(stderr, "mpi_openmp: %s\n", sentence);
    MPI_Finalize();
    return status;
}

int main(int argc, char **argv)
{
    int rank, ranks, threads, wrong = 0, all_wrong;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &threads);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    long size = 8000000, steps = 1000;
    for (int i = 1; i < argc; i += 2) {
        long *option = !strcmp(argv[i], "--size") ? &size : !strcmp(argv[i], "--steps") ? &steps : NULL;
        char *end = NULL;
        if (!option || i + 1 == argc || (*option = strtol(argv[i + 1], &end, 10)) < 1 || *end || size > 1L << 31)
            return leave(rank, "usage: mpi_openmp [--size N] [--steps K], each at least 1", 2);
    }
    if (size < ranks)
        return leave(rank, "a --size below the number of ranks leaves some without a point: choose a larger one.", 2);
    const long first = size * rank / ranks, n = size * (rank + 1) / ranks - first;
    int *now = malloc(sizeof(int[n + 2])), *before = malloc(sizeof(int[n + 2]));
    if (!now || !before)
        return MPI_Abort(MPI_COMM_WORLD, (fputs("mpi_openmp: not enough memory; choose a smaller --size.\n", stderr), 1));
    const int most = omp_get_max_threads(); /* buffers may be sized by it: never go above */
    drom *d = drom_attach();                /* malleable */
    malleability_point(d, most);            /* malleable: before the first touch, which decides where the pages are */
#pragma omp parallel for schedule(static)
    for (long i = 1; i <= n; i++)
        now[i] = form(first + i, size), before[i] = form(first + i + 1, size);
    for (long t = 0; t < steps; t++) {
        malleability_point(d, most);       /* malleable */
        drom_progress(d, (uint64_t)t + 1); /* malleable */
        exchange(now, n, (rank + ranks - 1) % ranks, (rank + 1) % ranks);
        step(before, now, n);
        int *swap = before;
        before = now, now = swap;
    }
    drom_detach(d); /* malleable */
#pragma omp parallel for schedule(static) reduction(| : wrong)
    for (long i = 1; i <= n; i++)
        wrong |= now[i] != form(first + i - steps, size);
    MPI_Allreduce(&wrong, &all_wrong, 1, MPI_INT, MPI_BOR, MPI_COMM_WORLD);
    if (rank == 0)
        printf("mpi_openmp: %d ranks, %ld points, %ld steps %s\n", ranks, size, steps, all_wrong ? "WRONG" : "ok");
    free(now), free(before);
    MPI_Finalize();
    return all_wrong;
}
