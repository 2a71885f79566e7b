/* SPDX-License-Identifier: Apache-2.0 */
/* migration.c - an adaptive MPI program that reports how long its changes of ranks take.
 *
 *     mpicc -O2 migration.c $(drom flags --mpi) -o migration
 *     mpirun -n 4 --bind-to none drom run -- ./migration arrays|constants|objects BYTES CHANGES
 *
 * Each rank has BYTES of an array, of a constant one, or of objects, while all run. Once half of the ranks run, and once all run again, the
 * first that runs prints "change RANKS SECONDS POINTS": how long they were in drom_mpi_point(), in so many calls that changed them. Constant data
 * has come before these. Each time
 * all run again, the first rank also prints "plain SHRINK GROW": the seconds that MPI_Alltoallv takes for the same bytes and
 * back. It ends after CHANGES changes, an even number. Exit 0: all data is right. 1: it is not. 2: wrong usage.
 */
#include <drom_mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OBJECTS = 8 }; /* of a rank while all run */

static long object_bytes;
static double **objects;

static void *locate(void *context, long object, long *bytes)
{
    (void)context;
    *bytes = object_bytes;
    return objects[object];
}

static void *make(void *context, long object, long bytes)
{
    (void)context;
    if (!(objects[object] = malloc((size_t)bytes)))
        MPI_Abort(MPI_COMM_WORLD, 1);
    return objects[object];
}

static void drop(void *context, long object)
{
    (void)context;
    free(objects[object]);
    objects[object] = NULL;
}

/* Bytes of part p of P of an array that part q of Q has too. */
static long shared(long size, long p, long P, long q, long Q)
{
    const long begin = size * p / P > size * q / Q ? size * p / P : size * q / Q;
    const long end = size * (p + 1) / P < size * (q + 1) / Q ? size * (p + 1) / P : size * (q + 1) / Q;
    return end > begin ? end - begin : 0;
}

/* Bytes that `rank` has while all run and `other` while half of all do: a rank that leaves gives its objects to one other. */
static long moved(int is_array, long bytes, int rank, int other, int ranks)
{
    const int half = ranks / 2;
    if (other >= half || rank == other)
        return 0;
    return is_array ? shared(bytes * ranks, rank, ranks, other, half) : (rank >= half && (rank - half) % half == other) * bytes;
}

