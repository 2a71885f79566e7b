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
static struct handle *leavers; /* have closed while others knock, who may come to sit in their seats */
static uint32_t knocking;
static struct handle spare = {.head = {&spare.still, &spare.own_polls, 0}, .mailbox_fd = -1};

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

/* The child shares the mailbox and could acknowledge for its parent: it lets go of everything. */
static void after_fork_in_child(void)
{
    int saved = errno;
    for (struct handle *h = handles; h; h = h->next) {
        dromi_leave(h);
        h->seat_pid = 0;
    }
    for (struct handle *h = leavers; h; h = h->next)
        dromi_leave(h);
    knocking = 0;
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

/* False in a child made by clone() or vfork(), which run no fork handlers; there the handle may still be the parent's memory
 * and is left as it is. */
static bool managed(const struct handle *h)
{
    return h->mode != DROM_UNMANAGED && h->owner == getpid();
}

static bool sits_with(const struct handle *h, const struct handle *other)
{
    return other->seat_pid == h->task_pid && other->seat_start == h->task_start;
}

/* What suits all who sit in one seat, under the lock: the largest minimum, and the largest maximum unless one has none. */
static void tell_wanted(const struct handle *h)
{
    uint32_t wanted[2] = {0, 0}, tasks[2] = {0, 0};
    bool bounded = true;
    for (const struct handle *other = handles; other; other = other->next) {
        if (!sits_with(h, other))
            continue;
        bounded &= other->wanted[1] != 0;
        for (int i = 0; i < 2; i++) {
            wanted[i] = other->wanted[i] > wanted[i] ? other->wanted[i] : wanted[i];
            tasks[i] = other->tasks[i] > tasks[i] ? other->tasks[i] : tasks[i];
        }
    }
    if (!bounded)
        wanted[1] = 0;
    dromi_write_wanted(h, wanted, tasks);
}

/* Whether a handle of this process still sits in its seat; under the lock, as all that follows. */
static bool is_shared(const struct handle *h)
{
    const struct handle *other = handles;
    while (other && !sits_with(h, other))
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

/* Give the seat up, unless it is left to others; false while somebody knocks: the agent may be giving it to him. */
static bool settle(struct handle *h)
{
    if (managed(h) && h->mode == DROM_RESPONDER) {
        if (is_shared(h))
            tell_wanted(h);
        else if (knocking)
            return false;
        else
            write_applied(h, DROM_EPOCH_RETIRED);
    }
    dromi_leave(h);
    free(h);
    return true;
}

static void settle_leavers(void)
{
    struct handle *left = leavers;
    leavers = NULL;
    while (left) {
        struct handle *h = left;
        left = h->next;
        if (settle(h))
            continue;
        h->next = leavers;
        leavers = h;
    }
}

/* Where other threads look for it. */
static void show_seat(struct handle *h)
{
    h->seat_pid = h->mode == DROM_RESPONDER ? h->task_pid : 0;
    h->seat_start = h->task_start;
    if (h->mode == DROM_RESPONDER)
        tell_wanted(h);
}

/* The agent gives a seat at any time between these two locks. Nobody waits for its answer but the caller. */
static int sit(struct handle *h)
{
    pthread_mutex_lock(&lock);
    h->seat_pid = 0;
    knocking++;
    pthread_mutex_unlock(&lock);
    int rc = dromi_sit(h);
    pthread_mutex_lock(&lock);
    show_seat(h);
    knocking--;
    settle_leavers();
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
    dromi_leave(h);
    pthread_mutex_lock(&lock);
    h->next = handles;
    handles = h;
    pthread_mutex_unlock(&lock);
    sit(h);
    return h;
}

/* A program is managed once: what drom-run has loaded into it leaves it to itself. */
static void take_over(void)
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
    take_over();
    struct handle *h = dromi_attach(false);
    errno = saved;
    return h ? &h->head : &spare.head;
}

static void forget(const struct handle *h)
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
    forget(h);
    h->next = leavers;
    leavers = h;
    settle_leavers();
    pthread_mutex_unlock(&lock);
    errno = saved;
}

