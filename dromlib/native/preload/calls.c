/* SPDX-License-Identifier: Apache-2.0 */
/* The calls by which a program asks for its number of threads, or sets it, from C and from Fortran. */
#include "openmp.h"

#define PUBLIC __attribute__((visibility("default")))
#define HERE __builtin_return_address(0)

int omp_get_max_threads(void);
int omp_get_max_threads_(void);
int omp_get_num_threads(void);
int omp_get_num_threads_(void);
void omp_set_num_threads(int count);
void omp_set_num_threads_(const int32_t *count);
void omp_set_num_threads_8_(const int64_t *count);

PUBLIC int omp_get_max_threads(void)
{
    at_point();
    return tell_max_threads(object_at(HERE), HERE);
}

PUBLIC int omp_get_max_threads_(void)
{
    at_point();
    return tell_max_threads(object_at(HERE), HERE);
}

PUBLIC int omp_get_num_threads(void)
{
    return tell_num_threads(object_at(HERE));
}

PUBLIC int omp_get_num_threads_(void)
{
    return tell_num_threads(object_at(HERE));
}

PUBLIC void omp_set_num_threads(int count)
{
    obey_num_threads(object_at(HERE), count, HERE);
}

PUBLIC void omp_set_num_threads_(const int32_t *count)
{
    obey_num_threads(object_at(HERE), *count, HERE);
}

PUBLIC void omp_set_num_threads_8_(const int64_t *count)
{
    obey_num_threads(object_at(HERE), *count > INT_MAX ? INT_MAX : (int)*count, HERE);
}
