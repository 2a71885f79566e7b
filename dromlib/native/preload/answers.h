/* SPDX-License-Identifier: Apache-2.0 */
/* What a file has learnt of its number of threads.
 *
 * It may have made buffers, or split work, by any number it was ever told. So while nobody has asked, its regions follow the
 * grant, but for the first time that each is forked: a region that asks once does it then. From the first question on the
 * file keeps the number in use, unless it is told anew each time. A place is where it asks: a call outside regions, or one in
 * a region, which compilers make as well. A round goes from one time at the call that asked first, or at the region of that
 * call, to the next, and only there may the number change: when every place that ever asked has done so in each round since,
 * two at least. Then no number is in use that is not told again. A place that leaves out a round ends that for ever, and so
 * does a second thread that asks or forks. */
#ifndef DROM_ANSWERS_H
#define DROM_ANSWERS_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

enum { WHOLE = INT_MAX }; /* as a number of threads: those that there would be without us */

struct place {
    bool forked;          /* a region, and not for the first time */
    uint64_t since, last; /* the rounds in which it asked first and last; 0: it never has */
    struct place *next;   /* that has asked */
};

struct answers {
    int told;             /* the number in use; below 0: the same, and nothing changes it */
    bool kept;            /* a place has left out a round, or calls came after regions */
    bool forked;          /* in this round */
    uint64_t round;       /* counted from 1; changes outside regions */
    const void *owner;    /* the first thread that asked or forked; the others only read, and ask in its regions */
    struct place *region; /* where its last region was forked */
    struct place *turn;   /* a round begins here; NULL: nobody has asked */
    struct place *places; /* that have asked */
};

extern _Thread_local char calling_thread; /* its address tells threads apart */

#define NOTHING_TOLD ((struct answers){.told = WHOLE, .round = 1})

/* Each returns a number of threads: at most what the grant has room for, or one that was told before. */

/* For a region forked at this place, outside others. What would change nothing is answered right here. */
int answer_region_anew(struct answers *a, struct place *place, int grant);
static inline int answer_region(struct answers *a, struct place *place, int grant)
{
    int told = __atomic_load_n(&a->told, __ATOMIC_RELAXED);
    const struct place *turn = __atomic_load_n(&a->turn, __ATOMIC_RELAXED);
    bool is_settled = told > 0 && a->owner == &calling_thread && a->forked && place->forked;
    if (!is_settled || (turn ? turn == place : told != grant))
        return answer_region_anew(a, place, grant);
    __atomic_store_n(&a->region, place, __ATOMIC_RELAXED);
    return told;
}

/* For a call outside regions. */
int answer_call(struct answers *a, struct place *place, int grant);

/* The file has set the number itself. */
void keep_number(struct answers *a, struct place *place, int number);

/* Nothing is to change the number any more. Returns it: the one in use, or, where nobody has asked, WHOLE. */
int keep_for_good(struct answers *a);

/* The first time in a round. */
void hear_anew(struct answers *a, struct place *place, struct place *turn);

/* In a region of the file, by any thread of the team: its size is being asked for. */
static inline void hear(struct answers *a, struct place *place, struct place *region)
{
    if (__atomic_load_n(&place->last, __ATOMIC_RELAXED) != __atomic_load_n(&a->round, __ATOMIC_RELAXED))
        hear_anew(a, place, region);
}

#endif
