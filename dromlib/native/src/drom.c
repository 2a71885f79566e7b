/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct handle *handles;
static struct handle *detached; /* responders, kept until no thread registers: the agent may register their task for one of those */
static uint32_t registering;    /* threads that wait for the agent's reply */
static struct handle spare = {.head = {&spare.still, &spare.own_polls, 0}, .mailbox_fd = -1};

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

/* The child shares the mailbox and could acknowledge for its parent, so it releases all handles. */
static void after_fork_in_child(void)
{
    int saved = errno;
    for (struct handle *h = handles; h; h = h->next) {
        dromi_release(h);
        h->responder_pid = 0;
    }
    for (struct handle *h = detached; h; h = h->next)
        dromi_release(h);
    registering = 0;
    pthread_mutex_unlock(&lock);
    errno = saved;
}

#ifdef __GLIBC__
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *) __attribute__((weak));
extern void *__dso_handle __attribute__((visibility("hidden")));

void dromi_at_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void))
{
    if (__register_atfork)
        __register_atfork(before, in_parent, in_child, __dso_handle);
}
#else
void dromi_at_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void))
{
    pthread_atfork(before, in_parent, in_child);
}
#endif

static void prepare(void)
{
    dromi_at_fork(before_fork, after_fork_in_parent, after_fork_in_child);
}

static struct handle *inside(const drom *d)
{
    return (struct handle *)d;
}

/* Return whether the handle is managed in this process. It is not in a child made by clone() or vfork(), which run no fork
 * handlers. There the handle may still be the parent's memory and is not changed. */
static bool managed(const struct handle *h)
{
    return h->mode != DROM_UNMANAGED && h->owner == getpid();
}

/* Return whether `other` is a responder of the task of `h`. */
static bool is_responder_of(const struct handle *h, const struct handle *other)
{
    return other->responder_pid == h->task_pid && other->responder_start == h->task_start;
}

/* Report the combined demand of all responders of one task, under the lock: the largest minimum, and the largest maximum unless
 * one of them has none. */
static void write_demand(const struct handle *h)
{
    uint32_t wanted[2] = {0, 0}, tasks[2] = {0, 0};
    bool bounded = true;
    for (const struct handle *other = handles; other; other = other->next) {
        if (!is_responder_of(h, other))
            continue;
        bounded &= other->wanted[1] != 0;
        for (int i = 0; i < 2; i++) {
            wanted[i] = other->wanted[i] > wanted[i] ? other->wanted[i] : wanted[i];
            tasks[i] = other->tasks[i] > tasks[i] ? other->tasks[i] : tasks[i];
        }
    }
    if (!bounded)
        wanted[1] = 0;
    dromi_write_demand(h, wanted, tasks);
}

/* Return whether another handle of this process is a responder of the same task. Under the lock, like the functions below. */
static bool is_shared(const struct handle *h)
{
    const struct handle *other = handles;
    while (other && !is_responder_of(h, other))
        other = other->next;
    return other != NULL;
}

bool dromi_is_shared(const struct handle *h)
{
    pthread_mutex_lock(&lock);
    bool shared = is_shared(h);
    pthread_mutex_unlock(&lock);
    return shared;
}

static int write_applied(const struct handle *h, uint64_t epoch)
{
    return dromi_write_mail(h, offsetof(struct drom_mailbox, applied), &epoch, sizeof epoch);
}

/* Release a handle, and report that the responder has left if it was the task's last one. Return false while another thread
 * registers: the agent may be making that one the responder. */
static bool release_or_defer(struct handle *h)
{
    if (managed(h) && h->mode == DROM_RESPONDER) {
        if (is_shared(h))
            write_demand(h);
        else if (registering)
            return false;
        else
            write_applied(h, DROM_EPOCH_RETIRED);
    }
    dromi_release(h);
    free(h);
    return true;
}

static void release_detached(void)
{
    struct handle *left = detached;
    detached = NULL;
    while (left) {
        struct handle *h = left;
        left = h->next;
        if (release_or_defer(h))
            continue;
        h->next = detached;
        detached = h;
    }
}

/* Record whether the handle is a responder, for the other threads. */
static void publish_responder(struct handle *h)
{
    h->responder_pid = h->mode == DROM_RESPONDER ? h->task_pid : 0;
    h->responder_start = h->task_start;
    if (h->mode == DROM_RESPONDER)
        write_demand(h);
}

