/* SPDX-License-Identifier: Apache-2.0 */
/* The OpenMP runtimes of this process, and how many threads their parallel regions get. */
#ifndef DROM_OPENMP_H
#define DROM_OPENMP_H

#include <link.h>

#include "answers.h"
#include "session.h"

/* Entry points of libgomp, and their versions: those that fork a team and return when it has joined, then those of gcc < 4.9,
 * which return before. */
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

#define RUNTIMES_MOST 8 /* that are managed */

/* An OpenMP runtime. Its functions are never NULL: one that is missing does nothing. */
struct runtime {
    const void *base; /* where its file is loaded */
    unsigned number;  /* RUNTIMES_MOST: its teams are left as they are */
    bool is_llvm;     /* tells us of regions itself, through OMPT; keeps the threads that a smaller team leaves over */
    bool is_asked_past_us; /* what is told to the program is not known */
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

/* A number of threads, and how many there would have been without us. */
struct told {
    _Alignas(8) int number;
    int ceiling;
};

/* What is known of an address in code. */
struct site {
    const void *address;   /* NULL: there is room */
    struct object *object; /* set last */
    struct place place;
};

/* A loaded file that uses OpenMP: the program or one of its libraries. */
struct object {
    const void *base;
    const struct runtime *runtime;
    bool has_thread_data; /* thread-local variables, so perhaps threadprivate ones */
    bool is_blas;         /* a library with BLAS's functions: uses a number in the call in which it asked */
    struct answers answers;
    struct told told;      /* when it last asked outside regions */
    struct site elsewhere; /* for all addresses that have no site of their own; its own is NULL */
    struct object *next;
};

/* objects.c */
enum { SITES = 4096 };
extern struct site sites[SITES];

static inline size_t first_place(const void *address)
{
    return ((uintptr_t)address * UINT64_C(0x9E3779B97F4A7C15)) >> 52; /* the upper 12 bits: SITES */
}

/* What is known of a return address, or of a function. Never NULL. */
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

/* Likewise of an address together with a region of a file. */
struct site *site_of(struct object *object, const struct place *region, const void *address);

/* The file that an address is in: where it is loaded, or NULL. */
const void *base_of(const void *address, struct link_map **map);

/* What is known of files that are no longer loaded is not to be held of others that are loaded in their place. */
void forget_unloaded(void);

/* runtimes.c: the runtime that a function belongs to; the one that serves a file (NULL: code that is in none). */
extern const struct runtime no_runtime;
const struct runtime *runtime_of(const void *function);
const struct runtime *runtime_for(const struct link_map *map);
void *find_entry(enum gomp_entry which);

static inline void *entry_of(const struct runtime *runtime, enum gomp_entry which)
{
    void *entry = runtime->entry[which];
    return __builtin_expect(entry != NULL, 1) ? entry : find_entry(which);
}

/* sizes.c. Before a region outside others: the number of threads that it has without a num_threads clause is set where that
 * is right. `set_now` is what seems to be set; 1 may be a region of one thread. Returns the value for such a clause: 0, as the
 * program said, or a number. */
unsigned size_region(struct site *site, const struct runtime *runtime, int set_now);
/* A runtime has started anew: what was set in the calling thread is set no more. */
void forget_size(const struct runtime *runtime);
/* In whose regions the threads of each runtime are. */
extern struct object *forking[RUNTIMES_MOST + 1];

/* Whether a region is the one that was forked last before, too, and begins no round: if its size is not ours to say, nothing is
 * new. */
static inline bool is_again(const struct site *site)
{
    const struct object *object = site->object;
    return object->answers.region == &site->place && object->answers.turn != &site->place &&
           __atomic_load_n(&forking[object->runtime->number], __ATOMIC_RELAXED) == object;
}

/* What omp_get_max_threads(), omp_get_num_threads(), omp_get_team_size() and omp_set_num_threads() do for the program. */
int tell_max_threads(struct site *site);
int tell_num_threads(const struct site *site);
int tell_team_size(const struct site *site, int level);
void obey_num_threads(struct site *site, int count);

/* What omp_get_num_procs() does: the CPUs that the program's job can come to have, the same for as long as it runs. */
int tell_num_procs(const struct site *site);

/* libomp.c: the region that this thread is about to fork in LLVM's runtime through an entry point of libgomp, or NULL. */
extern _Thread_local struct site *gomp_region;

#endif
