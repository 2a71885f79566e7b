/* SPDX-License-Identifier: Apache-2.0 */
/* paced.c - a synthetic program that sleeps instead of computing, and progresses at the speed of the cores that it is granted.
 *
 *     paced WORK SPEED...          a job of WORK seconds at speed 1; the k-th SPEED applies with k cores of a node
 *     paced --on FILE INDEX        the same job on another of its nodes, started there by the first one
 *     paced --task FILE INDEX COUNT WORK SPEED...
 *                                  the task INDEX, from 0, of COUNT tasks on a node each, which a launcher has started
 *
 * On several nodes (DROM_NODELIST) it starts itself on the others through the agents, as mpirun does its daemons. Tasks of
 * a launcher such as srun share FILE instead, which no other program uses. The work is divided once, so the slowest node decides
 * the speed. It prints the Unix times of its begin and its end.
 * Exit 0: done. 1: no agent, or a node was lost. 2: wrong usage. */
#include <drom.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_NODES = 1024, BEGIN_MS = 1, LOOK_MS = 20, TELL_MS = 250 };

static char path[PATH_MAX];

static double seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int fail(const char *message)
{
    fprintf(stderr, "paced: %s\n", message);
    return 1;
}

static void leave(int number)
{
    unlink(path);
    _exit(128 + number);
}

/* Map the table that all processes of the job share: the present cores of each node, then whether the job is over. */
static atomic_int *open_table(int flags)
{
    size_t size = (MOST_NODES + 1) * sizeof(atomic_int);
    int file = open(path, O_RDWR | O_CLOEXEC | flags, 0600);
    if (file < 0 || ((flags & O_CREAT) && ftruncate(file, (off_t)size)))
        return NULL;
    void *table = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return table == MAP_FAILED ? NULL : table;
}

/* Apply a waiting grant, and store its number of cores. */
static void take(drom *d, atomic_int *cores)
{
    drom_grant grant;
    if (drom_take(d, &grant) > 0) {
        drom_apply(d, &grant);
        atomic_store(cores, (int)grant.ncpus);
    }
}

/* Start the program on another node; its process here lives as long as the one there. */
static int start_on(const char *node, int index)
{
    char program[PATH_MAX], number[16];
    const char *agent = getenv("OMPI_MCA_plm_rsh_agent");
    char *space = agent ? strrchr(agent, ' ') : NULL;
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (!space || length < 0)
        return -1;
    char *step = strndup(agent, (size_t)(space - agent));
    program[length] = '\0';
    snprintf(number, sizeof number, "%d", index);
    pid_t child = fork();
    if (child == 0) {
        execl(step, step, space + 1, node, program, "--on", path, number, (char *)NULL); /* a task there, as if a script started it */
        _exit(127);
    }
    free(step);
    return child < 0 ? -1 : 0;
}

/* Run the job's process on another node until the job is over: then it is ended, or notices that within `look_ms`. */
static int follow(int index, int flags, int look_ms)
{
    atomic_int *cores = open_table(flags);
    drom *d = drom_attach();
    if (!cores || drom_mode(d) != DROM_RESPONDER)
        return fail("an agent is needed, and the file of the first node.");
    while (drom_mode(d) == DROM_RESPONDER && !atomic_load(&cores[MOST_NODES])) {
        take(d, &cores[index]);
        drom_wait(d, look_ms);
    }
    drom_detach(d);
    return 0;
}

/* The speed of the slowest node; 0 before all have begun. */
static double speed_of(const double *speeds, int most, atomic_int *cores, int nodes)
{
    double least = HUGE_VAL;
    for (int i = 0; i < nodes; i++) {
        int has = atomic_load(&cores[i]);
        least = fmin(least, has > 0 ? speeds[has < most ? has : most] : 0);
    }
    return least;
}

/* Start the program on the other nodes of DROM_NODELIST; return how many nodes there are, -1 if one cannot be reached. */
static int start_others(void)
{
    int nodes = 1;
    char *list = getenv("DROM_NODELIST");
    strtok(list, ",");
    for (char *node; list && (node = strtok(NULL, ",")) && nodes < MOST_NODES; nodes++)
        if (start_on(node, nodes))
            return -1;
    return nodes;
}

/* Do the work on `nodes` nodes; with 0, on the nodes of DROM_NODELIST, where it starts itself. */
static int lead(int nodes, double work, const double *speeds, int most)
{
    atomic_int *cores = open_table(O_CREAT | (nodes ? 0 : O_EXCL));
    drom *d = drom_attach();
    signal(SIGTERM, leave);
    if (!cores || drom_mode(d) != DROM_RESPONDER) {
        unlink(path);
        return fail("an agent is needed, and a folder for temporary files.");
    }
    if (nodes == 0 && (nodes = start_others()) < 0) {
        unlink(path);
        return fail("the other nodes cannot be reached.");
    }
    take(d, &cores[0]);
    double done = 0, began = 0;
    for (double last = seconds(CLOCK_MONOTONIC); done < work;) {
        double speed = speed_of(speeds, most, cores, nodes);
        if (began == 0 && speed > 0)
            began = seconds(CLOCK_REALTIME);
        double left_ms = speed > 0 ? ceil(1e3 * (work - done) / speed) : BEGIN_MS;
        double most_ms = nodes > 1 ? LOOK_MS : TELL_MS;
        drom_wait(d, (int)fmin(left_ms, most_ms));
        double now = seconds(CLOCK_MONOTONIC);
        done += speed * (now - last);
        last = now;
        if (drom_poll(d))
            take(d, &cores[0]);
        drom_progress(d, (uint64_t)(1e3 * done));
        if (nodes > 1 && waitpid(-1, NULL, WNOHANG) > 0) {
            unlink(path);
            return fail("a node was lost.");
        }
    }
    atomic_store(&cores[MOST_NODES], 1);
    unlink(path);
    printf("paced: %.3f %.3f\n", began, seconds(CLOCK_REALTIME));
    drom_detach(d);
    return 0;
}

static int usage(void)
{
    fputs("paced: usage: paced [--task FILE INDEX COUNT] WORK SPEED..., each above 0\n", stderr);
    return 2;
}

int main(int argc, char **argv)
{
    double speeds[MOST_NODES] = {0};
    int index = 0, count = 0;
    if (argc == 4 && !strcmp(argv[1], "--on")) {
        snprintf(path, sizeof path, "%s", argv[2]);
        return follow(atoi(argv[3]), 0, -1);
    }
    if (argc > 5 && !strcmp(argv[1], "--task")) {
        snprintf(path, sizeof path, "%s", argv[2]);
        index = atoi(argv[3]);
        count = atoi(argv[4]);
        if (index < 0 || index >= count || count > MOST_NODES)
            return usage();
        argc -= 4;
        argv += 4;
    } else {
        snprintf(path, sizeof path, "%s/paced-%ld", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", (long)getpid());
    }
    double work = argc > 2 ? strtod(argv[1], NULL) : 0;
    int most = argc - 2 < MOST_NODES ? argc - 2 : MOST_NODES - 1;
    for (int i = 1; i <= most; i++)
        if ((speeds[i] = strtod(argv[i + 1], NULL)) <= 0)
            work = 0;
    if (!(work > 0))
        return usage();
    return index ? follow(index, O_CREAT, LOOK_MS) : lead(count, work, speeds, most);
}
