/* SPDX-License-Identifier: Apache-2.0 */
/* drom_mpi.h - adaptive MPI programs: ranks rest when the job has too few cores for all, and return later.
 *
 *     mpicc mine.c $(drom flags --mpi) -o mine
 *
 *     drom_mpi *m = drom_mpi_init(MPI_COMM_WORLD, 2);                // at least two ranks always run
 *     drom_mpi_axis rows = {.size = 4096, .split = DROM_MPI_BLOCK, .halo = 1}, columns = {.size = 4096};
 *     drom_mpi_array *u = drom_mpi_add_array(m, MPI_DOUBLE, rows, columns);
 *     drom_mpi_add_value(m, &step, 1, MPI_LONG);                     // the same on all ranks
 *     for (; step < steps && drom_mpi_point(m) != DROM_MPI_OVER; step++)
 *         compute(drom_mpi_comm(m), drom_mpi_data(u), drom_mpi_count(u, 0));
 *     drom_mpi_finalize(m);
 *
 * drom_mpi.c is compiled with the program by the program's MPI compiler: libdrom itself contains no MPI. Fortran programs
 * use the module drom_mpi in drom_mpi.f90, programs with mpi4py the module dromlib.mpi.
 *
 * A rank whose grant is empty (drom_may_rest() in drom.h) leaves at the next malleability point: its part of the arrays
 * moves to the ranks that continue, and it waits in drom_mpi_point() without using a CPU until it has a core again.
 *
 * Where DROM_MPI_HOSTFILE names a host file, ranks are also released (their processes end) and spawned, so that the program
 * runs on the nodes in that file: see docs/adaptive-mpi.md. Spawned ranks run this program from its beginning.
 *
 * Without an agent   All ranks always run.
 * Threads            One thread calls these functions, with MPI_THREAD_SINGLE or more.
 * Communication      Only on drom_mpi_comm() while some ranks rest: calls on MPI_COMM_WORLD would wait for them. A resting
 *                    rank prints one sentence if it finds a message there, or if it cannot return.
 * Errors             Every rank gets the same result. The first one prints one message on stderr. Failures of MPI
 *                    itself are handled by MPI's error handler; without memory for moved data the job is aborted.
 */
#ifndef DROM_MPI_H
#define DROM_MPI_H

#include <mpi.h>

#include "drom.h"
#include "drom_mpi_balance.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct drom_mpi drom_mpi;
typedef struct drom_mpi_array drom_mpi_array;
typedef struct drom_mpi_objects drom_mpi_objects;

/* How the indices of one axis of an array are split among parts: of ranks that run, or of rows or columns of these. */
enum drom_mpi_split {
    DROM_MPI_WHOLE = 0,  /* each has all */
    DROM_MPI_BLOCK = 1,  /* part p of P has the indices from size * p / P to size * (p + 1) / P - 1 */
    DROM_MPI_CYCLIC = 2, /* blocks of `block` indices are dealt out in turn */
    DROM_MPI_GIVEN = 3   /* part p has the indices from bound(context, p, P) to bound(context, p + 1, P) - 1 */
};

/* One axis of an array. Fields that are not named by an initialiser are 0. */
typedef struct drom_mpi_axis {
    long size;  /* number of indices, at most 2^40 */
    int split;  /* enum drom_mpi_split */
    long block; /* indices of a block, for DROM_MPI_CYCLIC */
    long halo;  /* elements kept on both sides of the own ones for copies of the neighbours'; they are not moved */
    /* The same function of its arguments on every rank, from 0 for part 0 to size for part P, not decreasing. */
    long (*bound)(void *context, int part, int parts);
    void *context;
} drom_mpi_axis;

/* Pieces of a program's data and work, more of them than ranks, numbered from 0; and how they go from one rank to another. */
typedef struct drom_mpi_kind {
    long count; /* objects of all ranks, from 1 to 2^20 */
    /* Return how many bytes an object has as a message; unless `bytes` is NULL, write them, and free the object here. */
    long (*pack)(void *context, long object, void *bytes);
    void (*unpack)(void *context, long object, const void *bytes, long length); /* make the object here */
    void *context;
    drom_mpi_strategy *strategy; /* decides where objects go; NULL: drom_mpi_refine(). See drom_mpi_balance.h */
    double speed;                /* of this rank's cores relative to the others', for the same work; 0: 1 */
    /* In place of pack() and unpack(), for objects that lie in one piece, which are sent from there and received there: */
    void *(*locate)(void *context, long object, long *bytes); /* return where an object lies, and write how many bytes it has */
    void *(*make)(void *context, long object, long bytes);    /* make the object here; return where its bytes go */
    void (*drop)(void *context, long object);                 /* free the object here: it has been sent */
} drom_mpi_kind;

/* What a malleability point has done. */
enum drom_mpi_outcome {
    DROM_MPI_SAME = 0,    /* nothing */
    DROM_MPI_CHANGED = 1, /* other ranks run: the communicator, the arrays and their places are new */
    DROM_MPI_OVER = 2     /* this rank rested until the others have finished, or is released: it goes to drom_mpi_finalize() */
};

/* Take part with all ranks of a communicator; collective.
 *
 * comm         usually MPI_COMM_WORLD, with a host file always; it is duplicated.
 * min_ranks    fewest ranks that run at a time, from 1 to the size of comm.
 *
 * Returns a handle that drom_mpi_finalize() frees, or NULL after printing a message. All ranks run until the first point. */
drom_mpi *drom_mpi_init(MPI_Comm comm, int min_ranks);

