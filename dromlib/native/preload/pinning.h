/* SPDX-License-Identifier: Apache-2.0 */
/* Threads bound one by one: new ones, and all where the user of a program wants that (OMP_PROC_BIND). Elsewhere every thread
 * may run on the whole grant, and so may what it starts; after a growth threads only begin on CPUs of their own. */
#ifndef DROM_PINNING_H
#define DROM_PINNING_H

#include "openmp.h"

/* Whether the environment may ask for it: known before main(). */
extern bool may_be_pinned;

/* Whether the threads of a runtime are bound one by one. */
static inline bool is_pinned(const struct runtime *runtime)
{
    return __builtin_expect(may_be_pinned, 0) && runtime->get_proc_bind() != 0;
}

/* Bind the calling thread to the whole grant. */
void bind_self(void);

/* Bind the calling thread, number `index` of `count`, to its part of the grant, once for each grant. `place` changes when
 * the runtime may have moved the thread. */
void pin_self(unsigned index, unsigned count, int place);

/* Whether the next team is to be spread: the grant has grown. In LLVM's barriers threads give way to each other by themselves. */
static inline bool is_to_spread(const struct runtime *runtime)
{
    return __builtin_expect(__atomic_load_n(&session.grown, __ATOMIC_RELAXED), 0) && !runtime->is_llvm;
}

/* Have the calling thread, number `index` of `count`, go on on a CPU of its own, counted from `home`, that of the first one. */
void spread_self(unsigned index, unsigned count, int home);

#endif
