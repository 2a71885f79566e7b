/* SPDX-License-Identifier: Apache-2.0 */
/* Binding of single threads: new ones, and all if the user requests it (OMP_PROC_BIND). Otherwise every thread, and what it starts,
 * may run on the whole grant; after a growth each thread only begins on a CPU of its own. */
#ifndef DROM_PINNING_H
#define DROM_PINNING_H

#include "openmp.h"

/* Return whether threads may have to be bound in the next region. */
static inline bool is_placing(void)
{
    return __builtin_expect(__atomic_load_n(&session.placing, __ATOMIC_RELAXED), 0);
}

static inline void end_placing(void)
{
    __atomic_store_n(&session.placing, session.pinned, __ATOMIC_RELAXED);
}

/* Return whether the threads of a runtime are bound one by one. */
static inline bool is_pinned(const struct runtime *runtime)
{
    return session.pinned && runtime->get_proc_bind() != 0;
}

/* Bind the calling thread to the whole grant. */
void bind_self(void);

/* Bind the calling thread to the mask of the process's first thread, if that has CPUs that this one lacks. */
void join_first(void);

/* Bind the calling thread, number `index` of `count`, to its part of the grant, once for each grant. `place` changes when
 * the runtime may have bound the thread elsewhere. */
void pin_self(unsigned index, unsigned count, int place);

/* After a growth: move the calling thread, number `index` of `count`, to a CPU of its own, counted from `home`, the CPU of the first
 * thread. */
void spread_self(unsigned index, unsigned count, int home);

#endif
