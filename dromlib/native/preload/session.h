/* SPDX-License-Identifier: Apache-2.0 */
/* The one session of a process that does not use drom.h itself. Adapters (OpenMP, MPI) call at_point() wherever the program may
 * change its CPUs; the first call registers with the agent. */
#ifndef DROM_SESSION_H
#define DROM_SESSION_H

#include "internal.h"

/* Any thread may read this at any time, with atomic loads. */
struct session {
    const uint64_t *epoch; /* the number of the newest grant */
    uint64_t *points;      /* the counter of malleability points */
    uint64_t seen;         /* number of the grant in force */
    uint32_t ncpus;        /* its CPUs; 0: this process is not managed */
    uint32_t serial;       /* changes with every grant */
    bool sized;            /* the user has set the number of threads */
    bool pinned;           /* the environment may request threads that are bound one by one */
    bool yielded;          /* the program has attached itself */
    bool placing;          /* threads are to be bound in the next region: always if pinned, otherwise after a growth */
};
extern struct session session;

/* Report to the agent where malleability points are: bit `kind`, a DROM_POINTS_*. */
void report_points(unsigned kind);

/* Take the newest grant, bind every thread to it and acknowledge it. Register first if necessary. */
void apply_grant(void);

/* Copy the grant in force. Return its serial, or 0 if there is none or its CPUs are synthetic. */
uint32_t copy_grant(drom_grant *g);

/* Return whether there may be a new grant, also before the first registration. */
static inline bool has_new_grant(void)
{
    const uint64_t *epoch = __atomic_load_n(&session.epoch, __ATOMIC_ACQUIRE);
    return __atomic_load_n(epoch, __ATOMIC_RELAXED) != __atomic_load_n(&session.seen, __ATOMIC_RELAXED);
}

static inline void apply_grant_if_new(void)
{
    if (__builtin_expect(has_new_grant(), 0))
        apply_grant();
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
    apply_grant_if_new();
}

#endif
