/* SPDX-License-Identifier: Apache-2.0 */
/* jacobi.c - Poisson's equation on a square by Jacobi sweeps: memory-bound, and malleable between any two sweeps.
 *
 *     gcc -O2 -fopenmp jacobi.c -ldrom -lm -o jacobi
 *     jacobi [--size N] [--iterations K] [--seconds S]
 *
 * The right-hand side is the lowest eigenvector of the discrete Laplacian, v = sin(pi x) sin(pi y). Each sweep multiplies
 * the error by c = cos(pi h), so k sweeps from zero give u = (1 - c^k) v: the answer is known after any number of sweeps.
 * Exit 0: right. 1: wrong answer, or no memory. 2: wrong usage.
 */
#include <drom.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What makes this program malleable: attach, one call of this between two parallel regions, detach. */
static void malleability_point(drom *d, int most)
{
    drom_grant g;
    if (!drom_poll(d) || drom_take(d, &g) <= 0)
        return;
    omp_set_num_threads(g.ncpus < (uint32_t)most ? (int)g.ncpus : most);
    omp_pause_resource_all(omp_pause_soft); /* or surplus threads would spin on, on the CPUs that are kept */
    drom_apply(d, &g);
}

static void sweep(double *next, const double *now, const double *sine, double scale, long n)
{
    const long row = n + 2; /* with the boundary, which stays zero */
#pragma omp parallel for schedule(static)
    for (long i = 1; i <= n; i++) {
        const double *u = now + i * row;
        const double source = scale * sine[i];
        for (long j = 1; j <= n; j++)
            next[i * row + j] = 0.25 * (u[j - row] + u[j + row] + u[j - 1] + u[j + 1]) + source * sine[j];
    }
}

static double largest_error(const double *u, const double *sine, double reached, long n)
{
    double worst = 0;
#pragma omp parallel for schedule(static) reduction(max : worst)
    for (long i = 1; i <= n; i++)
        for (long j = 1; j <= n; j++) {
            const double error = fabs(u[i * (n + 2) + j] - reached * sine[i] * sine[j]);
            worst = error <= worst ? worst : error; /* a NaN is not <= anything: it stays */
        }
    return worst;
}

static int usage(void)
{
    fputs("jacobi: usage: jacobi [--size N] [--iterations K] [--seconds S]\n", stderr);
    return 2;
}

int main(int argc, char **argv)
{
    double size = 1000, iterations = HUGE_VAL, seconds = HUGE_VAL;
    for (int i = 1; i < argc; i += 2) {
        double *option = !strcmp(argv[i], "--size")         ? &size
                         : !strcmp(argv[i], "--iterations") ? &iterations
                         : !strcmp(argv[i], "--seconds")    ? &seconds
                                                            : NULL;
        char *end = NULL;
        if (!option || i + 1 == argc || !((*option = strtod(argv[i + 1], &end)) >= 0) || end == argv[i + 1] || *end)
            return usage();
    }
    if (size < 2 || size > 30000)
        return usage();
    if (iterations == HUGE_VAL && seconds == HUGE_VAL)
        iterations = 2000;

    const long n = (long)size;
    double *now = calloc((size_t)((n + 2) * (n + 2)), sizeof *now);
    double *next = calloc((size_t)((n + 2) * (n + 2)), sizeof *next);
    double *sine = calloc((size_t)(n + 2), sizeof *sine);
    if (!now || !next || !sine) {
        fputs("jacobi: not enough memory for the grid; choose a smaller --size.\n", stderr);
        return 1;
    }
    const double angle = acos(-1.0) / (double)(n + 1);
    const double scale = 2 * pow(sin(angle / 2), 2); /* 1 - cos(angle), without cancellation */
    for (long i = 1; i <= n; i++)
        sine[i] = sin((double)i * angle);

    const int most = omp_get_max_threads(); /* buffers may be sized by it: never go above */
    const double start = omp_get_wtime();
    drom *d = drom_attach();
    uint64_t done = 0;
    while ((double)done < iterations && omp_get_wtime() - start < seconds) {
        malleability_point(d, most);
        sweep(next, now, sine, scale, n);
        double *swap = now;
        now = next;
        next = swap;
        drom_progress(d, ++done);
    }
    drom_detach(d);
    const double wall = omp_get_wtime() - start;

    const double reached = -expm1((double)done * log1p(-scale)); /* 1 - c^k */
    const double worst = largest_error(now, sine, reached, n);
    const int ok = worst <= 1e-10;
    printf("jacobi: n=%ld iterations=%llu max error %.1e %s\n", n, (unsigned long long)done, worst, ok ? "ok" : "WRONG");
    printf("jacobi: %.3f s\n", wall);
    free(now);
    free(next);
    free(sine);
    return ok ? 0 : 1;
}
