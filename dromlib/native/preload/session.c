/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "session.h"

static const uint64_t always_news = 1, never_news = 0;
static uint64_t own_points;
struct session session = {.epoch = &always_news, .points = &own_points};

static pthread_once_t once = PTHREAD_ONCE_INIT, environment_once = PTHREAD_ONCE_INIT;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER; /* whose it is puts the news in force; taken before `lock` */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows, and stores into `session` */
static struct handle *handle;
static drom_grant grant;
static uint32_t points; /* where malleability points are: bits */

static void show(const uint64_t *epoch, uint64_t *points, uint64_t seen, uint32_t ncpus)
{
    __atomic_store_n(&session.points, points, __ATOMIC_RELEASE);
    __atomic_store_n(&session.ncpus, ncpus, __ATOMIC_RELAXED);
    __atomic_store_n(&session.seen, seen, __ATOMIC_RELAXED);
    __atomic_store_n(&session.epoch, epoch, __ATOMIC_RELEASE);
    __atomic_store_n(&session.serial, session.serial + 1, __ATOMIC_RELEASE);
}

static void before_fork(void)
{
    pthread_mutex_lock(&turn);
    pthread_mutex_lock(&lock);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&lock);
    pthread_mutex_unlock(&turn);
}

/* The child is a process of its own in the same task, and attaches when it comes to a malleability point. */
static void after_fork_in_child(void)
{
    if (session.epoch != &never_news)
        show(&always_news, &own_points, 0, 0);
    handle = NULL;
    after_fork_in_parent();
}

static bool is_said(const char *name)
{
    const char *value = getenv(name);
    return value && *value && strcasecmp(value, "false") != 0 && strcasecmp(value, "disabled") != 0;
}

static void look_for_places(void)
{
    session.pinned |= is_said("OMP_PROC_BIND") || is_said("OMP_PLACES") || is_said("GOMP_CPU_AFFINITY") || is_said("KMP_AFFINITY");
    session.placing = session.pinned;
}

static void read_environment(void)
{
    dromi_keep_settings();
    session.sized = getenv("OMP_NUM_THREADS") != NULL;
    look_for_places();
    const char *malleability = dromi_setting("DROM_MALLEABILITY");
    if (malleability && strcmp(malleability, "bind-only") == 0)
        session.epoch = &never_news;
}

/* Before the program can clear it. Constructors of its libraries run before any of ours, and may begin regions. */
__attribute__((constructor)) static void know_environment(void)
{
    pthread_once(&environment_once, read_environment);
}

/* After libdrom's own handlers, so that fork takes the locks in the order in which take_news() does. */
static void prepare(void)
{
    know_environment();
    look_for_places(); /* LLVM's runtime reads them when it starts: the program may have set them itself */
    dromi_prepare();
    dromi_at_fork(before_fork, after_fork_in_parent, after_fork_in_child);
}

static void refresh(void)
{
    bool managed = drom_mode(&handle->head) != DROM_UNMANAGED;
    show(managed ? handle->head.epoch : &never_news, managed ? handle->head.polls : &own_points, handle->head.seen * managed,
         managed ? grant.ncpus : 0);
}

static void tell_points(void)
{
    if (handle && handle->mailbox)
        __atomic_store_n(&handle->mailbox->points, points | (uint32_t)session.pinned << DROM_POINTS_PINNED, __ATOMIC_RELAXED);
}

void have_points(unsigned kind)
{
    pthread_once(&once, prepare);
    pthread_mutex_lock(&lock);
    points |= 1u << kind;
    tell_points();
    pthread_mutex_unlock(&lock);
}

static void take(void)
{
    if (!handle)
        handle = dromi_attach(true);
    uint32_t before = session.ncpus;
    bool taken = handle && drom_take(&handle->head, &grant) > 0;
    tell_points(); /* also where it has sat down anew */
    if (taken && grant.ncpus) { /* a task without CPUs runs on those of its job until it rests */
        drom_apply(&handle->head, &grant);
        __atomic_store_n(&session.placing, session.pinned || grant.ncpus > before, __ATOMIC_RELAXED);
    }
    if (handle)
        refresh();
    else
        show(&never_news, &own_points, 0, 0);
}

void take_news(void)
{
    int saved = errno, cancel;
    pthread_once(&once, prepare);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    if (pthread_mutex_trylock(&turn) == 0) { /* else another thread is about it */
        pthread_mutex_lock(&lock);
        if (has_news())
            take();
        pthread_mutex_unlock(&lock);
        pthread_mutex_unlock(&turn);
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

/* libdrom calls this when the program attaches by itself: from then on it is not managed from here. The agent keeps the seat
 * for the process, whichever handle sits in it. */
__attribute__((visibility("default"))) void drom_preload_yield(void)
{
    pthread_once(&once, prepare);
    pthread_mutex_lock(&lock);
    if (handle && handle->mailbox)
        __atomic_store_n(&handle->mailbox->points, 0, __ATOMIC_RELAXED); /* the program has points of its own */
    if (handle)
        dromi_leave(handle);
    __atomic_store_n(&session.yielded, true, __ATOMIC_RELAXED);
    show(&never_news, &own_points, 0, 0);
    pthread_mutex_unlock(&lock);
}
