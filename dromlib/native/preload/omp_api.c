/* SPDX-License-Identifier: Apache-2.0 */
/* Wrappers of the OpenMP API calls that return the number of threads or of CPUs, or set the former, for C and Fortran. */
#include "hooks.h"
#include "openmp.h"

#define HERE __builtin_return_address(0)

/* Their versions in GNU's runtime; LLVM's has these and its own, VERSION. */
#define CALLS(CALL)                                                                                                          \
    CALL(omp_get_max_threads, OMP_1.0) CALL(omp_get_max_threads_, OMP_1.0) CALL(omp_get_num_threads, OMP_1.0)                \
    CALL(omp_get_num_threads_, OMP_1.0) CALL(omp_get_team_size, OMP_3.0) CALL(omp_get_team_size_, OMP_3.0)                   \
    CALL(omp_get_team_size_8_, OMP_3.0) CALL(omp_get_num_procs, OMP_1.0) CALL(omp_get_num_procs_, OMP_1.0)                   \
    CALL(omp_set_num_threads, OMP_1.0) CALL(omp_set_num_threads_, OMP_1.0) CALL(omp_set_num_threads_8_, OMP_1.0)

PUBLIC int omp_get_max_threads(void) FRONT_OF(omp_get_max_threads);
PUBLIC int omp_get_max_threads_(void) FRONT_OF(omp_get_max_threads_);
PUBLIC int omp_get_num_threads(void) FRONT_OF(omp_get_num_threads);
PUBLIC int omp_get_num_threads_(void) FRONT_OF(omp_get_num_threads_);
PUBLIC int omp_get_team_size(int level) FRONT_OF(omp_get_team_size);
PUBLIC int omp_get_team_size_(const int32_t *level) FRONT_OF(omp_get_team_size_);
PUBLIC int omp_get_team_size_8_(const int64_t *level) FRONT_OF(omp_get_team_size_8_);
PUBLIC int omp_get_num_procs(void) FRONT_OF(omp_get_num_procs);
PUBLIC int omp_get_num_procs_(void) FRONT_OF(omp_get_num_procs_);
PUBLIC void omp_set_num_threads(int count) FRONT_OF(omp_set_num_threads);
PUBLIC void omp_set_num_threads_(const int32_t *count) FRONT_OF(omp_set_num_threads_);
PUBLIC void omp_set_num_threads_8_(const int64_t *count) FRONT_OF(omp_set_num_threads_8_);

#define EXPORT_CALL(name, version)                                                                                           \
    EXPORT(name, version);                                                                                                   \
    EXPORT(name, VERSION);
CALLS(EXPORT_CALL)

#define FRONT(name, version) {#name, (void *)name},
const struct front call_fronts[] = {CALLS(FRONT)};
const size_t call_front_count = sizeof call_fronts / sizeof *call_fronts;

PUBLIC int omp_get_max_threads(void)
{
    at_point();
    return query_max_threads(site_at(HERE));
}

PUBLIC int omp_get_max_threads_(void)
{
    at_point();
    return query_max_threads(site_at(HERE));
}

PUBLIC int omp_get_num_threads(void)
{
    return query_num_threads(site_at(HERE));
}

PUBLIC int omp_get_num_threads_(void)
{
    return query_num_threads(site_at(HERE));
}

PUBLIC int omp_get_team_size(int level)
{
    return query_team_size(site_at(HERE), level);
}

PUBLIC int omp_get_team_size_(const int32_t *level)
{
    return query_team_size(site_at(HERE), *level);
}

PUBLIC int omp_get_team_size_8_(const int64_t *level)
{
    return query_team_size(site_at(HERE), *level > INT_MAX ? INT_MAX : (int)*level);
}

PUBLIC int omp_get_num_procs(void)
{
    return query_num_procs(site_at(HERE));
}

PUBLIC int omp_get_num_procs_(void)
{
    return query_num_procs(site_at(HERE));
}

PUBLIC void omp_set_num_threads(int count)
{
    set_num_threads(site_at(HERE), count);
}

PUBLIC void omp_set_num_threads_(const int32_t *count)
{
    set_num_threads(site_at(HERE), *count);
}

PUBLIC void omp_set_num_threads_8_(const int64_t *count)
{
    set_num_threads(site_at(HERE), *count > INT_MAX ? INT_MAX : (int)*count);
}
