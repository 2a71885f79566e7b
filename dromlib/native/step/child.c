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

#define USUAL_DESCRIPTORS 1024 /* the soft limit where nobody says otherwise: programs that call select() count on it */

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

/* What this node knows of the user counts, and not what the scheduler says of his groups. */
static const char *become_user(uid_t uid, gid_t gid)
{
    if (geteuid() != 0)
        return NULL; /* the agent has seen to it that it is the same user */
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
    syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL); /* or root's is the user's; where there are none it fails */
    return setgid(gid) < 0 ? "group" : setuid(uid) < 0 ? "user" : NULL;
}

/* Before the user's rights are taken, who may not do this; children are in the group from their first instruction on. */
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

static const char *open_streams(const struct instructions *want)
{
    int writing = O_WRONLY | O_CREAT | (want->append ? O_APPEND : O_TRUNC);
    if (!open_as(STDIN_FILENO, want->input, O_RDONLY))
        return "input";
    if (!open_as(STDOUT_FILENO, want->output, writing))
        return "output";
    bool same = !*want->error || strcmp(want->error, want->output) == 0;
    if (same ? dup2(STDOUT_FILENO, STDERR_FILENO) < 0 : !open_as(STDERR_FILENO, want->error, writing))
        return "error";
    return NULL;
}

static void usual_conditions(void)
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

static const char *prepare(const struct instructions *want, pid_t parent)
{
    const char *failed;
    setsid();
    umask(want->umask);
    if (*want->group && !join_group(want->group))
        return "memory";
    if ((failed = become_user(want->uid, want->gid)))
        return failed;
    /* Who kills the keeper kills the program: nobody would know how it ended. After setuid(), which forgets this. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
        return "keeper";
    if (chdir(want->cwd) < 0)
        return "cwd";
    if ((failed = open_streams(want)))
        return failed;
    usual_conditions();
    return NULL;
}

struct failure become_program(const struct instructions *want, pid_t parent, int words)
{
    const struct failure none = {0};
    const char *failed = prepare(want, parent);
    if (!failed && write(words, &none, sizeof none) < 0)
        failed = "process";
    if (!failed) {
        environ = want->envp; /* whose PATH it is that counts */
        execvp(want->argv[0], want->argv);
        failed = "program";
    }
    struct failure failure = {.number = errno};
    snprintf(failure.what, sizeof failure.what, "%s", failed);
    return failure;
}
