/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "internal.h"

#define SYSTEM_DIR "/run/drom"

static struct {
    const char *name;
    char *value;
} kept[] = {{"DROM_RUNTIME_DIR", NULL}, {"DROM_TASK", NULL}, {"DROM_MAX_CPUS", NULL}, {"DROM_MALLEABILITY", NULL}};
enum { KEPT = sizeof kept / sizeof *kept };

void dromi_keep_settings(void)
{
    for (int i = 0; i < KEPT; i++) {
        const char *value = secure_getenv(kept[i].name);
        kept[i].value = value ? strdup(value) : NULL;
    }
}

const char *dromi_setting(const char *name)
{
    const char *value = secure_getenv(name);
    for (int i = 0; i < KEPT && !value; i++)
        value = strcmp(name, kept[i].name) == 0 ? kept[i].value : NULL;
    return value && *value ? value : NULL;
}

static int fits(int written, size_t size)
{
    return written < 0 || (size_t)written >= size ? -ENAMETOOLONG : 0;
}

/* Any user may create the default directories. Accept one only if no user but this one and root can create a socket in it. */
static int check_directory(const char *dir)
{
    struct stat about;
    if (syscall(SYS_newfstatat, AT_FDCWD, dir, &about, AT_SYMLINK_NOFOLLOW) < 0) /* lstat(), which older glibcs lack */
        return errno == ENOENT ? 0 : -errno;
    bool ours = about.st_uid == geteuid() || about.st_uid == 0;
    return S_ISDIR(about.st_mode) && ours && !(about.st_mode & (S_IWGRP | S_IWOTH)) ? 0 : -DROMI_UNSAFE;
}

int dromi_runtime_dir(char *dir, size_t size)
{
    const char *given = dromi_setting("DROM_RUNTIME_DIR");
    if (given)
        return fits(snprintf(dir, size, "%s", given), size);
    const char *user = dromi_setting("XDG_RUNTIME_DIR");
    if (geteuid() == 0 || access(SYSTEM_DIR "/door", F_OK) == 0)
        return fits(snprintf(dir, size, SYSTEM_DIR), size);
    int rc = fits(user ? snprintf(dir, size, "%s/drom", user) : snprintf(dir, size, "/tmp/drom-%u", (unsigned)geteuid()), size);
    return rc < 0 ? rc : check_directory(dir);
}

int dromi_registration_path(char *path, size_t size, const char *dir)
{
    return fits(snprintf(path, size, "%s/door", dir), size);
}

/* Move a descriptor above 2, so that it is not used as a standard stream by a program that was started with that closed. */
int dromi_above_stdio(int fd)
{
    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    int error = errno;
    close(fd);
    errno = error;
    return moved;
}

void dromi_request(struct drom_request_message *request, uint32_t kind)
{
    memset(request, 0, sizeof *request);
    request->magic = DROM_DOOR_MAGIC;
    request->protocol = DROM_PROTOCOL_VERSION;
    request->kind = kind;
    const char *task = dromi_setting("DROM_TASK");
    uint64_t pid, start;
    if (task && dromi_number(&task, &pid) && pid <= INT32_MAX && *task++ == ':' && dromi_number(&task, &start)) {
        request->task_pid = (int32_t)pid;
        request->task_start = start;
    }
}

/* Read up to `most` numbers from a file of the kernel. Return how many. */
static size_t read_numbers(const char *path, uint64_t *numbers, size_t most)
{
    char text[1024];
    int file = dromi_above_stdio(open(path, O_RDONLY | O_CLOEXEC));
    ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    text[length < 0 ? 0 : length] = '\0';
    size_t count = 0;
    for (const char *at = text; *at && count < most; at += *at != '\0')
        count += dromi_number(&at, &numbers[count]);
    return count;
}

/* Return whether `uid` is the overflow user ID, as which a user namespace shows all users that are not mapped into it, such as
 * root outside of it. */
static bool is_unknown(uid_t uid)
{
    uint64_t overflow, map[3 * 32];
    if (read_numbers("/proc/sys/kernel/overflowuid", &overflow, 1) != 1 || overflow != uid)
        return false;
    size_t count = read_numbers("/proc/self/uid_map", map, sizeof map / sizeof *map);
    for (size_t i = 0; i + 3 <= count; i += 3)
        if (uid >= map[i] && uid - map[i] < map[i + 2])
            return false;
    return count > 0;
}

/* Accept only root and this user as the listening process, which could send any mask, and any file as a registry. */
static int check_listener(int connection)
{
    struct ucred listener;
    socklen_t size = sizeof listener;
    if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &listener, &size) < 0)
        return -errno;
    return listener.uid == 0 || listener.uid == geteuid() || is_unknown(listener.uid) ? 0 : -DROMI_OTHER_USER;
}

