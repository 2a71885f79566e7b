/* SPDX-License-Identifier: Apache-2.0 */
/* program.c - a program under test: looks each millisecond for a grant, and says on stdout what it applied.
 *
 *     program [--silent] [--outside] [--holds] [--threads N] [--children N] [--then COMMAND...]
 *
 * --silent attaches and passes no malleability point; --outside does not attach; --threads sleeps in N more threads;
 * --children forks N children that attach for themselves. --holds takes a grant and applies it when it is told to go on.
 * It ends with its stdin, or at the letter q there; the letters s and p make it silent and polling, h and g make it hold
 * and go on, d detaches, a attaches again, x executes COMMAND, a digit N says that it can use at most N CPUs (0: unsaid).
 * It says which letters it has heard.
 */
#include <drom.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int silent, holds, ends;
static char **then;
static drom *seat;

static void *sleeper(void *nothing)
{
    for (;;)
        pause();
    return nothing;
}

static void say_grant(const drom_grant *g, int rc)
{
    int cpus[256], count = drom_grant_cpus(g, cpus, 256);
    char line[2048];
    int used = snprintf(line, sizeof line, "%s %d epoch %llu reason %u cpus ", rc ? "failed" : "applied", (int)getpid(),
                        (unsigned long long)g->epoch, g->reason);
    for (int i = 0; i < count && i < 256; i++)
        used += snprintf(line + used, sizeof line - (size_t)used, "%s%d", i ? "," : "", cpus[i]);
    puts(line);
}

static void attach(void)
{
    static const char *const modes[] = {"unmanaged", "responder", "follower"};
    seat = drom_attach();
    printf("attached %d %s\n", (int)getpid(), modes[drom_mode(seat)]);
}

static void obey(void)
{
    char letter = 'q';
    ends = read(STDIN_FILENO, &letter, 1) <= 0 || letter == 'q';
    if (letter == 's' || letter == 'p')
        silent = letter == 's';
    if (letter == 'h' || letter == 'g')
        holds = letter == 'h';
    if (letter == 'x')
        execvp(*then, then);
    if (letter == 'd')
        drom_detach(seat), seat = NULL;
    if (letter == 'a')
        attach();
    if (letter >= '0' && letter <= '9')
        drom_want(seat, 0, (uint32_t)(letter - '0'));
    printf("heard %c\n", letter);
}

static void look(void)
{
    static drom_grant g;
    if (silent || !seat || !drom_poll(seat) || drom_take(seat, &g) <= 0)
        return;
    if (holds)
        printf("takes %llu\n", (unsigned long long)g.epoch);
    while (holds && !ends)
        obey();
    say_grant(&g, drom_apply(seat, &g));
}

static int number(char **argument)
{
    return *argument ? atoi(*argument) : 0;
}

int main(int argc, char **argv)
{
    int outside = 0, threads = 0, children = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc && !then; i++) {
        silent |= strcmp(argv[i], "--silent") == 0;
        outside |= strcmp(argv[i], "--outside") == 0;
        holds |= strcmp(argv[i], "--holds") == 0;
        if (strcmp(argv[i], "--then") == 0)
            then = &argv[i + 1];
        if (strcmp(argv[i], "--threads") == 0)
            threads = number(&argv[i + 1]);
        if (strcmp(argv[i], "--children") == 0)
            children = number(&argv[i + 1]);
    }
    for (int i = 0; i < threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, sleeper, NULL) != 0)
            return 1;
    }
    if (!outside)
        attach();
    for (int i = 0; i < children; i++)
        if (fork() == 0) {
            if (!outside)
                attach();
            break;
        }
    printf("runs %d\n", (int)getpid());
    while (!ends) {
        struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
        if (poll(&input, 1, 1) > 0)
            obey();
        if (!ends)
            look();
    }
    puts("ends");
    return 0;
}
