/* SPDX-License-Identifier: Apache-2.0 */
/* late - `adaptive`, but its spawned ranks come to their first point only when the others have ordered another change, or end. */
#include "drom_mpi.c"

static int late_point(drom_mpi *m)
{
    MPI_Status status;
    while (!runs(m) && !is_there(m, TAG_GROUP, &status) && !is_there(m, TAG_OVER, &status))
        nap(RETURN_MS);
    return drom_mpi_point(m);
}

#define drom_mpi_point late_point
#include "adaptive.c"
