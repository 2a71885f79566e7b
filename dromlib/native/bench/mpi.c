/* SPDX-License-Identifier: Apache-2.0 */
/* mpi REPETITIONS - the cost of intercepting MPI: prints for each repetition the nanoseconds by which MPI_Send, and MPI_Recv with
 * more parameters than fit into registers, take longer than PMPI_Send and PMPI_Recv, which are not intercepted. The peer is
 * MPI_PROC_NULL, so that a call returns at once. The fastest of many short loops counts, as other programs may use the CPU. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { LOOPS = 100, CALLS = 20000 };

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

#define MEASURE(name, ...)                                                                                                   \
    static double fastest_##name(void)                                                                                       \
    {                                                                                                                        \
        double least = 1e30;                                                                                                 \
        for (int loop = 0; loop < LOOPS; loop++) {                                                                           \
            double begin = now_ns();                                                                                         \
            for (int i = 0; i < CALLS; i++)                                                                                  \
                name(NULL, 0, MPI_INT, MPI_PROC_NULL, 0, MPI_COMM_SELF __VA_ARGS__);                                         \
            double took = (now_ns() - begin) / CALLS;                                                                        \
            least = took < least ? took : least;                                                                             \
        }                                                                                                                    \
        return least;                                                                                                        \
    }

MEASURE(MPI_Send)
MEASURE(PMPI_Send)
MEASURE(MPI_Recv, , MPI_STATUS_IGNORE)
MEASURE(PMPI_Recv, , MPI_STATUS_IGNORE)

int main(int argc, char **argv)
{
    int repetitions = argc > 1 ? atoi(argv[1]) : 0;
    if (repetitions < 1)
        return 2;
    MPI_Init(&argc, &argv);
    for (int i = 0; i < repetitions; i++)
        printf("%.3f %.3f\n", fastest_MPI_Send() - fastest_PMPI_Send(), fastest_MPI_Recv() - fastest_PMPI_Recv());
    MPI_Finalize();
    return 0;
}
