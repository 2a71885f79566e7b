/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DROM_STEP_H
#define DROM_STEP_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* The program to run. The agent sends NUL-terminated strings in this order, then the number of arguments, these, and the
 * environment. An empty path is /dev/null, but an empty `error` is the output, and an empty `group` no control group. */
struct instructions {
    uid_t uid;
    gid_t gid;
    mode_t umask;
    bool append; /* to the output, instead of truncating it */
    const char *cwd;
    const char *input;
    const char *output;
    const char *error;
    const char *group; /* the file cgroup.procs of the control group to join */
    char **argv;
    char **envp;
};

/* Why the program could not be started: the step that failed, and its errno; empty: no failure. */
struct failure {
    char what[12];
    int number;
};

/* Read instructions from a descriptor. False: they are malformed, or there is no memory. */
bool read_instructions(struct instructions *instructions, int fd);

/* In the child: change to the user, open the streams, write an empty failure to `status_pipe`, and execute the program. Return
 * only if that fails. */
struct failure become_program(const struct instructions *instructions, pid_t parent, int status_pipe);

/* Kill all descendants of this process, a subreaper, and wait for them. */
void end_descendants(void);

/* Record in the folder of an attempt the pid of drom-step, and then that of its program once it runs. Return false, with errno, if
 * that fails. */
bool record_pid(int folder, pid_t pid);

/* Record why the program was not started, or how it ended (`status` as of waitpid); if that fails, write it to `agent`. */
void record_refusal(int folder, int agent, const struct failure *failure);
void record_end(int folder, int agent, int status);

/* Run a command on another node; return the exit code. */
int run_remotely(char **argv);

#endif
