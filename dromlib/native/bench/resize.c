/* SPDX-License-Identifier: Apache-2.0 */
/* resize - the programs in `drom bench resize-cost`:
 *
 *     resize jacobi|triad SIZE FILE   repeat one parallel region, pass a malleability point before each, until SIGTERM; then
 *                                     write into FILE for each step five 64-bit words: when it began, when its region began
 *                                     and ended (nanoseconds of CLOCK_MONOTONIC), its CPUs, and 1 if it applied a change
 *
 *     resize ... FILE MS CPUS...      the same without an agent: every MS milliseconds move onto the next list of CPUs, as
 *                                     0-3,8, the last one first
 *
 * It ends with its parent.
 */
#include <omp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bench.h"
#include "drom.h"

#define LIFE_SECONDS 600
#define MOST_STEPS 1000000

struct step {
    uint64_t begin, region, end, ncpus, changed;
};

static volatile sig_atomic_t is_stopping;

static void stop(int number)
{
    (void)number;
    is_stopping = 1;
}

/* One sweep over a grid of n x n inner points, from u to v. */
static void jacobi(double *v, const double *u, long n)
{
#pragma omp parallel for schedule(static)
    for (long i = 1; i <= n; i++)
        for (long j = 1; j <= n; j++) {
            const double *at = u + i * (n + 2) + j;
            v[i * (n + 2) + j] = 0.25 * (at[-(n + 2)] + at[n + 2] + at[-1] + at[1]);
        }
}

/* STREAM's triad on three vectors of n numbers, one behind the other. */
static void triad(double *a, long n)
{
    const double *b = a + n, *c = b + n;
#pragma omp parallel for schedule(static)
    for (long i = 0; i < n; i++)
        a[i] = b[i] + 3.0 * c[i];
}

/* First touched by the threads that work on it. */
static double *numbers(long count)
{
    double *x = malloc((size_t)count * sizeof *x);
    if (!x)
        return NULL;
#pragma omp parallel for schedule(static)
    for (long i = 0; i < count; i++)
        x[i] = (double)(i % 7);
    return x;
}

/* What decides when and where to move: an agent, or, without one, a clock and lists of CPUs. */
struct source {
    drom *d;
    char **lists;
    size_t count, at;
    uint64_t pause_ns, next_ns;
};

static void resize_team(uint32_t ncpus)
{
    omp_set_num_threads((int)ncpus);
    omp_pause_resource_all(omp_pause_soft); /* as the examples do */
}

static int follow(drom *d)
{
    static drom_grant grant;
    if (!drom_poll(d) || drom_take(d, &grant) <= 0)
        return 0;
    resize_team(grant.ncpus);
    return drom_apply(d, &grant) == 0;
}

static int move_onto(const char *list)
{
    uint64_t mask[DROM_MAX_MASK_WORDS] = {0};
    uint32_t ncpus = 0;
    for (char *end; *list; list = *end ? end + 1 : end) {
        unsigned long cpu = strtoul(list, &end, 10), last = *end == '-' ? strtoul(end + 1, &end, 10) : cpu;
        for (; cpu <= last && cpu < 64 * DROM_MAX_MASK_WORDS; cpu++, ncpus++)
            mask[cpu / 64] |= UINT64_C(1) << cpu % 64;
    }
    resize_team(ncpus);
    return syscall(SYS_sched_setaffinity, 0, sizeof mask, mask) >= 0;
}

static int change(struct source *source)
{
    if (source->d)
        return follow(source->d);
    if (now_ns() < source->next_ns)
        return 0;
    int moved = move_onto(source->lists[(source->at++ + source->count - 1) % source->count]);
    source->next_ns = now_ns() + source->pause_ns;
    return moved;
}

static size_t work(struct source *source, int is_jacobi, long n, double *x, double *y, struct step *steps)
{
    size_t done = 0;
    for (; !is_stopping && done < MOST_STEPS; done++) {
        struct step *step = &steps[done];
        step->begin = now_ns();
        step->changed = (uint64_t)change(source);
        step->ncpus = (uint64_t)omp_get_max_threads();
        step->region = now_ns();
        if (is_jacobi)
            jacobi(done % 2 ? x : y, done % 2 ? y : x, n);
        else
            triad(x, n);
        step->end = now_ns();
    }
    return done;
}

static int write_steps(const char *path, const struct step *steps, size_t count)
{
    FILE *file = fopen(path, "wb");
    if (!file)
        return fail("resize", "cannot write its file");
    size_t written = fwrite(steps, sizeof *steps, count, file);
    return fclose(file) == 0 && written == count ? 0 : fail("resize", "cannot write its file");
}

int main(int argc, char **argv)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(LIFE_SECONDS);
    signal(SIGTERM, stop);
    struct source source = {.lists = argv + 5, .count = argc > 5 ? (size_t)argc - 5 : 0};
    if (argc < 4 || argc == 5 || atol(argv[2]) < 2)
        return fail("resize", "usage: resize jacobi|triad SIZE FILE [MS CPUS...]");
    const int is_jacobi = strcmp(argv[1], "jacobi") == 0;
    const long n = atol(argv[2]);
    double *x = numbers(is_jacobi ? (n + 2) * (n + 2) : 3 * n);
    double *y = is_jacobi ? numbers((n + 2) * (n + 2)) : x;
    struct step *steps = calloc(MOST_STEPS, sizeof *steps);
    if (!x || !y || !steps)
        return fail("resize", "not enough memory");
    if (source.count)
        source.pause_ns = strtoull(argv[4], NULL, 10) * 1000000;
    else if (drom_mode(source.d = drom_attach()) != DROM_RESPONDER)
        return fail("resize", "no agent manages this program");
    const size_t done = work(&source, is_jacobi, n, x, y, steps);
    if (source.d)
        drom_detach(source.d);
    return write_steps(argv[3], steps, done);
}
