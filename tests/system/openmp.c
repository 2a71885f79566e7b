/* SPDX-License-Identifier: Apache-2.0 */
/* Programs that know nothing of drom, one for each way to depend on the number of threads:
 *
 *     openmp loop | asks | asked-once | logs | counted | shares | buffers | threadprivate | clauses | forks | late | restores |
 *            outside | lazy | lazy-maximum | lazy-late | lazy-helper | closes | roots | narrow |
 *            processors | sets-processors | clears | places
 *
 * Each repeats parallel regions for ever, checks every answer, and says "threads N cpus LIST" whenever that changes; a wrong
 * answer ends it with 1. threadprivate has to be compiled with -DTHREAD_DATA. LIST has the CPUs that each thread may use, below CPU 16. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ITEMS 1000
#define MOST 64

static char may_use[MOST][32];

static void look(int thread)
{
    cpu_set_t set;
    char *at = may_use[thread];
    sched_getaffinity(0, sizeof set, &set);
    for (int cpu = 0; cpu < 16; cpu++)
        if (CPU_ISSET(cpu, &set))
            *at++ = "0123456789abcdef"[cpu];
    *at = '\0';
}

static void tell(int threads)
{
    static char before[MOST * 40];
    char now[sizeof before];
    int used = snprintf(now, sizeof now, "threads %d cpus", threads);
    for (int i = 0; i < threads; i++)
        used += snprintf(now + used, sizeof now - (size_t)used, " %s", may_use[i]);
    if (strcmp(now, before) != 0)
        puts(strcpy(before, now));
}

static void check(int right, const char *what)
{
    if (right)
        return;
    printf("wrong: %s\n", what);
    exit(1);
}

static int processors = MOST;

static void loop(void)
{
    int threads = 0;
    double sum = 0;
#pragma omp parallel reduction(+ : sum)
    {
        look(omp_get_thread_num());
#pragma omp single
        threads = omp_get_num_threads();
#pragma omp for
        for (int i = 0; i < ITEMS; i++)
            sum += i;
    }
    check(sum == ITEMS * (ITEMS - 1) / 2, "sum");
    check(threads <= processors, "more threads than processors");
    double product = 0;
#pragma omp parallel for schedule(dynamic, 10) reduction(+ : product)
    for (int i = 0; i < ITEMS; i++)
        product += 2;
    check(product == 2 * ITEMS, "dynamic loop");
    double tasks = 0;
#pragma omp parallel reduction(task, + : tasks)
#pragma omp single
    for (int i = 0; i < 10; i++) {
#pragma omp task in_reduction(+ : tasks)
        tasks += i;
    }
    check(tasks == 45, "tasks");
    tell(threads);
}

/* Work split by hand, for `parts` threads. */
static void by_hand(int parts)
{
    static char done[ITEMS];
    int threads = 0;
    memset(done, 0, sizeof done);
#pragma omp parallel
    {
        int self = omp_get_thread_num();
        look(self);
        if (self == 0)
            threads = omp_get_num_threads();
        for (int i = self * ITEMS / parts; i < (self + 1) * ITEMS / parts && self < parts; i++)
            done[i] = 1;
    }
    check(memchr(done, 0, sizeof done) == NULL, "work left undone");
    tell(threads);
}

/* As above, and says its number of threads after each region: that is no reason to change it. */
static void logs(int parts)
{
    by_hand(parts);
    check(omp_get_max_threads() > 0, "number of threads");
}

/* Buffers as many as threads were counted once in a region, all of which are added up after later ones. */
static void counted(void)
{
    static int counts[MOST], parts;
    int sum = 0;
    if (!parts) {
#pragma omp parallel
#pragma omp single
        parts = omp_get_num_threads();
    }
#pragma omp parallel
    {
        int self = omp_get_thread_num();
        look(self);
        counts[self] = 0;
#pragma omp for
        for (int i = 0; i < ITEMS; i++)
            counts[self]++;
    }
    for (int i = 0; i < parts; i++)
        sum += counts[i];
    check(sum == ITEMS, "sum of counts");
    tell(parts);
}

static sem_t turn, done;

static void *help(void *nothing)
{
    for (;;) {
        sem_wait(&turn);
        for (int i = 0; i < 10; i++)
            by_hand(omp_get_max_threads());
        sem_post(&done);
    }
    return nothing;
}

/* Another thread asks and forks while this one has an answer in use. */
static void shares(void)
{
    static pthread_t helper;
    if (!helper) {
        sem_init(&turn, 0, 0);
        sem_init(&done, 0, 0);
        check(pthread_create(&helper, NULL, help, NULL) == 0, "thread");
    }
    int parts = omp_get_max_threads();
    sem_post(&turn);
    sem_wait(&done);
    by_hand(parts);
}