/* Return the seconds that a plain exchange takes: between rank and rank, to half of the ranks or back. */
static double plain(int is_array, long bytes, int grows, char *from, char *to, int *counts)
{
    int rank, ranks, *sends = counts, *places, *takes, *slots;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    places = sends + ranks, takes = places + ranks, slots = takes + ranks;
    for (int other = 0, out = 0, in = 0; other < ranks; other++) {
        const long leaves = moved(is_array, bytes, rank, other, ranks), returns = moved(is_array, bytes, other, rank, ranks);
        sends[other] = (int)(grows ? returns : leaves);
        takes[other] = (int)(grows ? leaves : returns);
        places[other] = out, slots[other] = in;
        out += sends[other], in += takes[other];
    }
    MPI_Barrier(MPI_COMM_WORLD);
    double took = -MPI_Wtime(), longest;
    MPI_Alltoallv(from, sends, places, MPI_BYTE, to, takes, slots, MPI_BYTE, MPI_COMM_WORLD);
    took += MPI_Wtime();
    MPI_Reduce(&took, &longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    return longest;
}

static int usage(int rank)
{
    if (rank == 0)
        fputs("migration: usage: migration arrays|constants|objects BYTES CHANGES, on an even number of ranks\n", stderr);
    MPI_Finalize();
    return 2;
}

int main(int argc, char **argv)
{
    int rank, ranks, running, first, outcome, right = 1;
    long changes = 0, points = 0;
    double seconds = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const int is_constant = argc == 4 && strcmp(argv[1], "constants") == 0;
    const int is_array = is_constant || (argc == 4 && strcmp(argv[1], "arrays") == 0);
    const long bytes = argc == 4 ? atol(argv[2]) / 64 * 64 : 0, most = argc == 4 ? atol(argv[3]) : 0;
    if (bytes < 64 || bytes > 1L << 28 || most < 1 || most % 2 || ranks % 2 || (!is_array && strcmp(argv[1], "objects") != 0))
        return usage(rank);
    const long own = bytes / (long)sizeof(double), count = OBJECTS * ranks;
    object_bytes = bytes / OBJECTS;
    drom_mpi *m = drom_mpi_init(MPI_COMM_WORLD, 1);
    drom_mpi_array *array = NULL;
    drom_mpi_objects *pieces = NULL;
    if (m && is_array)
        array = (is_constant ? drom_mpi_add_constant : drom_mpi_add_array)(m, MPI_DOUBLE, (drom_mpi_axis){.size = 1},
                                                                           (drom_mpi_axis){.size = own * ranks, .split = DROM_MPI_BLOCK});
    else if (m && (objects = calloc((size_t)count, sizeof *objects)))
        pieces = drom_mpi_add_objects(m, (drom_mpi_kind){.count = count, .locate = locate, .make = make, .drop = drop});
    char *from = calloc(2, (size_t)bytes), *to = calloc(2, (size_t)bytes);
    int *counts = calloc(4 * (size_t)ranks, sizeof *counts);
    if (!from || !to || !counts || !(array || pieces) || drom_mpi_add_value(m, &changes, 1, MPI_LONG) < 0 || drom_mpi_add_value(m, &points, 1, MPI_LONG) < 0
        || drom_mpi_add_value(m, &seconds, 1, MPI_DOUBLE) < 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (long i = 0; is_array && i < own; i++)
        ((double *)drom_mpi_data(array))[i] = (double)drom_mpi_index(array, 1, i);
    for (long object = rank * OBJECTS; !is_array && object < (rank + 1) * OBJECTS; object++) {
        if (!(objects[object] = calloc(1, (size_t)object_bytes)))
            MPI_Abort(MPI_COMM_WORLD, 1);
        *objects[object] = (double)object;
    }

    while (changes < most) {
        double begin = MPI_Wtime();
        if ((outcome = drom_mpi_point(m)) == DROM_MPI_OVER)
            break;
        MPI_Barrier(drom_mpi_comm(m));
        for (long object = -1; !is_array && (object = drom_mpi_next(pieces, object)) >= 0;)
            right &= *objects[object] == (double)object;
        if (outcome == DROM_MPI_SAME)
            continue;
        double took = MPI_Wtime() - begin;
        MPI_Allreduce(MPI_IN_PLACE, &took, 1, MPI_DOUBLE, MPI_MIN, drom_mpi_comm(m)); /* more on ranks that have rested */
        MPI_Comm_size(drom_mpi_comm(m), &running);
        MPI_Comm_rank(drom_mpi_comm(m), &first);
        seconds += took, points++;
        if (running != (changes % 2 ? ranks : ranks / 2))
            continue; /* not all ranks had received the update before that point */
        if (first == 0)
            printf("change %d %.9f %ld\n", running, seconds, points), fflush(stdout);
        seconds = 0, points = 0, changes++;
        if (running < ranks)
            continue;
        const double shrinks = plain(is_array, bytes, 0, from, to, counts), grows = plain(is_array, bytes, 1, to, from, counts);
        if (rank == 0)
            printf("plain %.9f %.9f\n", shrinks, grows), fflush(stdout);
    }
    for (long i = 0; is_array && i < drom_mpi_count(array, 1); i++)
        right &= ((double *)drom_mpi_data(array))[i] == (double)drom_mpi_index(array, 1, i);
    drom_mpi_finalize(m);
    for (long object = 0; !is_array && object < count; object++)
        free(objects[object]);
    free(objects);
    free(from);
    free(to);
    free(counts);
    MPI_Allreduce(MPI_IN_PLACE, &right, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
    MPI_Finalize();
    return !right;
}
