/* SPDX-License-Identifier: Apache-2.0 */
/* The one session of a process that knows nothing of drom. Adapters (OpenMP, MPI) call at_point() wherever the program may
 * change its CPUs; the first call knocks at the agent's door. */
#ifndef DROM_SESSION_H
#define DROM_SESSION_H

#include "internal.h"

/* What any thread may read at any time, with atomic loads. */
struct session {
    const uint64_t *epoch; /* where the number of the newest grant stands */
    uint64_t *points;      /* where malleability points are counted */
    uint64_t seen;         /* number of the grant in force */
    uint32_t ncpus;        /* its CPUs; 0: this process is not managed */
    uint32_t serial;       /* changes with every grant */
    bool sized;            /* the user has said how many threads there are to be */
    bool pinned;           /* the environment may ask for threads bound one by one */
    bool yielded;          /* the program has attached by itself */
    bool placing;          /* threads are to be bound in the next region: always if so, else after a growth */
};
extern struct session session;

/* Tell the agent where malleability points are: bit `kind`, a DROM_POINTS_*. */
void have_points(unsigned kind);

/* Put the newest grant in force: every thread is bound to it and the agent is told. */
void take_news(void);

/* Copy the grant in force; its serial, or 0 when there is none or its CPUs are synthetic. */
uint32_t copy_grant(drom_grant *g);

static inline bool has_news(void)
{
    const uint64_t *epoch = __atomic_load_n(&session.epoch, __ATOMIC_ACQUIRE);
    return __atomic_load_n(epoch, __ATOMIC_RELAXED) != __atomic_load_n(&session.seen, __ATOMIC_RELAXED);
}

static inline void heed_news(void)
{
    if (__builtin_expect(has_news(), 0))
        take_news();
}

__attribute__((always_inline)) static inline void count_point(void)
{
    uint64_t *points = __atomic_load_n(&session.points, __ATOMIC_ACQUIRE);
    __atomic_store_n(points, __atomic_load_n(points, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
}

/* A malleability point: in any thread, but not in a signal handler. Keeps errno. */
static inline void at_point(void)
{
    count_point();
    heed_news();
}

#endif
