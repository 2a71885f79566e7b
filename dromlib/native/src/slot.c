/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "internal.h"

/* The grant masks come first in a slot, so their offset depends only on the mask width. */
static uint64_t *grant_mask(const void *slot, uint64_t epoch, uint32_t mask_words)
{
    _Static_assert(DROM_MASK_GRANT0 == 0 && DROM_MASK_GRANT1 == 1, "the grant copies lead the masks");
    return (uint64_t *)((char *)slot + DROM_SLOT_FIXED) + (epoch & 1) * mask_words;
}

static void wake(const struct drom_slot *slot)
{
    syscall(SYS_futex, (const uint32_t *)&slot->epoch, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Every store of a grant is a release, and every load an acquire: a reader that loads a word of the next grant but one also
 * loads the epoch published before it, and retries. Fences would do the same, but sanitizers ignore them. */
uint64_t drom_publish(void *where, const uint64_t *mask, uint32_t mask_words, uint32_t reason)
{
    struct drom_slot *slot = where;
    uint64_t epoch = __atomic_load_n(&slot->epoch, __ATOMIC_RELAXED);
    if (epoch == DROM_EPOCH_RETIRED)
        return epoch;
    epoch++;
    uint64_t *copy = grant_mask(slot, epoch, mask_words);
    uint32_t ncpus = 0;
    for (uint32_t i = 0; i < mask_words; i++) {
        __atomic_store_n(&copy[i], mask[i], __ATOMIC_RELEASE);
        ncpus += (uint32_t)__builtin_popcountll(mask[i]);
    }
    __atomic_store_n(&slot->ncpus[epoch & 1], ncpus, __ATOMIC_RELEASE);
    __atomic_store_n(&slot->reason[epoch & 1], reason, __ATOMIC_RELEASE);
    __atomic_store_n(&slot->epoch, epoch, __ATOMIC_RELEASE);
    wake(slot);
    return epoch;
}

void drom_retire(void *where)
{
    struct drom_slot *slot = where;
    __atomic_store_n(&slot->epoch, DROM_EPOCH_RETIRED, __ATOMIC_RELEASE);
    wake(slot);
}

bool dromi_is_ours(const struct drom_slot *slot, int32_t pid, uint64_t start)
{
    return __atomic_load_n(&slot->pid, __ATOMIC_ACQUIRE) == pid &&
           __atomic_load_n(&slot->start_time, __ATOMIC_ACQUIRE) == start;
}

void dromi_copy_mask(const struct drom_slot *slot, uint32_t number, uint32_t mask_words, uint64_t *mask)
{
    const uint64_t *from = (const uint64_t *)((const char *)slot + DROM_SLOT_FIXED) + number * mask_words;
    for (uint32_t i = 0; i < mask_words; i++)
        mask[i] = __atomic_load_n(&from[i], __ATOMIC_ACQUIRE);
}

static bool copy_grant(const struct drom_slot *slot, int32_t pid, uint64_t start, drom_grant *g)
{
    dromi_copy_mask(slot, DROM_MASK_GRANT0 + (g->epoch & 1), g->mask_words, g->mask);
    g->ncpus = __atomic_load_n(&slot->ncpus[g->epoch & 1], __ATOMIC_ACQUIRE);
    g->reason = __atomic_load_n(&slot->reason[g->epoch & 1], __ATOMIC_ACQUIRE);
    return dromi_is_ours(slot, pid, start);
}

/* Copy the grant in force unless its epoch is `seen`. Never waits for a writer: a retry means that another grant was
 * published in the meantime. */
enum read_result dromi_read(const struct drom_slot *slot, uint64_t seen, int32_t pid, uint64_t start, uint32_t mask_words,
                            drom_grant *g)
{
    g->mask_words = mask_words;
    g->spare = 0;
    uint64_t epoch = __atomic_load_n(&slot->epoch, __ATOMIC_ACQUIRE);
    for (;;) {
        if (epoch == seen)
            return READ_NOTHING;
        if (epoch == DROM_EPOCH_RETIRED)
            return READ_RETIRED;
        g->epoch = epoch;
        bool ours = copy_grant(slot, pid, start, g);
        epoch = __atomic_load_n(&slot->epoch, __ATOMIC_ACQUIRE);
        if (epoch == g->epoch)
            return ours ? READ_GRANT : READ_REUSED;
    }
}
