/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "task.h"

const char *const MALLEABILITIES[CHOICES] = {"auto", "next-region", "bind-only"};
const char *const RUNTIMES[CHOICES] = {"auto", "libomp", "libgomp"};

uint32_t parse_number(const char *text, uint32_t most)
{
    size_t length = strlen(text);
    if (length == 0 || length > 9 || strspn(text, "0123456789") != length)
        return 0;
    unsigned long value = strtoul(text, NULL, 10);
    return value <= most ? (uint32_t)value : 0;
}

unsigned find_choice(const char *const choices[CHOICES], const char *text)
{
    unsigned i = 0;
    while (i < CHOICES && strcmp(text, choices[i]) != 0)
        i++;
    return i;
}

/* Find the agent's directory. Return 0, or a positive error if it must not be used. */
static int find_directory(const char *given, char dir[PATH_MAX])
{
    int error = given ? 0 : -dromi_runtime_dir(dir, PATH_MAX);
    if (given && snprintf(dir, PATH_MAX, "%s", given) >= PATH_MAX)
        error = ENAMETOOLONG;
    dromi_make_absolute(dir);
    return error;
}

static void fill_request(struct drom_request_message *request, const struct options *options)
{
    struct rank rank;
    find_rank(&rank);
    dromi_request(request, DROM_KNOCK_LAUNCH);
    const char *command = options->command[0] ? options->command[0] : "", *slash = strrchr(command, '/');
    const char *job = getenv("DROM_JOB_ID");
    if (options->job)
        copy_name(request->job, options->job);
    else if (job && parse_number(job, 999999999)) /* a task of a scheduler's job */
        snprintf(request->job, sizeof request->job, "drom-%s", job);
    bool fits = strlen(command) < sizeof request->program;
    snprintf(request->program, sizeof request->program, "%s", fits || !slash ? command : slash + 1);
    copy_name(request->session, options->session ? options->session : rank.session);
    request->local_rank = rank.local_rank;
    request->local_size = rank.local_size;
    request->max_cpus = options->cpus;
    request->min_cpus = options->min;
    request->job_class = options->job_class;
    request->distribution = options->distribution;
    request->per_socket = options->per_socket;
    request->memory = options->memory;
    request->flags = (options->strict ? DROM_REQUEST_STRICT : 0) | (options->fenced ? DROM_REQUEST_FENCED : 0) |
                     (options->for_parent ? DROM_REQUEST_PARENT : 0);
}

/* Set a variable to a number, unless the user has set it. A value set by an outer drom-run, recorded in DROM_SET_<name>, does not
 * count as the user's. With 0, remove that value. */
static void export_number(const char *name, uint32_t value)
{
    char text[16], repeated[64];
    snprintf(text, sizeof text, "%" PRIu32, value);
    snprintf(repeated, sizeof repeated, "DROM_SET_%s", name);
    const char *now = getenv(name), *ours = getenv(repeated);
    bool is_users = now && !(ours && strcmp(now, ours) == 0);
    if (is_users || value == 0)
        unsetenv(repeated);
    else
        setenv(repeated, text, 1);
    if (!is_users && value == 0)
        unsetenv(name);
    else if (!is_users)
        setenv(name, text, 1);
}

/* Return `threads`, or the user's limit if it is smaller: LLVM's runtime warns about more. */
static uint32_t within_limits(uint32_t threads)
{
    static const char *const LIMITS[] = {"OMP_THREAD_LIMIT", "KMP_DEVICE_THREAD_LIMIT"};
    for (size_t i = 0; i < sizeof LIMITS / sizeof *LIMITS; i++) {
        const char *text = getenv(LIMITS[i]);
        unsigned long limit = text ? strtoul(text, NULL, 10) : 0;
        threads = limit > 0 && limit < threads ? (uint32_t)limit : threads;
    }
    return threads;
}

/* Set the maximum for runtimes that size their pool of threads at the program's start. For OpenMP the library that is loaded into the
 * program does so, because many programs without OpenMP obey OMP_NUM_THREADS (nproc). */
static void export_most(uint32_t cpus, bool is_loaded)
{
    static const char *const NAMES[] = {"NUMBA_NUM_THREADS", "GOMAXPROCS", "RAYON_NUM_THREADS"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        export_number(NAMES[i], cpus);
    export_number("OMP_NUM_THREADS", is_loaded ? 0 : within_limits(cpus));
}

/* Return whether the agent only observes: the program then runs as without an agent. */
static bool only_observes(const struct answer *answer)
{
    return answer->reply.max_cpus == 0;
}

static void export_grant(const struct answer *answer, const char *dir, const char *cpus)
{
    char task[48];
    snprintf(task, sizeof task, "%" PRId32 ":%" PRIu64, answer->reply.pid, answer->reply.start_time);
    setenv("DROM_TASK", task, 1);
    setenv("DROM_RUNTIME_DIR", dir, 1);
    if (only_observes(answer))
        return;
    setenv("DROM_CPUS", cpus, 1);
    char most[16];
    snprintf(most, sizeof most, "%" PRIu32, answer->reply.max_cpus);
    setenv("DROM_MAX_CPUS", most, 1);
}

static void accept_grant(const struct answer *answer, const char *dir, pid_t pid)
{
    static char cpus[DROM_MAX_MASK_BITS * 6];
    uint32_t words = (answer->reply.mask_bits + 63) / 64;
    dromi_cpu_list(answer->mask, words, cpus, sizeof cpus);
    if (!(answer->reply.flags & (DROM_HEADER_EMULATED | DROM_REPLY_BOUND))) {
        int rc = dromi_bind(pid, answer->mask, words);
        if (rc < 0)
            dromi_print("cannot bind to CPUs %.200s (%s): the agent will try.", cpus, strerror(-rc));
    }
    export_grant(answer, dir, cpus);
}

/* Set the environment of a command that has been granted CPUs. */
static void set_environment(const struct options *options, const struct registration *registration, bool is_rank)
{
    if (only_observes(&registration->answer)) {
        preload_nothing(options);
        return;
    }
    bool malleable = options->job_class == DROM_CLASS_MALLEABLE, is_loaded = preload(options, malleable);
    bool follows = malleable && options->malleability != MALLEABILITY_BIND_ONLY;
    export_most(follows ? registration->answer.reply.max_cpus : 0, is_loaded);
    /* MPI ranks below the command share its CPUs: waiting ranks should yield */
    export_number("OMPI_MCA_mpi_yield_when_idle", follows && !is_rank ? 1 : 0);
}

void become_task(struct registration *registration, const struct options *options)
{
    struct drom_request_message request;
    registration->verdict = VERDICT_NO_AGENT;
    registration->error = find_directory(options->runtime_dir, registration->dir);
    fill_request(&request, options);
    if (registration->error == 0)
        registration->verdict = request_cpus(registration->dir, &request, &registration->answer, options->wait,
                                             options->deadline_ns, &registration->error);
    if (registration->verdict == VERDICT_GRANTED) {
        accept_grant(&registration->answer, registration->dir, options->for_parent ? getppid() : 0);
        set_environment(options, registration, request.local_size > 0);
    }
    move_to_front(environ, "DROM_TASK=");
}

void prepare_starter(const struct options *options)
{
    char dir[PATH_MAX];
    if (find_directory(options->runtime_dir, dir) != 0)
        return;
    setenv("DROM_RUNTIME_DIR", dir, 1);
    preload(options, options->job_class == DROM_CLASS_MALLEABLE);
}
