/* SPDX-License-Identifier: Apache-2.0 */
/* Programs built by gcc: its entry points for parallel regions, in front of the runtime's own. */
#include <sched.h>

#include "openmp.h"
#include "pinning.h"

#define PUBLIC __attribute__((visibility("default")))
#define HERE __builtin_return_address(0)

typedef void body(void *);

/* What stands in for a region's function where threads are to be bound. */
struct region {
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

/* Whether it is to stand in: in LLVM's barriers threads give way to each other by themselves. */
__attribute__((noinline, cold)) static bool stands_in(struct region *region, body *fn, void *data, const struct runtime *runtime)
{
    *region = (struct region){fn, data, runtime, sched_getcpu()};
    if (session.pinned)
        return is_pinned(runtime);
    if (runtime->is_llvm)
        end_placing();
    return !runtime->is_llvm;
}

/* LLVM's runtime has these entry points as well, and tells us of its regions by itself. */
static inline unsigned enter(struct object *object, unsigned threads, const void *address)
{
    if (object->runtime->is_llvm) {
        gomp_caller = address;
        return threads;
    }
    at_point();
    return threads == 0 ? size_region(object, object->runtime, address) : threads;
}

static inline void leave(const struct object *object)
{
    if (!object->runtime->is_llvm)
        heed_news();
}

#define UNPACK(...) __VA_ARGS__

/* Parameters after the number of threads, and their names. */
#define FORK(result, name, parameters, ...)                                                                                  \
    PUBLIC result name(body *fn, void *data, unsigned threads, UNPACK parameters);                                           \
    PUBLIC result name(body *fn, void *data, unsigned threads, UNPACK parameters)                                            \
    {                                                                                                                        \
        struct object *object = object_at(HERE);                                                                             \
        typedef result entry(body *, void *, unsigned, UNPACK parameters);                                                   \
        entry *real = (entry *)object->runtime->entry[AT_##name];                                                            \
        struct region region;                                                                                                \
        threads = enter(object, threads, HERE);                                                                              \
        if (is_placing() && threads != 1 && stands_in(&region, fn, data, object->runtime)) {                                 \
            fn = placed_body;                                                                                                \
            data = &region;                                                                                                  \
        }                                                                                                                    \
        KEEP_##result real(fn, data, threads, __VA_ARGS__);                                                                  \
        leave(object);                                                                                                       \
        GIVE_##result;                                                                                                       \
    }
#define KEEP_void
#define GIVE_void
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

/* gcc before 4.9: the caller runs the region's function itself, and says when it is done. */
#define START(name, parameters, ...)                                                                                         \
    PUBLIC void name(body *fn, void *data, unsigned threads UNPACK parameters);                                              \
    PUBLIC void name(body *fn, void *data, unsigned threads UNPACK parameters)                                               \
    {                                                                                                                        \
        struct object *object = object_at(HERE);                                                                             \
        typedef void entry(body *, void *, unsigned UNPACK parameters);                                                      \
        threads = enter(object, threads, HERE);                                                                              \
        ((entry *)object->runtime->entry[AT_##name])(fn, data, threads __VA_ARGS__);                                         \
    }

START(GOMP_parallel_start, ())
START(GOMP_parallel_sections_start, (, unsigned count), , count)
START(GOMP_parallel_loop_static_start, (, long start, long end, long step, long chunk), , start, end, step, chunk)
START(GOMP_parallel_loop_dynamic_start, (, long start, long end, long step, long chunk), , start, end, step, chunk)
START(GOMP_parallel_loop_guided_start, (, long start, long end, long step, long chunk), , start, end, step, chunk)
START(GOMP_parallel_loop_runtime_start, (, long start, long end, long step), , start, end, step)

PUBLIC void GOMP_parallel_end(void);
PUBLIC void GOMP_parallel_end(void)
{
    struct object *object = object_at(HERE);
    typedef void entry(void);
    ((entry *)object->runtime->entry[AT_GOMP_parallel_end])();
    leave(object);
}
