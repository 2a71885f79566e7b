/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/keyctl.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "step.h"

#define USUAL_DESCRIPTORS 1024 /* the kernel's default soft limit, on which programs that call select() rely */

extern char **environ;

static bool is_member(gid_t gid)
{
    static gid_t groups[65536];
    int count = getgroups(sizeof groups / sizeof *groups, groups);
    for (int i = 0; i < count; i++)
        if (groups[i] == gid)
            return true;
    return false;
}

/* Change to a user, with the groups that this node's user database lists, not those that the scheduler sent. */
static const char *become_user(uid_t uid, gid_t gid)
{
    if (geteuid() != 0)
        return NULL; /* the agent has checked that it is the same user */
    errno = 0;
    const struct passwd *user = getpwuid(uid);
    if (!user) {
        errno = errno ? errno : ENOENT;
        return "user";
    }
    if (initgroups(user->pw_name, user->pw_gid) < 0)
        return "groups";
    if (gid != user->pw_gid && uid != 0 && !is_member(gid)) {
        errno = EPERM;
        return "group";
    }
    syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL); /* otherwise the user would have root's; fails if the kernel has no keyrings */
    return setgid(gid) < 0 ? "group" : setuid(uid) < 0 ? "user" : NULL;
}

/* Join a control group before changing to the user, who may not write there. Children are in it from their first instruction on. */
static bool join_group(const char *file)
{
    int fd = open(file, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool joined = write(fd, "0", 1) == 1;
    int error = errno;
    close(fd);
    errno = error;
    return joined;
}

static bool open_as(int stream, const char *path, int flags)
{
    int fd = open(*path ? path : "/dev/null", flags | O_NOCTTY, 0666);
    if (fd < 0)
        return false;
    bool done = dup2(fd, stream) >= 0;
    if (fd != stream)
        close(fd);
    return done;
}

static const char *open_streams(const struct instructions *instructions)
{
    int writing = O_WRONLY | O_CREAT | (instructions->append ? O_APPEND : O_TRUNC);
    if (!open_as(STDIN_FILENO, instructions->input, O_RDONLY))
        return "input";
    if (!open_as(STDOUT_FILENO, instructions->output, writing))
        return "output";
    bool same = !*instructions->error || strcmp(instructions->error, instructions->output) == 0;
    if (same ? dup2(STDOUT_FILENO, STDERR_FILENO) < 0 : !open_as(STDERR_FILENO, instructions->error, writing))
        return "error";
    return NULL;
}

static void reset_signals_and_limits(void)
{
    struct rlimit files;
    sigset_t none;
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur > USUAL_DESCRIPTORS) {
        files.rlim_cur = USUAL_DESCRIPTORS;
        setrlimit(RLIMIT_NOFILE, &files);
    }
}

static const char *prepare(const struct instructions *instructions, pid_t parent)
{
    const char *failed;
    setsid();
    umask(instructions->umask);
    if (*instructions->group && !join_group(instructions->group))
        return "memory";
    if ((failed = become_user(instructions->uid, instructions->gid)))
        return failed;
    /* If the supervisor (drom-step) is killed, its program is killed too: its end could not be recorded. After setuid(), which
     * clears this setting. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
        return "keeper";
    if (chdir(instructions->cwd) < 0)
        return "cwd";
    if ((failed = open_streams(instructions)))
        return failed;
    reset_signals_and_limits();
    return NULL;
}

struct failure become_program(const struct instructions *instructions, pid_t parent, int status_pipe)
{
    const struct failure none = {0};
    const char *failed = prepare(instructions, parent);
    if (!failed && write(status_pipe, &none, sizeof none) < 0)
        failed = "process";
    if (!failed) {
        environ = instructions->envp; /* execvp() searches this PATH */
        execvp(instructions->argv[0], instructions->argv);
        failed = "program";
    }
    struct failure failure = {.number = errno};
    snprintf(failure.what, sizeof failure.what, "%s", failed);
    return failure;
}
