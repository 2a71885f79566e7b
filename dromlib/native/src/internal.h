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

/* A working agent replies in milliseconds, on an overloaded machine in seconds. */
#ifndef DROMI_ANSWER_SECONDS
#define DROMI_ANSWER_SECONDS 30
#endif

struct handle {
    drom head; /* first, because programs see a handle as a drom */
    int mode;
    pid_t owner;
    uint64_t still; /* head.epoch points to it when unmanaged: always equal to head.seen */
    uint64_t own_polls;
    void *registry;
    size_t registry_size;
    const struct drom_slot *slot;
    struct drom_mailbox *mailbox;
    int mailbox_fd;
    dev_t mailbox_device; /* with the inode number: the program may close the descriptor and open another file under its number */
    ino_t mailbox_inode;
    uint32_t mask_words;
    uint32_t slot_index;
    uint32_t wanted[2]; /* fewest and most CPUs that the program can use; 0: unspecified */
    uint32_t tasks[2]; /* fewest that keep CPUs while this one may rest (0: it may not), and most that can use CPUs (0: all) */
    bool emulated;
    bool lasting; /* the memory that head points to stays readable for ever: other threads poll without a lock */
    int32_t task_pid;
    uint64_t task_start;
    uint64_t restore[DROM_MAX_MASK_WORDS]; /* the affinity that the task had at first; zeros: unknown */
    char directory[PATH_MAX]; /* the agent's, absolute */
    struct handle *next; /* guarded by the lock of drom.c, like the next two fields */
    int32_t responder_pid; /* the task whose responder this is; 0: of none */
    uint64_t responder_start;
};

struct answer {
    struct drom_reply_message reply;
    uint64_t mask[DROM_MAX_MASK_WORDS];
    int registry_fd;
    int mailbox_fd;
};

/* registration.c. Return a variable of the environment, NULL if it is unset or empty. */
const char *dromi_setting(const char *name);
/* Copy drom's variables, so that dromi_setting() finds them after the program has cleared its environment. */
void dromi_keep_settings(void);
/* The following functions return 0 or -errno, or minus one of these. UNSAFE: another user may have created the runtime directory
 * or files in it. OTHER_USER: the process that listens there is neither root's nor this user's. */
enum { DROMI_UNSAFE = 10001, DROMI_OTHER_USER };
int dromi_registration_path(char *path, size_t size, const char *dir);
int dromi_runtime_dir(char *dir, size_t size); /* writes `dir` after an error too, perhaps truncated */
void dromi_request(struct drom_request_message *request, uint32_t kind);
int dromi_connect(const char *path, int seconds);
int dromi_send(int connection, const struct drom_request_message *request);
/* The deadline is in CLOCK_MONOTONIC nanoseconds; 0: none. */
int dromi_receive(int connection, struct answer *answer, uint64_t deadline_ns);
void dromi_close_answer(struct answer *answer);
int dromi_above_stdio(int fd);

/* no_agent.c. Print why there is no agent in `dir` and what to do, with texts before, between and after these. `error` is
 * positive. */
void dromi_report_no_agent(int error, const char *dir, const char *before, const char *between, const char *end);

/* responder.c. Register an unmanaged handle with the agent; return 0, or a negative error after which it is unmanaged. */
int dromi_register(struct handle *h);
/* Make a handle unmanaged, and unmap its registry and mailbox. */
void dromi_release(struct handle *h);
/* Make the agent's directory absolute, because the program may change its own. Symbolic links are kept if the path would be too
 * long for the agent's sockets without them. */
void dromi_make_absolute(char dir[PATH_MAX]);
/* Write a demand (as in struct handle) into the mailbox of a responder, unless it is there already. */
void dromi_write_demand(const struct handle *h, const uint32_t wanted[2], const uint32_t tasks[2]);
/* Return whether the mailbox's descriptor is still open. */
bool dromi_has_mailbox(const struct handle *h);
/* Write with a system call, which notifies the agent. Return 0 or -errno; -EBADF if the descriptor is no longer the mailbox's. */
int dromi_write_mail(const struct handle *h, size_t offset, const void *bytes, size_t size);

/* drom.c */
void dromi_prepare(void);
/* As pthread_atfork(). glibc's is a static wrapper of a function that is missing in a musl program started by a preloaded one.
 * Such a program must still start, and does so without the handlers. */
