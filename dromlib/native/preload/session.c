/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "session.h"

static const uint64_t always_new = 1, never_new = 0;
static uint64_t own_points;
struct session session = {.epoch = &always_new, .points = &own_points};

static pthread_once_t once = PTHREAD_ONCE_INIT, environment_once = PTHREAD_ONCE_INIT;
static pthread_mutex_t apply_lock = PTHREAD_MUTEX_INITIALIZER; /* held while a grant is applied; taken before `lock` */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows, and stores into `session` */
static struct handle *handle;
static drom_grant grant;
static uint32_t points; /* where malleability points are: bits DROM_POINTS_* */

static void publish_session(const uint64_t *epoch, uint64_t *points, uint64_t seen, uint32_t ncpus)
{
    __atomic_store_n(&session.points, points, __ATOMIC_RELEASE);
    __atomic_store_n(&session.ncpus, ncpus, __ATOMIC_RELAXED);
    __atomic_store_n(&session.seen, seen, __ATOMIC_RELAXED);
    __atomic_store_n(&session.epoch, epoch, __ATOMIC_RELEASE);
    __atomic_store_n(&session.serial, session.serial + 1, __ATOMIC_RELEASE);
}

static void before_fork(void)
{
    pthread_mutex_lock(&apply_lock);
    pthread_mutex_lock(&lock);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&lock);
    pthread_mutex_unlock(&apply_lock);
}

/* The child is another process of the same task, and attaches at its first malleability point. */
static void after_fork_in_child(void)
{
    if (session.epoch != &never_new)
        publish_session(&always_new, &own_points, 0, 0);
    handle = NULL;
    after_fork_in_parent();
}

static bool is_enabled(const char *name)
{
    const char *value = getenv(name);
    return value && *value && strcasecmp(value, "false") != 0 && strcasecmp(value, "disabled") != 0;
}

static void read_binding_variables(void)
{
    session.pinned |= is_enabled("OMP_PROC_BIND") || is_enabled("OMP_PLACES") || is_enabled("GOMP_CPU_AFFINITY") ||
                      is_enabled("KMP_AFFINITY");
    session.placing = session.pinned;
}

static void read_environment(void)
{
    dromi_keep_settings();
    session.sized = getenv("OMP_NUM_THREADS") != NULL;
    read_binding_variables();
    const char *malleability = dromi_setting("DROM_MALLEABILITY");
    if (malleability && strcmp(malleability, "bind-only") == 0)
        session.epoch = &never_new;
}

/* Before the program can clear it. Constructors of its libraries run before this one, and may begin regions. */
__attribute__((constructor)) static void read_environment_early(void)
{
    pthread_once(&environment_once, read_environment);
}

/* After libdrom's own handlers, so that fork takes the locks in the order in which apply_grant() does. */
static void prepare(void)
{
    read_environment_early();
    read_binding_variables(); /* LLVM's runtime reads them when it starts: the program may have set them itself */
    dromi_prepare();
    dromi_at_fork(before_fork, after_fork_in_parent, after_fork_in_child);
}

static void refresh(void)
{
    bool managed = drom_mode(&handle->head) != DROM_UNMANAGED;
    publish_session(managed ? handle->head.epoch : &never_new, managed ? handle->head.polls : &own_points, handle->head.seen * managed,
                    managed ? grant.ncpus : 0);
}

static void write_points(void)
{
    if (handle && handle->mailbox)
        __atomic_store_n(&handle->mailbox->points, points | (uint32_t)session.pinned << DROM_POINTS_PINNED, __ATOMIC_RELAXED);
}

void report_points(unsigned kind)
{
    pthread_once(&once, prepare);
    pthread_mutex_lock(&lock);
    points |= 1u << kind;
    write_points();
    pthread_mutex_unlock(&lock);
}

static void take_and_apply(void)
{
    if (!handle)
        handle = dromi_attach(true);
    uint32_t before = session.ncpus;
    bool taken = handle && drom_take(&handle->head, &grant) > 0;
    write_points(); /* also after it has registered again */
    if (taken && grant.ncpus) { /* a task without CPUs runs on those of its job until it rests */
        drom_apply(&handle->head, &grant);
        __atomic_store_n(&session.placing, session.pinned || grant.ncpus > before, __ATOMIC_RELAXED);
    }
    if (handle)
        refresh();
    else
        publish_session(&never_new, &own_points, 0, 0);
}

void apply_grant(void)
{
    int saved = errno, cancel;
    pthread_once(&once, prepare);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    if (pthread_mutex_trylock(&apply_lock) == 0) { /* otherwise another thread does it */
        pthread_mutex_lock(&lock);
        if (has_new_grant())
            take_and_apply();
        pthread_mutex_unlock(&lock);
        pthread_mutex_unlock(&apply_lock);
    }
    pthread_setcancelstate(cancel, NULL);
    errno = saved;
}

uint32_t copy_grant(drom_grant *g)
{
    uint32_t serial = 0;
    pthread_mutex_lock(&lock);
    if (session.ncpus && !handle->emulated) {
        *g = grant;
        serial = session.serial;
    }
    pthread_mutex_unlock(&lock);
    return serial;
}

/* libdrom calls this when the program itself attaches: from then on it is not managed from here. For the agent the process stays
 * the responder, whichever of its handles acknowledges. */
__attribute__((visibility("default"))) void drom_preload_yield(void)
{
    pthread_once(&once, prepare);
    pthread_mutex_lock(&lock);
    if (handle && handle->mailbox)
        __atomic_store_n(&handle->mailbox->points, 0, __ATOMIC_RELAXED); /* the program has points of its own */
    if (handle)
        dromi_release(handle);
    __atomic_store_n(&session.yielded, true, __ATOMIC_RELAXED);
    publish_session(&never_new, &own_points, 0, 0);
    pthread_mutex_unlock(&lock);
}
