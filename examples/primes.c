/* SPDX-License-Identifier: Apache-2.0 */
/* primes.c - count the primes below N by trial division: compute-bound, and malleable between any two blocks.
 *
 *     gcc -O2 -fopenmp primes.c -ldrom -lm -o primes
 *     primes [--below N] [--seconds S] [--expect COUNT]
 *
 * With --seconds it stops at the first block boundary after that time, below N. Either way the count is checked: against
 * the published value for a power of ten, against a serial sieve for any other number, or against --expect.
 * Exit 0: right. 1: wrong count, or no memory. 2: wrong usage.
 */
#include <drom.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 32768 }; /* numbers between two malleability points: some milliseconds on one core */

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

static int is_prime(uint32_t number)
{
    if (number < 4 || number % 2 == 0)
        return number == 2 || number == 3;
    for (uint32_t divisor = 3; divisor <= number / divisor; divisor += 2)
        if (number % divisor == 0)
            return 0;
    return 1;
}

static long primes_between(uint32_t from, uint32_t to)
{
    long count = 0;
#pragma omp parallel for schedule(dynamic, 128) reduction(+ : count)
    for (uint32_t number = from; number < to; number++)
        count += is_prime(number);
    return count;
}

/* The known answer: the table for a power of ten, else Eratosthenes. -1 without memory. */
static long primes_below(uint32_t limit)
{
    static const long known[] = {0, 4, 25, 168, 1229, 9592, 78498, 664579, 5761455, 50847534};
    uint32_t power = 1;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++, power *= 10)
        if (limit == power)
            return known[i];

    char *composite = calloc((size_t)limit + 1, 1);
    if (!composite)
        return -1;
    long count = 0;
    for (uint64_t number = 2; number < limit; number++) {
        if (composite[number])
            continue;
        count++;
        for (uint64_t multiple = number * number; multiple < limit; multiple += number)
            composite[multiple] = 1;
    }
    free(composite);
    return count;
}

static int usage(void)
{
    fputs("primes: usage: primes [--below N] [--seconds S] [--expect COUNT]\n", stderr);
    return 2;
}

int main(int argc, char **argv)
{
    double below = 10e6, seconds = HUGE_VAL, expect = -1;
    for (int i = 1; i < argc; i += 2) {
        double *option = !strcmp(argv[i], "--below")     ? &below
                         : !strcmp(argv[i], "--seconds") ? &seconds
                         : !strcmp(argv[i], "--expect")  ? &expect
                                                         : NULL;
        char *end = NULL;
        if (!option || i + 1 == argc || !((*option = strtod(argv[i + 1], &end)) >= 0) || end == argv[i + 1] || *end)
            return usage();
    }
    if (below > 4e9 || expect > 4e9)
        return usage();

    const uint32_t limit = (uint32_t)below;
    const int most = omp_get_max_threads(); /* buffers may be sized by it: never go above */
    const double start = omp_get_wtime();
    drom *d = drom_attach();
    uint32_t done = 0;
    long count = 0;
    while (done < limit && omp_get_wtime() - start < seconds) {
        malleability_point(d, most);
        const uint32_t to = limit - done > BLOCK ? done + BLOCK : limit;
        count += primes_between(done, to);
        done = to;
        drom_progress(d, done);
    }
    drom_detach(d);
    const double wall = omp_get_wtime() - start;

    const long expected = expect >= 0 ? (long)expect : primes_below(done);
    if (expected < 0) {
        fputs("primes: not enough memory to check the count; choose a smaller --below.\n", stderr);
        return 1;
    }
    printf("primes: pi(%lu)=%ld %s\n", (unsigned long)done, count, count == expected ? "ok" : "WRONG");
    printf("primes: %.3f s\n", wall);
    return count == expected ? 0 : 1;
}