/* The agent may reply at any time between these two locks. Only the calling thread waits for the reply. */
static int register_handle(struct handle *h)
{
    pthread_mutex_lock(&lock);
    h->responder_pid = 0;
    registering++;
    pthread_mutex_unlock(&lock);
    int rc = dromi_register(h);
    pthread_mutex_lock(&lock);
    publish_responder(h);
    registering--;
    release_detached();
    pthread_mutex_unlock(&lock);
    return rc;
}

void dromi_prepare(void)
{
    pthread_once(&once, prepare);
}

struct handle *dromi_attach(bool lasting)
{
    dromi_prepare();
    struct handle *h = calloc(1, sizeof *h);
    if (!h)
        return NULL;
    h->lasting = lasting;
    h->mailbox_fd = -1;
    h->owner = getpid();
    dromi_release(h);
    pthread_mutex_lock(&lock);
    h->next = handles;
    handles = h;
    pthread_mutex_unlock(&lock);
    register_handle(h);
    return h;
}

/* A program is managed once: when it attaches, the library that drom-run has loaded into it stops managing it. */
static void stop_preload(void)
{
    void (*yield)(void);
    *(void **)&yield = dlsym(RTLD_DEFAULT, "drom_preload_yield");
    if (yield)
        yield();
    else
        dlerror();
}

drom *drom_attach(void)
{
    int saved = errno;
    stop_preload();
    struct handle *h = dromi_attach(false);
    errno = saved;
    return h ? &h->head : &spare.head;
}

static void remove_handle(const struct handle *h)
{
    struct handle **at = &handles;
    while (*at && *at != h)
        at = &(*at)->next;
    if (*at)
        *at = h->next;
}

void drom_detach(drom *d)
{
    struct handle *h = inside(d);
    if (!h || h == &spare)
        return;
    int saved = errno;
    pthread_mutex_lock(&lock);
    remove_handle(h);
    h->next = detached;
    detached = h;
    release_detached();
    pthread_mutex_unlock(&lock);
    errno = saved;
}

int drom_mode(const drom *d)
{
    return managed(inside(d)) ? inside(d)->mode : DROM_UNMANAGED;
}

/* Return whether the program has closed the mailbox's descriptor, which it did not open. The handle then registers again, as it
 * cannot acknowledge. */
static bool has_lost_mailbox(const struct handle *h)
{
    return h->mode == DROM_RESPONDER && !dromi_has_mailbox(h);
}

static enum read_result read_slot(const struct handle *h, drom_grant *g)
{
    return dromi_read(h->slot, h->head.seen, h->task_pid, h->task_start, h->mask_words, g);
}

bool dromi_may_register(const drom *d)
{
    int saved = errno;
    const struct handle *h = inside(d);
    bool may = managed(h) && (__atomic_load_n(d->epoch, __ATOMIC_ACQUIRE) == DROM_EPOCH_RETIRED || has_lost_mailbox(h));
    errno = saved;
    return may;
}

int dromi_take(drom *d, drom_grant *g, bool may_register)
{
    struct handle *h = inside(d);
    if (!managed(h))
        return 0;
    int saved = errno;
    enum read_result result = read_slot(h, g);
    if (result == READ_RETIRED || (result == READ_GRANT && has_lost_mailbox(h))) {
        if (!may_register) {
            errno = saved;
            return -1;
        }
        dromi_release(h);
        result = register_handle(h) == 0 ? read_slot(h, g) : READ_NOTHING;
    }
    if (result == READ_RETIRED || result == READ_REUSED) {
        dromi_log("unmanaged", "task=%d reason=%s", h->task_pid, result == READ_RETIRED ? "retired" : "slot-reused");
        dromi_release(h);
        pthread_mutex_lock(&lock);
        publish_responder(h);
        pthread_mutex_unlock(&lock);
    }
    if (result == READ_GRANT) {
        h->head.seen = g->epoch;
        dromi_record_applied(h->slot, h->mask_words);
    }
    errno = saved;
    return result == READ_GRANT;
}

int drom_take(drom *d, drom_grant *g)
{
    return dromi_take(d, g, true);
}

/* The agent releases a task in three steps: it restores the affinity, retires the epoch in the slot, and restores once more. So
 * either its second pass restores what this process has bound, or this process reads the retired epoch. */
static bool was_released(const struct handle *h)
{
    return __atomic_load_n(&h->slot->epoch, __ATOMIC_SEQ_CST) == DROM_EPOCH_RETIRED ||
           !dromi_is_ours(h->slot, h->task_pid, h->task_start);
}

static int restore_affinity(const struct handle *h)
{
    bool known = false;
    for (uint32_t i = 0; i < h->mask_words; i++)
        known |= h->restore[i] != 0;
    int rc = known && !h->emulated ? dromi_bind_threads(h->restore, h->mask_words) : 0;
    dromi_log("given-back", "task=%d error=%d", h->task_pid, -rc);
    return rc;
}

