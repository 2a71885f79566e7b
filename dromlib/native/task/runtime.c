/* SPDX-License-Identifier: Apache-2.0 */
/* Which OpenMP runtime a program gets. LLVM's also has gcc's entry points, keeps its threads when a team shrinks, and resizes
 * faster. Loaded before libgomp it provides all symbols that it has. To find out whether a program needs others, the dynamic loader
 * is run in a mode in which it binds the program and its libraries without executing them. */
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

/* Prefixes of gcc's entry points that LLVM's runtime has, but in which programs that are correct on libgomp crash, abort, hang or
 * give wrong results. Found with LLVM 14: undeferred tasks that copy their arguments, tasks that several threads of the program's
 * own create, detachable tasks (whose end is an event), and task loops that count down or are empty; loops over unsigned long that
 * count down; ordered loops with dependences in a team of one; `omp scan` and lastprivate(conditional:), which are loops and sections
 * with memory; cancelled sections; tasks after a `teams` of the host; high-bandwidth memory. */
static const char *const UNSOUND[] = {"GOMP_task",       "GOMP_loop_ull_",          "GOMP_doacross_",       "GOMP_loop_doacross_",
                                      "GOMP_loop_start", "GOMP_loop_ordered_start", "GOMP_sections2_start", "GOMP_cancel",
                                      "GOMP_teams_reg",  "GOMP_alloc"};

/* What the loader reports about a program. */
struct binding {
    bool has_libgomp;
    bool has_llvm;
    bool unfit;       /* the library that is tried is not found, or needs a newer glibc */
    char missing[64]; /* a symbol that only libgomp has */
    char unsound[64]; /* a symbol in UNSOUND that is bound to the library */
    bool is_debug;    /* a debug build, which formats messages for each chunk of a loop, as Debian's and Ubuntu's */
    bool has_chunks;  /* the program gets chunks of loops one by one: schedule(dynamic) and schedule(runtime) */
};

static _Noreturn void load(const struct program *program, const char *path, const char *library, bool bound, const int ends[2])
{
    close(ends[0]); /* if the reading process is killed, writing then fails instead of blocking */
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

/* `library` is the one that is tried. Lines are such as "libgomp.so.1 => /lib/libgomp.so.1 (0x...)",
 * "binding file ./a [0] to /lib/libgomp.so.1 [0]: normal symbol `GOMP_teams4' [GOMP_5.1]", and
 * "./a: /lib/libc.so.6: version `GLIBC_2.34' not found (required by LIBRARY)". */
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

/* Run the loader with the library ("": none); if `bound`, have it bind every function. Return false if that failed. */
static bool run_loader(struct binding *found, const struct program *program, const char *path, const char *library, bool bound)
{
    int ends[2], status = -1;
    char *line = NULL;
    size_t size = 0;
    struct sigaction known = {.sa_handler = SIG_DFL}, before;
    sigset_t end, waiting;
    memset(found, 0, sizeof *found);
    if (pipe(ends) < 0)
        return false;
    sigaction(SIGCHLD, &known, &before); /* while it is ignored, waitpid() gets no status */
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
    /* If the caller blocks it, the signal of this child's end would stay pending for the command. */
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
    bool is_ours = strcmp(program->loader, ourselves.loader) == 0; /* then so is its C library; running the loader takes a millisecond */
    return !program->loader[0] || is_ours || !run_loader(&found, program, path, library, false) || !found.unfit;
}

/* LLVM's runtime then reports no regions. */
static bool is_tool_disabled(void)
{
    const char *value = getenv("OMP_TOOL");
    return value && strcasecmp(value, "disabled") == 0;
}

/* Forked children then abort: in them LLVM 19 does not recognise the value to which the first process has changed the schedule. */
static bool is_schedule_guided(void)
{
    const char *value = getenv("OMP_SCHEDULE");
    return value && strcasestr(value, "guided");
}

/* Return whether a text is numbers above 0, separated by commas and perhaps spaces. GNU's runtime reports any other text as invalid
 * and continues; LLVM's aborts on some. */
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

/* Return whether a text has a number beyond any machine: of more than nine digits, or of terabytes (with G: of more than three
 * digits). */
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

/* Return the end of the number of at most nine digits at `text`, or NULL. */
static const char *end_of_number(const char *text)
{
    size_t digits = strspn(text, "0123456789");
    return digits > 0 && digits <= 9 ? text + digits : NULL;
}

/* Return whether a text is CPUs and ranges of CPUs ("0-6:2"), separated by commas or spaces. GNU's runtime ignores any other list as
 * a whole; LLVM's fails in the middle of some. */
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

/* Return a setting on which LLVM's runtime aborts, or may, and GNU's does not; NULL: none. */
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

/* Return why LLVM's runtime is not used, or NULL. With the tool disabled the program would not follow its grant, with the others not
 * run. */
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
    if (sched_setaffinity(0, 0, NULL) < 0 && errno != EINVAL) /* no CPUs are given: EINVAL if the call is permitted */
        return "threads may not be bound (sched_setaffinity)";
    return NULL;
}

const char *choose_runtime(const struct options *options, const struct program *program, const char *path)
{
    struct binding found;
    if (options->runtime == RUNTIME_LIBGOMP || !program->loader[0] || !run_loader(&found, program, path, "", false))
        return NULL;
    if (found.has_llvm && is_tool_disabled())
        dromi_print("OMP_TOOL is disabled: regions of '%.200s' are no malleability points.", path);
    if (!found.has_libgomp || found.has_llvm)
        return NULL;
    for (size_t i = 0; i < sizeof CANDIDATES / sizeof *CANDIDATES; i++) {
        if (!run_loader(&found, program, path, CANDIDATES[i], true) || found.unfit)
            continue;
        const char *hindrance = why_not_used();
        if (hindrance) {
            dromi_print("%s is not used where %s: '%.200s' keeps GNU's OpenMP runtime.", CANDIDATES[i], hindrance, path);
            return NULL;
        }
        bool is_slow = found.is_debug && found.has_chunks;
        if (!found.missing[0] && ((!found.unsound[0] && !is_slow) || options->runtime == RUNTIME_LIBOMP))
            return CANDIDATES[i];
        if (!found.missing[0] && !found.unsound[0])
            return NULL; /* GNU's is faster here: nothing to report */
        dromi_print("%s %s %s, which '%.200s' needs: it keeps GNU's OpenMP runtime.", CANDIDATES[i],
                    found.missing[0] ? "lacks" : "may fail in", found.missing[0] ? found.missing : found.unsound, path);
        return NULL;
    }
    if (options->runtime == RUNTIME_LIBOMP)
        dromi_print("LLVM's OpenMP runtime is not installed (Debian: libomp5): '%.200s' keeps GNU's.", path);
    return NULL;
}
