/* SPDX-License-Identifier: Apache-2.0 */
/* stray MIN_RANKS STOP message|barrier - an adaptive MPI program that is wrong: once fewer than all ranks run, the first one sends
 * the last rank a message on MPI_COMM_WORLD, or all that run wait there for the others. It ends once there is a file STOP. */
#define DROM_MPI_LATE_MS 200
#include "drom_mpi.c"

#include <unistd.h>

int main(int argc, char **argv)
{
    int rank, size, me, running, number = 1, outcome = DROM_MPI_SAME, stop = 0, is_done = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    bool sends = argc == 4 && strcmp(argv[3], "message") == 0;
    drom_mpi *m = drom_mpi_init(MPI_COMM_WORLD, atoi(argv[1]));
    while (!stop && (outcome = drom_mpi_point(m)) != DROM_MPI_OVER) {
        MPI_Comm_rank(drom_mpi_comm(m), &me);
        MPI_Comm_size(drom_mpi_comm(m), &running);
        if (running < size && !is_done) {
            is_done = 1;
            if (!sends)
                MPI_Barrier(MPI_COMM_WORLD);
            else if (me == 0)
                MPI_Send(&number, 1, MPI_INT, size - 1, 7, MPI_COMM_WORLD);
        }
        stop = me == 0 && access(argv[2], F_OK) == 0;
        MPI_Bcast(&stop, 1, MPI_INT, 0, drom_mpi_comm(m));
    }
    drom_mpi_finalize(m);
    if (sends && rank == size - 1)
        MPI_Recv(&number, 1, MPI_INT, 0, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Finalize();
    return 0;
}
