/* SPDX-License-Identifier: Apache-2.0 */
/* constants [leaving|returning] - an adaptive MPI program of 4 ranks with a large array that does not change. It prints "changed
 * RANKS after STEPS" once ranks have changed: its steps while the array was on its way. It ends while the array is on its way
 * from 4 ranks (leaving) or from 2 (returning), otherwise once 4 ranks run again; and prints how many elements were wrong. */
#include "drom_mpi.c"

int main(int argc, char **argv)
{
    long steps = 0, wrong = 0;
    int outcome = DROM_MPI_SAME, last = argc < 2 ? 0 : strcmp(argv[1], "leaving") == 0 ? 4 : 2, me, ranks = 0;
    bool is_over = false;
    MPI_Init(&argc, &argv);
    drom_mpi *m = drom_mpi_init(MPI_COMM_WORLD, 1);
    drom_mpi_array *a = drom_mpi_add_constant(m, MPI_LONG, (drom_mpi_axis){.size = 1},
                                              (drom_mpi_axis){.size = 4000003, .split = DROM_MPI_BLOCK});
    for (long i = 0; i < drom_mpi_count(a, 1); i++)
        ((long *)drom_mpi_data(a))[i] = drom_mpi_index(a, 1, i);
    while (!is_over && (outcome = drom_mpi_point(m)) != DROM_MPI_OVER) {
        MPI_Comm_rank(drom_mpi_comm(m), &me);
        MPI_Comm_size(drom_mpi_comm(m), &ranks);
        is_over = m->is_shipping ? ranks == last : outcome == DROM_MPI_CHANGED && ranks == 4;
        steps += m->is_shipping;
        if (outcome == DROM_MPI_CHANGED) {
            for (long i = 0; i < drom_mpi_count(a, 1); i++)
                wrong += ((long *)drom_mpi_data(a))[i] != drom_mpi_index(a, 1, i);
            if (me == 0)
                printf("changed %d after %ld\n", ranks, steps);
            steps = 0;
        }
        MPI_Barrier(drom_mpi_comm(m)); /* a step */
    }
    if (outcome != DROM_MPI_OVER) {
        MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG, MPI_SUM, drom_mpi_comm(m));
        if (me == 0)
            printf("%ld wrong\n", wrong);
    }
    drom_mpi_finalize(m);
    MPI_Finalize();
    return wrong != 0;
}
