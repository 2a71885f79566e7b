/* SPDX-License-Identifier: Apache-2.0 */
/* Which OpenMP runtime a program gets. LLVM's has gcc's entry points too, keeps its threads over resizes and resizes faster. Loaded
 * before libgomp it takes every symbol it has: whether that is all a program needs, the loader itself says, asked to bind the
 * program and its libraries without running them. */
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "task.h"

static const char *const CANDIDATES[] = {"libomp.so.5", "libomp.so", "libiomp5.so"};

/* Beginnings of functions of gcc's that LLVM's runtime has, but in which it makes programs crash, abort, hang or err that are right on
 * libgomp. Seen with LLVM 14: tasks that are run at once and copy what they are given, that several threads of the program's own
 * make, or whose end is an event, and task loops that count down or are empty; loops over unsigned long that count down; ordered loops
 * with dependences, in a team of one; `omp scan` and lastprivate(conditional:), which are loops and sections with memory; cancelled
 * sections; tasks after a `teams` of the host; memory of high bandwidth. */
static const char *const UNSOUND[] = {"GOMP_task",       "GOMP_loop_ull_",          "GOMP_doacross_",       "GOMP_loop_doacross_",
                                      "GOMP_loop_start", "GOMP_loop_ordered_start", "GOMP_sections2_start", "GOMP_cancel",
                                      "GOMP_teams_reg",  "GOMP_alloc"};

/* What the loader says of a program. */
struct binding {
    bool has_libgomp;
    bool has_llvm;
    bool unfit;       /* the library to be tried: not found, or for a newer glibc */
    char missing[64]; /* a symbol that is left to libgomp */
    char unsound[64]; /* one of these that is not */
    bool is_debug;    /* LLVM's formats messages for each chunk of a loop, as Debian's and Ubuntu's builds do */
    bool has_chunks;  /* the program gets chunks of loops one by one: schedule(dynamic) and schedule(runtime) */
};

static _Noreturn void load(const struct program *program, const char *path, const char *library, bool bound, const int ends[2])
{
    close(ends[0]); /* whoever is to read may be killed, and nobody waits for a reader that is gone */
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    unsetenv("LD_DEBUG_OUTPUT");
    setenv("LD_TRACE_LOADED_OBJECTS", "1", 1);
    if (*library)
        put_last("LD_PRELOAD", library);
    if (bound) {
        setenv("LD_BIND_NOW", "1", 1);
        setenv("LD_WARN", "1", 1);
        setenv("LD_DEBUG", "bindings", 1);
    }
    execl(program->loader, program->loader, path, (char *)NULL);
    _exit(127);
}

/* `library` is the one to be tried. Lines such as "binding file ./a [0] to /lib/libgomp.so.1 [0]: normal symbol `GOMP_teams4' [GOMP_5.1]" and
 * "libgomp.so.1 => /lib/libgomp.so.1 (0x...)", and "./a: /lib/libc.so.6: version `GLIBC_2.34' not found (required by LIBRARY)". */
static void read_line(struct binding *found, const char *line, const char *library)
{
    const char *from = strstr(line, "binding file "), *to = from ? strstr(from, " to ") : NULL;
    if (!from) {
        found->has_libgomp |= strstr(line, "libgomp.so.1 ") != NULL;
        found->has_llvm |= strstr(line, "libomp.so") || strstr(line, "libiomp5.so");
        found->unfit |= strstr(line, library) && (strstr(line, "cannot be preloaded") || strstr(line, ": version `"));
        return;
    }
    const char *name = to ? strchr(to, '`') : NULL;
    size_t length = name ? strcspn(++name, "'") : 0;
    const char *own = strstr(from, "/libgomp.so.1 ");
    if (!length || length >= sizeof found->missing || (own && own < to))
        return;
    if (strstr(to, "/libgomp.so.1 "))
        snprintf(found->missing, sizeof found->missing, "%.*s", (int)length, name);
    found->is_debug |= strncmp(name, "kmp_a_debug'", length + 1) == 0;
    const char *chunk = strncmp(name, "GOMP_loop_", 10) == 0 ? strstr(name, "_next'") : NULL;
    found->has_chunks |= chunk && (strncmp(chunk - 7, "dynamic", 7) == 0 || strncmp(chunk - 7, "runtime", 7) == 0);
    for (size_t i = 0; i < sizeof UNSOUND / sizeof *UNSOUND; i++)
        if (strncmp(name, UNSOUND[i], strlen(UNSOUND[i])) == 0)
            snprintf(found->unsound, sizeof found->unsound, "%.*s", (int)length, name);
}