static void buffers(int slots)
{
    static int *counts;
    int threads = 0, sum = 0;
    if (!counts)
        counts = calloc((size_t)slots, sizeof *counts);
#pragma omp parallel
    {
        int self = omp_get_thread_num();
        check(self < slots, "more threads than buffers");
        look(self);
        counts[self] = 0;
#pragma omp single
        threads = omp_get_num_threads();
#pragma omp for
        for (int i = 0; i < ITEMS; i++)
            counts[self]++;
    }
    for (int i = 0; i < threads; i++)
        sum += counts[i];
    check(sum == ITEMS, "sum of buffers");
    tell(threads);
}

/* One thread for a while, and then as many as before. */
static void restores(void)
{
    int before = omp_get_max_threads(), threads = 0;
    omp_set_num_threads(1);
#pragma omp parallel reduction(+ : threads)
    threads++;
    check(threads == 1, "the number that was set");
    omp_set_num_threads(before);
    by_hand(before);
}

/* The runtime's own functions, as somebody has them who looks them up in its file. */
static void outside(const char *runtime)
{
    static void (*set)(int);
    static int (*get)(void);
    if (!set) {
        void *file = dlopen(runtime, RTLD_LAZY | RTLD_NOLOAD);
        check(file != NULL, "runtime");
        *(void **)&set = dlsym(file, "omp_set_num_threads");
        *(void **)&get = dlsym(file, "omp_get_max_threads");
    }
    check(omp_get_max_threads() > 0, "number of threads");
    int before = get();
    set(1);
    check(omp_get_max_threads() == 1, "a number set past everybody");
    by_hand(1);
    set(before);
    by_hand(omp_get_max_threads());
}

/* Regions that nobody asks in, which say what they are while there are two CPUs; how many there are. */
static int unasked(void)
{
    int most = 0;
#pragma omp parallel reduction(max : most)
    {
        most = omp_get_thread_num();
        look(most);
    }
    int cpus = (int)strlen(may_use[0]);
    if (cpus > 1)
        tell(most + 1);
    return cpus;
}

static int ask_maximum;

/* Buffers made in a region, when it has run `late` times. */
static void own_buffers(int late)
{
    static int runs, slots, *counts;
    int most = 0, sum = 0;
    runs++;
#pragma omp parallel reduction(max : most)
    {
        most = omp_get_thread_num();
        look(most);
#pragma omp single
        if (!counts && runs > late) {
            slots = ask_maximum ? omp_get_max_threads() : omp_get_num_threads();
            counts = calloc((size_t)slots, sizeof *counts);
        }
        if (counts) {
            check(most < slots, "more threads than buffers");
            counts[most] = 0;
#pragma omp for
            for (int i = 0; i < ITEMS; i++)
                counts[most]++;
        }
    }
    for (int i = 0; counts && i < slots; i++)
        sum += counts[i];
    check(!counts || sum == ITEMS, "sum of buffers");
    if (counts)
        tell(most + 1);
}

/* The program shrinks before it comes to these. */
static void lazy(int late)
{
    while (unasked() > 1)
        ;
    for (;;)
        own_buffers(late);
}

static void *help_late(void *nothing)
{
    lazy(0);
    return nothing;
}

static void lazy_helper(void)
{
    pthread_t helper;
    while (unasked() > 1)
        ;
    check(pthread_create(&helper, NULL, help_late, NULL) == 0, "thread");
    pthread_join(helper, NULL);
}

#ifdef THREAD_DATA
static int own;
#pragma omp threadprivate(own)

/* Threads that once had a value keep it. */
static void threadprivate(void)
{
    static int set_by[MOST], threads;
    static int steps;
    own = 7;
    if (steps++ == 0) {
#pragma omp parallel copyin(own)
        {
            int self = omp_get_thread_num();
            check(own == 7, "copyin");
            own = 100 + self;
            set_by[self] = own;
        }
    }
    own = set_by[0];
#pragma omp parallel
    {
        int self = omp_get_thread_num();
        look(self);
        if (self == 0)
            threads = omp_get_num_threads();
        check(!set_by[self] || own == set_by[self], "threadprivate data lost");
        if (!set_by[self])
            set_by[self] = own = 100 + self;
    }
    tell(threads);
}

#else
static void threadprivate(void)
{
    exit(2);
}
#endif

static void clauses(void)
{
    int fixed = 0, serial = 0, inner = 0;
#pragma omp parallel num_threads(2)
    {
        look(omp_get_thread_num());
#pragma omp single
        fixed = omp_get_num_threads();
#pragma omp parallel
#pragma omp single nowait
        {
#pragma omp atomic
            inner += omp_get_num_threads();
        }
    }
#pragma omp parallel if (omp_get_level() > 0)
    {
        serial = omp_get_num_threads();
    }
    check(fixed == 2, "num_threads(2)");
    check(serial == 1, "if(0)");
    check(inner == 2, "nested regions");
    tell(fixed);
}

