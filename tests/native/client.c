/* SPDX-License-Identifier: Apache-2.0 */
/* A program that executes the command in each line of its input, and prints one line for each. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "drom.h"
#include "refuse.h"

static drom *d;
static drom_grant g;

static void answer(const char *format, ...)
{
    char line[256];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    line[length] = '\n';
    if (write(STDOUT_FILENO, line, (size_t)length + 1) < 0)
        _exit(3);
}

/* No call of the library changes errno, which main() set. */
static int kept(int result)
{
    if (errno != 77)
        answer("errno changed to %d", errno);
    return result;
}

static int entries(const char *path)
{
    int count = 0;
    DIR *dir = opendir(path);
    for (struct dirent *entry; (entry = readdir(dir));)
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

static void take(void)
{
    int cpus[8] = {-1, -1, -1, -1, -1, -1, -1, -1};
    int rc = kept(drom_take(d, &g));
    if (rc != 1) {
        answer("take %d", rc);
        return;
    }
    int count = drom_grant_cpus(&g, cpus, 8);
    answer("take 1 epoch=%llu ncpus=%u reason=%u cpus=%d,%d..%d", (unsigned long long)g.epoch, g.ncpus, g.reason, cpus[0],
           cpus[1], count);
}

static void *sleeper(void *unused)
{
    for (;;)
        pause();
    return unused;
}

static atomic_int churning;

static void *maker(void *unused)
{
    while (churning) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, maker, unused) == 0)
            pthread_join(thread, NULL);
        if (churning++ > 400)
            churning = 0;
    }
    return unused;
}

static void start(void *(*body)(void *), int count)
{
    while (count--) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, body, NULL) == 0)
            pthread_detach(thread);
    }
}

/* Threads, and how many of them may run elsewhere than on CPU `cpu` alone. */
static void masks(int cpu)
{
    int count = 0, astray = 0;
    DIR *dir = opendir("/proc/self/task");
    for (struct dirent *entry; (entry = readdir(dir));) {
        cpu_set_t set;
        if (entry->d_name[0] == '.' || sched_getaffinity(atoi(entry->d_name), sizeof set, &set) != 0)
            continue;
        count++;
        astray += CPU_COUNT(&set) != 1 || !CPU_ISSET(cpu, &set);
    }
    closedir(dir);
    answer("masks %d astray=%d", count, astray);
}

static void in_child(const char *how)
{
    drom_grant forged = g;
    forged.epoch += 1000;
    int mode = drom_mode(d), took = drom_take(d, &g), acknowledged = drom_acknowledge(d, &forged), applied = drom_apply(d, &forged);
    answer("%s mode=%d take=%d acknowledge=%d apply=%d wait=%d", how, mode, took, acknowledged, applied, drom_wait(d, 0));
    _exit(0);
}

static void fork_by(const char *how)
{
    pid_t child = strcmp(how, "fork") == 0 ? fork() : (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0)
        in_child(how);
    waitpid(child, NULL, 0);
}

