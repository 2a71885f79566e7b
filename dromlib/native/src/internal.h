/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DROM_INTERNAL_H
#define DROM_INTERNAL_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "drom_layout.h"

#pragma GCC visibility push(default)
#include "drom.h"
#include "publish.h"
#pragma GCC visibility pop

/* An agent that listens answers in milliseconds, on an overloaded machine in seconds. */
#ifndef DROMI_ANSWER_SECONDS
#define DROMI_ANSWER_SECONDS 30
#endif

struct handle {
    drom head; /* first: a handle is seen from outside as a drom */
    int mode;
    pid_t owner;
    uint64_t still; /* what head.epoch points to when unmanaged: always equal to head.seen */
    uint64_t own_polls;
    void *registry;
    size_t registry_size;
    const struct drom_slot *slot;
    struct drom_mailbox *mailbox;
    int mailbox_fd;
    dev_t mailbox_device; /* with its number there: the program may close the descriptor, and open another file as that */
    ino_t mailbox_inode;
    uint32_t mask_words;
    uint32_t slot_index;
    uint32_t wanted[2]; /* fewest and most CPUs of use; 0: unsaid */
    uint32_t tasks[2]; /* that keep CPUs while this one may rest (0: it may not), and that can use some (0: all) */
    bool emulated;
    bool lasting; /* what head points to stays readable for ever: other threads poll without a lock */
    int32_t task_pid;
    uint64_t task_start;
    uint64_t restore[DROM_MAX_MASK_WORDS]; /* the affinity the task came with; zeros: unknown */
    char directory[PATH_MAX]; /* the agent's, absolute */
    struct handle *next; /* guarded, with the seat, by the lock of drom.c */
    int32_t seat_pid;
    uint64_t seat_start;
};

struct answer {
    struct drom_reply_message reply;
    uint64_t mask[DROM_MAX_MASK_WORDS];
    int registry_fd;
    int mailbox_fd;
};

/* door.c: a variable of the environment, NULL where it is empty. If it is kept it lasts where the program clears its own. */
const char *dromi_setting(const char *name);
void dromi_keep_settings(void);
/* From here on 0 or -errno, or minus one of these: the runtime directory is one that others may have made, or made use of, or whoever
 * listens there is neither root nor our own user. */
enum { DROMI_UNSAFE = 10001, DROMI_STRANGER };
int dromi_door_path(char *path, size_t size, const char *dir);
int dromi_runtime_dir(char *dir, size_t size); /* `dir` is written after an error too, perhaps cut off */
void dromi_request(struct drom_request_message *request, uint32_t kind);
int dromi_connect(const char *path, int seconds);
int dromi_send(int door, const struct drom_request_message *request);
/* A deadline in CLOCK_MONOTONIC nanoseconds; 0: none. */
int dromi_receive(int door, struct answer *answer, uint64_t deadline_ns);
void dromi_close_answer(struct answer *answer);
int dromi_above_stdio(int fd);

/* why.c: say why there is no agent in `dir`, and what to do, with texts before, between and behind these. `error` is positive. */
void dromi_explain(int error, const char *dir, const char *before, const char *between, const char *end);

/* seat.c: take a handle from unmanaged to managed and back. */
int dromi_sit(struct handle *h);
/* The agent's directory, because the program may change its own. Links in it stay where it would be too long for the agent's
 * sockets without them. */
void dromi_make_absolute(char dir[PATH_MAX]);
void dromi_leave(struct handle *h);
/* The fewest and the most CPUs of use, and the tasks that keep CPUs, unless the mailbox of a responder says so already. */
void dromi_write_wanted(const struct handle *h, const uint32_t wanted[2], const uint32_t tasks[2]);
bool dromi_has_mailbox(const struct handle *h);
/* With a system call, of which the agent hears; 0 or -errno, -EBADF where the descriptor is no longer that of the mailbox. */
int dromi_write_mail(const struct handle *h, size_t offset, const void *bytes, size_t size);

