/* SPDX-License-Identifier: Apache-2.0 */
/* An MPI program that knows nothing of drom, with OpenMP where it is compiled with -fopenmp:
 *
 *     mpi steps|threads|waits FILE
 *
 * steps: ranks exchange and add numbers and check every answer, until FILE exists; then rank 0 says "right after N steps" with N above 0.
 * threads: the same in three threads of each rank (MPI_THREAD_MULTIPLE). A rank says "rank R threads N" whenever its
 * number of threads changes. waits: two ranks; rank 1 works until it has used 0.3 s of CPU time, and rank 0 waits for it; rank 0 says "waited
 * using P percent", of the CPU time of rank 1. */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static int rank, ranks;
static const char *stop;

static void check(int right, const char *what)
{
    if (right)
        return;
    printf("wrong: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void exchange(MPI_Comm comm, int step)
{
    int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks, mine = step + rank, got = -1, sent = 1;
    MPI_Request requests[2];
    MPI_Status statuses[2];
    MPI_Sendrecv(&mine, 1, MPI_INT, right, 1, &got, 1, MPI_INT, left, 1, comm, MPI_STATUS_IGNORE);
    check(got == step + left, "MPI_Sendrecv");
    MPI_Irecv(&got, 1, MPI_INT, right, 2, comm, &requests[0]);
    MPI_Isend(&mine, 1, MPI_INT, left, 2, comm, &requests[1]);
    MPI_Waitall(2, requests, statuses);
    check(got == step + right, "MPI_Waitall");
    MPI_Irecv(&got, 1, MPI_INT, left, 3, comm, &requests[0]);
    MPI_Send(&mine, 1, MPI_INT, right, 3, comm);
    for (sent = 0; !sent;)
        MPI_Test(&requests[0], &sent, MPI_STATUS_IGNORE);
    check(got == step + left, "MPI_Test");
}

static void add(MPI_Comm comm, int step)
{
    int mine = step + rank, sum = 0, all[64], counts[64], offsets[64];
    MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, comm);
    check(sum == ranks * step + ranks * (ranks - 1) / 2, "MPI_Allreduce");
#if MPI_VERSION >= 4
    MPI_Allreduce_c(&mine, &sum, 1, MPI_INT, MPI_MAX, comm);
    check(sum == step + ranks - 1, "MPI_Allreduce_c");
#endif
    for (int i = 0; i < ranks; i++)
        counts[i] = 1, offsets[i] = ranks - 1 - i;
    MPI_Allgatherv(&mine, 1, MPI_INT, all, counts, offsets, MPI_INT, comm);
    for (int i = 0; i < ranks; i++)
        check(all[ranks - 1 - i] == step + i, "MPI_Allgatherv");
    MPI_Barrier(comm);
}

static void *repeat(void *comm)
{
    int step = 0, stopped = 0;
    while (!stopped) {
        exchange(*(MPI_Comm *)comm, ++step);
        add(*(MPI_Comm *)comm, step);
        stopped = rank == 0 && access(stop, F_OK) == 0;
        MPI_Bcast(&stopped, 1, MPI_INT, 0, *(MPI_Comm *)comm);
#ifdef _OPENMP
        static int before;
        int threads = 0;
#pragma omp parallel reduction(+ : threads)
        threads++;
        if (threads != before)
            printf("rank %d threads %d\n", rank, before = threads);
#endif
    }
    if (rank == 0)
        printf("right after %d steps\n", step);
    return NULL;
}

static void threads(void)
{
    pthread_t thread[3];
    MPI_Comm comm[3];
    for (int i = 0; i < 3; i++)
        MPI_Comm_dup(MPI_COMM_WORLD, &comm[i]);
    for (int i = 0; i < 3; i++)
        pthread_create(&thread[i], NULL, repeat, &comm[i]);
    for (int i = 0; i < 3; i++)
        pthread_join(thread[i], NULL);
}

static double cpu_s(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + 1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

static void waits(void)
{
    double used[2] = {0};
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = cpu_s();
    while (rank == 1 && cpu_s() - begin < 0.3)
        ;
    MPI_Barrier(MPI_COMM_WORLD);
    begin = cpu_s() - begin;
    MPI_Gather(&begin, 1, MPI_DOUBLE, used, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("waited using %.0f percent\n", 100 * used[0] / used[1]);
}

int main(int argc, char **argv)
{
    MPI_Comm world = MPI_COMM_WORLD;
    int provided;
    const char *kind = argc == 3 ? argv[1] : "";
    setvbuf(stdout, NULL, _IOLBF, 0);
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &ranks);
    stop = argc == 3 ? argv[2] : "";
    if (strcmp(kind, "steps") == 0)
        repeat(&world);
    else if (strcmp(kind, "threads") == 0 && provided == MPI_THREAD_MULTIPLE)
        threads();
    else if (strcmp(kind, "waits") == 0)
        waits();
    else
        MPI_Abort(world, 2);
    MPI_Finalize();
    return 0;
}
