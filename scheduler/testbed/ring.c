/* SPDX-License-Identifier: Apache-2.0 */
/* ring.c - ranks that hold cores and compute nothing: each counts the core-seconds that it holds, step by step.
 *
 *     mpicc -O2 ring.c -ldrom -o ring
 *     mpirun -n 2 --bind-to none drom run -- ./ring CORE_SECONDS
 *
 * So many nodes can be shown on a machine of few cores, and a job still takes twice as long on half of its cores. After
 * each step the ranks add up where they are: who holds fewer cores than the others keeps them waiting, as in real programs.
 * Exit 0: all ranks made all steps together. 1: they did not. 2: wrong usage.
 */
#include <drom.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const double STEP = 0.2; /* core-seconds */

static void rest(double seconds)
{
    const struct timespec time = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
    nanosleep(&time, NULL);
}

/* Return whether all ranks are at this step. Waiting ranks sleep: MPI's own waiting would use a real core. */
static int all_are_at(long step, int ranks)
{
    long sum = 0;
    int done = 0;
    MPI_Request request;
    MPI_Iallreduce(&step, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD, &request);
    while (MPI_Test(&request, &done, MPI_STATUS_IGNORE), !done)
        rest(0.001);
    return sum == step * ranks;
}

int main(int argc, char **argv)
{
    int rank, ranks, length;
    char host[MPI_MAX_PROCESSOR_NAME] = "", *end = NULL;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Get_processor_name(host, &length);
    const double work = argc == 2 ? strtod(argv[1], &end) : 0;
    if (!(work > 0 && work < 1e9) || *end) {
        if (rank == 0)
            fputs("ring: usage: ring CORE_SECONDS, which each rank is to hold\n", stderr);
        MPI_Finalize();
        return 2;
    }
    drom *d = drom_attach();
    const long steps = (long)(work / STEP + 0.5);
    unsigned cores = 1;
    int together = 1;
    for (long step = 1; step <= steps; step++) {
        drom_grant grant;
        if (drom_poll(d) && drom_take(d, &grant) > 0) {
            cores = grant.ncpus;
            drom_apply(d, &grant);
        }
        rest(STEP / cores);
        drom_progress(d, (uint64_t)step);
        together &= all_are_at(step, ranks);
    }
    drom_detach(d);
    char *hosts = rank == 0 ? calloc((size_t)ranks, sizeof host) : NULL;
    MPI_Gather(host, sizeof host, MPI_CHAR, hosts, sizeof host, MPI_CHAR, 0, MPI_COMM_WORLD);
    for (int i = 0; hosts && i < ranks; i++)
        printf("ring: rank %d of %d was on %s\n", i, ranks, hosts + (size_t)i * sizeof host);
    if (hosts)
        printf("ring: %d ranks, %ld steps %s\n", ranks, steps, together ? "ok" : "WRONG");
    free(hosts);
    MPI_Finalize();
    return !together;
}
