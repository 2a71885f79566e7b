/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "task.h"

#define SECOND UINT64_C(1000000000)
#define RECONNECT_SECONDS 30

/* How one connection ended. */
enum end { END_GRANTED, END_REFUSED, END_UNMANAGED, END_LOST, END_SILENT, END_CLOSED };

/* Return the time that many seconds from now, or the deadline (0: none) if that is earlier. */
static uint64_t soon(uint64_t seconds, uint64_t deadline_ns)
{
    uint64_t end = dromi_now_ns() + seconds * SECOND;
    return deadline_ns && deadline_ns < end ? deadline_ns : end;
}

static bool is_over(uint64_t deadline_ns)
{
    return deadline_ns && dromi_now_ns() >= deadline_ns;
}

/* Return the seconds until `end_ns`, rounded up, at least 1. */
static int seconds_until(uint64_t end_ns)
{
    uint64_t now = dromi_now_ns();
    return now < end_ns ? (int)((end_ns - now + SECOND - 1) / SECOND) : 1;
}

static enum end receive_replies(int connection, struct answer *answer, uint64_t deadline_ns, bool *waiting, int *error)
{
    for (;;) {
        /* The first reply comes at once; a grant may take as long as earlier jobs run. */
        int rc = dromi_receive(connection, answer, *waiting ? deadline_ns : soon(DROMI_ANSWER_SECONDS, deadline_ns));
        dromi_close_answer(answer);
        *error = -rc;
        if (rc == -ETIMEDOUT || rc == -EPROTO)
            return END_SILENT;
        if (rc < 0)
            return END_LOST;
        if (answer->reply.status == DROM_STATUS_GRANTED)
            return END_GRANTED;
        if (answer->reply.status == DROM_STATUS_REFUSED)
            return END_REFUSED;
        if (answer->reply.status == DROM_STATUS_UNMANAGED)
            return END_UNMANAGED;
        dromi_print("waiting: %s", answer->reply.text);
        *waiting = true;
    }
}

static enum end send_request(const char *path, const struct drom_request_message *request, struct answer *answer, uint64_t deadline_ns,
                             int *error)
{
    bool waiting = false;
    int connection = dromi_connect(path, seconds_until(soon(DROMI_ANSWER_SECONDS, deadline_ns)));
    *error = connection < 0 ? -connection : -dromi_send(connection, request);
    if (connection < 0)
        return END_CLOSED;
    enum end end = *error == 0 ? receive_replies(connection, answer, deadline_ns, &waiting, error) : END_LOST;
    close(connection);
    return end;
}

static void pause_a_moment(void)
{
    struct timespec moment = {.tv_nsec = 50 * 1000 * 1000};
    nanosleep(&moment, NULL);
}

/* Return whether an agent has written a heartbeat recently and not retired its registry: it is being restarted, or has died and
 * may be started again. */
static bool is_being_restarted(const char *dir)
{
    char path[PATH_MAX];
    struct drom_header header;
    if (snprintf(path, sizeof path, "%s/registry", dir) >= (int)sizeof path)
        return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return false;
    bool whole = pread(fd, &header, sizeof header, 0) == sizeof header;
    close(fd);
    return whole && header.magic == DROM_REGISTRY_MAGIC && !header.retired &&
           dromi_now_ns() - header.heartbeat_ns < RECONNECT_SECONDS * SECOND;
}

/* The agent takes a second request of a pid for the same registration, so after an agent's death the request is sent again. */
enum verdict request_cpus(const char *dir, const struct drom_request_message *request, struct answer *answer, bool wait,
                          uint64_t deadline_ns, int *error)
{
    char path[PATH_MAX];
    uint64_t reconnect_ns = 0;
    *error = -dromi_registration_path(path, sizeof path, dir);
    while (*error != ENAMETOOLONG) {
        enum end end = send_request(path, request, answer, deadline_ns, error);
        if (end == END_GRANTED)
            return VERDICT_GRANTED;
        if (end == END_REFUSED)
            return VERDICT_REFUSED;
        if (end == END_UNMANAGED)
            return VERDICT_UNMANAGED;
        bool absent = *error == ENOENT || *error == ECONNREFUSED;
        if (!wait && absent && reconnect_ns == 0 && is_being_restarted(dir)) {
            dromi_print("waiting: the agent in %s is being restarted.", dir);
            reconnect_ns = soon(RECONNECT_SECONDS, 0);
        }
        if (is_over(deadline_ns))
            return VERDICT_LATE;
        if (!wait && (end == END_SILENT || (end == END_CLOSED && (!absent || reconnect_ns == 0))))
            return VERDICT_NO_AGENT;
        if (wait && reconnect_ns == 0 && *error != ENAMETOOLONG)
            dromi_report_no_agent(*error, dir, "waiting: ", " (", ")");
        if (end == END_LOST || reconnect_ns == 0)
            reconnect_ns = soon(RECONNECT_SECONDS, 0);
        if (!wait && is_over(reconnect_ns))
            return VERDICT_NO_AGENT;
        pause_a_moment();
    }
    return VERDICT_NO_AGENT;
}
