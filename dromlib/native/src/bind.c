/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "internal.h"

#define PASSES 64

/* Direct system calls: they take masks of any width, while cpu_set_t has 1024 bits. */
int dromi_bind(pid_t tid, const uint64_t *mask, uint32_t mask_words)
{
    return syscall(SYS_sched_setaffinity, tid, (size_t)mask_words * 8, mask) < 0 ? -errno : 0;
}

int dromi_bound_to(pid_t tid, uint64_t mask[DROM_MAX_MASK_WORDS])
{
    memset(mask, 0, DROM_MAX_MASK_WORDS * sizeof *mask);
    return syscall(SYS_sched_getaffinity, tid, DROM_MAX_MASK_WORDS * sizeof *mask, mask) < 0 ? -errno : 0;
}

struct walk {
    const uint64_t *mask; /* requested */
    uint32_t mask_words;
    uint64_t real[DROM_MAX_MASK_WORDS]; /* effective: narrower if a cpuset is */
    uint64_t now[DROM_MAX_MASK_WORDS];  /* of the thread that is visited */
    struct parts *parts;                /* NULL: every thread gets all of the mask */
    pid_t caller;                       /* thread that has its part already; 0 without `parts` */
    bool has_begun;                     /* `parts` are locked */
    int changed;
    int error; /* the first one other than ESRCH */
};

static void visit(struct walk *walk, pid_t tid)
{
    int rc = dromi_bound_to(tid, walk->now);
    const uint64_t *target = rc == 0 && walk->parts ? dromi_part(walk->parts, tid, walk->now) : walk->real;
    if (rc == 0 && memcmp(walk->now, target, sizeof walk->now) == 0)
        return;
    if (rc == 0)
        rc = target == walk->real ? dromi_bind(tid, walk->mask, walk->mask_words) : dromi_bind(tid, target, DROM_MAX_MASK_WORDS);
    if (rc == 0)
        walk->changed++;
    else if (rc != -ESRCH && walk->error == 0)
        walk->error = rc;
}

static int pass(struct walk *walk)
{
    DIR *threads = opendir("/proc/self/task");
    if (!threads)
        return -errno;
    for (struct dirent *entry; (entry = readdir(threads));) {
        const char *name = entry->d_name;
        uint64_t tid;
        if (dromi_number(&name, &tid) && (pid_t)tid != walk->caller)
            visit(walk, (pid_t)tid);
    }
    closedir(threads);
    return 0;
}

/* The calling thread has the whole mask now: setting it was the way to get `real`. */
static int begin_parts(struct walk *walk)
{
    if (!dromi_begin_parts(walk->parts, walk->real)) {
        walk->parts = NULL;
        return 0;
    }
    walk->has_begun = true;
    walk->caller = (pid_t)syscall(SYS_gettid);
    const uint64_t *target = dromi_part_of_caller(walk->parts, walk->caller, walk->now);
    return target == walk->real ? 0 : dromi_bind(0, target, DROM_MAX_MASK_WORDS);
}

/* Threads created meanwhile inherit the mask of their creator, so repeat until a pass changes nothing. */
static int bind_all(struct walk *walk)
{
    int rc = dromi_bound_to(0, walk->now);
    if (rc == 0)
        rc = dromi_bind(0, walk->mask, walk->mask_words);
    if (rc == 0)
        rc = dromi_bound_to(0, walk->real);
    if (rc == 0 && walk->parts)
        rc = begin_parts(walk);
    for (int i = 0; rc == 0 && i < PASSES; i++) {
        walk->changed = 0;
        rc = pass(walk);
        if (walk->parts)
            walk->parts->is_new = false; /* threads may have inherited the grant from their creators now */
        if (rc == 0 && walk->error)
            rc = walk->error;
        if (rc == 0 && walk->changed == 0)
            return 0;
    }
    return rc ? rc : -EAGAIN;
}

static int bind(const uint64_t *mask, uint32_t mask_words, struct parts *parts)
{
    struct walk *walk = calloc(1, sizeof *walk); /* the calling thread may have a small stack */
    if (!walk)
        return -ENOMEM;
    walk->mask = mask;
    walk->mask_words = mask_words;
    walk->parts = parts;
    int rc = bind_all(walk);
    if (walk->has_begun)
        dromi_end_parts();
    free(walk);
    return rc;
}

int dromi_bind_threads(const uint64_t *mask, uint32_t mask_words)
{
    return bind(mask, mask_words, NULL);
}

int dromi_bind_parts(const uint64_t *mask, uint32_t mask_words)
{
    struct parts parts;
    return bind(mask, mask_words, &parts);
}
