/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "step.h"

#define FIRST_PAUSE_NS (2 * 1000 * 1000)
#define LONGEST_PAUSE_NS (500 * 1000 * 1000) /* a killed process may hang in the kernel for days */

/* Return the parent of a process; 0: there is no such process. The command's name may contain parentheses. */
static pid_t parent_of(const char *pid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    if (length <= 0)
        return 0;
    text[length] = '\0';
    const char *end = strrchr(text, ')');
    int parent = 0;
    return end && sscanf(end + 1, " %*c %d", &parent) == 1 ? (pid_t)parent : 0;
}

static void kill_children(void)
{
    pid_t me = getpid();
    DIR *proc = opendir("/proc");
    for (struct dirent *entry; proc && (entry = readdir(proc));)
        if (isdigit((unsigned char)entry->d_name[0]) && parent_of(entry->d_name) == me)
            kill((pid_t)atoi(entry->d_name), SIGKILL);
    if (proc)
        closedir(proc);
}

/* Children of a process that dies become children of this one, so repeating kill_children() reaches all descendants. */
void end_descendants(void)
{
    struct timespec pause = {.tv_nsec = FIRST_PAUSE_NS};
    for (;;) {
        pid_t ended = waitpid(-1, NULL, WNOHANG);
        if (ended < 0 && errno == ECHILD)
            return;
        if (ended == 0) {
            kill_children();
            nanosleep(&pause, NULL);
            pause.tv_nsec = pause.tv_nsec < LONGEST_PAUSE_NS / 2 ? 2 * pause.tv_nsec : LONGEST_PAUSE_NS;
        } else
            pause.tv_nsec = FIRST_PAUSE_NS;
    }
}
