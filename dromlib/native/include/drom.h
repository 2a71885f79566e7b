/* SPDX-License-Identifier: Apache-2.0 */
/* drom.h - make a program malleable.
 *
 *     drom *d = drom_attach();
 *     for (step = 0; step < steps; step++) {
 *         if (drom_poll(d)) {                    // a malleability point: about a nanosecond
 *             drom_grant g;
 *             if (drom_take(d, &g) > 0) {
 *                 omp_set_num_threads((int)g.ncpus);
 *                 omp_pause_resource_all(omp_pause_soft);    // end surplus threads: they spin for milliseconds
 *                 drom_apply(d, &g);             // bind every thread, then acknowledge
 *             }
 *         }
 *         compute();                             // parallel regions
 *     }
 *     drom_detach(d);
 *
 * Rules that hold for every function, unless its own comment says otherwise:
 *
 * Without an agent   Every call is harmless, and drom_poll() returns 0 for ever. Such a handle is called unmanaged.
 * Threads            Any thread may call. Two threads may use two handles at the same time, but not one handle: the
 *                    program orders the calls with one handle.
 * Signal handlers    Only the functions that are called async-signal-safe below may be called there.
 * fork()             A handle belongs to the process that attached. In a child it is unmanaged; the child may detach
 *                    it, and attach anew.
 * errno              Every function preserves it. Errors are returned, as negative error numbers.
 * Output             The library prints nothing unless DROM_LOG is set in the environment, except one sentence on
 *                    stderr if an agent listens but cannot be used. It never changes signal handlers or exit statuses.
 * Pointers           A handle has to come from drom_attach(), and a pointer to a grant must not be NULL. Nothing checks
 *                    that.
 */
#ifndef DROM_H
#define DROM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header. The build reads it here, for the Python package too. */
#define DROM_VERSION_MAJOR 0
#define DROM_VERSION_MINOR 1
#define DROM_VERSION_PATCH 0
/* One number that grows with every version, to compare: #if DROM_VERSION >= 100 (0.1.0). */
#define DROM_VERSION (DROM_VERSION_MAJOR * 10000 + DROM_VERSION_MINOR * 100 + DROM_VERSION_PATCH)

/* Return the version of the library that the program runs with, as DROM_VERSION is made. It may be newer than the
 * header that the program was compiled with. Async-signal-safe. */
int drom_version(void);

#define DROM_MAX_MASK_WORDS 512

/* The visible head of a handle, so that drom_poll() inlines. Fields are private. */
typedef struct drom {
    const uint64_t *epoch; /* word 0 of the task's slot */
    uint64_t *polls;       /* malleability points passed, in the mailbox */
    uint64_t seen;         /* epoch taken last */
} drom;

/* Why a grant was published. Later versions may add values. */
enum drom_reason {
    DROM_REASON_NONE = 0,
    DROM_REASON_ARRIVAL = 1, /* the task itself has arrived */
    DROM_REASON_SHARE = 2,   /* another task has arrived */
    DROM_REASON_RETURN = 3,  /* cores return to their owner */
    DROM_REASON_ORDER = 4,   /* a user or a scheduler has ordered it */
    DROM_REASON_DEATH = 5,   /* a task that ended has left cores */
    DROM_REASON_RETIRED = 6, /* the agent manages the task no longer */
    DROM_REASON_AVOID = 7,   /* cores may not, or should not, be used any longer */
    DROM_REASON_WISH = 8     /* a program has reported what it can use: drom_want() */
};

/* The CPUs that a task has to use from now on, by OS number: bit c % 64 of mask[c / 64]. It is the caller's memory. */
typedef struct drom_grant {
    uint64_t epoch;      /* number of the grant, larger than that of every grant of the task before */
    uint32_t ncpus;      /* CPUs in the mask, and so threads to use */
    uint32_t reason;     /* enum drom_reason */
    uint32_t mask_words; /* words of the mask that have a meaning, at most DROM_MAX_MASK_WORDS */
    uint32_t spare;      /* 0 */
    uint64_t mask[DROM_MAX_MASK_WORDS];
} drom_grant;

/* How a handle takes part. */
enum drom_mode {
    DROM_UNMANAGED = 0, /* there is no agent, or it does not manage this program */
    DROM_RESPONDER = 1, /* this process acknowledges grants for its task */
    DROM_FOLLOWER = 2   /* another process of the task acknowledges; this one still takes and applies grants */
};

/* Find the agent and take part in what it manages.
 *
 * The agent's directory is DROM_RUNTIME_DIR if that is set; /run/drom for root, and where an agent has its socket there;
 * otherwise $XDG_RUNTIME_DIR/drom, or /tmp/drom-UID if that variable is unset.
 *
 * Returns a handle, never NULL: drom_mode() says whether it is managed. The caller owns it and gives it back with
 * drom_detach(). A process may have several handles; those of one task share its grants. Threads: any, at any time. The
 * calling thread waits for the agent, usually less than a millisecond and at most 30 seconds. Not async-signal-safe. It
 * uses up to three file descriptors, and keeps one while managed. */
drom *drom_attach(void);

/* Give a handle back and free it. The task stays managed, and from then on the agent binds it from outside, once the
 * last handle of the process is given back.
 *
 * d    a handle that no thread uses any more, or NULL, which does nothing.
 *
 * Not async-signal-safe. */
void drom_detach(drom *d);

/* Return how a handle takes part now: DROM_UNMANAGED, DROM_RESPONDER or DROM_FOLLOWER. It may change in drom_take() and
 * in a child made by fork(). Async-signal-safe. */
int drom_mode(const drom *d);

