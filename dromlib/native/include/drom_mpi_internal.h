/* SPDX-License-Identifier: Apache-2.0 */
/* drom_mpi_internal.h - declarations shared by the files of drom_mpi.h; not for programs.
 *
 * A *map* is a set of ranks of the communicator given to drom_mpi_init(): those that run. */
#ifndef DROM_MPI_INTERNAL_H
#define DROM_MPI_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "drom_mpi.h"

/* The tags of messages on the communicator of all ranks. */
enum {
    TAG_READY = 1, TAG_JOIN, TAG_OVER, TAG_VALUE, TAG_ELEMENTS, TAG_PLACES, TAG_OBJECT, TAG_COMM, TAG_UPDATE, TAG_GROUP, TAG_OUT,
    TAG_CONSTANTS
};

enum { NODE_SIZE = 256, MOST_PATH = 4096 };

struct value;
struct pending;

/* A line of the host file; `host` is the launcher's name of the node. */
struct host {
    char node[NODE_SIZE], host[NODE_SIZE];
    int slots;
};

struct hosts {
    struct host *at;
    int count;
};

/* An update for ranks that rest: its number, the fewest and most ranks that can run (0: all), and the first rank that runs. All
 * ranks that run have the same. */
struct update {
    int number, min_ranks, max_ranks, first;
};

/* What each rank stores about each other: the first rank of its group, whether it runs, whether it can end before the others of its
 * group, its last update, and its node. */
struct member {
    int first, runs, ends_alone;
    struct update update;
    char node[NODE_SIZE];
};

/* The nodes that the program is to use, and how it spawns ranks there: drom_mpi_nodes.c. */
struct nodes {
    char file[MOST_PATH];  /* the host file; empty: ranks are neither released nor spawned */
    char name[NODE_SIZE];  /* of this node */
    char *line, **command; /* the command line of this program, and its words */
    int words;
    char folder[MOST_PATH];
    unsigned long inode; /* of the file when it was read, like the size and the time */
    long size;
    struct timespec time;
    double next_look;
    char *text; /* of the file, and its lines; on ranks that have read it */
    struct hosts hosts;
    bool cannot_spawn, has_refused, ends_alone;
};

/* An order of the first running rank; the text of the host file follows. */
struct order {
    int length;
    bool releases, spawns;
};

struct drom_mpi {
    MPI_Comm all, comm;
    MPI_Comm whole; /* the communicator while all ranks run, kept for the next time that they do, as creating one takes long */
    int rank, size, running;
    int words;                                /* 64-bit words of a map */
    uint64_t *map, *next, *leaving, *joining; /* the maps now and next, and the requests; all in one piece of memory */
    uint64_t *ready;                          /* in the same: ranks that have reported to this one that they have a core again */
    double last_ready, last_admitted;         /* MPI_Wtime() of the last such report, and of the last call of admit() */
    bool leaves, has_changed, has_refused, is_released;
    bool is_shipping;  /* constant arrays are on their way to the ranks of the map `next` */
    double ships_until; /* MPI_Wtime() at which the ranks begin to wait for them */
    struct order order; /* follows this change, if there is a text */
    char *order_text;
    bool has_world; /* all ranks are those of one or more MPI_COMM_WORLDs */
    bool has_stray, has_waited; /* this rank has printed these messages */
    int group_rank;          /* among those that are left of the group that was launched or spawned with this rank */
    struct member *members;  /* of each rank, where there is a host file */
    struct nodes nodes;
    struct pending *pending; /* messages of this rank that may not have been received yet */
    struct update update;
    drom_mpi_array *arrays;
    drom_mpi_objects *objects;
    struct value *values;
    drom *handle;
    drom_grant grant;
};

/* One side of a move: the ranks of a map, ascending, for the caller to free, and the number of this rank among them, or -1. */
struct side {
    int *ranks, count, me;
};

/* Return whether this rank runs. */
static bool runs(const drom_mpi *m);

static struct side side_of(const drom_mpi *m, const uint64_t *map);

/* End all ranks, once the launcher has read the reason from stderr, or after a second: MPICH's loses what it has not read by then. */
static _Noreturn void end_all(MPI_Comm comm);

/* The same with MPI's handle of Fortran, for dromlib.mpi. */
void drom_mpi_abort_f(MPI_Fint comm);

/* Return `memory`. If it is NULL and `bytes` is not 0, print a message and end the job. */
static void *must_have(const drom_mpi *m, void *memory, size_t bytes);

/* Print a message once, from the first of the running ranks. */
static void print_once(const drom_mpi *m, const char *message);

/* Return whether `mine` is true on all ranks; collective. */
static bool all_agree(MPI_Comm comm, bool mine);

/* Most bytes of a message: MPI counts with int. */
#ifndef DROM_MPI_PIECE
#define DROM_MPI_PIECE (1 << 30)
#endif
enum { PIECE = DROM_MPI_PIECE };

/* Return the bytes of the next message, of as many as are left. */
static int piece(size_t left)
{
    return (int)(left < PIECE ? left : PIECE);
}

/* Messages that are being sent or received. */
struct traffic {
    MPI_Request *requests;
    int count;
};

/* Start to send bytes to a rank, or to receive them from it: in one message, or more if they are many. */
static void start_messages(const drom_mpi *m, struct traffic *t, char *at, size_t bytes, int rank, int tag, bool sends);

/* Return once all messages have been sent or received. */
static void finish(struct traffic *t);

enum { HUGE_PAGE = 1 << 21 };

/* Have the kernel use huge pages, if it can, for memory that is about to be filled: to allocate small ones takes longer than to move
 * the data. */
static void use_huge_pages(char *memory, size_t bytes);

/* Move all arrays or objects from the ranks of the old map to those of the new one, on every rank of either. */
static void move_arrays(const drom_mpi *m, const struct side *old, const struct side *new);
static void move_objects(const drom_mpi *m, const struct side *old, const struct side *new);

/* Start to move the constant arrays; move_arrays() waits for them. */
static void ship_constants(const drom_mpi *m, const struct side *old, const struct side *new);

static bool has_constants(const drom_mpi *m);
static bool have_constants_arrived(const drom_mpi *m);

/* Wait for the constant arrays that are on their way, and free them: the program ends before the change is complete. */
static void end_shipments(const drom_mpi *m);

static void free_arrays(drom_mpi *m);
static void free_objects(drom_mpi *m);

#endif
