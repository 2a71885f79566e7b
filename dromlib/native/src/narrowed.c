/* SPDX-License-Identifier: Apache-2.0 */
/* Threads whose masks the program itself has narrowed to a part of the process's CPUs. As the kernel does for cpusets since Linux
 * 6.2, drom keeps the mask that a thread has set. On a grant the thread gets the intersection with it, the whole grant if that is
 * empty, and its own mask again once all of it is granted. Masks that drom has set do not count as set by the thread. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "internal.h"

#define GIVEN 8          /* masks that drom has set most recently */
#define LATE_NS 50000000 /* this long before the deadline, the agent may begin to bind threads itself */

/* All are guarded by `lock`, which is only tried: in a forked child it may stay locked for ever. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t given[GIVEN][DROM_MAX_MASK_WORDS];
static unsigned count_given;
static uint64_t deadline; /* of the last grant that was taken (CLOCK_MONOTONIC ns); 0: none */
static size_t width;                                                         /* words of a mask that the kernel uses */
static uint64_t target[DROM_MAX_MASK_WORDS], scratch[DROM_MAX_MASK_WORDS]; /* threads may have small stacks */
static pid_t *tids; /* threads with masks of their own; `owns` and `seen` are in the same order */
static uint64_t **owns; /* two masks each: the one that the thread has set, and the one that drom gave it */
static bool *seen;
static size_t count, room;
static uint32_t moves_begun, moves_done;

void dromi_begin_move(void)
{
    __atomic_add_fetch(&moves_begun, 1, __ATOMIC_SEQ_CST);
}

void dromi_end_move(void)
{
    __atomic_add_fetch(&moves_done, 1, __ATOMIC_SEQ_CST);
}

static bool same(const uint64_t *a, const uint64_t *b)
{
    return memcmp(a, b, width * sizeof *a) == 0;
}

static bool within(const uint64_t *mask, const uint64_t *other)
{
    uint64_t more = 0, any = 0;
    for (size_t i = 0; i < width; i++) {
        more |= mask[i] & ~other[i];
        any |= mask[i];
    }
    return any && !more;
}

static bool is_given(const uint64_t *mask)
{
    for (unsigned i = 0; i < GIVEN && i < count_given; i++)
        if (same(given[i], mask))
            return true;
    return false;
}

static void give(const uint64_t *mask)
{
    if (!is_given(mask))
        memcpy(given[count_given++ % GIVEN], mask, width * sizeof *mask);
}

static bool has_width(void)
{
    if (width == 0) {
        long bytes = syscall(SYS_sched_getaffinity, 0, sizeof scratch, scratch);
        width = bytes > 0 ? (size_t)bytes / sizeof *scratch : 0;
    }
    return width > 0;
}

