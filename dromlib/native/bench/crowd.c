/* SPDX-License-Identifier: Apache-2.0 */
/* crowd - many idle programs for `drom bench node`:
 *
 *     crowd DOOR REQUEST   for each byte on stdin make a process that sends what the file REQUEST then holds to the agent's
 *                          DOOR, prints its pid and the nanoseconds of CLOCK_MONOTONIC before that, and sleeps until killed
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

static int visit(const struct sockaddr_un *door, const char *path)
{
    char line[64], request[4096], answer[4096];
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = file < 0 ? -1 : read(file, request, sizeof request);
    if (size <= 0)
        return fail("crowd", "cannot read the request");
    close(file);
    int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    uint64_t now = now_ns();
    if (connection < 0 || connect(connection, (const struct sockaddr *)door, sizeof *door) < 0 ||
        send(connection, request, (size_t)size, MSG_NOSIGNAL) != size)
        return fail("crowd", "cannot knock at the agent's door");
    int length = snprintf(line, sizeof line, "%d %" PRIu64 "\n", (int)getpid(), now);
    if (write(STDOUT_FILENO, line, (size_t)length) != length)
        return fail("crowd", "cannot say when it knocked");
    while (recv(connection, answer, sizeof answer, 0) > 0)
        ;
    close(connection);
    for (;;)
        pause();
}

int main(int argc, char **argv)
{
    struct sockaddr_un door = {.sun_family = AF_UNIX};
    if (argc != 3 || strlen(argv[1]) >= sizeof door.sun_path)
        return fail("crowd", "usage: crowd DOOR REQUEST");
    memcpy(door.sun_path, argv[1], strlen(argv[1]));
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGCHLD, SIG_IGN);
    pid_t parent = getpid();
    char one;
    while (read(STDIN_FILENO, &one, 1) == 1) {
        pid_t child = fork();
        if (child < 0)
            return fail("crowd", "cannot make another process");
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            return getppid() == parent ? visit(&door, argv[2]) : 0;
        }
    }
    return 0;
}
