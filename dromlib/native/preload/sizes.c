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

#include "hooks.h"
#include "openmp.h"

enum mode { UNKNOWN, AUTO, NEXT_REGION };

/* Of one thread in one runtime; each thread that forks teams has its own setting. */
struct team {
    int ceiling;      /* threads it would have without us; 0: not known yet */
    int size;         /* what is set now */
    struct told ours; /* what was set from here last */
};

static _Thread_local struct team teams[RUNTIMES_MOST];
struct object *forking[RUNTIMES_MOST + 1];

static enum mode mode(void)
{
    static enum mode known;
    enum mode now = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (now == UNKNOWN) {
        const char *said = dromi_setting("DROM_MALLEABILITY");
        now = said && strcmp(said, "next-region") == 0 ? NEXT_REGION : AUTO;
        __atomic_store_n(&known, now, __ATOMIC_RELAXED);
    }
    return now;
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* What drom-run has written down of the launch; 1 where it has not launched the program. */
static int most_cpus(void)
{
    static int known;
    int now = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (now == 0) {
        const char *said = dromi_setting("DROM_MAX_CPUS");
        uint64_t number;
        now = said && dromi_number(&said, &number) && number >= 1 && number <= DROM_MAX_MASK_BITS ? (int)number : 1;
        __atomic_store_n(&known, now, __ATOMIC_RELAXED);
    }
    return now;
}

static int follow_grant(const struct team *team)
{
    uint32_t ncpus = __atomic_load_n(&session.ncpus, __ATOMIC_RELAXED);
    return ncpus && ncpus < (uint32_t)team->ceiling ? (int)ncpus : WHOLE;
}

/* Somebody else has set the number. Who sets one that he was told has no wish of his own, and puts back what there was. */
__attribute__((noinline, cold)) static bool heed(struct team *team, int size, const struct told *told)
{
    bool is_old = size == told->number;
    team->size = size;
    team->ceiling = is_old ? told->ceiling : size;
    return is_old;
}

/* A runtime counts the CPUs that the program was launched on. Those that it can come to have count instead, as far as the user's
 * limits allow, unless the user or the program has set a number. They are not in the environment as OMP_NUM_THREADS: other
 * programs obey that, too (nproc). */
__attribute__((noinline, cold)) static int widen(const struct runtime *runtime, int size)
{
    int cpus = most_cpus(), most = least(size > cpus ? size : cpus, runtime->get_thread_limit());
    if (most == size || session.sized || getenv("OMP_NUM_THREADS") || is_setter_known())
        return size;
    runtime->set_num_threads(most);
    return runtime->get_max_threads();
}

/* Outside regions. Not every setter passes by us: some have the runtime's function from its handle. */
static struct team *team_in(const struct runtime *runtime)
{
    struct team *team = &teams[runtime->number];
    int size = runtime->get_max_threads();
    if (__builtin_expect(team->ceiling == 0, 0))
        size = widen(runtime, size);
    if (__builtin_expect(size != team->size, 0))
        heed(team, size, &team->ours);
    return team;
}

/* libgomp ends the threads that a smaller team leaves over, and their data with them. And a file may work by numbers that it
 * was told past us. */
static bool keeps_threads(const struct object *object, const struct runtime *runtime)
{
    return runtime->is_asked_past_us || (object->has_thread_data && !runtime->is_llvm);
}

static void set(struct team *team, const struct runtime *runtime, int size)
{
    if (size == team->size)
        return;
    runtime->set_num_threads(size);
    team->size = runtime->get_max_threads();
    team->ours = (struct told){team->size, team->ceiling};
}

static int wanted(struct site *site, const struct runtime *runtime, const struct team *team)
{
    if (mode() == NEXT_REGION)
        return follow_grant(team);
    if (site->object->is_blas && !runtime->is_asked_past_us)
        return team->size;
    return keeps_threads(site->object, runtime) ? WHOLE : answer_region(&site->object->answers, &site->place, follow_grant(team));
}

void forget_size(const struct runtime *runtime)
{
    if (runtime->number < RUNTIMES_MOST)
        teams[runtime->number] = (struct team){0};
}

unsigned size_region(struct site *site, const struct runtime *runtime, int set_now)
{
    if (runtime->number >= RUNTIMES_MOST)
        return 0;
    struct team *team = &teams[runtime->number];
    struct object **mine = &forking[runtime->number];
    if (set_now == 1 && team->size > 1 && is_again(site))
        return 0; /* of one thread, as its program says */
    if (__builtin_expect(set_now != team->size && (set_now > 1 || team->ceiling == 0), 0))
        team_in(runtime);
    if (__atomic_load_n(mine, __ATOMIC_RELAXED) != site->object)
        __atomic_store_n(mine, site->object, __ATOMIC_RELAXED);
    int size = wanted(site, runtime, team);
    if (__builtin_expect(least(size, team->ceiling) == team->size, 1))
        return 0;
    size = least(size, team_in(runtime)->ceiling);
    if (mode() == NEXT_REGION && !runtime->is_llvm)
        return (unsigned)size;
    set(team, runtime, size);
    return 0;
}

/* In a region its size is being asked for: the file that has forked it learns that, at a place of that region. Another file
 * may keep for its own regions what it was told there. */
static void hear_of(const struct site *site)
{
    struct object *object = site->object;
    const struct runtime *runtime = object->runtime;
    if (object->is_blas)
        return;
    struct object *mine = __atomic_load_n(&forking[runtime->number], __ATOMIC_RELAXED);
    struct place *region = mine ? __atomic_load_n(&mine->answers.region, __ATOMIC_RELAXED) : NULL;
    struct site *place = region ? site_of(mine, region, site->address) : NULL;
    if (place && place->address)
        hear(&mine->answers, &place->place, region);
    else if (place)
        keep_for_good(&mine->answers);
    if (mine != object)
        keep_for_good(&object->answers);
}

static int answer(struct site *site, const struct team *team)
{
    struct object *object = site->object;
    if (mode() == NEXT_REGION || keeps_threads(object, object->runtime))
        return WHOLE;
    if (object->is_blas)
        return follow_grant(team);
    if (!site->address) /* one of several */
        return keep_for_good(&object->answers);
    return answer_call(&object->answers, &site->place, follow_grant(team));
}

int tell_max_threads(struct site *site)
{
    struct object *object = site->object;
    const struct runtime *runtime = object->runtime;
    if (runtime->number >= RUNTIMES_MOST)
        return runtime->get_max_threads();
    if (runtime->get_level() != 0) {
        hear_of(site);
        return runtime->get_max_threads();
    }
    struct team *team = team_in(runtime);
    int size = least(answer(site, team), team->ceiling);
    if (mode() == NEXT_REGION)
        return size;
    set(team, runtime, size);
    struct told told = {team->size, team->ceiling};
    __atomic_store(&object->told, &told, __ATOMIC_RELAXED);
    return team->size;
}

int tell_num_threads(const struct site *site)
{
    const struct runtime *runtime = site->object->runtime;
    if (runtime->get_level() != 0)
        hear_of(site);
    return runtime->get_num_threads();
}

int tell_team_size(const struct site *site, int level)
{
    if (level != 0)
        hear_of(site);
    return site->object->runtime->get_team_size(level);
}

void obey_num_threads(struct site *site, int count)
{
    struct object *object = site->object;
    const struct runtime *runtime = object->runtime;
    runtime->set_num_threads(count);
    if (count < 1 || runtime->number >= RUNTIMES_MOST || runtime->get_level() != 0)
        return;
    struct team *team = &teams[runtime->number];
    struct told told;
    __atomic_load(&object->told, &told, __ATOMIC_RELAXED);
    bool is_old = heed(team, runtime->get_max_threads(), &told);
    if (!object->is_blas)
        keep_number(&object->answers, &site->place, is_old && team->size < team->ceiling ? team->size : WHOLE);
}

/* drom-run launches the program on fewer CPUs with as many threads as it can ever use. Alone it would find as many CPUs as
 * threads, make buffers for them, or set its number by them. So it finds the most that its grant can have, whoever has set
 * OMP_NUM_THREADS: a user's larger number is beyond the CPUs without us, too. As the answer never changes, it is no question
 * by which a round is counted (answers.h), and no region ever has more threads by our doing. */
int tell_num_procs(const struct site *site)
{
    int real = site->object->runtime->get_num_procs(), most = most_cpus();
    return real > most ? real : most;
}
