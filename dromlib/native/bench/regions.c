/* SPDX-License-Identifier: Apache-2.0 */
/* regions - the program in `drom bench openmp`: it knows nothing of drom and is run alone, and with its library loaded.
 *
 *     regions empty COUNT BURSTS        nanoseconds of an empty region with if(0), the least mean of BURSTS bursts of COUNT
 *     regions work MICROSECONDS COUNT   seconds for COUNT regions in which each thread computes that long
 *     regions resize CHANGES            waits for that many changes of its team; for each prints how long the region took that
 *                                       brought it, less the median of its neighbours, in nanoseconds: "LESS|MORE NUMBER"
 *     regions alone CHANGES             the same, but it changes its team and the CPUs of its threads by itself
 *
 * It is built by gcc, and run on either runtime. It ends with its parent. */
#include <dirent.h>
#include <omp.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "bench.h"

static void empty(long count, long bursts)
{
    double least = 1e9;
    for (long burst = 0; burst < bursts; burst++) {
        uint64_t begin = now_ns();
        for (long i = 0; i < count; i++) {
#pragma omp parallel if (0)
            __asm__ volatile("" ::: "memory");
        }
        double mean = (double)(now_ns() - begin) / (double)count;
        least = mean < least ? mean : least;
    }
    printf("%.3f\n", least);
}

static void spin(long steps)
{
    for (long i = 0; i < steps; i++)
        __asm__ volatile("" ::: "memory");
}

static long steps_in(double us)
{
    const long probe = 20000000;
    uint64_t begin = now_ns();
    spin(probe);
    return (long)((double)probe * us * 1000 / (double)(now_ns() - begin));
}

static void work(long steps, long count)
{
    uint64_t begin = now_ns();
    for (long i = 0; i < count; i++) {
#pragma omp parallel
        spin(steps);
    }
    printf("%.9f\n", (double)(now_ns() - begin) / 1e9);
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

enum { NEAR = 64, PAUSE_NS = 3000000 };

/* Put all threads on the first of the CPUs that the program began with, as many as the team is to have threads. */
static void resize_team(int size)
{
    static cpu_set_t all, part;
    if (CPU_COUNT(&all) == 0)
        sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&part);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&part) < size; cpu++)
        if (CPU_ISSET(cpu, &all))
            CPU_SET(cpu, &part);
    DIR *threads = opendir("/proc/self/task");
    for (struct dirent *entry; threads && (entry = readdir(threads));)
        if (entry->d_name[0] != '.')
            sched_setaffinity(atoi(entry->d_name), sizeof part, &part);
    if (threads)
        closedir(threads);
    omp_set_num_threads(size);
}

/* Change from all threads to half of them and back after a pause, and regions enough to know what one costs. */
static void change_alone(int threads, long regions)
{
    static int whole;
    static uint64_t since;
    whole = whole ? whole : threads;
    if (now_ns() - since < PAUSE_NS || regions < NEAR)
        return;
    resize_team(threads < whole ? whole : whole / 2);
    since = now_ns();
}

/* Times in a ring: the last NEAR regions of a size tell what one costs without a change. */
static void resize(long changes, bool alone)
{
    static uint64_t times[2][NEAR], sorted[NEAR];
    long seen[2] = {0, 0};
    int before = 0, most = 0;
    while (changes > 0) {
        int threads = 0;
        uint64_t begin = now_ns();
#pragma omp parallel
        if (omp_get_thread_num() == 0)
            threads = omp_get_num_threads();
        uint64_t took = now_ns() - begin;
        most = threads > most ? threads : most;
        int small = threads < most;
        if (before && threads != before && seen[small] >= NEAR) {
            memcpy(sorted, times[small], sizeof sorted);
            qsort(sorted, NEAR, sizeof *sorted, by_value);
            printf("%s %lld\n", threads < before ? "less" : "more", (long long)took - (long long)sorted[NEAR / 2]);
            fflush(stdout);
            changes--;
        } else if (threads == before)
            times[small][seen[small]++ % NEAR] = took;
        before = threads;
        if (alone)
            change_alone(threads, seen[small]);
    }
}

int main(int argc, char **argv)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    long first = argc > 2 ? atol(argv[2]) : 0, second = argc > 3 ? atol(argv[3]) : 0;
    if (first < 1)
        return 2;
    if (strcmp(argv[1], "empty") == 0 && second > 0)
        empty(first, second);
    else if (strcmp(argv[1], "work") == 0 && second > 0)
        work(steps_in((double)first), second);
    else if (strcmp(argv[1], "resize") == 0)
        resize(first, false);
    else if (strcmp(argv[1], "alone") == 0)
        resize(first, true);
    else
        return 2;
    return 0;
}
