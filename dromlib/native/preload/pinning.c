/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <strings.h>

#include "pinning.h"

static bool is_said(const char *name)
{
    const char *value = getenv(name);
    return value && *value && strcasecmp(value, "false") != 0 && strcasecmp(value, "disabled") != 0;
}

bool may_be_pinned;

__attribute__((constructor)) static void read_environment(void)
{
    may_be_pinned = is_said("OMP_PROC_BIND") || is_said("OMP_PLACES") || is_said("GOMP_CPU_AFFINITY") || is_said("KMP_AFFINITY");
}

/* Until no other grant has come in between: who puts that in force may have passed us by then. */
void bind_self(void)
{
    int saved = errno;
    drom_grant g;
    uint32_t bound = 0;
    for (uint32_t serial = copy_grant(&g); serial && serial != bound; serial = copy_grant(&g)) {
        dromi_bind(0, g.mask, g.mask_words);
        bound = serial;
    }
    errno = saved;
}

/* The CPUs of thread `index` among `count`: an even part of the grant's, at least one. */
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
    int saved = errno;
    drom_grant g;
    if (copy_grant(&g) && count) {
        part_of(&g, index % count, count);
        dromi_bind(0, g.mask, g.mask_words);
    }
    done.serial = serial;
    done.index = index;
    done.count = count;
    done.place = place;
    errno = saved;
}