/* Loads the library, "" for none, and, if `bound`, binds every function. False when the loader could not be asked. */
static bool ask_loader(struct binding *found, const struct program *program, const char *path, const char *library, bool bound)
{
    int ends[2], status = -1;
    char *line = NULL;
    size_t size = 0;
    struct sigaction known = {.sa_handler = SIG_DFL}, before;
    sigset_t end, waiting;
    memset(found, 0, sizeof *found);
    if (pipe(ends) < 0)
        return false;
    sigaction(SIGCHLD, &known, &before); /* of children of who ignores it nobody can know how they ended */
    sigpending(&waiting);
    pid_t child = fork();
    if (child == 0)
        load(program, path, library, bound, ends);
    close(ends[1]);
    FILE *out = fdopen(ends[0], "r");
    while (child > 0 && out && getline(&line, &size, out) > 0)
        read_line(found, line, library);
    free(line);
    if (out)
        fclose(out);
    else
        close(ends[0]);
    bool ended = child > 0 && waitpid(child, &status, 0) == child;
    /* Where the caller blocks it, the end of this child would still be waiting for the command. */
    sigemptyset(&end);
    sigaddset(&end, SIGCHLD);
    if (!sigismember(&waiting, SIGCHLD))
        sigtimedwait(&end, NULL, &(struct timespec){0});
    sigaction(SIGCHLD, &before, NULL);
    return ended && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool takes_library(const struct program *program, const char *path, const char *library)
{
    struct program ourselves;
    struct binding found;
    read_program(&ourselves, "/proc/self/exe");
    bool is_ours = strcmp(program->loader, ourselves.loader) == 0; /* and so is its C library: asking takes a millisecond */
    return !program->loader[0] || is_ours || !ask_loader(&found, program, path, library, false) || !found.unfit;
}

/* LLVM's runtime then tells nobody of regions. */
static bool is_tool_disabled(void)
{
    const char *said = getenv("OMP_TOOL");
    return said && strcasecmp(said, "disabled") == 0;
}

/* Processes that are forked off then abort: LLVM 19 does not know again what its first process has made of it. */
static bool is_schedule_guided(void)
{
    const char *said = getenv("OMP_SCHEDULE");
    return said && strcasestr(said, "guided");
}

/* Numbers above 0 with commas between them, and spaces around them. Of all else GNU's runtime says that it is invalid, and
 * goes on; LLVM's aborts at some of it. */
static bool is_list_of_numbers(const char *text)
{
    for (;; text++) {
        char *end;
        long number = strtol(text, &end, 10);
        if (end == text || number < 1 || number > INT_MAX)
            return false;
        text = end + strspn(end, " \t");
        if (*text != ',')
            return *text == '\0';
    }
}

/* More than any machine has: a number of more than nine digits, or of terabytes (G: of more than three digits). */
static bool has_huge_number(const char *text)
{
    for (; *text; text += *text != '\0') {
        size_t digits = strspn(text, "0123456789");
        const char *unit = text + digits + strspn(text + digits, " \t");
        if (digits > 9 || (digits > 3 && toupper(*unit) == 'G') || (digits > 0 && *unit && strchr("TPEZY", toupper(*unit))))
            return true;
        text += digits;
    }
    return false;
}

/* A number of at most nine digits behind `text`, or NULL. */
static const char *end_of_number(const char *text)
{
    size_t digits = strspn(text, "0123456789");
    return digits > 0 && digits <= 9 ? text + digits : NULL;
}

/* CPUs and ranges of CPUs ("0-6:2"), separated by commas or spaces. GNU's runtime ignores any other list as a whole; LLVM's fails
 * in the middle of some of them. */
static bool is_list_of_cpus(const char *text)
{
    text += strspn(text, " \t");
    while (*text) {
        text = end_of_number(text);
        if (text && *text == '-' && (text = end_of_number(text + 1)) && *text == ':')
            text = end_of_number(text + 1);
        if (!text || !strchr(" \t,", *text))
            return false;
        text += strspn(text, " \t");
        if (*text == ',' && !*(text += 1 + strspn(text + 1, " \t")))
            return false;
    }
    return true;
}

/* A setting at which LLVM's runtime aborts, or may, and GNU's does not. */
static const char *odd_setting(void)
{
    static const char *const NUMBERS[] = {"OMP_PROC_BIND",   "OMP_PLACES",    "OMP_STACKSIZE",
                                          "GOMP_STACKSIZE", "KMP_STACKSIZE", "KMP_AFFINITY"};
    const char *threads = getenv("OMP_NUM_THREADS"), *cpus = getenv("GOMP_CPU_AFFINITY");
    if (threads && !is_list_of_numbers(threads))
        return "OMP_NUM_THREADS is not a list of numbers above 0";
    if (cpus && !is_list_of_cpus(cpus))
        return "GOMP_CPU_AFFINITY is not a list of CPUs";
    for (size_t i = 0; i < sizeof NUMBERS / sizeof *NUMBERS; i++)
        if (getenv(NUMBERS[i]) && has_huge_number(getenv(NUMBERS[i])))
            return "a setting of OpenMP has a huge number";
    if (getenv("KMP_CPUINFO_FILE"))
        return "KMP_CPUINFO_FILE is set";
    return NULL;
}

/* With the first it would not follow, and with the others not run. */
static const char *why_not_used(void)
{
    struct rlimit files;
    const char *odd = odd_setting();
    if (odd)
        return odd;
    if (is_tool_disabled())
        return "OMP_TOOL is disabled";
    if (is_schedule_guided())
        return "OMP_SCHEDULE is guided";
    if (getrlimit(RLIMIT_FSIZE, &files) == 0 && files.rlim_cur < 4096)
        return "files may not have 4096 bytes (ulimit -f)";
    if (sched_setaffinity(0, 0, NULL) < 0 && errno != EINVAL) /* to no CPUs: that is refused by who has looked at them */
        return "threads may not be bound (sched_setaffinity)";
    return NULL;
}

const char *choose_runtime(const struct options *options, const struct program *program, const char *path)
{
    struct binding found;
    if (options->runtime == RUNTIME_LIBGOMP || !program->loader[0] || !ask_loader(&found, program, path, "", false))
        return NULL;
    if (found.has_llvm && is_tool_disabled())
        dromi_say("OMP_TOOL is disabled: regions of '%.200s' are no malleability points.", path);
    if (!found.has_libgomp || found.has_llvm)
        return NULL;
    for (size_t i = 0; i < sizeof CANDIDATES / sizeof *CANDIDATES; i++) {
        if (!ask_loader(&found, program, path, CANDIDATES[i], true) || found.unfit)
            continue;
        const char *hindrance = why_not_used();
        if (hindrance) {
            dromi_say("%s is not used where %s: '%.200s' keeps GNU's OpenMP runtime.", CANDIDATES[i], hindrance, path);
            return NULL;
        }
        bool is_slow = found.is_debug && found.has_chunks;
        if (!found.missing[0] && ((!found.unsound[0] && !is_slow) || options->runtime == RUNTIME_LIBOMP))
            return CANDIDATES[i];
        if (!found.missing[0] && !found.unsound[0])
            return NULL; /* GNU's is the faster one: there is nothing to report */
        dromi_say("%s %s %s, which '%.200s' needs: it keeps GNU's OpenMP runtime.", CANDIDATES[i],
                  found.missing[0] ? "lacks" : "may fail in", found.missing[0] ? found.missing : found.unsound, path);
        return NULL;
    }
    if (options->runtime == RUNTIME_LIBOMP)
        dromi_say("LLVM's OpenMP runtime is not installed (Debian: libomp5): '%.200s' keeps GNU's.", path);
    return NULL;
}
