/* SPDX-License-Identifier: Apache-2.0 */
/* A tool loaded before programs: it has one function of OpenMP runtimes, and passes calls on. */
#define _GNU_SOURCE
#include <dlfcn.h>

void omp_set_num_threads(int count);

void omp_set_num_threads(int count)
{
    void (*next)(int);
    *(void **)&next = dlsym(RTLD_NEXT, "omp_set_num_threads");
    if (next)
        next(count);
}
