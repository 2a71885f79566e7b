/* SPDX-License-Identifier: Apache-2.0 */
/* What a file has learnt of its number of threads.
 *
 * It may have made buffers, or split work, by any answer it ever got, so its regions keep the number that they have. Only one
 * place may change it: the one that asked first, if every other place that ever asked has done so at each of the last two
 * rounds, between two answers of the first. Then no answer is in use that is not given again. A place is a call outside
 * regions, or a region in which the team's size is asked for; where there are calls outside, no region changes the number. */
#ifndef DROM_ANSWERS_H
#define DROM_ANSWERS_H

#include <stdbool.h>
#include <stdint.h>

enum { PLACES_MOST = 16 };

struct place {
    const void *address;
    uint64_t last, before; /* which of the file's answers its last two were; 0: none */
};

struct answers {
    bool heard;         /* in a region, since it was forked */
    bool shared;        /* a second thread asks or forks: it may use what the first one was told */
    bool asked_outside; /* or set the number */
    bool forked;        /* since it asked outside */
    int told;           /* the number in use; 0: none yet */
    unsigned count;     /* of places; beyond PLACES_MOST the number stays */
    const void *owner;  /* the first thread that asked or forked; all but `heard` and `shared` is its own */
    const void *region; /* where its last region was forked */
    uint64_t given;     /* answers so far */
    struct place places[PLACES_MOST];
};

/* Each returns a number of threads, out of that at the launch and that which the grant has room for now. */

/* For a region forked at `address`. */
int answer_region(struct answers *a, const void *address, int launch, int grant);

/* For a call outside regions. */
int answer_call(struct answers *a, const void *address, int launch, int grant);

/* The file has set the number itself. */
void keep_number(struct answers *a, const void *address, int number);

/* In a region, by any thread of the team: its size is being asked for. */
static inline void hear(struct answers *a)
{
    if (!__atomic_load_n(&a->heard, __ATOMIC_RELAXED))
        __atomic_store_n(&a->heard, true, __ATOMIC_RELAXED);
}

#endif
