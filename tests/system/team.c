/* SPDX-License-Identifier: Apache-2.0 */
/* One source, two parts: with -DMAIN a program without OpenMP that opens the libraries it is given and, for ever, says
 * "threads N N..." whenever the size of their teams changes; without it such a library. With -DRELOAD the program first opens,
 * uses and closes its first library, and puts the second one in that place, if it can.
 *
 * A library with -DTAIL forks in the last call of a function that the program calls; with -DONCE it asks, and keeps what it was
 * told. One with -DBLAS asks and sets the number for each team, as OpenBLAS does. */
#ifdef MAIN
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define MOST 16

static int (*team[MOST])(void);
static void (*work[MOST])(void);

static void *load(int number, const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library) {
        *(void **)&team[number] = dlsym(library, "team");
        *(void **)&work[number] = dlsym(library, "work");
    }
    return library;
}

/* Where a library is. */
static void *base(int number)
{
    Dl_info about = {0};
    dladdr((void *)team[number], &about);
    return about.dli_fbase;
}

static int run(int number)
{
    if (work[number])
        work[number]();
    return team[number]();
}

int main(int argc, char **argv)
{
    char before[16 + 4 * MOST] = "", now[sizeof before];
    int first = 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
#ifdef RELOAD
    void *library = load(0, argv[1]), *place = base(0);
    for (int i = 0; i < 4; i++)
        run(0);
    dlclose(library);
    first = 2;
#endif
    for (int i = first; i < argc && i <= MOST; i++)
        if (!load(i - first, argv[i]))
            return 1;
#ifdef RELOAD
    puts(base(0) == place ? "in its place" : "elsewhere");
#endif
    for (;;) {
        int used = snprintf(now, sizeof now, "threads");
        for (int i = 0; i < argc - first; i++)
            used += snprintf(now + used, sizeof now - (size_t)used, " %d", run(i));
        if (strcmp(now, before) != 0)
            puts(strcpy(before, now));
    }
}
#else
#include <omp.h>

#ifdef TAIL
static int counted, parts;

void work(void)
{
#pragma omp parallel
    {
#pragma omp atomic
        counted++;
    }
}

int team(void)
{
#ifdef ONCE
    if (!parts)
        parts = omp_get_max_threads();
#endif
    int threads = counted;
    counted = 0;
    return parts && parts != threads ? -threads : threads;
}
#else
#ifdef BLAS
void dgemm_(void)
{
}

static int size;
#endif

int team(void)
{
    int threads = 0;
#ifdef BLAS
    int told = omp_get_max_threads();
    if (told != size)
        omp_set_num_threads(size = told);
#endif
#pragma omp parallel
    if (omp_get_thread_num() == 0)
        threads = omp_get_num_threads();
    return threads;
}
#endif
#endif
