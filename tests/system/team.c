/* SPDX-License-Identifier: Apache-2.0 */
/* One source, two parts: with -DMAIN a program without OpenMP that opens the libraries it is given and, for ever, says
 * "threads N N" whenever the size of their teams changes; without it such a library. */
#ifdef MAIN
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    int (*team[2])(void) = {0};
    char before[32] = "", now[32];
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 0; i < 2 && argc == 3; i++) {
        void *library = dlopen(argv[1 + i], RTLD_NOW | RTLD_LOCAL);
        if (library)
            *(void **)&team[i] = dlsym(library, "team");
    }
    while (team[0] && team[1]) {
        int first = team[0]();
        snprintf(now, sizeof now, "threads %d %d", first, team[1]());
        if (strcmp(now, before) != 0)
            puts(strcpy(before, now));
    }
    return 1;
}
#else
#include <omp.h>

int team(void)
{
    int threads = 0;
#pragma omp parallel
    if (omp_get_thread_num() == 0)
        threads = omp_get_num_threads();
    return threads;
}
#endif
