/* SPDX-License-Identifier: Apache-2.0 */
/* Programs built by gcc: wrappers of libgomp's entry points for parallel regions. */
#include <sched.h>

#include "hooks.h"
#include "openmp.h"
#include "pinning.h"

/* A region's function. It identifies the file of a region; the return address does not, as a tail call returns to the caller's
 * caller. */
typedef void body(void *);

/* The data of placed_body(), which replaces a region's function if threads are to be bound. */
struct region {
    void *reductions; /* GOMP_parallel_reductions reads them here, at the start of its data */
    body *fn;
    void *data;
    const struct runtime *runtime;
    int home; /* the CPU of the thread that forks */
};

static void placed_body(void *at)
{
    const struct region *region = at;
    const struct runtime *runtime = region->runtime;
    if (runtime->get_level() == 1) {
        unsigned index = (unsigned)runtime->get_thread_num(), count = (unsigned)runtime->get_num_threads();
        if (is_pinned(runtime))
            pin_self(index, count, 0);
        else
            spread_self(index, count, region->home);
    }
    region->fn(region->data);
}

/* Return whether placed_body() is to replace a region's function. In LLVM's barriers threads yield to each other, so there is no need
 * to spread them. */
__attribute__((noinline, cold)) static bool wraps_body(struct region *region, body *fn, void *data, const struct runtime *runtime,
                                                       enum gomp_entry which)
{
    void *reductions = which == AT_GOMP_parallel_reductions ? *(void **)data : NULL;
    *region = (struct region){reductions, fn, data, runtime, sched_getcpu()};
    if (session.pinned)
        return is_pinned(runtime);
    if (runtime->is_llvm)
        end_placing();
    return !runtime->is_llvm;
}

/* LLVM's runtime has these entry points as well, but reports its regions through OMPT. */
static inline unsigned begin_region(struct site *site, unsigned threads)
{
    const struct runtime *runtime = site->object->runtime;
    if (__builtin_expect(runtime->is_llvm, 0)) {
        gomp_region = site;
        return threads;
    }
    at_point();
    if (__builtin_expect((threads != 0 && is_again(site)) || runtime->get_level() != 0, 0))
        return threads;
    unsigned size = size_region(site, runtime, runtime->get_max_threads());
    return threads == 0 ? size : threads;
}

static inline void end_region(const struct runtime *runtime)
{
    if (__builtin_expect(!runtime->is_llvm, 1))
        apply_grant_if_new();
}

/* Return the runtime's entry point if this region is handled like the one before: its size is the program's, there is no new grant,
 * and no thread is to be bound. Otherwise NULL. It calls nothing, so that such a region costs a few instructions. */
static inline void *entry_again(body *fn, unsigned threads, enum gomp_entry which)
{
    const struct site *site = &sites[first_place((void *)fn)];
    if (threads == 0 || !is_site(site, (void *)fn) || !is_again(site) || has_new_grant() || (is_placing() && threads != 1))
        return NULL;
    const struct runtime *runtime = site->object->runtime;
    return runtime->is_llvm ? NULL : runtime->entry[which];
}

#define UNPACK(...) __VA_ARGS__

