/* SPDX-License-Identifier: Apache-2.0 */
/* drom.h - make a program malleable.
 *
 *     drom *d = drom_attach();
 *     for (step = 0; step < steps; step++) {
 *         if (drom_poll(d)) {                    // a malleability point: about a nanosecond
 *             drom_grant g;
 *             if (drom_take(d, &g) > 0) {
 *                 omp_set_num_threads((int)g.ncpus);
 *                 omp_pause_resource_all(omp_pause_soft);    // end surplus threads: they spin for milliseconds
 *                 drom_apply(d, &g);             // bind every thread, then tell the agent
 *             }
 *         }
 *         compute();                             // parallel regions
 *     }
 *     drom_detach(d);
 *
 * Without an agent every call is harmless: drom_poll() answers 0 for ever. The library prints nothing unless DROM_LOG is set
 * in the environment, but for one sentence on stderr where an agent listens and does not answer, or nothing of use.
 * It never changes signal handlers or exit codes. errno is preserved by every function.
 * A handle belongs to the process that attached; in a child made by fork() it turns unmanaged.
 * The functions of one handle are called by one thread at a time.
 */
#ifndef DROM_H
#define DROM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DROM_MAX_MASK_WORDS 512

/* The visible head of a handle, so that drom_poll() inlines. Fields are private. */
typedef struct drom {
    const uint64_t *epoch; /* word 0 of the task's slot */
    uint64_t *polls;       /* malleability points passed, in the mailbox */
    uint64_t seen;         /* epoch taken last */
} drom;

/* CPUs by OS number: bit c % 64 of mask[c / 64]. */
typedef struct drom_grant {
    uint64_t epoch;
    uint32_t ncpus;
    uint32_t reason;
    uint32_t mask_words;
    uint32_t spare;
    uint64_t mask[DROM_MAX_MASK_WORDS];
} drom_grant;

enum drom_mode { DROM_UNMANAGED = 0, DROM_RESPONDER = 1, DROM_FOLLOWER = 2 };

/* Find the agent (DROM_RUNTIME_DIR, /run/drom, $XDG_RUNTIME_DIR/drom, /tmp/drom-UID) and take part. Never returns NULL. */
drom *drom_attach(void);

/* Give the handle back. The last of a process to do so says it in the mailbox (applied = retired) and the task goes on
 * bind-only. NULL is allowed. */
void drom_detach(drom *d);

/* How this handle takes part: enum drom_mode. */
int drom_mode(const drom *d);

/* 1 when a grant is waiting to be taken, else 0. */
static inline int drom_poll(drom *d)
{
    *d->polls += 1;
    return __builtin_expect(__atomic_load_n(d->epoch, __ATOMIC_ACQUIRE) != d->seen, 0);
}

/* The same for languages that cannot inline it. */
int drom_poll_fn(drom *d);

/* Copy the newest grant. 1: *g holds it; 0: nothing new, or unmanaged now (retired, slot reused). */
int drom_take(drom *d, drom_grant *g);

/* Bind every thread of this process to the grant's CPUs and acknowledge it. 0, or -errno when a thread could not be bound
 * (then nothing is acknowledged and the agent enforces). Where the agent has let the task go meanwhile, every thread gets
 * the affinity back that the task came with, here and in drom_acknowledge(). */
int drom_apply(drom *d, const drom_grant *g);

/* Acknowledge a grant that the program has put in force by itself. 0 or -errno. */
int drom_acknowledge(drom *d, const drom_grant *g);

/* Block until a grant is waiting or timeout_ms has passed (negative: no limit). 1: waiting; 0: time out, or at once
 * when unmanaged. */
int drom_wait(drom *d, int timeout_ms);

/* Tell how much work is done since the program began, in a unit of its own. The agent measures by it how fast the
 * program is with the cores that it has. */
void drom_progress(drom *d, uint64_t done);

/* Tell between how many and how many CPUs the program can use, all processes of its task together; 0: unsaid. Of several
 * handles in one process the largest min_cpus counts, and the largest max_cpus unless one has none. The agent takes back what
 * is beyond max_cpus, and leaves min_cpus when others arrive that can start without. It is a wish: a grant may be outside, and
 * of wishes that follow each other within a second the last one counts. */
void drom_want(drom *d, uint32_t min_cpus, uint32_t max_cpus);

/* Index of the task's slot, or -1 when unmanaged, and the agent's runtime directory: with them event loops subscribe to the
 * agent's signals. The text lives until the next drom_take() or drom_detach(). */
int drom_slot(const drom *d);
const char *drom_directory(const drom *d);

/* Write at most max OS CPU numbers of the grant to cpus, ascending; returns how many the grant has. */
int drom_grant_cpus(const drom_grant *g, int *cpus, int max);

/* --- for the agent --- */

/* Publish a grant of the slot that starts at `slot`: write the copy not in force, then the epoch, then wake waiters. Returns the
 * new epoch. `mask` has mask_words 64-bit words, the header's mask_bits / 64. One writer at a time. A retired slot stays retired. */
uint64_t drom_publish(void *slot, const uint64_t *mask, uint32_t mask_words, uint32_t reason);

/* Set the epoch of a slot to "retired" and wake waiters. */
void drom_retire(void *slot);

#ifdef __cplusplus
}
#endif
#endif
