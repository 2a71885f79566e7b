/* SPDX-License-Identifier: Apache-2.0 */
/* adaptive MIN_RANKS STOP [SECONDS [LEAST MOST]] - an adaptive MPI program that computes with arrays of all kinds: each step adds 1 to each
 * element, but not in constant arrays, and all are compared with what they must be. Without a host file all ranks must have the same
 * communicator each time that all run. It ends once there is a file STOP: with 0 if all was right. The first rank that runs prints
 * "changed RANKS" after each change. Rank 1 prints "stops" before step 1000, and stops for SECONDS; from there on the program can use
 * LEAST to MOST ranks. */
#include <drom_mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { ARRAYS = 3, CONSTANTS = 2 };

static long uneven(void *context, int part, int parts)
{
    return *(long *)context * part * part / ((long)parts * parts);
}

static double *element(drom_mpi_array *a, long i, long j)
{
    return (double *)drom_mpi_data(a) + i * drom_mpi_stride(a) + j;
}

static long wrong_in(drom_mpi_array *a, long step, double more)
{
    long wrong = 0;
    for (long i = 0; i < drom_mpi_count(a, 0); i++)
        for (long j = 0; j < drom_mpi_count(a, 1); j++) {
            double number = (double)(drom_mpi_index(a, 0, i) * 1000 + drom_mpi_index(a, 1, j)), *at = element(a, i, j);
            wrong += more < 0 ? (*at = number, 0) : *at != number + (double)step;
            *at += more > 0 ? more : 0;
        }
    return wrong;
}

int main(int argc, char **argv)
{
    long step = 0, size = 61, wrong = 0;
    int rank, ranks, size_of_all, mark, is_marked, outcome = DROM_MPI_SAME, stop = 0;
    void *value;
    MPI_Init(&argc, &argv);
    drom_mpi *m = drom_mpi_init(MPI_COMM_WORLD, atoi(argv[1]));
    if (!m) {
        MPI_Finalize();
        return 3;
    }
    drom_mpi_axis one = {.size = 1}, cyclic = {.size = 500, .split = DROM_MPI_CYCLIC, .block = 7};
    drom_mpi_axis block = {.size = 40, .split = DROM_MPI_BLOCK, .halo = 2}, given = {.size = size, .split = DROM_MPI_GIVEN, .bound = uneven, .context = &size};
    drom_mpi_array *arrays[ARRAYS] = {
        drom_mpi_add_array(m, MPI_DOUBLE, one, cyclic),
        drom_mpi_add_array(m, MPI_DOUBLE, block, cyclic),
        drom_mpi_add_array(m, MPI_DOUBLE, given, block),
    };
    drom_mpi_array *constants[CONSTANTS] = {
        drom_mpi_add_constant(m, MPI_DOUBLE, one, given),
        drom_mpi_add_constant(m, MPI_DOUBLE, given, block),
    };
    drom_mpi_add_value(m, &step, 1, MPI_LONG);
    for (int i = 0; i < ARRAYS; i++)
        wrong_in(arrays[i], 0, -1);
    for (int i = 0; i < CONSTANTS; i++)
        wrong_in(constants[i], 0, -1);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(drom_mpi_comm(m), &size_of_all);
    MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, MPI_COMM_NULL_DELETE_FN, &mark, NULL);
    MPI_Comm_set_attr(drom_mpi_comm(m), mark, NULL);
    for (; !stop && (outcome = drom_mpi_point(m)) != DROM_MPI_OVER; step++) {
        int me;
        MPI_Comm_rank(drom_mpi_comm(m), &me);
        MPI_Comm_size(drom_mpi_comm(m), &ranks);
        if (ranks == size_of_all && !getenv("DROM_MPI_HOSTFILE")) {
            MPI_Comm_get_attr(drom_mpi_comm(m), mark, &value, &is_marked);
            wrong += !is_marked;
        }
        if (rank == 1 && step == 1000 && argc > 3) {
            printf("stops\n");
            fflush(stdout);
            sleep((unsigned)atoi(argv[3]));
        }
        if (step == 1000 && argc > 5)
            drom_mpi_want(m, atoi(argv[4]), atoi(argv[5]));
        for (int i = 0; i < ARRAYS; i++)
            wrong += wrong_in(arrays[i], step, 1);
        for (int i = 0; i < CONSTANTS; i++)
            wrong += wrong_in(constants[i], 0, 0);
        if (me == 0 && (outcome == DROM_MPI_CHANGED || step == 0)) {
            printf("%s %d\n", step == 0 ? "begins" : "changed", ranks);
            fflush(stdout);
        }
        stop = me == 0 && access(argv[2], F_OK) == 0;
        MPI_Bcast(&stop, 1, MPI_INT, 0, drom_mpi_comm(m));
        if (ranks == 1)
            usleep(100); /* the step of one rank alone would be a loop over access() */
    }
    if (outcome != DROM_MPI_OVER) { /* released ranks exit with what they have found */
        int me;
        MPI_Comm_rank(drom_mpi_comm(m), &me);
        MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG, MPI_SUM, drom_mpi_comm(m));
        if (me == 0)
            printf("%ld wrong\n", wrong);
    }
    drom_mpi_finalize(m);
    MPI_Finalize();
    return wrong != 0;
}
