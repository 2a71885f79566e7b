/* SPDX-License-Identifier: Apache-2.0 */
/* How many threads a region gets.
 *
 * In the mode `auto` no region gets another number than what its file may still work by (answers.h). A BLAS asks in each of its
 * calls for the regions of that call alone: it is told what the grant has room for.
 *
 * In the mode `next-region` every region follows the grant, and the program is always told the number it was launched with,
 * its ceiling. */
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

/* What the file's answers come to: at most what this thread was launched with. */
static int ask(int answer(struct answers *, const void *, int, int), struct object *object, const struct team *team,
               const void *address)
{
    int size = answer(&object->answers, address, team->ceiling, follow_grant(team));
    return size < team->ceiling ? size : team->ceiling;
}

/* libgomp ends the threads that a smaller team leaves over, and their data with them. */
static bool keeps_threads(const struct object *object, const struct runtime *runtime)
{
    return object->has_thread_data && !runtime->is_llvm;
}

static int wanted(struct object *object, const struct runtime *runtime, const struct team *team, const void *address)
{
    if (mode() == NEXT_REGION)
        return follow_grant(team);
    if (object->is_blas)
        return team->size;
    if (keeps_threads(object, runtime))
        return team->ceiling;
    return ask(answer_region, object, team, address);
}

static void set(struct team *team, const struct runtime *runtime, int size)
{
    if (size == team->size)
        return;
    runtime->set_num_threads(size);
    team->size = size;
}

unsigned size_region(struct object *object, const struct runtime *runtime, const void *address)
{
    struct team *team = &teams[runtime->number];
    if (team->ceiling == 0 && !learn(team, runtime))
        return 0;
    int size = wanted(object, runtime, team, address);
    if (__builtin_expect(size == team->size, 1) || runtime->get_level() != 0)
        return 0;
    if (mode() == NEXT_REGION && !runtime->is_llvm)
        return (unsigned)size;
    set(team, runtime, size);
    return 0;
}

int tell_max_threads(struct object *object, const void *address)
{
    const struct runtime *runtime = object->runtime;
    struct team *team = &teams[runtime->number];
    if (runtime->get_level() != 0 || !learn(team, runtime))
        return runtime->get_max_threads();
    if (mode() == NEXT_REGION)
        return team->ceiling;
    int told = team->ceiling;
    if (!keeps_threads(object, runtime))
        told = object->is_blas ? follow_grant(team) : ask(answer_call, object, team, address);
    set(team, runtime, told);
    return team->size;
}

int tell_num_threads(struct object *object)
{
    if (object->runtime->get_level() == 1)
        hear(&object->answers);
    return object->runtime->get_num_threads();
}

void obey_num_threads(struct object *object, int count, const void *address)
{
    const struct runtime *runtime = object->runtime;
    runtime->set_num_threads(count);
    if (count < 1 || runtime->get_level() != 0)
        return;
    struct team *team = &teams[runtime->number];
    team->ceiling = team->size = runtime->get_max_threads();
    keep_number(&object->answers, address, team->ceiling);
}
