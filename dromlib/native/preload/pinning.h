/* SPDX-License-Identifier: Apache-2.0 */
/* Threads bound one by one: new ones, and all where the user of a program wants that (OMP_PROC_BIND). Elsewhere every thread
 * may run on the whole grant, and so may what it starts; after a growth threads only begin on CPUs of their own. */
#ifndef DROM_PINNING_H
#define DROM_PINNING_H

#include "openmp.h"

/* Whether threads may have to be bound in the region to come. */
static inline bool is_placing(void)
{
    return __builtin_expect(__atomic_load_n(&session.placing, __ATOMIC_RELAXED), 0);
}

static inline void end_placing(void)
{
    __atomic_store_n(&session.placing, session.pinned, __ATOMIC_RELAXED);
}

/* Whether the threads of a runtime are bound one by one. */
static inline bool is_pinned(const struct runtime *runtime)
{
    return session.pinned && runtime->get_proc_bind() != 0;
}

/* Bind the calling thread to the whole grant. */
void bind_self(void);

/* Bind the calling thread as the first one of the process is bound, if that has CPUs that this one lacks. */
void join_first(void);

/* Bind the calling thread, number `index` of `count`, to its part of the grant, once for each grant. `place` changes when
 * the runtime may have moved the thread. */
void pin_self(unsigned index, unsigned count, int place);

/* After a growth: have the calling thread, number `index` of `count`, go on on a CPU of its own, counted from `home`, that of the first one. */
void spread_self(unsigned index, unsigned count, int home);

#endif
