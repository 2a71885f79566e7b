/* SPDX-License-Identifier: Apache-2.0 */
/* A program that is never the same: it starts and joins threads, and with the word "forks" children, until it is killed. */
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 4, MILLISECOND = 1000000 };

static void *live_shortly(void *nothing)
{
    nanosleep(&(struct timespec){0, 10 * MILLISECOND}, NULL);
    return nothing;
}

int main(int argc, char **argv)
{
    int forks = argc > 1 && strcmp(argv[1], "forks") == 0;
    for (;;) {
        pthread_t threads[MOST];
        int started = 0;
        while (started < MOST && pthread_create(&threads[started], NULL, live_shortly, NULL) == 0)
            started++;
        pid_t child = forks ? fork() : -1;
        if (child == 0) {
            live_shortly(NULL);
            _exit(0);
        }
        while (started)
            pthread_join(threads[--started], NULL);
        if (child > 0)
            waitpid(child, NULL, 0);
    }
}
