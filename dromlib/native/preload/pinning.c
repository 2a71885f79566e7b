/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "pinning.h"

/* Masks and grants are allocated on the heap: threads of a team may have the smallest possible stacks. */

void join_first(void)
{
    struct {
        uint64_t first[DROM_MAX_MASK_WORDS], mine[DROM_MAX_MASK_WORDS];
    } *masks;
    uint64_t more = 0;
    int saved = errno;
    masks = malloc(sizeof *masks);
    if (masks && dromi_bound_to(getpid(), masks->first) == 0 && dromi_bound_to(0, masks->mine) == 0)
        for (size_t word = 0; word < DROM_MAX_MASK_WORDS; word++)
            more |= masks->first[word] & ~masks->mine[word];
    if (more)
        dromi_bind(0, masks->first, DROM_MAX_MASK_WORDS);
    free(masks);
    errno = saved;
}

/* Reduce a grant to the CPUs of thread `index` of `count`: an even part, at least one CPU. */
static void part_of(drom_grant *g, unsigned index, unsigned count)
{
    uint64_t first = (uint64_t)index * g->ncpus / count, end = (index + UINT64_C(1)) * g->ncpus / count;
    uint64_t seen = 0;
    for (uint32_t word = 0; word < g->mask_words; word++) {
        uint64_t kept = 0;
        for (uint64_t left = g->mask[word]; left; left &= left - 1, seen++)
            if (seen == first || (seen > first && seen < end))
                kept |= left & -left;
        g->mask[word] = kept;
    }
}

/* Bind the calling thread, number `index` of `count`, to its part of the grant, and repeat that if another grant was applied
 * meanwhile: the thread that applied it may have bound this one before. Return the grant's serial, or 0 if there is none. */
static uint32_t bind_part(unsigned index, unsigned count)
{
    int saved = errno;
    drom_grant *g = malloc(sizeof *g);
    uint32_t bound = 0;
    for (uint32_t serial = g ? copy_grant(g) : 0; serial && serial != bound; serial = copy_grant(g)) {
        part_of(g, index, count);
        dromi_bind(0, g->mask, g->mask_words);
        bound = serial;
    }
    free(g);
    errno = saved;
    return bound;
}

void bind_self(void)
{
    bind_part(0, 1);
}

void pin_self(unsigned index, unsigned count, int place)
{
    static _Thread_local struct {
        uint32_t serial;
        unsigned index, count;
        int place;
    } done;
    uint32_t serial = __atomic_load_n(&session.serial, __ATOMIC_ACQUIRE);
    if (done.serial == serial && done.index == index && done.count == count && done.place == place)
        return;
    uint32_t bound = count ? bind_part(index % count, count) : 0;
    done.serial = bound ? bound : serial;
    done.index = index;
    done.count = count;
    done.place = place;
}

/* Return how many CPUs of the grant are before `cpu`. */
static unsigned position_of(const drom_grant *g, int cpu)
{
    unsigned position = 0;
    for (uint32_t word = 0; word < g->mask_words && cpu > 0; word++, cpu -= 64)
        position += (unsigned)__builtin_popcountll(cpu < 64 ? g->mask[word] & ((UINT64_C(1) << cpu) - 1) : g->mask[word]);
    return position;
}

/* Move the calling thread to a CPU of its own, counted from `home`, then let it run on the whole grant. */
static void begin_apart(unsigned index, unsigned count, int home)
{
    drom_grant *g = malloc(sizeof *g);
    if (g && copy_grant(g)) {
        uint64_t step = (uint64_t)index * g->ncpus / count;
        part_of(g, (unsigned)((position_of(g, home) + step) % g->ncpus), g->ncpus);
        dromi_begin_move();
        dromi_bind(0, g->mask, g->mask_words);
        bind_self();
        dromi_end_move();
    }
    free(g);
}

/* A thread wakes up on the CPU of its waker unless another CPU is idle at that moment, and a new CPU may still run the agent that
 * granted it. The first thread would then spin in the team's barrier for a time slice while the others wait for its CPU. It yields
 * to them once, and they move. */
void spread_self(unsigned index, unsigned count, int home)
{
    int saved = errno;
    if (count < 2)
        return;
    if (index == 0) {
        end_placing();
        sched_yield();
    } else
        begin_apart(index, count, home);
    errno = saved;
}
