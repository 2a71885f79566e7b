/* SPDX-License-Identifier: Apache-2.0 */
/* stream.c - triads over three large arrays, in the manner of STREAM: memory-bound, and malleable between any two.
 *
 *     gcc -O2 -fopenmp stream.c -ldrom -o stream
 *     stream [--size N] [--sweeps K] [--seconds S]
 *
 * A sweep computes x(k+1) = x(k) + q x(k-1). With q = -1 all is back where it started after six sweeps, in whole numbers: the
 * sum is known, and one element left out shows. Exit 0: right. 1: wrong sum, or no memory. 2: wrong usage.
 */
#include <drom.h> /* malleable */
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* malleable begin */
static int malleability_point(drom *d, int most)
{
    drom_grant g;
    if (!drom_poll(d) || drom_take(d, &g) <= 0)
        return 0;
    omp_set_num_threads(g.ncpus < (uint32_t)most ? (int)g.ncpus : most);
    omp_pause_resource_all(omp_pause_soft); /* or surplus threads would spin on, on the CPUs that are kept */
    drom_apply(d, &g);                      /* binds every thread, then acknowledges */
    return 1;
}
/* malleable end */

static void triad(double *next, const double *now, const double *before, double q, long n)
{
#pragma omp parallel for schedule(static)
    for (long i = 0; i < n; i++)
        next[i] = now[i] + q * before[i];
}

static int usage(void)
{
    fputs("stream: usage: stream [--size N] [--sweeps K] [--seconds S], each at least 1\n", stderr);
    return 2;
}

int main(int argc, char **argv)
{
    double size = 8e6, most_sweeps = 600, seconds = HUGE_VAL, q = -1, sum = 0, expected = 0;
    for (int i = 1; i < argc; i += 2) {
        double *option = !strcmp(argv[i], "--size")      ? &size
                         : !strcmp(argv[i], "--sweeps")  ? &most_sweeps
                         : !strcmp(argv[i], "--seconds") ? &seconds
                                                         : NULL;
        char *end = NULL;
        if (!option || i + 1 == argc || !((*option = strtod(argv[i + 1], &end)) >= 1) || *end)
            return usage();
        if (option == &seconds)
            most_sweeps = HUGE_VAL;
    }
    const long n = size < 1e11 ? (long)size : (long)1e11;
    double *next = malloc(sizeof(double[n])), *now = malloc(sizeof(double[n])), *before = malloc(sizeof(double[n]));
    if (!next || !now || !before) {
        fputs("stream: not enough memory for the arrays; choose a smaller --size.\n", stderr);
        return 1;
    }

    const int most = omp_get_max_threads(); /* buffers may be sized by it: never go above */
    drom *d = drom_attach();                /* malleable */
    malleability_point(d, most);            /* malleable: before the first touch, which decides where the pages are */
#pragma omp parallel for schedule(static) reduction(+ : expected)
    for (long i = 0; i < n; i++) {
        before[i] = (double)(i % 1000), now[i] = before[i] + 1000, next[i] = 0;
        expected += now[i];
    }
    long sweeps = 0;
    const double start = omp_get_wtime();
    for (int done = 0; !done;) { /* a phase: the sweeps between two grants */
        const int threads = omp_get_max_threads();
        const long first = sweeps;
        const double since = omp_get_wtime();
        do {
            triad(next, now, before, q, n);
            double *oldest = before;
            before = now, now = next, next = oldest;
            drom_progress(d, (uint64_t)++sweeps); /* malleable */
            done = sweeps % 6 == 0 && ((double)sweeps >= most_sweeps || omp_get_wtime() - start >= seconds);
        } while (!done && !malleability_point(d, most)); /* malleable */
        const double bytes = 3.0 * sizeof(double) * (double)n * (double)(sweeps - first);
        printf("stream: %d threads %.2f GB/s\n", threads, bytes / (omp_get_wtime() - since) / 1e9);
        fflush(stdout);
    }
    drom_detach(d); /* malleable */

#pragma omp parallel for schedule(static) reduction(+ : sum)
    for (long i = 0; i < n; i++)
        sum += now[i];
    printf("stream: n=%ld sweeps=%ld sum %.0f %s\n", n, sweeps, sum, sum == expected ? "ok" : "WRONG");
    free(next), free(now), free(before);
    return sum == expected ? 0 : 1;
}
