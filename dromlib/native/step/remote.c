/* SPDX-License-Identifier: Apache-2.0 */
/* drom-step remote HOST COMMAND...: run a command on another node of this job, as `ssh` would, through the agents.
 *
 * HOST is the name of a node, or drom-node-N: the node at position N of $DROM_NODELIST, counted from 0 (mpi_hosts.py).
 * mpirun starts its daemons with it. It sends the command to the agent of this node, on a connection that lasts as long as the
 * command runs: if this program ends, the command is ended. After a restart of the agent it sends the request again; the command
 * is started once only. */
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "step.h"

enum { REFUSED = 1, USAGE = 2, LARGEST = 128 * 1024 };
#define PAUSE_NS (100 * 1000 * 1000)
#define ALIAS "drom-node-"

static int print_error(const char *message, int status)
{
    fprintf(stderr, "drom: %s\n", message);
    return status;
}

static bool append(char *message, size_t *used, const char *text, char end)
{
    size_t length = strlen(text);
    if (*used + length + 1 > LARGEST)
        return false;
    memcpy(message + *used, text, length);
    *used += length;
    message[(*used)++] = end;
    return true;
}

/* Make a request: job, attempt, a unique number, host, folder, and the command in one string for a shell; a NUL after each. Return
 * its length, 0 on failure. */
static size_t make_request(char *message, char **argv)
{
    char folder[PATH_MAX], name[33];
    unsigned char number[16];
    size_t used = 0;
    const char *job = getenv("DROM_JOB_ID"), *attempt = getenv("DROM_JOB_ATTEMPT");
    if (!job || !attempt || syscall(SYS_getrandom, number, sizeof number, 0) != sizeof number || !getcwd(folder, sizeof folder))
        return 0;
    for (size_t i = 0; i < sizeof number; i++)
        snprintf(name + 2 * i, 3, "%02x", number[i]);
    bool fits = append(message, &used, job, '\0') && append(message, &used, attempt, '\0') &&
                append(message, &used, name, '\0') && append(message, &used, argv[0], '\0') &&
                append(message, &used, folder, '\0');
    for (char **word = argv + 1; fits && *word; word++)
        fits = append(message, &used, *word, word[1] ? ' ' : '\0');
    return fits ? used : 0;
}

/* Return the name of the node if `host` is an alias (drom-node-N), otherwise `host`. The string is never freed. */
static char *node_of(char *host)
{
    const char *nodes = getenv("DROM_NODELIST");
    size_t prefix = sizeof ALIAS - 1, digits = strncmp(host, ALIAS, prefix) == 0 ? strspn(host + prefix, "0123456789") : 0;
    if (!nodes || digits == 0 || digits > 9 || host[prefix + digits])
        return host;
    for (long left = strtol(host + prefix, NULL, 10); left > 0; left--) {
        nodes = strchr(nodes, ',');
        if (!nodes++)
            return host;
    }
    char *node = strndup(nodes, strcspn(nodes, ","));
    return node ? node : host;
}

static int reach_agent(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *dir = getenv("DROM_RUNTIME_DIR");
    int length = snprintf(address.sun_path, sizeof address.sun_path, "%s/steps", dir ? dir : "");
    if (length < 0 || (size_t)length >= sizeof address.sun_path)
        return -1;
    int agent = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (agent >= 0 && connect(agent, (struct sockaddr *)&address, sizeof address) < 0) {
        close(agent);
        return -1;
    }
    return agent;
}

/* Receive the reply: a status and, if the command did not run, a message. */
static bool await_answer(int agent, char *answer, size_t size)
{
    ssize_t got;
    do
        got = recv(agent, answer, size - 1, 0);
    while (got < 0 && errno == EINTR);
    answer[got > 0 ? got : 0] = '\0';
    return got > 0;
}

int run_remotely(char **argv)
{
    static char message[LARGEST];
    char answer[1024];
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    if (!argv[0] || !argv[1])
        return print_error("drom-step remote takes a host and a command.", USAGE);
    argv[0] = node_of(argv[0]);
    size_t length = make_request(message, argv);
    if (length == 0)
        return print_error("drom-step remote runs in a job of a scheduler alone, and takes commands of up to 128 KiB.", USAGE);
    const char *here = getenv("DROM_NODE");
    if (here && strcmp(here, argv[0]) == 0) { /* node names may differ from host names */
        const char *command = message + length - 1;
        while (command[-1])
            command--;
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        return print_error("cannot run /bin/sh.", REFUSED);
    }
    for (;;) {
        int agent = reach_agent();
        bool sent = agent >= 0 && send(agent, message, length, MSG_NOSIGNAL) == (ssize_t)length;
        if (sent && await_answer(agent, answer, sizeof answer))
            break;
        if (agent >= 0)
            close(agent);
        nanosleep(&pause, NULL);
    }
    char *sentence;
    long status = strtol(answer, &sentence, 10);
    if (*sentence == ' ')
        return print_error(sentence + 1, REFUSED);
    return status < 0 ? 128 - (int)status : (int)status;
}
