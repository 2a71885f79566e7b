/* SPDX-License-Identifier: Apache-2.0 */
/* Supervise one attempt of a job: drom-step LABEL INSTRUCTIONS FOLDER STARTED, where all but the label are descriptors.
 *
 * The agent starts it and may die meanwhile. It runs one program as a user, waits for its end, kills the processes that the program
 * has left, and records how it ended. FOLDER, locked by flock, stays locked as long as this process lives. It is a subreaper, so
 * that all descendants of the program stay its own, and blocks all signals but SIGKILL. It writes the program's pid to STARTED once
 * the program runs, and how it ended if that cannot be recorded in FOLDER.
 *
 * drom-step hold does nothing until a signal ends it: the program of a job whose processes are started by other means.
 * drom-step remote: see remote.c. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "step.h"

enum { EXIT_USAGE = 2 };

static int descriptor(const char *text)
{
    int fd = atoi(text);
    return fd > STDERR_FILENO && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 ? fd : -1;
}

/* Reap all children that end, until `child` has; return its status. */
static int outlive(pid_t child)
{
    int status = 0;
    for (pid_t ended = 0; ended != child;) {
        ended = waitpid(-1, &status, 0);
        if (ended < 0 && errno != EINTR)
            break;
    }
    return status;
}

static pid_t failed(const char *what, struct failure *failure)
{
    failure->number = errno;
    snprintf(failure->what, sizeof failure->what, "%s", what);
    return -1;
}

/* Start the program; return its pid, or -1 and the reason. `begun` stays false if it is killed before it runs. */
static pid_t start(const struct instructions *instructions, bool *begun, struct failure *failure)
{
    pid_t parent = getpid();
    int status_pipe[2]; /* from the child: an empty failure before it executes the program, then end of file or a failure */
    if (pipe2(status_pipe, O_CLOEXEC) < 0)
        return failed("process", failure);
    pid_t child = fork();
    if (child == 0) {
        *failure = become_program(instructions, parent, status_pipe[1]);
        _exit(write(status_pipe[1], failure, sizeof *failure) < 0 ? 126 : 127);
    }
    if (child < 0)
        return failed("process", failure);
    close(status_pipe[1]);
    bool fails = *begun = false;
    while (read(status_pipe[0], failure, sizeof *failure) > 0) { /* no signal interrupts it: all are blocked */
        fails = *failure->what;
        *begun = !fails;
    }
    close(status_pipe[0]);
    if (!fails)
        return child;
    outlive(child);
    return -1;
}

static void report_started(int fd, pid_t child)
{
    char text[16];
    int length = snprintf(text, sizeof text, "%d\n", (int)child);
    if (write(fd, text, (size_t)length) < 0)
        return; /* the agent has died; the next one finds the lock held */
}

int main(int argc, char **argv)
{
    struct instructions instructions;
    struct failure failure;
    bool begun = false;
    sigset_t all;
    int fds[3];
    if (argc == 2 && strcmp(argv[1], "hold") == 0)
        for (;;)
            pause();
    if (argc > 1 && strcmp(argv[1], "remote") == 0)
        return run_remotely(argv + 2);
    if (argc != 5)
        return EXIT_USAGE;
    for (int i = 0; i < 3; i++)
        if ((fds[i] = descriptor(argv[i + 2])) < 0)
            return EXIT_USAGE;
    const int folder = fds[1], started = fds[2];
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    setsid();
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0 || chdir("/") < 0 || !read_instructions(&instructions, fds[0]))
        return EXIT_USAGE;
    close(fds[0]);
    pid_t child = record_pid(folder, getpid()) ? start(&instructions, &begun, &failure) : failed("spool", &failure);
    if (child < 0) {
        record_refusal(folder, started, &failure);
        return EXIT_SUCCESS;
    }
    if (begun) {
        record_pid(folder, child); /* if that fails, only a restarted agent lacks the pid */
        report_started(started, child);
    }
    int status = outlive(child);
    end_descendants();
    record_end(folder, started, status);
    return EXIT_SUCCESS;
}