/* Parameters after the number of threads, and their names. */
#define FORK(result, name, parameters, ...)                                                                                  \
    typedef result entry_##name(body *, void *, unsigned, UNPACK parameters);                                                \
    PUBLIC entry_##name name FRONT_OF(name);                                                                                 \
    __attribute__((noinline)) static result fork_##name(body *fn, void *data, unsigned threads, UNPACK parameters)           \
    {                                                                                                                        \
        struct site *site = site_at((void *)fn);                                                                             \
        const struct runtime *runtime = site->object->runtime;                                                               \
        entry_##name *real = (entry_##name *)entry_of(runtime, AT_##name);                                                   \
        struct region region;                                                                                                \
        threads = begin_region(site, threads);                                                                               \
        if (is_placing() && threads != 1 && wraps_body(&region, fn, data, runtime, AT_##name)) {                             \
            fn = placed_body;                                                                                                \
            data = &region;                                                                                                  \
        }                                                                                                                    \
        KEEP_##result real(fn, data, threads, __VA_ARGS__);                                                                  \
        end_region(runtime);                                                                                                 \
        GIVE_##result;                                                                                                       \
    }                                                                                                                        \
    PUBLIC result name(body *fn, void *data, unsigned threads, UNPACK parameters)                                            \
    {                                                                                                                        \
        entry_##name *real = (entry_##name *)entry_again(fn, threads, AT_##name);                                            \
        if (__builtin_expect(!real, 0)) {                                                                                    \
            KEEP_##result fork_##name(fn, data, threads, __VA_ARGS__);                                                       \
            GIVE_##result;                                                                                                   \
        }                                                                                                                    \
        count_point();                                                                                                       \
        KEEP_##result real(fn, data, threads, __VA_ARGS__);                                                                  \
        apply_grant_if_new();                                                                                                \
        GIVE_##result;                                                                                                       \
    }
#define KEEP_void
#define GIVE_void return
#define KEEP_unsigned unsigned kept =
#define GIVE_unsigned return kept

#define LOOP (long start, long end, long step, long chunk, unsigned flags)
#define PLAIN_LOOP (long start, long end, long step, unsigned flags)

FORK(void, GOMP_parallel, (unsigned flags), flags)
FORK(unsigned, GOMP_parallel_reductions, (unsigned flags), flags)
FORK(void, GOMP_parallel_sections, (unsigned count, unsigned flags), count, flags)
FORK(void, GOMP_parallel_loop_static, LOOP, start, end, step, chunk, flags)
FORK(void, GOMP_parallel_loop_dynamic, LOOP, start, end, step, chunk, flags)
FORK(void, GOMP_parallel_loop_guided, LOOP, start, end, step, chunk, flags)
FORK(void, GOMP_parallel_loop_nonmonotonic_dynamic, LOOP, start, end, step, chunk, flags)
FORK(void, GOMP_parallel_loop_nonmonotonic_guided, LOOP, start, end, step, chunk, flags)
FORK(void, GOMP_parallel_loop_runtime, PLAIN_LOOP, start, end, step, flags)
FORK(void, GOMP_parallel_loop_nonmonotonic_runtime, PLAIN_LOOP, start, end, step, flags)
FORK(void, GOMP_parallel_loop_maybe_nonmonotonic_runtime, PLAIN_LOOP, start, end, step, flags)

/* gcc before 4.9: the caller runs the region's function itself, and then calls GOMP_parallel_end(). */
static _Thread_local const struct runtime *started = &no_runtime;

#define START(name, parameters, ...)                                                                                         \
    PUBLIC void name(body *fn, void *data, unsigned threads UNPACK parameters) FRONT_OF(name);                               \
    PUBLIC void name(body *fn, void *data, unsigned threads UNPACK parameters)                                               \
    {                                                                                                                        \
        struct site *site = site_at((void *)fn);                                                                             \
        typedef void entry(body *, void *, unsigned UNPACK parameters);                                                      \
        started = site->object->runtime;                                                                                     \
        threads = begin_region(site, threads);                                                                               \
        ((entry *)entry_of(started, AT_##name))(fn, data, threads __VA_ARGS__);                                              \
    }

START(GOMP_parallel_start, ())
START(GOMP_parallel_sections_start, (, unsigned count), , count)
START(GOMP_parallel_loop_static_start, (, long start, long end, long step, long chunk), , start, end, step, chunk)
START(GOMP_parallel_loop_dynamic_start, (, long start, long end, long step, long chunk), , start, end, step, chunk)
START(GOMP_parallel_loop_guided_start, (, long start, long end, long step, long chunk), , start, end, step, chunk)
START(GOMP_parallel_loop_runtime_start, (, long start, long end, long step), , start, end, step)

PUBLIC void GOMP_parallel_end(void) FRONT_OF(GOMP_parallel_end);
PUBLIC void GOMP_parallel_end(void)
{
    const struct runtime *runtime = started;
    typedef void entry(void);
    ((entry *)entry_of(runtime, AT_GOMP_parallel_end))();
    end_region(runtime);
}

#define EXPORT_ENTRY(name, version)                                                                                          \
    EXPORT(name, version);                                                                                                   \
    EXPORT(name, VERSION);
GOMP_ENTRIES(EXPORT_ENTRY)

#define ENTRY_FRONT(name, version) {#name, (void *)name},
const struct front entry_fronts[] = {GOMP_ENTRIES(ENTRY_FRONT)};
const size_t entry_front_count = sizeof entry_fronts / sizeof *entry_fronts;
