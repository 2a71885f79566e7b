/* SPDX-License-Identifier: Apache-2.0 */
/* MPI: every call that blocks or completes is a malleability point. The wrappers use only the names of MPI's functions and their
 * numbers of parameters, so they work with every MPI library. Each ends in a tail call of the next function of its name: the
 * library's, or that of a tool that was loaded after this library. */
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

#include "hooks.h"
#include "mpi_calls.h"
#include "session.h"

/* A parameter: handles, counts and addresses are all passed in a register, or on the stack, of this size. */
typedef intptr_t word;

#define COLD __attribute__((noinline, cold))

enum { ERR_OTHER = 1 }; /* 0 is MPI_SUCCESS */

static word missing(void)
{
    return ERR_OTHER;
}

struct search {
    int skip;
    const char *found;
};

static int is_library(struct dl_phdr_info *info, size_t size, void *data)
{
    struct search *search = data;
    (void)size;
    if (!strstr(info->dlpi_name, "/libmpi") || search->skip-- > 0)
        return 0;
    search->found = info->dlpi_name;
    return 1;
}

/* Search libraries that were loaded with RTLD_LOCAL, as for a module of Python. The library found stays loaded for ever. */
static void *look_everywhere(const char *name)
{
    for (int i = 0;; i++) {
        struct search search = {i, NULL};
        if (!dl_iterate_phdr(is_library, &search))
            return NULL;
        void *file = dlopen(search.found, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
        void *function = file ? dlsym(file, name) : NULL;
        if (function)
            return function;
    }
}

void *find_mpi(const char *name)
{
    void *found = dlsym(RTLD_DEFAULT, name);
    return found ? found : look_everywhere(name);
}

/* Return the function behind a wrapper. Any thread may search; all find the same. */
static void *find(void **real, const char *name)
{
    void *found = __atomic_load_n(real, __ATOMIC_RELAXED);
    if (found)
        return found;
    found = find_mpi(name);
    if (!found)
        found = (void *)missing;
    report_points(DROM_POINTS_MPI);
    __atomic_store_n(real, found, __ATOMIC_RELAXED);
    return found;
}

#define PARAMETERS_0 void
#define PARAMETERS_1 word a
#define PARAMETERS_2 PARAMETERS_1, word b
#define PARAMETERS_3 PARAMETERS_2, word c
#define PARAMETERS_4 PARAMETERS_3, word d
#define PARAMETERS_5 PARAMETERS_4, word e
#define PARAMETERS_6 PARAMETERS_5, word f
#define PARAMETERS_7 PARAMETERS_6, word g
#define PARAMETERS_8 PARAMETERS_7, word h
#define PARAMETERS_9 PARAMETERS_8, word i
#define PARAMETERS_10 PARAMETERS_9, word j
#define PARAMETERS_11 PARAMETERS_10, word k
#define PARAMETERS_12 PARAMETERS_11, word l
#define PARAMETERS_13 PARAMETERS_12, word m

#define PASS_0
#define PASS_1 a
#define PASS_2 PASS_1, b
#define PASS_3 PASS_2, c
#define PASS_4 PASS_3, d
#define PASS_5 PASS_4, e
#define PASS_6 PASS_5, f
#define PASS_7 PASS_6, g
#define PASS_8 PASS_7, h
#define PASS_9 PASS_8, i
#define PASS_10 PASS_9, j
#define PASS_11 PASS_10, k
#define PASS_12 PASS_11, l
#define PASS_13 PASS_12, m

/* A wrapper. The rare work has a function of its own, so that no parameter is saved in the usual case. */
#define FRONT(name, count)                                                                                                   \
    static void *real_##name;                                                                                                \
    static COLD word rare_##name(PARAMETERS_##count)                                                                         \
    {                                                                                                                        \
        word (*real)(PARAMETERS_##count) = find(&real_##name, #name);                                                        \
        at_point();                                                                                                          \
        return real(PASS_##count);                                                                                           \
    }                                                                                                                        \
    static word name(PARAMETERS_##count)                                                                                     \
    {                                                                                                                        \
        word (*real)(PARAMETERS_##count) = __atomic_load_n(&real_##name, __ATOMIC_RELAXED);                                  \
        if (__builtin_expect(!real || has_new_grant(), 0))                                                                   \
            return rare_##name(PASS_##count);                                                                                \
        count_point();                                                                                                       \
        return real(PASS_##count);                                                                                           \
    }

#define MORE_0 1
#define MORE_1 2
#define MORE_2 3
#define MORE_3 4
#define MORE_4 5
#define MORE_5 6
#define MORE_6 7
#define MORE_7 8
#define MORE_8 9
#define MORE_9 10
#define MORE_10 11
#define MORE_11 12
#define MORE_12 13

/* The names that Fortran compilers generate on Linux; then those of the module mpi_f08. */
#define FORTRAN(name, count)                                                                                                 \
    FRONT(mpi_##name##_, count)                                                                                              \
    FRONT(mpi_##name##__, count)                                                                                             \
    FRONT(mpi_##name##_f08_, count)                                                                                          \
    FRONT(mpi_##name##_f08ts_, count)
#define FORTRAN_OF(name, count) FORTRAN(name, count)

#define ALL(c_name, fortran_name, count)                                                                                     \
    FRONT(MPI_##c_name, count)                                                                                               \
    FORTRAN_OF(fortran_name, MORE_##count)
#define ALL_AND_WIDE(c_name, fortran_name, count)                                                                            \
    ALL(c_name, fortran_name, count)                                                                                         \
    FRONT(MPI_##c_name##_c, count)

MPI_CALLS(ALL)
MPI_COUNTING_CALLS(ALL_AND_WIDE)

#define NAMED(name) {#name, (void *)name},
#define ALL_NAMED(c_name, fortran_name, count)                                                                               \
    NAMED(MPI_##c_name)                                                                                                      \
    NAMED(mpi_##fortran_name##_)                                                                                             \
    NAMED(mpi_##fortran_name##__)                                                                                            \
    NAMED(mpi_##fortran_name##_f08_)                                                                                         \
    NAMED(mpi_##fortran_name##_f08ts_)
#define ALL_AND_WIDE_NAMED(c_name, fortran_name, count)                                                                      \
    ALL_NAMED(c_name, fortran_name, count)                                                                                   \
    NAMED(MPI_##c_name##_c)
const struct front mpi_fronts[] = {MPI_CALLS(ALL_NAMED) MPI_COUNTING_CALLS(ALL_AND_WIDE_NAMED)};
const size_t mpi_front_count = sizeof mpi_fronts / sizeof *mpi_fronts;