void dromi_at_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void));
/* As drom_attach(), but the preloaded library goes on managing the program. NULL: no memory. */
struct handle *dromi_attach(bool lasting);
/* Return whether a grant is waiting to be taken. */
static inline bool dromi_has_new_grant(const drom *d)
{
    return __atomic_load_n(d->epoch, __ATOMIC_ACQUIRE) != d->seen;
}
/* As drom_take(). Without `may_register`, return -1 if the process would have to register first, which takes up to
 * DROMI_ANSWER_SECONDS. */
int dromi_take(drom *d, drom_grant *g, bool may_register);
/* Return whether taking the next grant has to register first. */
bool dromi_may_register(const drom *d);
/* Return whether another handle of this process is a responder of the same task. */
bool dromi_is_shared(const struct handle *h);
/* Sleep until a grant, a signal or `end` (CLOCK_MONOTONIC nanoseconds), for a second at most. Return false if futex(2) failed. */
bool dromi_wait(const drom *d, uint64_t end);

/* slot.c */
bool dromi_is_ours(const struct drom_slot *slot, int32_t pid, uint64_t start);
void dromi_copy_mask(const struct drom_slot *slot, uint32_t number, uint32_t mask_words, uint64_t *mask);
enum read_result { READ_NOTHING, READ_GRANT, READ_RETIRED, READ_REUSED };
enum read_result dromi_read(const struct drom_slot *slot, uint64_t seen, int32_t pid, uint64_t start, uint32_t mask_words,
                            drom_grant *g);

/* narrowed.c: the part of a grant that each thread gets. */
struct parts {
    const uint64_t *grant;
    bool detects_own; /* the agent has bound no thread meanwhile: narrower masks are the program's */
    bool is_new; /* drom has not set this mask before: a thread that has it was bound by the program */
};
/* Return false if every thread gets the whole grant; then dromi_end_parts() must not be called. */
bool dromi_begin_parts(struct parts *parts, const uint64_t *grant);
/* Return a thread's part, from its mask `now`; the grant itself if it has no mask of its own. For the calling thread pass the
 * mask `before` it was bound. */
const uint64_t *dromi_part(const struct parts *parts, pid_t tid, const uint64_t *now);
const uint64_t *dromi_part_of_caller(const struct parts *parts, pid_t tid, const uint64_t *before);
void dromi_end_parts(void);
/* Record the mask in force from the slot: threads that have it have no mask of their own. */
void dromi_record_applied(const struct drom_slot *slot, uint32_t mask_words);
/* Enclose a moment in which a thread is bound to fewer CPUs than it will have. */
void dromi_begin_move(void);
void dromi_end_move(void);

/* bind.c. Bind every thread to the mask, or to its part of it (`dromi_bind_parts`). Return 0 or -errno. */
int dromi_bind_threads(const uint64_t *mask, uint32_t mask_words);
int dromi_bind_parts(const uint64_t *mask, uint32_t mask_words);
int dromi_bind(pid_t tid, const uint64_t *mask, uint32_t mask_words);
/* Get the OS CPUs that a thread may run on; 0: the calling thread. Return 0 or -errno. */
int dromi_bound_to(pid_t tid, uint64_t mask[DROM_MAX_MASK_WORDS]);

/* text.c */
/* As fstat() if `path` is NULL, otherwise as stat(): under these names glibc 2.33 has functions that older ones lack. */
int dromi_stat(int fd, const char *path, struct stat *about);
/* Read digits and advance past them, as strtoull(), whose symbol changes with the C standard. False: there are none. */
bool dromi_number(const char **text, uint64_t *number);
uint64_t dromi_now_ns(void);
void dromi_log(const char *event, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Print a message for the program's user on standard error, or pass it to this function if a plug-in has set one. */
extern void (*dromi_print_handler)(const char *message);
void dromi_print(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Return the file that the kernel runs for `path`: `path` itself, or the interpreter in a script's first line, which is written to
 * `name`. Interpreters that are scripts are followed. May be called in a child of vfork(). */
enum { DROMI_FIRST_LINE = 256 };
const char *dromi_interpreter(const char *path, char name[DROMI_FIRST_LINE + 1]);
size_t dromi_cpu_list(const uint64_t *mask, uint32_t mask_words, char *out, size_t size);

#endif
