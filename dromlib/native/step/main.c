/* SPDX-License-Identifier: Apache-2.0 */
/* Keep one attempt of a job: drom-step LABEL INSTRUCTIONS FOLDER STARTED, all but the label descriptors.
 *
 * The agent starts it and may die meanwhile. It runs one program as a user, outlives it, ends what that has left behind, and
 * writes down how it ended. While it lives FOLDER, locked by flock, stays so. It is a subreaper, so that whatever
 * the program starts stays below it, and takes no signal but SIGKILL. When the program runs, its pid is written to STARTED;
 * and how it ended, where that cannot be written down.
 *
 * drom-step hold is a program that does nothing until a signal ends it: that of a job whose processes come from elsewhere.
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

/* Collect everybody who ends, until the child has; return its status. */
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

/* Start the program; return its pid, or -1 and why not. One that is killed before it runs has not `begun`. */
static pid_t start(const struct instructions *instructions, bool *begun, struct failure *failure)
{
    pid_t parent = getpid();
    int words[2]; /* the child's: no failure when it is about to run the program, and the end of file once that runs */
    if (pipe2(words, O_CLOEXEC) < 0)
        return failed("process", failure);
    pid_t child = fork();
    if (child == 0) {
        *failure = become_program(instructions, parent, words[1]);
        _exit(write(words[1], failure, sizeof *failure) < 0 ? 126 : 127);
    }
    if (child < 0)
        return failed("process", failure);
    close(words[1]);
    bool fails = *begun = false;
    while (read(words[0], failure, sizeof *failure) > 0) { /* no signal interrupts it: all are blocked */
        fails = *failure->what;
        *begun = !fails;
    }
    close(words[0]);
    if (!fails)
        return child;
    outlive(child);
    return -1;
}

static void tell_started(int fd, pid_t child)
{
    char text[16];
    int length = snprintf(text, sizeof text, "%d\n", (int)child);
    if (write(fd, text, (size_t)length) < 0)
        return; /* the agent has died; the next one sees that the lock is held */
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
        record_pid(folder, child); /* without it only a new agent does not know the pid */
        tell_started(started, child);
    }
    int status = outlive(child);
    end_descendants();
    record_end(folder, started, status);
    return EXIT_SUCCESS;
}
