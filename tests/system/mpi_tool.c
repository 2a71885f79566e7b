/* SPDX-License-Identifier: Apache-2.0 */
/* A tool that counts calls, loaded by LD_PRELOAD: says "the tool saw N" at the end. */
#include <mpi.h>
#include <stdio.h>

static long seen;

int MPI_Allreduce(const void *sent, void *received, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    seen++;
    return PMPI_Allreduce(sent, received, count, type, op, comm);
}

int MPI_Finalize(void)
{
    printf("the tool saw %ld\n", seen);
    return PMPI_Finalize();
}
