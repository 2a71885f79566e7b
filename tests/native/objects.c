/* SPDX-License-Identifier: Apache-2.0 */
/* objects packed|placed COUNT BYTES ROUNDS SWAP - move COUNT objects of up to BYTES bytes in ROUNDS rounds, all anew or, if SWAP
 * is 1, from rank r to the last but r, in messages of at most 50000 bytes. Each object has all its bytes on one rank after each
 * round, or the program exits with 1. The first rank prints how many objects have moved, and the largest growth of a rank's
 * memory in a round, in percent of the bytes that it has received or sent in that round. */
#define DROM_MPI_PIECE 50000
#include "drom_mpi.c"

struct piece {
    long bytes;
    unsigned char *at;
};

static struct piece *pieces;
static long most, round_number;
static double moved; /* bytes that this rank has received or sent in this round */
static int swaps;

/* Some objects have no content, and the others all sizes. */
static long size_of(long object)
{
    return swaps ? most : object % 5 == 0 ? 0 : object * 7919 % most;
}

static void *locate(void *context, long object, long *bytes)
{
    (void)context;
    *bytes = pieces[object].bytes;
    return pieces[object].at;
}

static void *make_piece(void *context, long object, long bytes)
{
    (void)context;
    pieces[object] = (struct piece){bytes, malloc((size_t)bytes + 1)};
    if (!pieces[object].at)
        MPI_Abort(MPI_COMM_WORLD, 1);
    moved += (double)bytes;
    return pieces[object].at;
}

static void drop(void *context, long object)
{
    (void)context;
    moved += (double)pieces[object].bytes;
    free(pieces[object].at);
    pieces[object].at = NULL;
}

static long pack(void *context, long object, void *bytes)
{
    long length = pieces[object].bytes;
    if (bytes) {
        memcpy(bytes, pieces[object].at, (size_t)length);
        drop(context, object);
    }
    return length;
}

static void unpack_piece(void *context, long object, const void *bytes, long length)
{
    memcpy(make_piece(context, object, length), bytes, (size_t)length);
}

static void place_anew(long objects, const double *work, int ranks, const double *speed, int *place)
{
    (void)work, (void)speed;
    for (long i = 0; i < objects; i++)
        place[i] = swaps ? ranks - 1 - place[i] : (int)((i * 40503 + round_number * 9973) / 7 % ranks);
}

static long is_wrong(long object, int is_mine)
{
    const struct piece *p = &pieces[object];
    long wrong = is_mine != (p->at != NULL) || (is_mine && p->bytes != size_of(object));
    for (long i = 0; is_mine && !wrong && i < p->bytes; i++)
        wrong += p->at[i] != (unsigned char)(object + i);
    return wrong;
}

/* Return a value of /proc/self/status, in bytes. */
static double status(const char *name)
{
    char line[256];
    double kib = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, name, strlen(name)) == 0)
            kib = atof(line + strlen(name));
    if (file)
        fclose(file);
    return kib * 1024;
}

/* Count the largest memory from now on. */
static void forget_peak(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "w");
    if (!file || fputs("5", file) < 0 || fclose(file) != 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char **argv)
{
    int rank;
    long wrong = 0, all = 0;
    double growth = 0, most_growth;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    long count = atol(argv[2]), rounds = atol(argv[4]);
    most = atol(argv[3]);
    swaps = atoi(argv[5]);
    drom_mpi *m = drom_mpi_init(MPI_COMM_WORLD, 1);
    drom_mpi_kind kind;
    if (strcmp(argv[1], "packed") == 0)
        kind = (drom_mpi_kind){.count = count, .strategy = place_anew, .pack = pack, .unpack = unpack_piece};
    else
        kind = (drom_mpi_kind){.count = count, .strategy = place_anew, .locate = locate, .make = make_piece, .drop = drop};
    drom_mpi_objects *objects = drom_mpi_add_objects(m, kind);
    if (!objects || !(pieces = calloc((size_t)count, sizeof *pieces)))
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (long i = 0; i < count; i++)
        if (drom_mpi_owner(objects, i) == rank) {
            unsigned char *at = make_piece(NULL, i, size_of(i));
            for (long k = 0; k < size_of(i); k++)
                at[k] = (unsigned char)(i + k);
        }
    for (round_number = 0; round_number < rounds; round_number++) {
        moved = 0;
        forget_peak();
        double before = status("VmRSS:");
        all += drom_mpi_balance(objects);
        double more = 200 * (status("VmHWM:") - before) / (moved + 1); /* as much is sent as is received */
        growth = more > growth ? more : growth;
        for (long i = 0; i < count; i++)
            wrong += is_wrong(i, drom_mpi_owner(objects, i) == rank);
    }
    drom_mpi_finalize(m);
    MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    MPI_Reduce(&growth, &most_growth, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%ld %.0f\n", all, most_growth);
    for (long i = 0; i < count; i++)
        free(pieces[i].at);
    free(pieces);
    MPI_Finalize();
    return wrong != 0;
}
