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
    int changed;
    int error; /* the first that is not the end of a thread */
};

static void visit(struct walk *walk, pid_t tid)
{
    int rc = dromi_bound_to(tid, walk->now);
    if (rc == 0 && memcmp(walk->now, walk->real, sizeof walk->now) == 0)
        return;
    if (rc == 0)
        rc = dromi_bind(tid, walk->mask, walk->mask_words);
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
        if (dromi_number(&name, &tid))
            visit(walk, (pid_t)tid);
    }
    closedir(threads);
    return 0;
}

/* Threads are made while we walk, with the mask of their maker: done when a pass finds nothing to change. */
static int bind_all(struct walk *walk)
{
    int rc = dromi_bind(0, walk->mask, walk->mask_words);
    if (rc == 0)
        rc = dromi_bound_to(0, walk->real);
    for (int i = 0; rc == 0 && i < PASSES; i++) {
        walk->changed = 0;
        rc = pass(walk);
        if (rc == 0 && walk->error)
            rc = walk->error;
        if (rc == 0 && walk->changed == 0)
            return 0;
    }
    return rc ? rc : -EAGAIN;
}

int dromi_bind_threads(const uint64_t *mask, uint32_t mask_words)
{
    struct walk *walk = calloc(1, sizeof *walk); /* the calling thread may have a small stack */
    if (!walk)
        return -ENOMEM;
    walk->mask = mask;
    walk->mask_words = mask_words;
    int rc = bind_all(walk);
    free(walk);
    return rc;
}