/* drom.c */
void dromi_prepare(void);
/* pthread_atfork(). glibc links that statically around a function that a musl program has not got which a preloaded one has
 * started: it must still start, and gets by without. */
void dromi_at_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void));
/* drom_attach() without telling the preloaded library; NULL without memory. */
struct handle *dromi_attach(bool lasting);
static inline bool dromi_news(const drom *d)
{
    return __atomic_load_n(d->epoch, __ATOMIC_ACQUIRE) != d->seen;
}
/* drom_take(). Unless it `knocks`: -1 where that would ask the agent for a seat first, which takes up to DROMI_ANSWER_SECONDS. */
int dromi_take(drom *d, drom_grant *g, bool knocks);
/* Whether taking the next grant asks for a seat first. */
bool dromi_may_knock(const drom *d);
/* Whether a handle of this process sits in the seat of the same task. */
bool dromi_is_shared(const struct handle *h);
/* Sleep once: until a grant, a signal or `end`, and a second at most. False when nothing can be slept on. */
bool dromi_doze(const drom *d, uint64_t end);

/* slot.c */
bool dromi_is_ours(const struct drom_slot *slot, int32_t pid, uint64_t start);
void dromi_copy_mask(const struct drom_slot *slot, uint32_t number, uint32_t mask_words, uint64_t *mask);
enum read_result { READ_NOTHING, READ_GRANT, READ_RETIRED, READ_STRANGER };
enum read_result dromi_read(const struct drom_slot *slot, uint64_t seen, int32_t pid, uint64_t start, uint32_t mask_words,
                            drom_grant *g);

/* narrowed.c: the part of a grant that each thread gets. False: all get all of it, and there is nothing to end. */
struct parts {
    const uint64_t *grant;
    bool learns; /* the agent has bound no thread meanwhile */
    bool is_new; /* only the program itself can have bound threads to just this */
};
bool dromi_begin_parts(struct parts *parts, const uint64_t *grant);
/* From the mask of a thread; the grant itself where it has none of its own. The caller's is that of before it was bound. */
const uint64_t *dromi_part(const struct parts *parts, pid_t tid, const uint64_t *now);
const uint64_t *dromi_part_of_caller(const struct parts *parts, pid_t tid, const uint64_t *before);
void dromi_end_parts(void);
/* The mask that the agent knows to be in force: threads with it have none of their own. */
void dromi_remember(const struct drom_slot *slot, uint32_t mask_words);
/* Around a moment in which a thread is bound to a part of what it is to have. */
void dromi_begin_move(void);
void dromi_end_move(void);

/* bind.c: every thread gets the mask, or its part of it (`dromi_bind_parts`). */
int dromi_bind_threads(const uint64_t *mask, uint32_t mask_words);
int dromi_bind_parts(const uint64_t *mask, uint32_t mask_words);
int dromi_bind(pid_t tid, const uint64_t *mask, uint32_t mask_words);
/* The OS CPUs a thread may run on; 0: the calling one. */
int dromi_bound_to(pid_t tid, uint64_t mask[DROM_MAX_MASK_WORDS]);

/* text.c */
/* fstat() without a path, else stat(): glibc 2.33 has given these names to functions that no older one has. */
int dromi_stat(int fd, const char *path, struct stat *about);
/* Read digits and go on behind them, as strtoull(), whose name changes with the C standard; false when there are none. */
bool dromi_number(const char **text, uint64_t *number);
uint64_t dromi_now_ns(void);
void dromi_log(const char *event, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A sentence for the program's user: on standard error, or given to this function if a plug-in has set one. */
extern void (*dromi_say_to)(const char *sentence);
void dromi_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The file that the kernel runs for `path`: `path` itself, or the interpreter that a script's first line names, which is put in
 * `name`. That may be a script, too. May be called in a child of vfork(). */
enum { DROMI_FIRST_LINE = 256 };
const char *dromi_interpreter(const char *path, char name[DROMI_FIRST_LINE + 1]);
size_t dromi_cpu_list(const uint64_t *mask, uint32_t mask_words, char *out, size_t size);

#endif
