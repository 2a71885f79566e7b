/* SPDX-License-Identifier: Apache-2.0 */
/* node - the program in `drom bench node`, run by drom-run or alone:
 *
 *     node poll REPETITIONS CALLS   print for each repetition the nanoseconds of a drom_poll() when nothing changes, and the
 *                                   same with the loop around it
 *     node seen CPU FILE CHANGES    poll without pause on one CPU; write into FILE when each change was detected
 *     node follow                   apply every grant until killed
 *     node regain                   poll each 10 ms; run on each CPU that is new in a grant, and print the nanoseconds of
 *                                   CLOCK_MONOTONIC when it runs on the last one
 *     node crowd PROCESSES THREADS  apply every grant, with so many processes of so many threads that sleep
 *
 * It ends with its parent.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "drom.h"

#define LIFE_SECONDS 300
/* A compiler barrier: neither loop may be hoisted, merged or left out. */
#define BARRIER() __asm__ volatile("" ::: "memory")

/* Return the nanoseconds of a loop that polls; count the polls that returned 1. */
__attribute__((noinline)) static uint64_t time_polls(drom *d, long calls, long *changes)
{
    uint64_t start = now_ns();
    for (long i = 0; i < calls; i++) {
        if (drom_poll(d))
            ++*changes;
        BARRIER();
    }
    return now_ns() - start;
}

__attribute__((noinline)) static uint64_t time_nothing(long calls)
{
    uint64_t start = now_ns();
    for (long i = 0; i < calls; i++)
        BARRIER();
    return now_ns() - start;
}

static void take(drom *d)
{
    static drom_grant grant;
    if (drom_take(d, &grant) > 0)
        drom_apply(d, &grant);
}

static int stay_on(int cpu)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    return sched_setaffinity(0, sizeof one, &one);
}

static int poll_often(drom *d, int repetitions, long calls)
{
    take(d);
    stay_on(sched_getcpu());
    for (int i = 0; i < repetitions; i++) {
        long changes = 0;
        uint64_t before = *d->polls;
        uint64_t empty = time_nothing(calls);
        uint64_t full = time_polls(d, calls, &changes);
        if (changes || *d->polls - before != (uint64_t)calls)
            return fail("node", "the grant changed during the measurement, or polls were left out");
        printf("%.4f %.4f\n", ((double)full - (double)empty) / (double)calls, (double)full / (double)calls);
    }
    return 0;
}

/* FILE: word 0 counts the start and the changes detected; from word 1 on follows the time of each change. */
static int see_changes(drom *d, int cpu, const char *path, size_t changes)
{
    static drom_grant grant;
    size_t size = (changes + 1) * sizeof(uint64_t);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    uint64_t *words = fd < 0 ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (words == MAP_FAILED || stay_on(cpu) < 0)
        return fail("node", "cannot map the file or go to the CPU");
    drom_take(d, &grant);
    __atomic_store_n(&words[0], 1, __ATOMIC_RELEASE);
    for (size_t i = 1; i <= changes; i++) {
        while (!drom_poll(d))
            ;
        words[i] = now_ns();
        drom_take(d, &grant);
        __atomic_store_n(&words[0], i + 1, __ATOMIC_RELEASE);
    }
    return 0;
}

static int follow(drom *d)
{
    while (drom_mode(d) == DROM_RESPONDER) {
        if (drom_wait(d, -1))
            take(d);
    }
    return 0;
}

static int has(const drom_grant *g, int cpu)
{
    return (int)(g->mask[cpu / 64] >> (cpu % 64) & 1);
}

static int stay_within(const drom_grant *g)
{
    cpu_set_t all;
    CPU_ZERO(&all);
    for (int cpu = 0; cpu < (int)g->mask_words * 64 && cpu < CPU_SETSIZE; cpu++)
        if (has(g, cpu))
            CPU_SET(cpu, &all);
    return sched_setaffinity(0, sizeof all, &all);
}

static void run_on_new(const drom_grant *before, const drom_grant *now)
{
    uint64_t at = 0;
    for (int cpu = 0; cpu < (int)now->mask_words * 64; cpu++)
        if (has(now, cpu) && !has(before, cpu) && stay_on(cpu) == 0)
            at = now_ns();
    if (at)
        printf("%" PRIu64 "\n", at);
}

static int regain(drom *d)
{
    static drom_grant before, now;
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (drom_mode(d) == DROM_RESPONDER) {
        if (drom_poll(d) && drom_take(d, &now) > 0) {
            drom_apply(d, &now);
            run_on_new(&before, &now);
            stay_within(&now);
            before = now;
        }
        nanosleep(&(struct timespec){0, 10 * 1000 * 1000}, NULL);
    }
    return 0;
}

static void *sleep_on(void *nothing)
{
    for (;;)
        pause();
    return nothing;
}

static int have_threads(int count)
{
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 1 << 16);
    for (pthread_t thread; count > 1; count--)
        if (pthread_create(&thread, &small, sleep_on, NULL) != 0)
            return fail("node", "cannot start so many threads");
    return 0;
}

static int be_many(drom *d, int processes, int threads)
{
    for (; processes > 1; processes--)
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            have_threads(threads);
            sleep_on(NULL);
        }
    return have_threads(threads) ? 1 : follow(d);
}

int main(int argc, char **argv)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(LIFE_SECONDS);
    drom *d = drom_attach();
    if (drom_mode(d) != DROM_RESPONDER)
        return fail("node", "no agent manages this program");
    int rc = 2;
    if (argc == 4 && strcmp(argv[1], "poll") == 0)
        rc = poll_often(d, atoi(argv[2]), atol(argv[3]));
    else if (argc == 5 && strcmp(argv[1], "seen") == 0)
        rc = see_changes(d, atoi(argv[2]), argv[3], strtoul(argv[4], NULL, 10));
    else if (argc == 2 && strcmp(argv[1], "follow") == 0)
        rc = follow(d);
    else if (argc == 2 && strcmp(argv[1], "regain") == 0)
        rc = regain(d);
    else if (argc == 4 && strcmp(argv[1], "crowd") == 0)
        rc = be_many(d, atoi(argv[2]), atoi(argv[3]));
    drom_detach(d);
    return rc;
}
