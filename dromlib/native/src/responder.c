/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "internal.h"

/* Get the status of a regular file. Return 0 or -errno; -EPROTO if it is none. */
static int stat_regular(int fd, struct stat *about)
{
    if (fd >= 0 && dromi_stat(fd, NULL, about) < 0)
        return -errno;
    return fd >= 0 && S_ISREG(about->st_mode) ? 0 : -EPROTO;
}

static void *map_file(int fd, size_t size, int protection)
{
    void *at = mmap(NULL, size, protection, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

static bool good_header(const struct drom_header *header, uint64_t file_size, uint32_t slot)
{
    uint64_t words = header->mask_bits / 64;
    return header->magic == DROM_REGISTRY_MAGIC && header->layout_version == DROM_LAYOUT_VERSION && !header->retired &&
           header->mask_bits % 64 == 0 && header->mask_bits <= DROM_MAX_MASK_BITS && slot < header->capacity &&
           header->header_size >= sizeof *header && header->header_size % 8 == 0 && header->slot_size % 8 == 0 &&
           header->slot_size >= DROM_SLOT_FIXED + DROM_MASKS_PER_SLOT * words * 8 &&
           header->header_size + (slot + UINT64_C(1)) * header->slot_size <= file_size;
}

static int map_registry(struct handle *h, int fd, uint32_t slot)
{
    struct stat about;
    int rc = stat_regular(fd, &about);
    /* Access beyond the end of a file that is shorter than its mapping raises SIGBUS. */
    if (rc < 0 || about.st_size < DROM_HEADER_SIZE)
        return rc < 0 ? rc : -EPROTO;
    h->registry_size = (size_t)about.st_size;
    h->registry = map_file(fd, h->registry_size, PROT_READ);
    if (!h->registry)
        return -errno;
    const struct drom_header *header = h->registry;
    if (!good_header(header, h->registry_size, slot))
        return -EPROTO;
    h->slot = (const void *)((const char *)h->registry + header->header_size + (uint64_t)slot * header->slot_size);
    h->mask_words = header->mask_bits / 64;
    h->emulated = header->flags & DROM_HEADER_EMULATED;
    return 0;
}

static int map_mailbox(struct handle *h, int fd)
{
    struct stat about;
    int rc = stat_regular(fd, &about);
    if (rc < 0 || about.st_size != DROM_MAILBOX_SIZE)
        return rc < 0 ? rc : -EPROTO;
    h->mailbox_device = about.st_dev;
    h->mailbox_inode = about.st_ino;
    h->mailbox = map_file(fd, DROM_MAILBOX_SIZE, PROT_READ | PROT_WRITE);
    if (!h->mailbox)
        return -errno;
    bool good = h->mailbox->magic == DROM_MAILBOX_MAGIC && h->mailbox->layout_version == DROM_LAYOUT_VERSION;
    return good ? 0 : -EPROTO;
}

/* Send a request to the registration socket in `dir`. Return the connection on which the agent will reply, or -errno. */
static int send_request(const struct drom_request_message *request, const char *dir)
{
    char path[128]; /* more than the address of a socket has room for */
    int rc = dromi_registration_path(path, sizeof path, dir);
    int connection = rc == 0 ? dromi_connect(path, DROMI_ANSWER_SECONDS) : rc;
    if (connection == -EMFILE && access(path, F_OK) < 0)
        return -ENOENT; /* no agent to report about */
    if (connection < 0)
        return connection;
    rc = dromi_send(connection, request);
    if (rc == 0)
        return connection;
    close(connection);
    return rc;
}

/* Copy the affinity to restore, because the slot may belong to another task when it is needed. */
static void keep_restore(struct handle *h)
{
    dromi_copy_mask(h->slot, DROM_MASK_RESTORE, h->mask_words, h->restore);
    if (!dromi_is_ours(h->slot, h->task_pid, h->task_start))
        memset(h->restore, 0, sizeof h->restore);
}

static int accept_reply(struct handle *h, struct answer *answer)
{
    const struct drom_reply_message *reply = &answer->reply;
    bool follower = reply->status == DROM_STATUS_FOLLOWER;
    if (reply->status == DROM_STATUS_REFUSED || reply->status == DROM_STATUS_UNMANAGED)
        return -EACCES;
    int rc = map_registry(h, answer->registry_fd, reply->slot);
    if (rc == 0 && !follower)
        rc = map_mailbox(h, answer->mailbox_fd);
    if (rc < 0)
        return rc;
    if (!follower) {
        h->mailbox_fd = answer->mailbox_fd;
        answer->mailbox_fd = -1;
        h->head.polls = &h->mailbox->polls;
    }
    h->mode = follower ? DROM_FOLLOWER : DROM_RESPONDER;
    h->slot_index = reply->slot;
    h->head.seen = 0; /* the first grant is taken like any other: the program started its maximum of threads */
    h->head.epoch = &h->slot->epoch;
    keep_restore(h);
    return 0;
}

bool dromi_has_mailbox(const struct handle *h)
{
    struct stat about;
    return stat_regular(h->mailbox_fd, &about) == 0 && about.st_dev == h->mailbox_device && about.st_ino == h->mailbox_inode;
}

int dromi_write_mail(const struct handle *h, size_t offset, const void *bytes, size_t size)
{
    struct rlimit most;
    ssize_t put;
    if (!dromi_has_mailbox(h))
        return -EBADF;
    /* A write beyond RLIMIT_FSIZE would kill the program. fallocate() notifies the agent of a change in the file as well. */
    if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur < DROM_MAILBOX_SIZE) {
        memcpy((char *)h->mailbox + offset, bytes, size);
        return fallocate(h->mailbox_fd, FALLOC_FL_KEEP_SIZE, 0, DROM_MAILBOX_SIZE) < 0 ? -errno : 0;
    }
    while ((put = pwrite(h->mailbox_fd, bytes, size, (off_t)offset)) < 0 && errno == EINTR)
        ;
    return put < 0 ? -errno : 0;
}

static void write_if_changed(const struct handle *h, size_t offset, const void *bytes, size_t size)
{
    if (memcmp((const char *)h->mailbox + offset, bytes, size) == 0)
        return;
    int rc = dromi_write_mail(h, offset, bytes, size);
    if (rc < 0)
        dromi_log("unsaid", "task=%d error=%d", h->task_pid, -rc);
}

void dromi_write_demand(const struct handle *h, const uint32_t wanted[2], const uint32_t tasks[2])
{
    write_if_changed(h, offsetof(struct drom_mailbox, wanted_min), wanted, 2 * sizeof *wanted);
    write_if_changed(h, offsetof(struct drom_mailbox, min_tasks), tasks, 2 * sizeof *tasks);
}

/* Print why the program runs unmanaged. Print nothing if there is no agent, or if it refused or does not manage the program. */
static void warn_if_unusable(int error, const char *dir)
{
    static const int reported[] = {ETIMEDOUT, EAGAIN, EPROTO, EMFILE, ENAMETOOLONG, DROMI_UNSAFE, DROMI_OTHER_USER};
    for (size_t i = 0; i < sizeof reported / sizeof *reported; i++)
        if (error == -reported[i])
            dromi_report_no_agent(reported[i], dir, "", ", so this program runs unmanaged: ", ".");
}

void dromi_make_absolute(char dir[PATH_MAX])
{
    char *made = NULL, *here = NULL;
    if (*dir && *dir != '/')
        made = realpath(dir, NULL);
    if (made && strlen(made) + sizeof "/signals" > sizeof ((struct sockaddr_un *)NULL)->sun_path && (here = getcwd(NULL, 0))) {
        free(made);
        if (asprintf(&made, "%s/%s", here, dir) < 0)
            made = NULL;
    }
    if (made && strlen(made) < PATH_MAX)
        memcpy(dir, made, strlen(made) + 1);
    free(here);
    free(made);
}

/* Send a registration and map what the agent's reply contains. If that fails, a second message withdraws the registration. */
static int register_with_agent(struct handle *h, struct answer *answer)
{
    struct drom_request_message request;
    dromi_request(&request, DROM_KNOCK_ATTACH);
    int connection = send_request(&request, h->directory);
    if (connection < 0)
        return connection;
    int rc = dromi_receive(connection, answer, dromi_now_ns() + DROMI_ANSWER_SECONDS * UINT64_C(1000000000));
    h->task_pid = answer->reply.pid;
    h->task_start = answer->reply.start_time;
    if (rc == 0)
        rc = accept_reply(h, answer);
    if (rc < 0 && !dromi_is_shared(h))
        dromi_send(connection, &request);
    close(connection);
    return rc;
}

/* Runs in any thread of the program, whose stack may be the smallest possible: paths and masks are not put there. */
int dromi_register(struct handle *h)
{
    struct answer *answer = malloc(sizeof *answer);
    if (!answer)
        return -ENOMEM;
    answer->registry_fd = answer->mailbox_fd = -1;
    int rc = dromi_runtime_dir(h->directory, sizeof h->directory);
    if (rc == 0)
        rc = register_with_agent(h, answer);
    if (rc == 0) {
        dromi_make_absolute(h->directory);
        dromi_log("attached", "task=%d slot=%u mode=%s", h->task_pid, answer->reply.slot,
                  h->mode == DROM_FOLLOWER ? "follower" : "responder");
    } else {
        dromi_log("unmanaged", "error=%d", -rc);
        warn_if_unusable(rc, h->directory);
    }
    dromi_close_answer(answer);
    free(answer);
    if (rc < 0) {
        h->directory[0] = '\0';
        dromi_release(h);
    }
    return rc;
}

/* Replace memory that other threads may still read by zeros, in one system call, so that each of their loads gets an old word or
 * a zero. Thread sanitizers report a write here; tests/native/thread-sanitizer.supp names this function. */
static void cover(const struct handle *h, void *at, size_t size)
{
    if (mmap(at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
        dromi_log("kept", "task=%d error=%d", h->task_pid, errno);
}

static void unmap(const struct handle *h, void *at, size_t size)
{
    if (h->lasting)
        cover(h, at, size);
    else
        munmap(at, size);
}

void dromi_release(struct handle *h)
{
    h->mode = DROM_UNMANAGED;
    h->still = h->head.seen;
    h->head.epoch = &h->still;
    h->head.polls = &h->own_polls;
    if (dromi_has_mailbox(h)) /* no other file gets its inode number while it is mapped */
        close(h->mailbox_fd);
    if (h->registry)
        unmap(h, h->registry, h->registry_size);
    if (h->mailbox)
        unmap(h, h->mailbox, DROM_MAILBOX_SIZE);
    h->registry = NULL;
    h->slot = NULL;
    h->mailbox = NULL;
    h->mailbox_fd = -1;
}
