/* SPDX-License-Identifier: Apache-2.0 */
/* How a process becomes a task of its node before it executes a command: drom-run, and plug-ins of batch systems. Nothing here
 * ends the process. All messages for users go through dromi_print(). */
#ifndef DROM_TASK_H
#define DROM_TASK_H

#include "internal.h"

enum malleability { MALLEABILITY_AUTO, MALLEABILITY_NEXT_REGION, MALLEABILITY_BIND_ONLY };
enum runtime_choice { RUNTIME_AUTO, RUNTIME_LIBOMP, RUNTIME_LIBGOMP };
enum { CHOICES = 3 }; /* of each of these */
enum { MOST_SECONDS = 86400 }; /* of a deadline */
extern const char *const MALLEABILITIES[CHOICES], *const RUNTIMES[CHOICES];

/* Zeros are the defaults, but `command` is required; its first word is NULL if the command is unknown. */
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
    bool wait;            /* for an agent, without a limit */
    uint64_t deadline_ns; /* CLOCK_MONOTONIC at which all waiting ends; 0: none */
    enum malleability malleability;
    enum runtime_choice runtime;
    bool fenced;          /* without a cpuset, the affinity confines the task like one */
    bool for_parent;      /* the task is the process that has started this one */
    const char *launcher; /* the path of drom-run, relative to which the package is found; NULL: this program's */
    char **command;
};

enum verdict { VERDICT_GRANTED, VERDICT_REFUSED, VERDICT_UNMANAGED, VERDICT_NO_AGENT, VERDICT_LATE };

struct registration {
    enum verdict verdict;
    int error;          /* with VERDICT_NO_AGENT: for dromi_report_no_agent() */
    char dir[PATH_MAX]; /* the agent's */
    struct answer answer;
};

/* Register this process (or its parent) as the task that will execute the command, and wait for the reply. After a grant also bind
 * it, and set the environment for the command. After any other verdict the command runs as without an agent, if it runs. */
void become_task(struct registration *registration, const struct options *options);

/* Set the environment for a command that is no task, so that the programs that it starts register themselves. */
void prepare_starter(const struct options *options);

/* Return a new array of the same entries, because setenv() changes the array of `environ` in place. NULL: no memory. */
char **copy_environment(char **environment);

/* Call `change` for each variable that was removed (`value` is NULL), added or changed between a copy of an environment and now.
 * Removed ones come first: entries of `before` may be freed after that. */
typedef void change_function(const char *name, const char *value, void *context);
void compare_environments(char **before, char **after, change_function *change, void *context);

/* Move the entry that begins with `name` (including the =) to the front: agents read only the beginning of an environment. */
void move_to_front(char **environment, const char *name);

/* Return the decimal number in `text`, or 0 if it is none from 1 to `most`. */
uint32_t parse_number(const char *text, uint32_t most);

/* Return the index of `text` among the choices, or CHOICES if it is none of them. */
unsigned find_choice(const char *const choices[CHOICES], const char *text);

/* The index among the ranks of one launch on this node; size 0: no launcher. */
struct rank {
    uint32_t local_rank;
    uint32_t local_size;
    char session[DROM_NAME_SIZE];
};

void find_rank(struct rank *rank);

/* Copy text that may be longer than a name: at most 63 bytes, cut between characters. */
void copy_name(char name[DROM_NAME_SIZE], const char *text);

/* Load drom into the command, so that it becomes malleable without a change; print the reason if that is impossible. `malleable`:
 * its grant may change while it runs. Return whether it is loaded. */
bool preload(const struct options *options, bool malleable);

/* Append a part to a colon-separated list in the environment. */
void put_last(const char *name, const char *part);

/* Remove from the environment what an outer drom-run has loaded into its command. */
void preload_nothing(const struct options *options);

/* How the loader will treat a program file. */
struct program {
    bool is_elf;  /* false: a script */
    bool foreign; /* for another processor or word size */
    bool is_static;
    bool is_musl;
    bool is_asan;          /* the address sanitizer, which requires to be loaded first */
    char loader[PATH_MAX]; /* its dynamic loader, that of glibc; empty: none */
};

/* Read the file; if that fails, all fields are false. */
void read_program(struct program *program, const char *path);

/* Return whether the program's loader can load a library; it cannot if its glibc is too old. */
bool takes_library(const struct program *program, const char *path, const char *library);

/* Return the library to load before libgomp so that the program at `path` runs on LLVM's OpenMP instead, or NULL. Print a message if
 * the user's option cannot be followed. */
const char *choose_runtime(const struct options *options, const struct program *program, const char *path);

/* Send the request, and wait for the reply, until `deadline_ns` (0: no limit). `wait`: repeat it until an agent replies. `error`
 * becomes a positive error if none does. */
enum verdict request_cpus(const char *dir, const struct drom_request_message *request, struct answer *answer, bool wait,
                          uint64_t deadline_ns, int *error);

#endif