static void fork_and_detach(void)
{
    pid_t child = fork();
    if (child == 0) {
        drom_detach(d);
        int fds = entries("/proc/self/fd");
        drom *own = drom_attach();
        answer("child fds=%d mode=%d poll=%d", fds, drom_mode(own), drom_poll(own));
        drom_detach(own);
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

static void *come_and_go(void *rounds)
{
    for (int i = 0; i < *(int *)rounds; i++) {
        drom_grant own;
        drom *mine = drom_attach();
        if (drom_poll(mine) && drom_take(mine, &own) > 0)
            drom_acknowledge(mine, &own);
        drom_detach(mine);
    }
    return NULL;
}

static void crowd(int rounds)
{
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, come_and_go, &rounds);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    answer("crowd %d", entries("/proc/self/fd"));
}

static pthread_t beside;

static void *attach(void *unused)
{
    (void)unused;
    return drom_attach();
}

static void *join(void *unused)
{
    d = drom_attach();
    if (drom_poll(d) && drom_take(d, &g) > 0)
        drom_apply(d, &g);
    return unused;
}

/* All that a grant leads to, in a thread with the smallest stack that there is. */
static void narrow(void)
{
    pthread_t thread;
    pthread_attr_t small;
    pthread_attr_init(&small);
    if (pthread_attr_setstacksize(&small, 16 * 1024) == 0 && pthread_create(&thread, &small, join, NULL) == 0)
        pthread_join(thread, NULL);
    answer("narrow %d", drom_mode(d));
}

/* Attach in a thread; `sit` takes its handle when the agent has replied. */
static void knock(void)
{
    pthread_create(&beside, NULL, attach, NULL);
    answer("knock");
}

static void sit(void)
{
    void *handle;
    pthread_join(beside, &handle);
    d = handle;
    answer("sit %d", drom_mode(d));
}

/* Close what this program has not opened, and open one file under all those numbers. */
static void lose(void)
{
    char path[512];
    snprintf(path, sizeof path, "%s/mine", getenv("DROM_RUNTIME_DIR"));
    for (int fd = 3; fd < 256; fd++)
        close(fd);
    for (int i = 0; i < 8; i++)
        if (open(path, O_RDWR | O_CREAT, 0600) < 0)
            _exit(4);
    answer("lose");
}

enum { FILES_MOST = 64 };
static int filled[FILES_MOST];
static struct rlimit allowed;

/* Open as many files as this program may, and leave `free` descriptors. */
static void fill(int free)
{
    int count = 0, fd;
    getrlimit(RLIMIT_NOFILE, &allowed);
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){FILES_MOST, allowed.rlim_max});
    while ((fd = open("/dev/null", O_RDONLY)) >= 0)
        filled[count++] = fd;
    while (free-- > 0)
        close(filled[--count]);
    filled[count] = 0;
    errno = 77;
    answer("fill");
}

static void drain(void)
{
    for (int i = 0; filled[i]; i++)
        close(filled[i]);
    setrlimit(RLIMIT_NOFILE, &allowed);
    answer("drain");
}

/* Have the kernel refuse to return the status of files from now on, as a sandbox may. */
static void deny(void)
{
    if (refuse_call(SYS_newfstatat) < 0)
        _exit(5);
    errno = 77;
    answer("deny");
}

static void obey(const char *word, int number)
{
    if (strcmp(word, "attach") == 0)
        d = drom_attach(), answer("attach %d", kept(drom_mode(d)));
    else if (strcmp(word, "detach") == 0)
        drom_detach(d), d = NULL, kept(0), answer("detach");
    else if (strcmp(word, "mode") == 0)
        answer("mode %d", kept(drom_mode(d)));
    else if (strcmp(word, "poll") == 0)
        answer("poll %d", kept(drom_poll(d)));
    else if (strcmp(word, "take") == 0)
        take();
    else if (strcmp(word, "apply") == 0)
        answer("apply %d", kept(drom_apply(d, &g)));
    else if (strcmp(word, "acknowledge") == 0)
        answer("acknowledge %d", kept(drom_acknowledge(d, &g)));
    else if (strcmp(word, "wait") == 0)
        answer("wait %d", kept(drom_wait(d, number)));
    else if (strcmp(word, "progress") == 0)
        drom_progress(d, (uint64_t)number), kept(0), answer("progress");
    else if (strcmp(word, "sleepers") == 0)
        start(sleeper, number), answer("sleepers");
    else if (strcmp(word, "churn") == 0)
        (void)(churning = 1), start(maker, number), answer("churn");
    else if (strcmp(word, "calm") == 0)
        (void)(churning = 0), answer("calm");
    else if (strcmp(word, "masks") == 0)
        masks(number);
    else if (strcmp(word, "fds") == 0)
        answer("fds %d", entries("/proc/self/fd"));
    else if (strcmp(word, "narrow") == 0)
        narrow();
    else if (strcmp(word, "knock") == 0)
        knock();
    else if (strcmp(word, "sit") == 0)
        sit();
    else if (strcmp(word, "fill") == 0)
        fill(number);
    else if (strcmp(word, "drain") == 0)
        drain();
    else if (strcmp(word, "deny") == 0)
        deny();
    else if (strcmp(word, "lose") == 0)
        lose();
    else if (strcmp(word, "crowd") == 0)
        crowd(number);
    else if (strcmp(word, "fork-and-detach") == 0)
        fork_and_detach();
    else
        fork_by(word);
}

int main(void)
{
    char line[64], word[32];
    while (fgets(line, sizeof line, stdin)) {
        int number = 0;
        if (sscanf(line, "%31s %d", word, &number) < 1)
            return 2;
        errno = 77;
        obey(word, number);
    }
    drom_detach(d);
    return 0;
}
