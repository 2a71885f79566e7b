/* SPDX-License-Identifier: Apache-2.0 */
/* regions - the program in `drom bench openmp`: it does not use drom.h, and is run with and without drom's library preloaded.
 *
 *     regions empty COUNT BURSTS        seconds of an empty region with if(0), the least mean of BURSTS bursts of COUNT, until SIGTERM
 *     regions steps MICROSECONDS        how many steps a thread computes in that time
 *     regions work STEPS COUNT          seconds for COUNT regions in which each thread computes STEPS steps, until SIGTERM
 *     regions resize CHANGES            waits for that many changes of its team; for each prints the nanoseconds that the regions
 *                                       around it took longer than others of their size: "less|more NUMBER"
 *     regions granted CHANGES           the same, but it changes its grant itself, in the registry of $DROM_RUNTIME_DIR
 *     regions alone CHANGES             the same, but it changes its team and the CPUs of its threads itself
 *
 * It is built by gcc, and run on either runtime. It ends with its parent. */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <omp.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include "bench.h"
#include "drom.h"
#include "drom_layout.h"
#include "publish.h"

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

static volatile sig_atomic_t is_ending;

static void end(int number)
{
    is_ending = number;
}

static void work(long steps, long count)
{
    signal(SIGTERM, end);
    while (!is_ending) {
        uint64_t begin = now_ns();
        for (long i = 0; i < count; i++) {
#pragma omp parallel
            spin(steps);
        }
        printf("%.9f\n", (double)(now_ns() - begin) / 1e9);
        fflush(stdout);
    }
}

static double empty_burst(long count)
{
    uint64_t begin = now_ns();
    for (long i = 0; i < count; i++) {
#pragma omp parallel if (0)
        __asm__ volatile("" ::: "memory");
    }
    return (double)(now_ns() - begin) / (double)count / 1e9;
}

static void empty(long count, long bursts)
{
    signal(SIGTERM, end);
    while (!is_ending) {
        double least = empty_burst(count);
        for (long burst = 1; burst < bursts; burst++) {
            double mean = empty_burst(count);
            least = mean < least ? mean : least;
        }
        printf("%.12f\n", least);
        fflush(stdout);
    }
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

enum { NEAR = 64, PAUSE_NS = 3000000 };
enum { PAYING = 5 }; /* regions from a change on that count; so does the one before, at whose end the grant may be applied */

/* Return the first `count` of the CPUs that the program began with. */
static cpu_set_t first_cpus(int count)
{
    static cpu_set_t all;
    cpu_set_t part;
    if (CPU_COUNT(&all) == 0)
        sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&part);
    for (size_t cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&part) < count; cpu++)
        if (CPU_ISSET(cpu, &all))
            CPU_SET(cpu, &part);
    return part;
}

/* Put all threads on as many CPUs as the team is to have threads. */
static void resize_team(int size)
{
    cpu_set_t part = first_cpus(size);
    DIR *threads = opendir("/proc/self/task");
    for (struct dirent *entry; threads && (entry = readdir(threads));)
        if (entry->d_name[0] != '.')
            sched_setaffinity(atoi(entry->d_name), sizeof part, &part);
    if (threads)
        closedir(threads);
    omp_set_num_threads(size);
}

static void *map_registry(void)
{
    char path[PATH_MAX];
    struct stat about;
    const char *dir = getenv("DROM_RUNTIME_DIR");
    int fd = dir && snprintf(path, sizeof path, "%s/registry", dir) < PATH_MAX ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0 || fstat(fd, &about) < 0)
        exit(fail("regions", "there is no registry to be written in $DROM_RUNTIME_DIR."));
    void *at = mmap(NULL, (size_t)about.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

/* Publish a grant as an agent does, so that no agent uses these CPUs. The program has the first slot. */
static void grant(int size)
{
    static struct drom_header *header;
    uint64_t mask[DROM_MAX_MASK_WORDS] = {0};
    cpu_set_t part = first_cpus(size);
    header = header ? header : map_registry();
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &part))
            mask[cpu / 64] |= UINT64_C(1) << cpu % 64;
    drom_publish((char *)header + header->header_size, mask, header->mask_bits / 64, 0);
}

/* Change from all threads to half of them or back, after a pause and enough regions to know the cost of one. */
static void change(void (*set_size)(int), int threads, long regions)
{
    static int whole;
    static uint64_t since;
    whole = whole ? whole : threads;
    if (now_ns() - since < PAUSE_NS || regions < NEAR)
        return;
    set_size(threads < whole ? whole : whole / 2);
    since = now_ns();
}

/* Times of the last regions of one size, in a ring. */
struct times {
    uint64_t ns[NEAR];
    long seen;
};

static uint64_t median(const struct times *times)
{
    static uint64_t sorted[NEAR];
    memcpy(sorted, times->ns, sizeof sorted);
    qsort(sorted, NEAR, sizeof *sorted, by_value);
    return sorted[NEAR / 2];
}

static int64_t extra(uint64_t took, const struct times *usual)
{
    return (int64_t)took - (int64_t)median(usual);
}

/* Execute a region, after a change by `set_size` if that is not NULL; return how many threads it had. */
static int make_region(void (*set_size)(int), int threads, long regions, uint64_t *took)
{
    uint64_t begin = now_ns();
    if (set_size)
        change(set_size, threads, regions);
#pragma omp parallel
    if (omp_get_thread_num() == 0)
        threads = omp_get_num_threads();
    *took = now_ns() - begin;
    return threads;
}

static void resize(long changes, void (*set_size)(int))
{
    static struct times times[2];
    struct times *usual = &times[0];
    int threads = 0, most = 0, left = 0; /* regions left that count for the last change */
    uint64_t last = 0, took = 0;
    int64_t lost = 0;
    while (changes > 0) {
        int before = threads;
        threads = make_region(left == 0 ? set_size : NULL, before, usual->seen, &took);
        most = threads > most ? threads : most;
        struct times *old = usual;
        usual = &times[threads < most];
        if (before && threads != before && old->seen >= NEAR && usual->seen >= NEAR) {
            lost = extra(last, old);
            left = PAYING;
        }
        if (left > 0) {
            lost += extra(took, usual);
            if (--left == 0) {
                printf("%s %lld\n", threads < most ? "less" : "more", (long long)lost);
                fflush(stdout);
                changes--;
            }
        } else if (threads == before)
            usual->ns[usual->seen++ % NEAR] = took;
        last = took;
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
    else if (strcmp(argv[1], "steps") == 0)
        printf("%ld\n", steps_in((double)first));
    else if (strcmp(argv[1], "work") == 0 && second > 0)
        work(first, second);
    else if (strcmp(argv[1], "resize") == 0)
        resize(first, NULL);
    else if (strcmp(argv[1], "granted") == 0)
        resize(first, grant);
    else if (strcmp(argv[1], "alone") == 0)
        resize(first, resize_team);
    else
        return 2;
    return 0;
}
