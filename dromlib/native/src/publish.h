/* SPDX-License-Identifier: Apache-2.0 */
/* How agents write the slots of a registry. libdrom exports these functions for the agent only; they are not part of drom.h. */
#ifndef DROM_PUBLISH_H
#define DROM_PUBLISH_H

#include <stdint.h>

/* Publish a grant in the slot that starts at `slot`: write the copy that is not in force, then the epoch, then wake waiters.
 *
 * mask        CPUs by OS number, as in drom_grant, of `mask_words` words: the registry header's mask_bits / 64.
 * reason      a value of enum drom_reason.
 *
 * Returns the new epoch, or UINT64_MAX for a retired slot, which is not changed. One thread of one process publishes in a slot
 * at a time; readers need no lock. Async-signal-safe. */
uint64_t drom_publish(void *slot, const uint64_t *mask, uint32_t mask_words, uint32_t reason);

/* Set the epoch of a slot to "retired" (UINT64_MAX) and wake waiters. Same thread rules as drom_publish(). */
void drom_retire(void *slot);

#endif