/* Signals interrupt a call with a time limit even if SA_RESTART is set, so each retry gets the remaining time. */
static int connect_until(int connection, const struct sockaddr_un *address, uint64_t deadline_ns)
{
    for (;;) {
        uint64_t now = dromi_now_ns();
        if (now >= deadline_ns)
            return -ETIMEDOUT;
        uint64_t left_us = (deadline_ns - now) / 1000 + 1; /* 0 would be no limit */
        struct timeval limit = {.tv_sec = (time_t)(left_us / 1000000), .tv_usec = (suseconds_t)(left_us % 1000000)};
        setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        if (connect(connection, (const struct sockaddr *)address, sizeof *address) == 0)
            return 0;
        if (errno != EINTR)
            return -errno;
    }
}

/* `seconds` limits connecting and sending: if the agent hangs, its queue is full. */
int dromi_connect(const char *path, int seconds)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        return -ENAMETOOLONG;
    memcpy(address.sun_path, path, strlen(path) + 1);
    int connection = dromi_above_stdio(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (connection < 0)
        return -errno;
    int rc = connect_until(connection, &address, dromi_now_ns() + (uint64_t)seconds * 1000000000u);
    if (rc == 0)
        rc = check_listener(connection);
    if (rc == 0)
        return connection;
    close(connection);
    return rc;
}

int dromi_send(int connection, const struct drom_request_message *request)
{
    ssize_t sent;
    while ((sent = send(connection, request, sizeof *request, MSG_NOSIGNAL)) < 0 && errno == EINTR)
        ;
    return sent < 0 ? -errno : 0;
}

static int wait_readable(int connection, uint64_t deadline_ns)
{
    for (;;) {
        uint64_t now = dromi_now_ns();
        if (deadline_ns && now >= deadline_ns)
            return -ETIMEDOUT;
        struct pollfd ready = {.fd = connection, .events = POLLIN};
        int rc = poll(&ready, 1, deadline_ns ? (int)((deadline_ns - now) / 1000000) + 1 : -1);
        if (rc > 0)
            return 0;
        if (rc < 0 && errno != EINTR)
            return -errno;
    }
}

enum { DESCRIPTORS_MOST = 4 }; /* received at most: more than a reply has */

/* Store the reply's descriptors. Return -EMFILE if the program may not open as many files as were sent. */
static int keep_descriptors(struct msghdr *message, struct answer *answer)
{
    int *places[] = {&answer->registry_fd, &answer->mailbox_fd};
    size_t kept = 0, received = 0;
    bool lost = false;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        received += count;
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (kept < 2)
                lost |= (*places[kept++] = dromi_above_stdio(fd)) < 0;
            else
                close(fd);
        }
    }
    return lost || (message->msg_flags & MSG_CTRUNC && received < DESCRIPTORS_MOST) ? -EMFILE : 0;
}

static int check_reply(const struct answer *answer, ssize_t got)
{
    const struct drom_reply_message *reply = &answer->reply;
    if (got < (ssize_t)sizeof *reply || reply->magic != DROM_DOOR_MAGIC || reply->protocol != DROM_PROTOCOL_VERSION)
        return -EPROTO;
    size_t mask_bytes = (reply->mask_bits + 63) / 64 * 8;
    return reply->mask_bits > DROM_MAX_MASK_BITS || (size_t)got < sizeof *reply + mask_bytes ? -EPROTO : 0;
}

int dromi_receive(int connection, struct answer *answer, uint64_t deadline_ns)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(DESCRIPTORS_MOST * sizeof(int))];
    } control;
    struct iovec parts[] = {{&answer->reply, sizeof answer->reply}, {answer->mask, sizeof answer->mask}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2, .msg_control = &control, .msg_controllen = sizeof control};
    memset(answer, 0, sizeof *answer);
    answer->registry_fd = answer->mailbox_fd = -1;
    int rc = wait_readable(connection, deadline_ns);
    if (rc < 0)
        return rc;
    ssize_t got;
    while ((got = recvmsg(connection, &message, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR)
        ;
    if (got < 0)
        return -errno;
    int kept = keep_descriptors(&message, answer);
    rc = got == 0 ? -ECONNRESET : check_reply(answer, got);
    if (rc == 0)
        rc = kept;
    if (rc < 0)
        dromi_close_answer(answer);
    answer->reply.text[DROM_TEXT_SIZE - 1] = '\0';
    return rc;
}

void dromi_close_answer(struct answer *answer)
{
    if (answer->registry_fd >= 0)
        close(answer->registry_fd);
    if (answer->mailbox_fd >= 0)
        close(answer->mailbox_fd);
    answer->registry_fd = answer->mailbox_fd = -1;
}