static int acknowledge(const struct handle *h, const drom_grant *g)
{
    if (was_released(h))
        return restore_affinity(h);
    int rc = h->mode == DROM_RESPONDER ? write_applied(h, g->epoch) : 0;
    dromi_log("applied", "task=%d epoch=%llu ncpus=%u error=%d", h->task_pid, (unsigned long long)g->epoch, g->ncpus, -rc);
    return rc;
}

int drom_acknowledge(drom *d, const drom_grant *g)
{
    if (!managed(inside(d)))
        return 0;
    int saved = errno;
    int rc = acknowledge(inside(d), g);
    errno = saved;
    return rc;
}

int drom_apply(drom *d, const drom_grant *g)
{
    const struct handle *h = inside(d);
    if (!managed(h))
        return 0;
    int saved = errno;
    dromi_record_applied(h->slot, h->mask_words); /* the agent may have bound threads since the grant was taken */
    int rc = h->emulated ? 0 : dromi_bind_parts(g->mask, g->mask_words);
    if (rc == 0)
        rc = acknowledge(h, g);
    else
        dromi_log("unbound", "task=%d epoch=%llu error=%d", h->task_pid, (unsigned long long)g->epoch, -rc);
    errno = saved;
    return rc;
}

/* A writer that is killed between the epoch and the wake leaves this thread asleep, so check again every second. */
bool dromi_wait(const drom *d, uint64_t end)
{
    uint64_t look = dromi_now_ns() + UINT64_C(1000000000);
    look = look < end ? look : end;
    struct timespec at = {.tv_sec = (time_t)(look / 1000000000u), .tv_nsec = (long)(look % 1000000000u)};
    long rc = syscall(SYS_futex, (const uint32_t *)d->epoch, FUTEX_WAIT_BITSET, (uint32_t)d->seen, &at, NULL,
                      FUTEX_BITSET_MATCH_ANY);
    return rc == 0 || errno == EINTR || errno == EAGAIN || errno == ETIMEDOUT;
}

int drom_wait(drom *d, int timeout_ms)
{
    if (!managed(inside(d)))
        return 0;
    int saved = errno;
    uint64_t end = timeout_ms < 0 ? UINT64_MAX : dromi_now_ns() + (uint64_t)timeout_ms * 1000000u;
    while (!dromi_has_new_grant(d) && dromi_now_ns() < end && dromi_wait(d, end))
        ;
    int found = dromi_has_new_grant(d);
    errno = saved;
    return found;
}

int drom_version(void)
{
    return DROM_VERSION;
}

int drom_poll_fn(drom *d)
{
    return drom_poll(d);
}

void drom_progress(drom *d, uint64_t done)
{
    const struct handle *h = inside(d);
    if (h->mailbox)
        __atomic_store_n(&h->mailbox->progress, done, __ATOMIC_RELAXED);
}

static void report_demand(struct handle *h, uint32_t min_cpus, uint32_t max_cpus, uint32_t min_tasks, uint32_t max_tasks)
{
    if (h == &spare)
        return;
    int saved = errno;
    pthread_mutex_lock(&lock);
    h->wanted[0] = min_cpus;
    h->wanted[1] = max_cpus;
    h->tasks[0] = min_tasks;
    h->tasks[1] = max_tasks;
    if (managed(h) && h->mode == DROM_RESPONDER)
        write_demand(h);
    pthread_mutex_unlock(&lock);
    errno = saved;
}

void drom_want(drom *d, uint32_t min_cpus, uint32_t max_cpus)
{
    report_demand(inside(d), min_cpus, max_cpus, inside(d)->tasks[0], inside(d)->tasks[1]);
}

void drom_may_rest(drom *d, uint32_t min_tasks, uint32_t max_tasks)
{
    report_demand(inside(d), inside(d)->wanted[0], inside(d)->wanted[1], min_tasks, max_tasks);
}

int drom_slot(const drom *d)
{
    return managed(inside(d)) ? (int)inside(d)->slot_index : -1;
}

const char *drom_directory(const drom *d)
{
    return inside(d)->directory;
}

int drom_grant_cpus(const drom_grant *g, int *cpus, int max)
{
    int count = 0;
    for (uint32_t word = 0; word < g->mask_words; word++) {
        for (uint64_t left = g->mask[word]; left; left &= left - 1, count++) {
            if (count < max)
                cpus[count] = (int)(word * 64) + __builtin_ctzll(left);
        }
    }
    return count;
}