/* Describe an array of two axes, row after row, and allocate this rank's part of it, filled with zeros; collective, and
 * before the first change of ranks. An array of one axis has rows of one part: {.size = 1}.
 *
 * type    MPI's type of an element, whose bytes are moved as they are: without pointers, with lower bound 0.
 *
 * If both axes are split, the ranks form a grid as MPI_Dims_create() makes it, row after row.
 *
 * Returns an array that drom_mpi_finalize() frees, or NULL after printing a message. */
drom_mpi_array *drom_mpi_add_array(drom_mpi *m, MPI_Datatype type, drom_mpi_axis rows, drom_mpi_axis columns);

/* The same for an array whose elements do not change after the first point. When ranks change, it moves while the program goes on:
 * drom_mpi_point() returns DROM_MPI_SAME until it is there, for at most half a second, and the ranks change then. The memory for
 * what a rank receives is needed meanwhile. A change that has begun is completed before others, also with fewer ranks than a later
 * drom_mpi_want() asks for. */
drom_mpi_array *drom_mpi_add_constant(drom_mpi *m, MPI_Datatype type, drom_mpi_axis rows, drom_mpi_axis columns);

/* Describe a variable that has the same value on all running ranks: ranks that return receive it. Before the first change
 * of ranks, in the same order on each.
 *
 * value, count, type    as in MPI_Bcast(); the variable lasts until drom_mpi_finalize().
 *
 * Returns 0, or -EINVAL after printing a message if ranks have changed already, or -ENOMEM. */
int drom_mpi_add_value(drom_mpi *m, void *value, int count, MPI_Datatype type);

/* Describe objects; collective, and before the first change of ranks. Rank r of R has those from count * r / R on, and makes
 * them. When ranks leave or return a strategy decides where each object goes, from the measured CPU time of each object and the
 * measured speed of each rank, which includes other load on its cores. The sizes of all objects that leave are queried, by
 * pack() with NULL or by locate(), before the first one moves; then several move at the same time. In addition to what it receives
 * a rank needs memory for its two largest packed objects in each direction.
 *
 * Returns objects that drom_mpi_finalize() frees, or NULL after printing a message. */
drom_mpi_objects *drom_mpi_add_objects(drom_mpi *m, drom_mpi_kind kind);

/* Return the next of this rank's objects after `object`, the first one after -1; -1 after the last one. What the program does
 * until the next call is measured as work of that object. */
long drom_mpi_next(drom_mpi_objects *o, long object);

/* Return the rank in drom_mpi_comm() that has an object. */
int drom_mpi_owner(const drom_mpi_objects *o, long object);

/* Move objects so that the running ranks need about the same time for theirs; collective over these. Call it now and then
 * where the work of objects changes.
 *
 * Returns how many objects have moved. */
long drom_mpi_balance(drom_mpi_objects *o);

/* A malleability point, collective over the running ranks: call it where none of them has communication under way.
 *
 * A rank that has lost its last core gives its data away, rests in this call, and returns with DROM_MPI_CHANGED once it has
 * a core again and the others have reached a point, or with DROM_MPI_OVER. If too few ranks would be left the change is
 * refused: all continue, and nothing is reported to the agent.
 *
 * Returns an enum drom_mpi_outcome. */
int drom_mpi_point(drom_mpi *m);

/* Report how many ranks the program can use from now on, as where its work grows or falls; collective over the running ranks.
 * A scheduler whose jobs have ranges of cores (drom submit --min --max), or the agent of the node, gives it as many; no more
 * than --max. The last report counts, once a second.
 *
 * min_ranks, max_ranks    from 1 to the size of comm.
 *
 * Returns 0, or -EINVAL after printing a message. */
int drom_mpi_want(drom_mpi *m, int min_ranks, int max_ranks);

/* Return the communicator of the running ranks, in the order of their ranks at the start; spawned ones follow. It lasts until
 * the next change; that of all ranks is the same each time that all run, until ranks are spawned or released. MPI_COMM_NULL
 * after DROM_MPI_OVER; spawned ranks have one of their own until their first point. */
MPI_Comm drom_mpi_comm(const drom_mpi *m);

/* Return the place of this rank's first own element, behind the halo. It lasts until the next change. */
void *drom_mpi_data(const drom_mpi_array *a);

/* Return the place of this rank's memory of an array, where its halo begins. It lasts until the next change. */
void *drom_mpi_memory(const drom_mpi_array *a);

/* Return how many elements lie from one of this rank's rows to the next. */
long drom_mpi_stride(const drom_mpi_array *a);

/* Return how many indices of axis 0 (rows) or 1 (columns) are this rank's; 0 after DROM_MPI_OVER. */
long drom_mpi_count(const drom_mpi_array *a, int axis);

/* Return the index in the whole array of this rank's index `own` along an axis, from 0. */
long drom_mpi_index(const drom_mpi_array *a, int axis, long own);

/* End adaptivity for all ranks, including resting ones, and free the handle, its arrays and its communicator; collective. */
void drom_mpi_finalize(drom_mpi *m);

/* The same functions with MPI's handles of Fortran, for other languages. */
drom_mpi *drom_mpi_init_f(MPI_Fint comm, int min_ranks);
drom_mpi_array *drom_mpi_add_array_f(drom_mpi *m, MPI_Fint type, drom_mpi_axis rows, drom_mpi_axis columns);
drom_mpi_array *drom_mpi_add_constant_f(drom_mpi *m, MPI_Fint type, drom_mpi_axis rows, drom_mpi_axis columns);
int drom_mpi_add_value_f(drom_mpi *m, void *value, int count, MPI_Fint type);
MPI_Fint drom_mpi_comm_f(const drom_mpi *m);

#ifdef __cplusplus
}
#endif
#endif
