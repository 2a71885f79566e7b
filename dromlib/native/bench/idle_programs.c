/* SPDX-License-Identifier: Apache-2.0 */
/* idle_programs - many idle programs for `drom bench node`:
 *
 *     idle_programs SOCKET REQUEST   for each byte on stdin start a process that sends the content of the file REQUEST to the
 *                                    agent's registration socket, prints its pid and the nanoseconds of CLOCK_MONOTONIC before
 *                                    that, and sleeps until killed
 *
 * All of them end with stdin.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "bench.h"

static int be_idle(const struct sockaddr_un *address, const char *path)
{
    char line[64], request[4096], answer[4096];
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = file < 0 ? -1 : read(file, request, sizeof request);
    if (size <= 0)
        return fail("idle_programs", "cannot read the request");
    close(file);
    int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    uint64_t now = now_ns();
    if (connection < 0 || connect(connection, (const struct sockaddr *)address, sizeof *address) < 0 ||
        send(connection, request, (size_t)size, MSG_NOSIGNAL) != size)
        return fail("idle_programs", "cannot send a request to the agent's registration socket");
    int length = snprintf(line, sizeof line, "%d %" PRIu64 "\n", (int)getpid(), now);
    if (write(STDOUT_FILENO, line, (size_t)length) != length)
        return fail("idle_programs", "cannot print when it has sent the request");
    while (recv(connection, answer, sizeof answer, 0) > 0)
        ;
    close(connection);
    for (;;)
        pause();
}

int main(int argc, char **argv)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (argc != 3 || strlen(argv[1]) >= sizeof address.sun_path)
        return fail("idle_programs", "usage: idle_programs SOCKET REQUEST");
    memcpy(address.sun_path, argv[1], strlen(argv[1]));
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGCHLD, SIG_IGN);
    pid_t parent = getpid();
    char one;
    while (read(STDIN_FILENO, &one, 1) == 1) {
        pid_t child = fork();
        if (child < 0)
            return fail("idle_programs", "cannot start another process");
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            return getppid() == parent ? be_idle(&address, argv[2]) : 0;
        }
    }
    return 0;
}
