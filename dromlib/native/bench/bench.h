/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the programs of `drom bench`. */
#ifndef DROM_BENCH_H
#define DROM_BENCH_H

#include <stdint.h>
#include <stdio.h>
#include <time.h>

/* Print a program's message on stderr; return its exit code. */
static inline int fail(const char *program, const char *message)
{
    fprintf(stderr, "%s: %s\n", program, message);
    return 1;
}

/* Nanoseconds of CLOCK_MONOTONIC. */
static inline uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif
