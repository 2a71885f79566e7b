/* SPDX-License-Identifier: Apache-2.0 */
/* shared_work.c - an adaptive MPI program that computes nothing: the ranks that run share each step's core-seconds equally.
 *
 *     mpicc -O2 shared_work.c $(drom flags --mpi) -o shared_work
 *     mpirun -n 4 --bind-to none drom run -- ./shared_work CORE_SECONDS
 *
 * So many cores can be shown on a machine of few, and a job on half of its ranks still takes twice as long. An array is spread
 * over the ranks that run; each step adds 1 to all of it.
 * Exit 0: every element has come through all changes of ranks. 1: it has not. 2: wrong usage.
 */
#include <drom_mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const double STEP = 0.4; /* core-seconds */

static void pause_for(double seconds)
{
    const struct timespec time = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
    nanosleep(&time, NULL);
}

int main(int argc, char **argv)
{
    int rank, ranks, right = 1, outcome = DROM_MPI_SAME;
    long step = 0;
    char *end = NULL;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const double work = argc == 2 ? strtod(argv[1], &end) : 0;
    if (!(work > 0 && work < 1e9) || *end) {
        if (rank == 0)
            fputs("shared_work: usage: shared_work CORE_SECONDS, which the ranks share\n", stderr);
        MPI_Finalize();
        return 2;
    }
    const long steps = (long)(work / STEP + 0.5);
    drom_mpi *m = drom_mpi_init(MPI_COMM_WORLD, 1);
    drom_mpi_array *counts = m ? drom_mpi_add_array(m, MPI_LONG, (drom_mpi_axis){.size = 1}, (drom_mpi_axis){.size = 1 << 16, .split = DROM_MPI_BLOCK}) : NULL;
    if (!counts || drom_mpi_add_value(m, &step, 1, MPI_LONG) < 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (; step < steps && (outcome = drom_mpi_point(m)) != DROM_MPI_OVER; step++) {
        int running;
        MPI_Comm_size(drom_mpi_comm(m), &running);
        pause_for(STEP / running);
        for (long i = 0; i < drom_mpi_count(counts, 1); i++)
            ((long *)drom_mpi_data(counts))[i]++;
    }
    for (long i = 0; outcome != DROM_MPI_OVER && i < drom_mpi_count(counts, 1); i++)
        right &= ((long *)drom_mpi_data(counts))[i] == steps;
    drom_mpi_finalize(m);
    MPI_Allreduce(MPI_IN_PLACE, &right, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
    if (rank == 0)
        printf("shared_work: %d ranks, %ld steps %s\n", ranks, steps, right ? "ok" : "WRONG");
    MPI_Finalize();
    return !right;
}
