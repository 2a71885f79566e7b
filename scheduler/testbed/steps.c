/* SPDX-License-Identifier: Apache-2.0 */
/* steps.c - an adaptive MPI program that computes until it is ended, and reports how fast it is.
 *
 *     mpicc -O2 steps.c $(drom flags --mpi) -o steps
 *     mpirun -n 2 --bind-to none drom run -- ./steps
 *
 * The ranks that run share the work of each step, about a millisecond of one core, and agree at its end. Ten times a second
 * the first of them prints "SECONDS STEPS RANKS": the time by CLOCK_MONOTONIC, all steps so far, and how many ranks run.
 */
#include <drom_mpi.h>
#include <stdio.h>
#include <time.h>

enum { TERMS = 400000 }; /* of a series, in a step of all ranks */
static const double EACH = 0.1;

static double monotonic(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
    long step = 0;
    double told = 0;
    MPI_Init(&argc, &argv);
    drom_mpi *m = drom_mpi_init(MPI_COMM_WORLD, 1);
    if (!m || drom_mpi_add_value(m, &step, 1, MPI_LONG) < 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (; drom_mpi_point(m) != DROM_MPI_OVER; step++) {
        int rank, ranks;
        MPI_Comm_rank(drom_mpi_comm(m), &rank);
        MPI_Comm_size(drom_mpi_comm(m), &ranks);
        double sum = 0, now = monotonic();
        for (long term = rank; term < TERMS; term += ranks)
            sum += (term % 2 ? -4.0 : 4.0) / (double)(2 * term + 1);
        MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_DOUBLE, MPI_SUM, drom_mpi_comm(m));
        if (sum < 3.1 || sum > 3.2)
            MPI_Abort(MPI_COMM_WORLD, 1); /* that is not pi */
        if (rank == 0 && now - told >= EACH) {
            printf("%.6f %ld %d\n", now, step, ranks);
            fflush(stdout);
            told = now;
        }
    }
    drom_mpi_finalize(m);
    MPI_Finalize();
    return 0;
}
