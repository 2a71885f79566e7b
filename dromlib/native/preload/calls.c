/* SPDX-License-Identifier: Apache-2.0 */
/* The calls by which a program asks for its number of threads or of CPUs, or sets the former, from C and from Fortran. */
#include "openmp.h"

#define PUBLIC __attribute__((visibility("default")))
#define HERE __builtin_return_address(0)

int omp_get_max_threads(void);
int omp_get_max_threads_(void);
int omp_get_num_threads(void);
int omp_get_num_threads_(void);
int omp_get_team_size(int level);
int omp_get_team_size_(const int32_t *level);
int omp_get_team_size_8_(const int64_t *level);
int omp_get_num_procs(void);
int omp_get_num_procs_(void);
void omp_set_num_threads(int count);
void omp_set_num_threads_(const int32_t *count);
void omp_set_num_threads_8_(const int64_t *count);

PUBLIC int omp_get_max_threads(void)
{
    at_point();
    return tell_max_threads(site_at(HERE));
}

PUBLIC int omp_get_max_threads_(void)
{
    at_point();
    return tell_max_threads(site_at(HERE));
}

PUBLIC int omp_get_num_threads(void)
{
    return tell_num_threads(site_at(HERE));
}

PUBLIC int omp_get_num_threads_(void)
{
    return tell_num_threads(site_at(HERE));
}

PUBLIC int omp_get_team_size(int level)
{
    return tell_team_size(site_at(HERE), level);
}

PUBLIC int omp_get_team_size_(const int32_t *level)
{
    return tell_team_size(site_at(HERE), *level);
}

PUBLIC int omp_get_team_size_8_(const int64_t *level)
{
    return tell_team_size(site_at(HERE), *level > INT_MAX ? INT_MAX : (int)*level);
}

PUBLIC int omp_get_num_procs(void)
{
    return tell_num_procs(site_at(HERE));
}

PUBLIC int omp_get_num_procs_(void)
{
    return tell_num_procs(site_at(HERE));
}

PUBLIC void omp_set_num_threads(int count)
{
    obey_num_threads(site_at(HERE), count);
}

PUBLIC void omp_set_num_threads_(const int32_t *count)
{
    obey_num_threads(site_at(HERE), *count);
}

PUBLIC void omp_set_num_threads_8_(const int64_t *count)
{
    obey_num_threads(site_at(HERE), *count > INT_MAX ? INT_MAX : (int)*count);
}
