/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DROM_STEP_H
#define DROM_STEP_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* What the agent wants run, as strings that each end in a NUL, in this order; then the arguments, `argc` of them, and the
 * environment. An empty path is /dev/null, but an empty `error` is the output, and an empty `group` no control group. */
struct instructions {
    uid_t uid;
    gid_t gid;
    mode_t umask;
    bool append; /* to the output, instead of beginning it anew */
    const char *cwd;
    const char *input;
    const char *output;
    const char *error;
    const char *group; /* the file cgroup.procs of the control group to join */
    char **argv;
    char **envp;
};

/* Why there is no program: the last thing tried, and its errno; or nothing. */
struct failure {
    char what[12];
    int number;
};

/* Read instructions from a descriptor. False: they are no such thing, or there is no memory. */
bool read_instructions(struct instructions *instructions, int fd);

/* In the child: become the user, open the streams, write to `words` that nothing has failed, and run the program. Returns
 * only when that fails. */
struct failure become_program(const struct instructions *instructions, pid_t parent, int words);

/* End every process that is a descendant of this one, a subreaper, and wait for it. */
void end_descendants(void);

/* In the folder of an attempt: the pid of its keeper, and then of its program once that runs. False, with errno: it could not be written. */
bool record_pid(int folder, pid_t pid);

/* Likewise why there is no program, or how it ended (`status` as of waitpid); told to `agent` where it cannot be written. */
void record_refusal(int folder, int agent, const struct failure *failure);
void record_end(int folder, int agent, int status);

/* Run a command on another node; return the exit code. */
int run_remotely(char **argv);

#endif
