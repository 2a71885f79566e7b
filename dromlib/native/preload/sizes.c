/* SPDX-License-Identifier: Apache-2.0 */
/* How many threads a region gets.
 *
 * A program may have made buffers, or split work, by a number that it was told. So in the mode `auto` no region gets another
 * number than the file that forks it was told last. A file that never asked follows the grant. One that asks is told the
 * number it was launched with, its ceiling; if it asks again between its regions, as BLAS libraries do, it is told what the
 * grant has room for, and the region after that gets just that.
 *
 * In the mode `next-region` every region follows the grant, and the program is always told the ceiling. */
#include <stdlib.h>
#include <string.h>

#include "openmp.h"

enum mode { UNKNOWN, AUTO, NEXT_REGION };

/* Of one thread in one runtime; each thread that forks teams has its own setting. */
struct team {
    int ceiling; /* threads it would have without us; 0: not known yet */
    int size;    /* what is set now */
};

static _Thread_local struct team teams[RUNTIMES_MOST + 1];

static enum mode mode(void)
{
    static enum mode known;
    enum mode now = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (now == UNKNOWN) {
        const char *said = getenv("DROM_MALLEABILITY");
        now = said && strcmp(said, "next-region") == 0 ? NEXT_REGION : AUTO;
        __atomic_store_n(&known, now, __ATOMIC_RELAXED);
    }
    return now;
}

static bool learn(struct team *team, const struct runtime *runtime)
{
    if (team->ceiling == 0 && runtime->get_level() == 0)
        team->ceiling = team->size = runtime->get_max_threads();
    return team->ceiling != 0;
}

static int follow_grant(const struct team *team)
{
    uint32_t ncpus = __atomic_load_n(&session.ncpus, __ATOMIC_RELAXED);
    return ncpus && ncpus < (uint32_t)team->ceiling ? (int)ncpus : team->ceiling;
}

/* libgomp ends the threads that a smaller team leaves over, and their data with them. */
static bool keeps_threads(const struct object *object, const struct runtime *runtime)
{
    return object->has_thread_data && !runtime->is_llvm;
}

static int wanted(const struct object *object, const struct runtime *runtime, const struct team *team)
{
    if (mode() == NEXT_REGION)
        return follow_grant(team);
    int told = __atomic_load_n(&object->told, __ATOMIC_RELAXED);
    if (told)
        return told < team->ceiling ? told : team->ceiling;
    return keeps_threads(object, runtime) ? team->ceiling : follow_grant(team);
}

static void set(struct team *team, const struct runtime *runtime, int size)
{
    if (size == team->size)
        return;
    runtime->set_num_threads(size);
    team->size = size;
}

unsigned size_region(struct object *object, const struct runtime *runtime)
{
    struct team *team = &teams[runtime->number];
    if (!__atomic_load_n(&object->forked, __ATOMIC_RELAXED))
        __atomic_store_n(&object->forked, true, __ATOMIC_RELAXED);
    if (team->ceiling == 0 && !learn(team, runtime))
        return 0;
    int size = wanted(object, runtime, team);
    if (__builtin_expect(size == team->size, 1) || runtime->get_level() != 0)
        return 0;
    if (mode() == NEXT_REGION && !runtime->is_llvm)
        return (unsigned)size;
    set(team, runtime, size);
    return 0;
}

int tell_max_threads(struct object *object)
{
    const struct runtime *runtime = object->runtime;
    struct team *team = &teams[runtime->number];
    if (runtime->get_level() != 0 || !learn(team, runtime))
        return runtime->get_max_threads();
    if (mode() == NEXT_REGION)
        return team->ceiling;
    bool first = __atomic_load_n(&object->told, __ATOMIC_RELAXED) == 0 && !__atomic_load_n(&object->forked, __ATOMIC_RELAXED);
    bool again = __atomic_exchange_n(&object->forked, false, __ATOMIC_RELAXED);
    bool fixed = keeps_threads(object, runtime);
    int told = first || fixed ? team->ceiling : again ? follow_grant(team) : wanted(object, runtime, team);
    __atomic_store_n(&object->told, told, __ATOMIC_RELAXED);
    set(team, runtime, told);
    return told;
}

void obey_num_threads(struct object *object, int count)
{
    const struct runtime *runtime = object->runtime;
    runtime->set_num_threads(count);
    if (count < 1 || runtime->get_level() != 0)
        return;
    struct team *team = &teams[runtime->number];
    team->ceiling = team->size = runtime->get_max_threads();
    __atomic_store_n(&object->told, team->ceiling, __ATOMIC_RELAXED);
}