void dromi_record_applied(const struct drom_slot *slot, uint32_t mask_words)
{
    if (pthread_mutex_trylock(&lock) != 0)
        return;
    if (has_width()) {
        memset(scratch, 0, sizeof scratch);
        dromi_copy_mask(slot, DROM_MASK_APPLIED, mask_words, scratch);
        if (within(scratch, scratch)) /* not empty */
            give(scratch);
    }
    deadline = __atomic_load_n(&slot->deadline_ns, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
}

static bool is_enabled(const char *name)
{
    const char *value = getenv(name);
    return value && *value && strcasecmp(value, "false") != 0 && strcasecmp(value, "disabled") != 0;
}

/* Return whether the OpenMP runtime binds threads: those masks are then not set by the program. */
static bool runtime_binds(void)
{
    return is_enabled("OMP_PROC_BIND") || is_enabled("OMP_PLACES") || is_enabled("GOMP_CPU_AFFINITY") || is_enabled("KMP_AFFINITY");
}

bool dromi_begin_parts(struct parts *parts, const uint64_t *grant)
{
    if (runtime_binds() || pthread_mutex_trylock(&lock) != 0)
        return false;
    if (!has_width()) {
        pthread_mutex_unlock(&lock);
        return false;
    }
    parts->grant = grant;
    parts->detects_own = !deadline || dromi_now_ns() + LATE_NS < deadline;
    parts->is_new = !is_given(grant);
    give(grant);
    if (seen)
        memset(seen, 0, count * sizeof *seen);
    return true;
}

static void drop(size_t at)
{
    count--;
    free(owns[at]);
    tids[at] = tids[count];
    owns[at] = owns[count];
    seen[at] = seen[count];
}

void dromi_end_parts(void)
{
    for (size_t i = count; i-- > 0;)
        if (!seen[i])
            drop(i);
    pthread_mutex_unlock(&lock);
}

static uint64_t *find(pid_t tid)
{
    for (size_t i = 0; i < count; i++)
        if (tids[i] == tid) {
            seen[i] = true;
            return owns[i];
        }
    return NULL;
}

static void forget(pid_t tid)
{
    for (size_t i = 0; i < count; i++)
        if (tids[i] == tid) {
            drop(i);
            return;
        }
}

static bool make_room(void)
{
    size_t more = room ? 2 * room : 64;
    if (count < room)
        return true;
    void *grown = realloc(tids, more * sizeof *tids);
    tids = grown ? grown : tids;
    void *larger = grown ? realloc(owns, more * sizeof *owns) : NULL;
    owns = larger ? larger : owns;
    void *last = larger ? realloc(seen, more * sizeof *seen) : NULL;
    seen = last ? last : seen;
    if (!last)
        return false;
    room = more;
    return true;
}

static uint64_t *add(pid_t tid)
{
    uint64_t *own = make_room() ? malloc(2 * width * sizeof *own) : NULL;
    if (!own)
        return NULL;
    tids[count] = tid;
    owns[count] = own;
    seen[count++] = true;
    return own;
}

static bool is_narrower(const struct parts *parts, const uint64_t *now)
{
    bool inside = false;
    for (unsigned i = 0; i < GIVEN && i < count_given && !inside; i++)
        inside = within(now, given[i]) && !same(now, given[i]);
    return parts->detects_own && inside && (!is_given(now) || (parts->is_new && same(now, parts->grant)));
}

/* Return whether a thread still has the mask read before. This process and the agent bind threads to one CPU for a moment. */
static bool stays(pid_t tid, const uint64_t *now)
{
    uint32_t begun = __atomic_load_n(&moves_begun, __ATOMIC_SEQ_CST);
    return begun == __atomic_load_n(&moves_done, __ATOMIC_SEQ_CST) && dromi_bound_to(tid, scratch) == 0 && same(now, scratch) &&
           begun == __atomic_load_n(&moves_begun, __ATOMIC_SEQ_CST);
}

static const uint64_t *part(const struct parts *parts, pid_t tid, const uint64_t *now, bool is_caller)
{
    uint64_t *own = count ? find(tid) : NULL;
    if (!own || !same(own + width, now)) {
        if (!is_narrower(parts, now) || !(is_caller || stays(tid, now))) {
            forget(tid);
            return parts->grant;
        }
        own = own ? own : add(tid);
        if (!own)
            return parts->grant;
        memcpy(own, now, width * sizeof *own);
    }
    uint64_t any = 0, *got = own + width;
    for (size_t i = 0; i < width; i++)
        any |= got[i] = own[i] & parts->grant[i];
    if (!any)
        memcpy(got, parts->grant, width * sizeof *got);
    memcpy(target, got, width * sizeof *got);
    return target;
}

const uint64_t *dromi_part(const struct parts *parts, pid_t tid, const uint64_t *now)
{
    return part(parts, tid, now, false);
}

const uint64_t *dromi_part_of_caller(const struct parts *parts, pid_t tid, const uint64_t *before)
{
    return part(parts, tid, before, true);
}
