/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "step.h"

#define SIZE 512 /* bytes of status.new, which the agent has allocated so that a status can be written to a full disk */

static double seconds(const struct timeval *time)
{
    return (double)time->tv_sec + (double)time->tv_usec / 1e6;
}

bool record_pid(int folder, pid_t pid)
{
    char text[16];
    int length = snprintf(text, sizeof text, "%d\n", (int)pid);
    int fd = openat(folder, "pid", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    bool written = fd >= 0 && write(fd, text, (size_t)length) == length;
    int error = errno;
    if (fd >= 0)
        close(fd);
    errno = error;
    return written;
}

/* Sync a file of the folder to disk, or, with "." and "..", a directory. */
static void sync_to_disk(int folder, const char *name)
{
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    fsync(fd);
    close(fd);
}

/* Spaces after the text keep the file's length. */
static bool write_status(int folder, const char *text)
{
    char record[SIZE];
    memset(record, ' ', sizeof record);
    memcpy(record, text, strnlen(text, sizeof record));
    int fd = openat(folder, "status.new", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || pwrite(fd, record, sizeof record, 0) != (ssize_t)sizeof record)
        return false;
    fsync(fd);
    sync_to_disk(folder, "start.json");
    if (renameat(folder, "status.new", folder, "status") < 0)
        return false;
    sync_to_disk(folder, ".");
    sync_to_disk(folder, "..");
    return true;
}

static void write_or_send(int folder, int agent, const char *text)
{
    if (!write_status(folder, text) && write(agent, text, strlen(text)) < 0)
        return; /* the disk has failed and the agent has died: the status is lost */
}

void record_refusal(int folder, int agent, const struct failure *failure)
{
    char text[SIZE];
    snprintf(text, sizeof text, "{\"refused\": \"%s\", \"errno\": %d}\n", failure->what, failure->number);
    write_or_send(folder, agent, text);
}

void record_end(int folder, int agent, int status)
{
    char text[SIZE];
    struct rusage used;
    struct timespec now;
    getrusage(RUSAGE_CHILDREN, &used);
    clock_gettime(CLOCK_REALTIME, &now);
    int code = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
    snprintf(text, sizeof text,
             "{\"status\": %d, \"time\": %.6f, \"cpu_seconds\": %.6f, \"max_rss\": %lld}\n", code,
             (double)now.tv_sec + (double)now.tv_nsec / 1e9, seconds(&used.ru_utime) + seconds(&used.ru_stime),
             (long long)used.ru_maxrss * 1024);
    write_or_send(folder, agent, text);
}
