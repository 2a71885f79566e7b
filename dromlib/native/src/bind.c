/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "internal.h"

#define PASSES 64

/* The system calls themselves: they take masks of any width, cpu_set_t stops at 1024. */
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
    const uint64_t *mask; /* what is asked for */
    uint32_t mask_words;
    uint64_t real[DROM_MAX_MASK_WORDS]; /* what the kernel makes of it: less where a cpuset is narrower */
    uint64_t now[DROM_MAX_MASK_WORDS];  /* what the thread that is looked at has */
    struct parts *parts;                /* NULL: every thread gets all of the mask */
    pid_t caller;                       /* has its part of that already; 0 without `parts` */
    bool has_begun;                     /* `parts` are in use, and others wait for them */
    int changed;
    int error; /* the first that is not the end of a thread */
};

static void visit(struct walk *walk, pid_t tid)
{
    int rc = dromi_bound_to(tid, walk->now);
    const uint64_t *want = rc == 0 && walk->parts ? dromi_part(walk->parts, tid, walk->now) : walk->real;
    if (rc == 0 && memcmp(walk->now, want, sizeof walk->now) == 0)
        return;
    if (rc == 0)
        rc = want == walk->real ? dromi_bind(tid, walk->mask, walk->mask_words) : dromi_bind(tid, want, DROM_MAX_MASK_WORDS);
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

/* The calling thread has the whole mask by now, which it had to set for `real` to be known. */
static int begin_parts(struct walk *walk)
{
    if (!dromi_begin_parts(walk->parts, walk->real)) {
        walk->parts = NULL;
        return 0;
    }
    walk->has_begun = true;
    walk->caller = (pid_t)syscall(SYS_gettid);
    const uint64_t *want = dromi_part_of_caller(walk->parts, walk->caller, walk->now);
    return want == walk->real ? 0 : dromi_bind(0, want, DROM_MAX_MASK_WORDS);
}

/* Threads are made while we walk, with the mask of their maker: done when a pass finds nothing to change. */
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
            walk->parts->is_new = false; /* threads may have the grant from their makers now */
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
