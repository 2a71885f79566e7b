/* SPDX-License-Identifier: Apache-2.0 */
/* The queries of a file (the program or a library) for its number of threads, and the number that they return.
 *
 * A file may have sized buffers, or split work, by any number that a query ever returned. Before its first query its regions
 * follow the grant, except the first time that each is forked: a region that queries only once does it then. From the first
 * query on the file keeps the number in use, unless it queries again each time. A place is where it queries: a call outside
 * regions, or one in a region, which compilers generate as well. A round begins each time at the place of the first query, or
 * at the region of that query, and the number may change only there: if every place that ever queried has done so in each round
 * since, at least two. Then no number is in use that is not queried again. A place that misses a round ends that for ever, and
 * so does a second thread that queries or forks. */
#ifndef DROM_THREAD_QUERIES_H
#define DROM_THREAD_QUERIES_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

enum { WHOLE = INT_MAX }; /* as a number of threads: as many as without drom */

struct place {
    bool forked;          /* a region, and not for the first time */
    uint64_t since, last; /* the rounds of its first and last query; 0: none */
    struct place *next;   /* with a query */
};

struct thread_queries {
    int reported;         /* the number in use; below 0: the same, and it never changes again */
    bool kept;            /* a place has missed a round, or a call came after regions */
    bool forked;          /* in this round */
    uint64_t round;       /* counted from 1; changes outside regions */
    const void *owner;    /* the first thread that queried or forked; the others only read, and query in its regions */
    struct place *region; /* where its last region was forked */
    struct place *turn;   /* a round begins here; NULL: there was no query */
    struct place *places; /* with queries */
};

extern _Thread_local char calling_thread; /* its address identifies the thread */

#define NO_QUERIES ((struct thread_queries){.reported = WHOLE, .round = 1})

/* These return a number of threads: at most `grant`, or one that was returned before. */

/* For an outermost region forked at this place. If nothing changes, the inline part returns the number. */
int update_region_size(struct thread_queries *q, struct place *place, int grant);
static inline int region_size(struct thread_queries *q, struct place *place, int grant)
{
    int reported = __atomic_load_n(&q->reported, __ATOMIC_RELAXED);
    const struct place *turn = __atomic_load_n(&q->turn, __ATOMIC_RELAXED);
    bool is_settled = reported > 0 && q->owner == &calling_thread && q->forked && place->forked;
    if (!is_settled || (turn ? turn == place : reported != grant))
        return update_region_size(q, place, grant);
    __atomic_store_n(&q->region, place, __ATOMIC_RELAXED);
    return reported;
}

/* For a call outside regions. */
int call_size(struct thread_queries *q, struct place *place, int grant);

/* Record that the file has set the number itself. */
void record_set_number(struct thread_queries *q, struct place *place, int number);

/* Never change the number again. Return it: the one in use, or WHOLE if there was no query. */
int freeze_number(struct thread_queries *q);

/* Record the first query of a place in a round. */
void record_first_query(struct thread_queries *q, struct place *place, struct place *turn);

/* Record a query of the team's size in a region of the file, by any thread of the team. */
static inline void record_query(struct thread_queries *q, struct place *place, struct place *region)
{
    if (__atomic_load_n(&place->last, __ATOMIC_RELAXED) != __atomic_load_n(&q->round, __ATOMIC_RELAXED))
        record_first_query(q, place, region);
}

#endif
