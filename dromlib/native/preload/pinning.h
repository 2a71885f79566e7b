/* SPDX-License-Identifier: Apache-2.0 */
/* Threads bound one by one: new ones, and all where the user of a program wants that (OMP_PROC_BIND). Elsewhere every thread
 * may run on the whole grant, and so may what it starts. */
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

#endif
