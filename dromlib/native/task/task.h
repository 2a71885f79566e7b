/* SPDX-License-Identifier: Apache-2.0 */
/* How a process becomes a task of its node before it executes a command: drom-run, and plug-ins of batch systems. Nothing here
 * ends the process. All that is for people goes through dromi_say(). */
#ifndef DROM_TASK_H
#define DROM_TASK_H

#include "internal.h"

enum malleability { MALLEABILITY_AUTO, MALLEABILITY_NEXT_REGION, MALLEABILITY_BIND_ONLY };
enum runtime_choice { RUNTIME_AUTO, RUNTIME_LIBOMP, RUNTIME_LIBGOMP };
enum { CHOICES = 3 }; /* of each */
enum { MOST_SECONDS = 86400 }; /* of a deadline */
extern const char *const MALLEABILITIES[CHOICES], *const RUNTIMES[CHOICES];

/* Zeros are the defaults, but `command` must be there; its first part is NULL where the command is not known. */
struct options {
    const char *runtime_dir;
    const char *job;
    const char *session;
    uint32_t cpus;
    uint32_t min;
    uint32_t job_class;
    uint32_t distribution;
    uint32_t per_socket;
    uint64_t memory;
    bool strict;
    bool require;
    bool wait;            /* for an agent, as long as it takes */
    uint64_t deadline_ns; /* CLOCK_MONOTONIC after which nothing is waited for; 0: none */
    enum malleability malleability;
    enum runtime_choice runtime;
    bool fenced;          /* without a cpuset, the affinity is one */
    bool for_parent;      /* the task is the process that has started this one */
    const char *launcher; /* the path of drom-run, beside which the package lies; NULL: of this program */
    char **command;
};

enum verdict { VERDICT_GRANTED, VERDICT_REFUSED, VERDICT_UNMANAGED, VERDICT_NO_AGENT, VERDICT_LATE };

struct registration {
    enum verdict verdict;
    int error;          /* with VERDICT_NO_AGENT: for dromi_explain() */
    char dir[PATH_MAX]; /* the agent's */
    struct answer answer;
};

/* Register this process (or its parent) as the task that will execute the command, and wait for the answer. After a grant also bind it, and
 * set the environment for the command. After any other verdict the command runs as without an agent, if it runs. */
void become_task(struct registration *registration, const struct options *options);

/* Set the environment for a command that is no task, so that the programs which it starts register themselves. */
void prepare_starter(const struct options *options);

/* Return a new array of the same entries, or NULL without memory: setenv() changes the array of `environ` in place. */
char **copy_environment(char **environment);

/* Call `change` with what one environment has more than, less than (`value` is NULL) and other than a copy of it before. What is
 * less comes first: entries of `before` may be freed after that. */
typedef void change_function(const char *name, const char *value, void *context);
void compare_environments(char **before, char **after, change_function *change, void *context);

/* Put the entry that begins with `name` (with its =) first: agents read no more than the beginning of an environment. */
void move_to_front(char **environment, const char *name);

/* Return the decimal number in `text`, or 0 when it is none from 1 to `most`. */
uint32_t parse_number(const char *text, uint32_t most);

/* Return the place of `text` among the choices, or CHOICES when it is none of them. */
unsigned find_choice(const char *const choices[CHOICES], const char *text);

/* A place among the ranks of one launch on this node; size 0: no launcher. */
struct rank {
    uint32_t local_rank;
    uint32_t local_size;
    char session[DROM_NAME_SIZE];
};

void find_rank(struct rank *rank);

/* Copy text that may be longer than a name: at most 63 bytes, no half characters. */
void copy_name(char name[DROM_NAME_SIZE], const char *text);

/* Load drom into the command, so that it becomes malleable as it is; say why not where that is impossible. `malleable`: its
 * grant may change while it runs. Returns whether it is loaded. */
bool preload(const struct options *options, bool malleable);

/* Put a part behind a list in the environment, whose parts are separated by colons. */
void put_last(const char *name, const char *part);

/* Take out of the environment what a drom-run above us has loaded into its command. */
void preload_nothing(const struct options *options);

/* What the loader will make of a program file. */
struct program {
    bool is_elf;  /* else a script */
    bool foreign; /* for another processor or word size */
    bool is_static;
    bool is_musl;
    bool is_asan;          /* insists on being loaded first */
    char loader[PATH_MAX]; /* its dynamic loader, that of glibc; empty: none */
};

/* Read the file; everything is false when it cannot be read. */
void read_program(struct program *program, const char *path);

/* Whether the program's loader takes a library as it is; it does not where its glibc is too old. */
bool takes_library(const struct program *program, const char *path, const char *library);

/* The library to load before libgomp so that the program at `path` runs on LLVM's OpenMP instead, or NULL. Says so where the
 * user's wish cannot be met. */
const char *choose_runtime(const struct options *options, const struct program *program, const char *path);

/* Send the request, and wait for the answer to it, until `deadline_ns` (0: no limit). `wait`: ask again until an agent answers.
 * `error` becomes a positive error where none does. */
enum verdict ask_for_cpus(const char *dir, const struct drom_request_message *request, struct answer *answer, bool wait,
                          uint64_t deadline_ns, int *error);

#endif
