/* SPDX-License-Identifier: Apache-2.0 */
/* The OpenMP runtimes of this process, and how many threads their parallel regions get. */
#ifndef DROM_OPENMP_H
#define DROM_OPENMP_H

#include <link.h>

#include "thread_queries.h"
#include "session.h"

/* Entry points of libgomp, and their versions: those that fork a team and return after the join, then those of gcc < 4.9, which
 * return before it. */
#define GOMP_ENTRIES(ENTRY)                                                                                                  \
    ENTRY(GOMP_parallel, GOMP_4.0)                                                                                           \
    ENTRY(GOMP_parallel_reductions, GOMP_5.0)                                                                                \
    ENTRY(GOMP_parallel_sections, GOMP_4.0)                                                                                  \
    ENTRY(GOMP_parallel_loop_static, GOMP_4.0)                                                                               \
    ENTRY(GOMP_parallel_loop_dynamic, GOMP_4.0)                                                                              \
    ENTRY(GOMP_parallel_loop_guided, GOMP_4.0)                                                                               \
    ENTRY(GOMP_parallel_loop_nonmonotonic_dynamic, GOMP_4.5)                                                                 \
    ENTRY(GOMP_parallel_loop_nonmonotonic_guided, GOMP_4.5)                                                                  \
    ENTRY(GOMP_parallel_loop_runtime, GOMP_4.0)                                                                              \
    ENTRY(GOMP_parallel_loop_nonmonotonic_runtime, GOMP_5.0)                                                                 \
    ENTRY(GOMP_parallel_loop_maybe_nonmonotonic_runtime, GOMP_5.0)                                                           \
    ENTRY(GOMP_parallel_start, GOMP_1.0)                                                                                     \
    ENTRY(GOMP_parallel_sections_start, GOMP_1.0)                                                                            \
    ENTRY(GOMP_parallel_loop_static_start, GOMP_1.0)                                                                         \
    ENTRY(GOMP_parallel_loop_dynamic_start, GOMP_1.0)                                                                        \
    ENTRY(GOMP_parallel_loop_guided_start, GOMP_1.0)                                                                         \
    ENTRY(GOMP_parallel_loop_runtime_start, GOMP_1.0)                                                                        \
    ENTRY(GOMP_parallel_end, GOMP_1.0)

enum gomp_entry {
#define NUMBER(name, version) AT_##name,
    GOMP_ENTRIES(NUMBER)
#undef NUMBER
    GOMP_ENTRY_COUNT
};

#define RUNTIMES_MOST 8 /* managed ones */

/* An OpenMP runtime. Its functions are never NULL: a missing one is replaced by one that does nothing. */
struct runtime {
    const void *base; /* where its file is loaded */
    unsigned number;  /* RUNTIMES_MOST: its teams are not changed */
    bool is_llvm;     /* reports regions through OMPT; keeps the surplus threads of a smaller team */
    bool is_queried_directly; /* the program's queries are not intercepted */
    int (*get_max_threads)(void);
    void (*set_num_threads)(int);
    int (*get_level)(void);
    int (*get_thread_num)(void);
    int (*get_num_threads)(void);
    int (*get_team_size)(int);
    int (*get_proc_bind)(void);
    int (*get_num_procs)(void);
    int (*get_thread_limit)(void);
    void *entry[GOMP_ENTRY_COUNT]; /* by entry_of() */
    const struct runtime *next;
};

/* A number of threads that was returned to the program, and the number without drom. */
struct reported {
    _Alignas(8) int number;
    int ceiling;
};

/* The record of an address in code. */
struct site {
    const void *address;   /* NULL: free */
    struct object *object; /* set last */
    struct place place;
};

/* A loaded file that uses OpenMP: the program or one of its libraries. */
struct object {
    const void *base;
    const struct runtime *runtime;
    bool has_thread_data; /* thread-local variables, perhaps threadprivate ones */
    bool is_blas;         /* a library with BLAS's functions: uses a number only in the call that queried it */
    struct thread_queries queries;
    struct reported reported; /* by its last query outside regions */
    struct site elsewhere;    /* shared by all addresses without a site of their own; its address is NULL */
    struct object *next;
};

/* objects.c */
enum { SITES = 4096 };
extern struct site sites[SITES];

static inline size_t first_place(const void *address)
{
    return ((uintptr_t)address * UINT64_C(0x9E3779B97F4A7C15)) >> 52; /* the upper 12 bits: SITES */
}

/* Return the site of a return address, or of a function. Never NULL. */
struct site *look_up(const void *address);

static inline bool is_site(const struct site *site, const void *address)
{
    return __atomic_load_n(&site->address, __ATOMIC_RELAXED) == address && __atomic_load_n(&site->object, __ATOMIC_ACQUIRE);
}

static inline struct site *site_at(const void *address)
{
    struct site *site = &sites[first_place(address)];
    return __builtin_expect(is_site(site, address), 1) ? site : look_up(address);
}

/* The same for an address together with a region of a file. */
struct site *site_of(struct object *object, const struct place *region, const void *address);

/* Return the load address of the file that contains an address, or NULL. */
const void *base_of(const void *address, struct link_map **map);

/* Forget files that are no longer loaded, as others may be loaded at their addresses. */
void forget_unloaded(void);

/* runtimes.c. Return the runtime that a function belongs to; the one that serves a file (NULL: code that is in none). */
extern const struct runtime no_runtime;
const struct runtime *runtime_of(const void *function);
const struct runtime *runtime_for(const struct link_map *map);
void *find_entry(enum gomp_entry which);

static inline void *entry_of(const struct runtime *runtime, enum gomp_entry which)
{
    void *entry = runtime->entry[which];
    return __builtin_expect(entry != NULL, 1) ? entry : find_entry(which);
}

/* team_size.c. Before an outermost region: set its number of threads without a num_threads clause, if it may change. `set_now` is
 * the number that seems to be set; 1 may be a region of one thread. Return the value for such a clause: 0 leaves the program's, or a
 * number. */
unsigned size_region(struct site *site, const struct runtime *runtime, int set_now);
/* Forget the number that is set in the calling thread: the runtime has initialised itself again. */
void forget_size(const struct runtime *runtime);
/* The file whose region the threads of each runtime execute. */
extern struct object *forking[RUNTIMES_MOST + 1];

/* Return whether a region is the one that was forked last before, too, and begins no round: if the program sets its size, nothing
 * is to be done. */
static inline bool is_again(const struct site *site)
{
    const struct object *object = site->object;
    return object->queries.region == &site->place && object->queries.turn != &site->place &&
           __atomic_load_n(&forking[object->runtime->number], __ATOMIC_RELAXED) == object;
}

/* The program's omp_get_max_threads(), omp_get_num_threads(), omp_get_team_size() and omp_set_num_threads(). */
int query_max_threads(struct site *site);
int query_num_threads(const struct site *site);
int query_team_size(const struct site *site, int level);
void set_num_threads(struct site *site, int count);

/* The program's omp_get_num_procs(): the maximum of CPUs that its job can get, which does not change while it runs. */
int query_num_procs(const struct site *site);

/* libomp.c: the region that this thread is about to fork in LLVM's runtime through an entry point of libgomp, or NULL. */
extern _Thread_local struct site *gomp_region;

#endif
