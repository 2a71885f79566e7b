/* SPDX-License-Identifier: Apache-2.0 */
/* The OpenMP runtimes of this process, and how many threads their parallel regions get. */
#ifndef DROM_OPENMP_H
#define DROM_OPENMP_H

#include "answers.h"
#include "session.h"

/* Entry points of libgomp that fork a team and return when it has joined, then those of gcc < 4.9, which return before. */
#define GOMP_ENTRIES(ENTRY)                                                                                                  \
    ENTRY(GOMP_parallel)                                                                                                     \
    ENTRY(GOMP_parallel_reductions)                                                                                          \
    ENTRY(GOMP_parallel_sections)                                                                                            \
    ENTRY(GOMP_parallel_loop_static)                                                                                         \
    ENTRY(GOMP_parallel_loop_dynamic)                                                                                        \
    ENTRY(GOMP_parallel_loop_guided)                                                                                         \
    ENTRY(GOMP_parallel_loop_nonmonotonic_dynamic)                                                                           \
    ENTRY(GOMP_parallel_loop_nonmonotonic_guided)                                                                            \
    ENTRY(GOMP_parallel_loop_runtime)                                                                                        \
    ENTRY(GOMP_parallel_loop_nonmonotonic_runtime)                                                                           \
    ENTRY(GOMP_parallel_loop_maybe_nonmonotonic_runtime)                                                                     \
    ENTRY(GOMP_parallel_start)                                                                                               \
    ENTRY(GOMP_parallel_sections_start)                                                                                      \
    ENTRY(GOMP_parallel_loop_static_start)                                                                                   \
    ENTRY(GOMP_parallel_loop_dynamic_start)                                                                                  \
    ENTRY(GOMP_parallel_loop_guided_start)                                                                                   \
    ENTRY(GOMP_parallel_loop_runtime_start)                                                                                  \
    ENTRY(GOMP_parallel_end)

enum gomp_entry {
#define NUMBER(name) AT_##name,
    GOMP_ENTRIES(NUMBER)
#undef NUMBER
    GOMP_ENTRY_COUNT
};

#define RUNTIMES_MOST 8 /* and one for none */

/* An OpenMP runtime. Its functions are never NULL: one that is missing does nothing. */
struct runtime {
    const void *base; /* where its file is loaded */
    unsigned number;  /* below RUNTIMES_MOST */
    bool is_llvm;     /* tells us of regions itself, through OMPT; keeps the threads that a smaller team leaves over */
    int (*get_max_threads)(void);
    void (*set_num_threads)(int);
    int (*get_level)(void);
    int (*get_thread_num)(void);
    int (*get_num_threads)(void);
    int (*get_proc_bind)(void);
    void *entry[GOMP_ENTRY_COUNT];
    const struct runtime *next;
};

/* A loaded file that uses OpenMP: the program or one of its libraries. */
struct object {
    const void *base;
    const struct runtime *runtime;
    bool has_thread_data; /* thread-local variables, so perhaps threadprivate ones */
    bool is_blas;         /* a library with BLAS's functions: uses a number in the call in which it asked */
    struct answers answers;
    struct object *next;
};

/* objects.c: what is known of return addresses; each is published once and never freed. */
struct site {
    const void *address;
    struct object *object;
};
enum { SITES = 4096 };
extern struct site *sites[SITES];

static inline size_t first_place(const void *address)
{
    return ((uintptr_t)address * UINT64_C(0x9E3779B97F4A7C15)) >> 52; /* the upper 12 bits: SITES */
}

/* Whose code is at a return address. Never NULL. */
struct object *look_up(const void *address);

static inline struct object *object_at(const void *address)
{
    const struct site *site = __atomic_load_n(&sites[first_place(address)], __ATOMIC_ACQUIRE);
    return __builtin_expect(site && site->address == address, 1) ? site->object : look_up(address);
}

const struct runtime *runtime_of(const void *function);

/* sizes.c. Before a region without a num_threads clause: its number of threads is set where that is right. Returns the value
 * for such a clause: 0, as the program said, or a number. */
unsigned size_region(struct object *object, const struct runtime *runtime, const void *address);
/* What omp_get_max_threads(), omp_get_num_threads() and omp_set_num_threads() do for the program. */
int tell_max_threads(struct object *object, const void *address);
int tell_num_threads(struct object *object);
void obey_num_threads(struct object *object, int count, const void *address);

/* libomp.c: where this thread is about to fork a team of LLVM's runtime through an entry point of libgomp; NULL: nowhere. */
extern _Thread_local const void *gomp_caller;

#endif