/* The runtime starts on all CPUs, and makes threads once there is a single one left. */
static void late(void)
{
    cpu_set_t set;
    check(omp_get_num_procs() > 0, "processors");
    do
        check(omp_get_max_threads() > 0 && sched_getaffinity(0, sizeof set, &set) == 0, "questions");
    while (CPU_COUNT(&set) > 1);
    for (;;)
        clauses();
}

/* A child made between two regions lives and ends as ever. */
static void forks(void)
{
    int status = -1;
    loop();
    pid_t child = fork();
    if (child == 0)
        _exit(omp_get_level() == 0 && omp_get_thread_num() == 0 ? 0 : 1);
    waitpid(child, &status, 0);
    check(status == 0, "child");
}

/* It closes what it has not opened, as daemons do, and has a file of its own under each of those numbers. */
static void closes(void)
{
    static FILE *mine;
    loop();
    if (mine) {
        check(lseek(fileno(mine), 0, SEEK_END) == 0, "written by others");
        return;
    }
    for (int fd = 3; fd < 256; fd++)
        close(fd);
    mine = tmpfile();
    for (int i = 0; i < 8; i++)
        check(mine && dup(fileno(mine)) > 0, "file");
}

static void *one_region(void *nothing)
{
    clauses();
    return nothing;
}

/* Threads of its own fork, one after the other: the runtime meets each for the first time. */
static void roots(void)
{
    pthread_t root;
    check(pthread_create(&root, NULL, one_region, NULL) == 0, "thread");
    pthread_join(root, NULL);
}

static int counted_narrowly;

static void *fork_narrowly(void *nothing)
{
    for (;;) {
        int threads = 0;
#pragma omp parallel reduction(+ : threads)
        {
            look(omp_get_thread_num());
            threads++;
        }
        counted_narrowly = threads;
        sem_post(&done);
        sem_wait(&turn);
    }
    return nothing;
}

/* A thread with the smallest stack that there is forks all regions; this one has the room to say what it has found. */
static void narrow(void)
{
    pthread_t forker;
    pthread_attr_t small;
    sem_init(&turn, 0, 0);
    sem_init(&done, 0, 0);
    check(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, 16 * 1024) == 0, "stack");
    check(pthread_create(&forker, &small, fork_narrowly, NULL) == 0, "thread");
    for (;;) {
        sem_wait(&done);
        tell(counted_narrowly);
        sem_post(&turn);
    }
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "";
    setvbuf(stdout, NULL, _IOLBF, 0);
    static char *nothing[1];
    if (strcmp(kind, "clears") == 0)
        environ = nothing; /* clearenv() leaves none at all, on which LLVM's runtime crashes by itself */
    if (strcmp(kind, "places") == 0) {
        setenv("OMP_PROC_BIND", "close", 1);
        setenv("OMP_PLACES", "cores", 1);
    }
    int once = strcmp(kind, "buffers") == 0 || strcmp(kind, "asked-once") == 0 || strcmp(kind, "logs") == 0;
    ask_maximum = strcmp(kind, "lazy-maximum") == 0;
    int most = once ? omp_get_max_threads() : 0;
    if (strstr(kind, "processors"))
        processors = omp_get_num_procs();
    if (strcmp(kind, "sets-processors") == 0)
        omp_set_num_threads(processors);
    for (;;) {
        if (strcmp(kind, "loop") == 0 || strcmp(kind, "clears") == 0 || strcmp(kind, "places") == 0 || strstr(kind, "processors"))
            loop();
        else if (strcmp(kind, "asks") == 0)
            by_hand(omp_get_max_threads());
        else if (strcmp(kind, "asked-once") == 0)
            by_hand(most);
        else if (strcmp(kind, "logs") == 0)
            logs(most);
        else if (strcmp(kind, "counted") == 0)
            counted();
        else if (strcmp(kind, "shares") == 0)
            shares();
        else if (strcmp(kind, "buffers") == 0)
            buffers(most);
        else if (strcmp(kind, "threadprivate") == 0)
            threadprivate();
        else if (strcmp(kind, "clauses") == 0)
            clauses();
        else if (strcmp(kind, "forks") == 0)
            forks();
        else if (strcmp(kind, "late") == 0)
            late();
        else if (strcmp(kind, "closes") == 0)
            closes();
        else if (strcmp(kind, "roots") == 0)
            roots();
        else if (strcmp(kind, "narrow") == 0)
            narrow();
        else if (strcmp(kind, "restores") == 0)
            restores();
        else if (strcmp(kind, "outside") == 0)
            outside(argv[2]);
        else if (strcmp(kind, "lazy") == 0)
            lazy(0);
        else if (strcmp(kind, "lazy-maximum") == 0)
            lazy(0);
        else if (strcmp(kind, "lazy-late") == 0)
            lazy(3);
        else if (strcmp(kind, "lazy-helper") == 0)
            lazy_helper();
        else
            return 2;
    }
}
