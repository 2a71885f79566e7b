/* SPDX-License-Identifier: Apache-2.0 */
/* The calls by which a program asks for its number of threads, or sets it, from C and from Fortran. */
#include "openmp.h"

#define PUBLIC __attribute__((visibility("default")))
#define CALLER object_at(__builtin_return_address(0))

int omp_get_max_threads(void);
int omp_get_max_threads_(void);
void omp_set_num_threads(int count);
void omp_set_num_threads_(const int32_t *count);
void omp_set_num_threads_8_(const int64_t *count);

PUBLIC int omp_get_max_threads(void)
{
    at_point();
    return tell_max_threads(CALLER);
}

PUBLIC int omp_get_max_threads_(void)
{
    at_point();
    return tell_max_threads(CALLER);
}

PUBLIC void omp_set_num_threads(int count)
{
    obey_num_threads(CALLER, count);
}

PUBLIC void omp_set_num_threads_(const int32_t *count)
{
    obey_num_threads(CALLER, *count);
}

PUBLIC void omp_set_num_threads_8_(const int64_t *count)
{
    obey_num_threads(CALLER, *count > INT_MAX ? INT_MAX : (int)*count);
}
