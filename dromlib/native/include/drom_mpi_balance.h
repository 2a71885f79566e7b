/* SPDX-License-Identifier: Apache-2.0 */
/* drom_mpi_balance.h - strategies that decide which rank gets which object of an adaptive MPI program: see drom_mpi.h. They
 * are functions of their arguments alone, and use no MPI. */
#ifndef DROM_MPI_BALANCE_H
#define DROM_MPI_BALANCE_H

#ifdef __cplusplus
extern "C" {
#endif

/* A strategy: decide where objects go, so that all ranks need about the same time for theirs.
 *
 * objects, work    how many objects, and the work of each; more than 0
 * ranks, speed     how many ranks will run, and the work that each does in a second; more than 0
 * place            of each object, the rank that has it, -1 if that one leaves. Written: the rank that gets it, from 0 to
 *                  ranks - 1. */
typedef void drom_mpi_strategy(long objects, const double *work, int ranks, const double *speed, int *place);

/* Place all objects again, those with most work first, each on the rank that finishes it first (longest processing time first). The
 * times are nearly even, and most objects move. */
drom_mpi_strategy drom_mpi_greedy;

/* Place the objects of ranks that leave, as drom_mpi_greedy() does; then move objects away from ranks that need over 5 %
 * longer than the mean, each to a rank that finishes earlier with it than that one does now. */
drom_mpi_strategy drom_mpi_refine;

#ifdef __cplusplus
}
#endif
#endif
