/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that pass malleability points of the one session at the same time, while main executes the commands in its input. With
 * RACE they also count them in one variable without a lock, which a thread sanitizer must find. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "session.h"

static atomic_int going = 1;

#ifdef RACE
static volatile long passed;
#define COUNT() passed++
#else
#define COUNT() (void)0
#endif

static void *pass_points(void *unused)
{
    drom_grant grant;
    while (atomic_load(&going)) {
        COUNT();
        at_point();
        copy_grant(&grant);
    }
    return unused;
}

static uint32_t ncpus(void)
{
    return __atomic_load_n(&session.ncpus, __ATOMIC_RELAXED);
}

/* A child has no grant until it comes to a point of its own. */
static void in_child(void)
{
    pid_t child = fork();
    if (child == 0)
        _exit(ncpus() == 0 ? 0 : 1);
    int status = -1;
    waitpid(child, &status, 0);
    printf("fork %d\n", status);
}

int main(void)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    char line[32];
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, pass_points, NULL);
    while (fgets(line, sizeof line, stdin)) {
        if (strcmp(line, "fork\n") == 0)
            in_child();
        else if (strcmp(line, "attach\n") == 0) {
            int mode = drom_mode(drom_attach());
            printf("attach %d %u\n", mode, ncpus());
        } else if (strcmp(line, "points\n") == 0) {
            report_points(DROM_POINTS_MPI);
            puts("points");
        } else
            printf("ncpus %u\n", ncpus());
    }
    atomic_store(&going, 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