int drom_mode(const drom *d)
{
    return managed(inside(d)) ? inside(d)->mode : DROM_UNMANAGED;
}

/* The program has closed a descriptor that it did not know. Whoever cannot answer sits down anew. */
static bool has_lost_mailbox(const struct handle *h)
{
    return h->mode == DROM_RESPONDER && !dromi_has_mailbox(h);
}

static enum read_result read_slot(const struct handle *h, drom_grant *g)
{
    return dromi_read(h->slot, h->head.seen, h->task_pid, h->task_start, h->mask_words, g);
}

bool dromi_may_knock(const drom *d)
{
    int saved = errno;
    const struct handle *h = inside(d);
    bool may = managed(h) && (__atomic_load_n(d->epoch, __ATOMIC_ACQUIRE) == DROM_EPOCH_RETIRED || has_lost_mailbox(h));
    errno = saved;
    return may;
}

int dromi_take(drom *d, drom_grant *g, bool knocks)
{
    struct handle *h = inside(d);
    if (!managed(h))
        return 0;
    int saved = errno;
    enum read_result result = read_slot(h, g);
    if (result == READ_RETIRED || (result == READ_GRANT && has_lost_mailbox(h))) {
        if (!knocks) {
            errno = saved;
            return -1;
        }
        dromi_leave(h);
        result = sit(h) == 0 ? read_slot(h, g) : READ_NOTHING;
    }
    if (result == READ_RETIRED || result == READ_STRANGER) {
        dromi_log("unmanaged", "task=%d reason=%s", h->task_pid, result == READ_RETIRED ? "retired" : "slot-reused");
        dromi_leave(h);
        pthread_mutex_lock(&lock);
        show_seat(h);
        pthread_mutex_unlock(&lock);
    }
    if (result == READ_GRANT) {
        h->head.seen = g->epoch;
        dromi_remember(h->slot, h->mask_words);
    }
    errno = saved;
    return result == READ_GRANT;
}

int drom_take(drom *d, drom_grant *g)
{
    return dromi_take(d, g, true);
}

/* The agent lets a task go by giving its affinity back, saying so in the slot, and giving back once more. So either that
 * finds what we have bound, or we find what it has said. */
static bool was_let_go(const struct handle *h)
{
    return __atomic_load_n(&h->slot->epoch, __ATOMIC_SEQ_CST) == DROM_EPOCH_RETIRED ||
           !dromi_is_ours(h->slot, h->task_pid, h->task_start);
}

static int give_back(const struct handle *h)
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
    if (was_let_go(h))
        return give_back(h);
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
    dromi_remember(h->slot, h->mask_words); /* the agent may have bound threads since the grant was taken */
    int rc = h->emulated ? 0 : dromi_bind_parts(g->mask, g->mask_words);
    if (rc == 0)
        rc = acknowledge(h, g);
    else
        dromi_log("unbound", "task=%d epoch=%llu error=%d", h->task_pid, (unsigned long long)g->epoch, -rc);
    errno = saved;
    return rc;
}

/* A writer killed between the epoch and the wake leaves us asleep: look again every second. */
bool dromi_doze(const drom *d, uint64_t end)
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
    while (!dromi_news(d) && dromi_now_ns() < end && dromi_doze(d, end))
        ;
    int found = dromi_news(d);
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

static void report(struct handle *h, uint32_t min_cpus, uint32_t max_cpus, uint32_t min_tasks, uint32_t max_tasks)
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
        tell_wanted(h);
    pthread_mutex_unlock(&lock);
    errno = saved;
}

void drom_want(drom *d, uint32_t min_cpus, uint32_t max_cpus)
{
    report(inside(d), min_cpus, max_cpus, inside(d)->tasks[0], inside(d)->tasks[1]);
}

void drom_may_rest(drom *d, uint32_t min_tasks, uint32_t max_tasks)
{
    report(inside(d), inside(d)->wanted[0], inside(d)->wanted[1], min_tasks, max_tasks);
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