/* Return 1 if a grant is waiting to be taken, and 0 otherwise. One atomic load and one store: call it at each
 * malleability point. Async-signal-safe. */
static __inline__ int drom_poll(drom *d) /* as inline, also in C90 */
{
    *d->polls += 1;
    return __builtin_expect(__atomic_load_n(d->epoch, __ATOMIC_ACQUIRE) != d->seen, 0) != 0;
}

/* The same as drom_poll(), for languages that cannot inline it. */
int drom_poll_fn(drom *d);

/* Copy the newest grant and note that it was taken. Grants published meanwhile are skipped: only the newest counts.
 *
 * g    where the grant goes. Words of the mask from g->mask_words on are not written.
 *
 * Returns 1 if *g holds a grant to apply, and 0 if there is none: nothing is new, or the agent manages the task no
 * longer and drom_mode() is DROM_UNMANAGED from now on. After 0 the contents of *g have no meaning. If the agent has
 * been restarted the function attaches anew, and waits for it as drom_attach() does. Not async-signal-safe. */
int drom_take(drom *d, drom_grant *g);

/* Bind every thread of this process to the CPUs of a grant and acknowledge it. A thread that the program has bound to a
 * part of its CPUs gets what is left of that part. If the agent has stopped managing the task meanwhile, every thread
 * gets back the affinity that the task came with, and nothing is acknowledged.
 *
 * g    the grant taken last with this handle.
 *
 * Returns 0 if it is in force or the handle is unmanaged. After an error nothing is acknowledged, and the agent binds
 * the task from outside when its grace time is over:
 *   -EINVAL   no CPU of the grant is one that the process may use, or it has none
 *   -EPERM    a thread may not be bound by this process
 *   -ENOMEM   there is no memory
 *   -EAGAIN   the program makes threads faster than they can be bound
 *   -EBADF    the program has closed the file descriptor of its mailbox; the next drom_take() attaches anew
 *   another   of opendir(3) on /proc/self/task, sched_setaffinity(2) or pwrite(2)
 * Threads of the program may run, start and end meanwhile. Not async-signal-safe. */
int drom_apply(drom *d, const drom_grant *g);

/* Acknowledge a grant that the program has put in force by itself: no thread of the process runs on other CPUs any
 * more. The agent gives the CPUs that the task has lost to others at once.
 *
 * g    the grant taken last with this handle.
 *
 * Returns 0 if it was acknowledged or the handle is unmanaged or a follower, and as drom_apply() if it was not: -EBADF
 * or an error of pwrite(2); or, where the agent has stopped managing the task, an error of giving back its affinity.
 * Not async-signal-safe. */
int drom_acknowledge(drom *d, const drom_grant *g);

/* Wait until a grant is waiting to be taken.
 *
 * timeout_ms    longest time to wait, in milliseconds; 0: return at once; negative: no limit.
 *
 * Returns 1 if a grant is waiting, and 0 if the time is over, or at once if the handle is unmanaged. Signals do not end
 * it. Not async-signal-safe. */
int drom_wait(drom *d, int timeout_ms);

/* Report how much work is done since the program began. The agent measures with it how fast the program is with its
 * cores.
 *
 * done    amount of work in a unit of the program's choice, which stays the same; it does not decrease.
 *
 * Nothing is reported for an unmanaged handle or a follower. Async-signal-safe. */
void drom_progress(drom *d, uint64_t done);

/* Report how many CPUs the program can use, all processes of its task together. The agent takes back what is beyond
 * max_cpus, and leaves min_cpus when others arrive that can start without them. A grant may still be outside of these
 * bounds. Of the reports within a second the last one counts.
 *
 * min_cpus    fewest CPUs of use; 0: not specified.
 * max_cpus    most CPUs of use; 0: not specified.
 *
 * With several handles in one process the largest min_cpus counts, and the largest max_cpus unless a handle has none.
 * Not async-signal-safe. */
void drom_want(drom *d, uint32_t min_cpus, uint32_t max_cpus);

/* Report that the task can do without CPUs: while at least `min_tasks` tasks of its job have some, and all tasks of the job
 * have reported this, the agent may give it a grant without CPUs (ncpus is 0). The program acknowledges that with
 * drom_acknowledge() once it waits, with drom_wait(), for CPUs. drom_mpi.h does so for MPI programs.
 *
 * min_tasks    fewest tasks of the job that keep CPUs; 0: the task needs CPUs always, as it does without a report.
 * max_tasks    most tasks of the job that can use CPUs; 0: all.
 *
 * With several handles in one process the largest numbers count. Not async-signal-safe. */
void drom_may_rest(drom *d, uint32_t min_tasks, uint32_t max_tasks);

/* Return the index of the task's slot in the agent's registry, or -1 if the handle is unmanaged. With it and
 * drom_directory() event loops subscribe to the agent's signals. Async-signal-safe. */
int drom_slot(const drom *d);

/* Return the agent's runtime directory, an absolute path, or "" if the handle is unmanaged since it was attached. The
 * library owns the text, which lasts until the next drom_take() or drom_detach() of the handle. Async-signal-safe. */
const char *drom_directory(const drom *d);

/* Write the OS CPU numbers of a grant to an array, ascending.
 *
 * g       a grant that drom_take() has copied.
 * cpus    room for `max` numbers; may be NULL if max is 0.
 * max     the most numbers to write.
 *
 * Returns how many CPUs the grant has, which may be more than max. Any threads may read one grant at a time.
 * Async-signal-safe. */
int drom_grant_cpus(const drom_grant *g, int *cpus, int max);

#ifdef __cplusplus
}
#endif
#endif
