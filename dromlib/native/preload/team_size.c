/* SPDX-License-Identifier: Apache-2.0 */
/* How many threads a region gets.
 *
 * In the mode `auto` a region's number does not change while its file may still rely on an earlier one (thread_queries.h). A BLAS
 * queries the number in each of its calls, for the regions of that call only: it gets the number of CPUs in the grant.
 *
 * In the mode `next-region` every region follows the grant, and the program's queries always return its ceiling, the number with
 * which it was launched. */
#include <stdlib.h>
#include <string.h>

#include "hooks.h"
#include "openmp.h"

enum mode { UNKNOWN, AUTO, NEXT_REGION };

/* The state of one thread in one runtime; each thread that forks teams has its own setting. */
struct team {
    int ceiling;      /* threads that it would have without drom; 0: not known yet */
    int size;         /* the number set now */
    struct reported ours; /* the number that was set from here last */
};

static _Thread_local struct team teams[RUNTIMES_MOST];
struct object *forking[RUNTIMES_MOST + 1];

static enum mode mode(void)
{
    static enum mode known;
    enum mode now = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (now == UNKNOWN) {
        const char *value = dromi_setting("DROM_MALLEABILITY");
        now = value && strcmp(value, "next-region") == 0 ? NEXT_REGION : AUTO;
        __atomic_store_n(&known, now, __ATOMIC_RELAXED);
    }
    return now;
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Return DROM_MAX_CPUS, which drom-run has set; 1 if it has not launched the program. */
static int most_cpus(void)
{
    static int known;
    int now = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (now == 0) {
        const char *value = dromi_setting("DROM_MAX_CPUS");
        uint64_t number;
        now = value && dromi_number(&value, &number) && number >= 1 && number <= DROM_MAX_MASK_BITS ? (int)number : 1;
        __atomic_store_n(&known, now, __ATOMIC_RELAXED);
    }
    return now;
}

static int follow_grant(const struct team *team)
{
    uint32_t ncpus = __atomic_load_n(&session.ncpus, __ATOMIC_RELAXED);
    return ncpus && ncpus < (uint32_t)team->ceiling ? (int)ncpus : WHOLE;
}

/* Record that other code has set the number of threads. A number that was returned to it is no limit of its own: the code restores
 * an earlier value. Return whether it is such a number. */
__attribute__((noinline, cold)) static bool record_external_size(struct team *team, int size, const struct reported *reported)
{
    bool is_old = size == reported->number;
    team->size = size;
    team->ceiling = is_old ? reported->ceiling : size;
    return is_old;
}

/* A runtime starts with as many threads as the program was launched on CPUs. Set the maximum that the job can get instead, within the
 * user's limits, unless the user or the program has set a number. It is not in the environment as OMP_NUM_THREADS, because other
 * programs use that, too (nproc). */
__attribute__((noinline, cold)) static int widen(const struct runtime *runtime, int size)
{
    int cpus = most_cpus(), most = least(size > cpus ? size : cpus, runtime->get_thread_limit());
    if (most == size || session.sized || getenv("OMP_NUM_THREADS") || is_setter_known())
        return size;
    runtime->set_num_threads(most);
    return runtime->get_max_threads();
}

/* Return the state of the calling thread, outside regions. Not every setter is intercepted: some code gets the runtime's function
 * from dlsym() with its handle. */
static struct team *team_in(const struct runtime *runtime)
{
    struct team *team = &teams[runtime->number];
    int size = runtime->get_max_threads();
    if (__builtin_expect(team->ceiling == 0, 0))
        size = widen(runtime, size);
    if (__builtin_expect(size != team->size, 0))
        record_external_size(team, size, &team->ours);
    return team;
}

/* Return whether the number must not change: libgomp ends the surplus threads of a smaller team, and with them their thread-local
 * data; and a file may rely on numbers from queries that were not intercepted. */
static bool keeps_threads(const struct object *object, const struct runtime *runtime)
{
    return runtime->is_queried_directly || (object->has_thread_data && !runtime->is_llvm);
}

static void set(struct team *team, const struct runtime *runtime, int size)
{
    if (size == team->size)
        return;
    runtime->set_num_threads(size);
    team->size = runtime->get_max_threads();
    team->ours = (struct reported){team->size, team->ceiling};
}

static int wanted_size(struct site *site, const struct runtime *runtime, const struct team *team)
{
    if (mode() == NEXT_REGION)
        return follow_grant(team);
    if (site->object->is_blas && !runtime->is_queried_directly)
        return team->size;
    return keeps_threads(site->object, runtime) ? WHOLE : region_size(&site->object->queries, &site->place, follow_grant(team));
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
        return 0; /* the program requests one thread */
    if (__builtin_expect(set_now != team->size && (set_now > 1 || team->ceiling == 0), 0))
        team_in(runtime);
    if (__atomic_load_n(mine, __ATOMIC_RELAXED) != site->object)
        __atomic_store_n(mine, site->object, __ATOMIC_RELAXED);
    int size = wanted_size(site, runtime, team);
    if (__builtin_expect(least(size, team->ceiling) == team->size, 1))
        return 0;
    size = least(size, team_in(runtime)->ceiling);
    if (mode() == NEXT_REGION && !runtime->is_llvm)
        return (unsigned)size;
    set(team, runtime, size);
    return 0;
}

/* Record a query of the team's size in a region, for the file that has forked it, at a place of that region. If another file
 * queries, it may use the number for its own regions, so its number is frozen. */
static void record_team_query(const struct site *site)
{
    struct object *object = site->object;
    const struct runtime *runtime = object->runtime;
    if (object->is_blas)
        return;
    struct object *mine = __atomic_load_n(&forking[runtime->number], __ATOMIC_RELAXED);
    struct place *region = mine ? __atomic_load_n(&mine->queries.region, __ATOMIC_RELAXED) : NULL;
    struct site *place = region ? site_of(mine, region, site->address) : NULL;
    if (place && place->address)
        record_query(&mine->queries, &place->place, region);
    else if (place)
        freeze_number(&mine->queries);
    if (mine != object)
        freeze_number(&object->queries);
}

static int size_for_query(struct site *site, const struct team *team)
{
    struct object *object = site->object;
    if (mode() == NEXT_REGION || keeps_threads(object, object->runtime))
        return WHOLE;
    if (object->is_blas)
        return follow_grant(team);
    if (!site->address) /* shared by several addresses */
        return freeze_number(&object->queries);
    return call_size(&object->queries, &site->place, follow_grant(team));
}

int query_max_threads(struct site *site)
{
    struct object *object = site->object;
    const struct runtime *runtime = object->runtime;
    if (runtime->number >= RUNTIMES_MOST)
        return runtime->get_max_threads();
    if (runtime->get_level() != 0) {
        record_team_query(site);
        return runtime->get_max_threads();
    }
    struct team *team = team_in(runtime);
    int size = least(size_for_query(site, team), team->ceiling);
    if (mode() == NEXT_REGION)
        return size;
    set(team, runtime, size);
    struct reported reported = {team->size, team->ceiling};
    __atomic_store(&object->reported, &reported, __ATOMIC_RELAXED);
    return team->size;
}

int query_num_threads(const struct site *site)
{
    const struct runtime *runtime = site->object->runtime;
    if (runtime->get_level() != 0)
        record_team_query(site);
    return runtime->get_num_threads();
}

int query_team_size(const struct site *site, int level)
{
    if (level != 0)
        record_team_query(site);
    return site->object->runtime->get_team_size(level);
}

void set_num_threads(struct site *site, int count)
{
    struct object *object = site->object;
    const struct runtime *runtime = object->runtime;
    runtime->set_num_threads(count);
    if (count < 1 || runtime->number >= RUNTIMES_MOST || runtime->get_level() != 0)
        return;
    struct team *team = &teams[runtime->number];
    struct reported reported;
    __atomic_load(&object->reported, &reported, __ATOMIC_RELAXED);
    bool is_old = record_external_size(team, runtime->get_max_threads(), &reported);
    if (!object->is_blas)
        record_set_number(&object->queries, &site->place, is_old && team->size < team->ceiling ? team->size : WHOLE);
}

/* drom-run launches the program on fewer CPUs than it has threads, which are as many as it can ever use. Without drom there would be
 * as many CPUs as threads, and the program may size buffers or set its number by them. So return the maximum of its grants, also if
 * OMP_NUM_THREADS is set: a user's larger number exceeds the CPUs without drom, too. As the result never changes, such a query
 * counts in no round (thread_queries.h), and drom never makes a region larger. */
int query_num_procs(const struct site *site)
{
    int real = site->object->runtime->get_num_procs(), most = most_cpus();
    return real > most ? real : most;
}
