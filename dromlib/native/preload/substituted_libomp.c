/* SPDX-License-Identifier: Apache-2.0 */
/* LLVM's runtime that drom-run has substituted for libgomp: the program was built for libgomp, which needs less of its environment
 * and leaves no files. */
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hooks.h"
#include "internal.h"

#define NO_FILE INT_MAX /* an invalid descriptor: it can be neither mapped nor closed */

static bool is_substituted;

/* Initialise the runtime now: before its first region the program may remove what that needs, such as its environment or the last
 * free descriptor. GNU's starts before main(), too. */
static void start(const char *runtime)
{
    int (*any)(void);
    void *file = dlopen(runtime, RTLD_LAZY | RTLD_NOLOAD);
    *(void **)&any = file ? dlsym(file, "omp_get_max_threads") : NULL;
    if (any)
        any();
    if (file)
        dlclose(file);
}

/* Remove the runtime from the environment of programs that this one starts. */
static void remove_from_environment(const char *runtime)
{
    const char *libraries = getenv("LD_PRELOAD");
    size_t all = libraries ? strlen(libraries) : 0, last = strlen(runtime);
    char *others = all > last && strcmp(libraries + all - last, runtime) == 0 ? strndup(libraries, all - last - 1) : NULL;
    if (others)
        setenv("LD_PRELOAD", others, 1);
    free(others);
    unsetenv("DROM_PRELOADED_RUNTIME");
}

/* In a forked child the runtime initialises itself again. The program may have changed its environment by then, or have none, so the
 * runtime gets the one with which the program was started. */
static char **first_environment, **present_environment;

static char **copy_environment(void)
{
    size_t count = 0;
    while (environ && environ[count])
        count++;
    char **copy = calloc(count + 1, sizeof *copy);
    for (size_t i = 0; copy && i < count; i++)
        copy[i] = strdup(environ[i]);
    return copy;
}

static void begin_child(void)
{
    present_environment = environ;
    environ = first_environment;
}

static void restore_child_environment(void)
{
    environ = present_environment;
}

/* With these it behaves like GNU's unless the user sets them: schedule(runtime) is dynamic, and there are no warnings about
 * deprecated calls. */
static const char *const AS_GNU[][2] = {{"OMP_SCHEDULE", "dynamic"}, {"KMP_WARNINGS", "0"}};
#define SETTINGS (sizeof AS_GNU / sizeof *AS_GNU)

__attribute__((constructor)) static void prepare(void)
{
    const char *runtime = getenv("DROM_PRELOADED_RUNTIME");
    is_substituted = runtime != NULL;
    if (!is_substituted)
        return;
    bool was_set[SETTINGS];
    for (size_t i = 0; i < SETTINGS; i++) {
        was_set[i] = getenv(AS_GNU[i][0]) != NULL;
        setenv(AS_GNU[i][0], AS_GNU[i][1], 0);
    }
    first_environment = copy_environment();
    dromi_at_fork(NULL, NULL, begin_child); /* in a child the handlers run in this order, with the runtime's own between them */
    start(runtime);
    dromi_at_fork(NULL, NULL, restore_child_environment);
    for (size_t i = 0; i < SETTINGS; i++)
        if (!was_set[i])
            unsetenv(AS_GNU[i][0]);
    remove_from_environment(runtime);
}

/* Before glibc 2.34 shm_open() is in a library that may be loaded with RTLD_LOCAL, or not at all. */
static int open_shared(const char *name, int flags, mode_t mode)
{
    int (*real)(const char *, int, mode_t);
    char path[PATH_MAX];
    *(void **)&real = dlsym(RTLD_NEXT, "shm_open");
    if (real)
        return real(name, flags, mode);
    snprintf(path, sizeof path, "/dev/shm/%s", name);
    return open(path, flags | O_CLOEXEC | O_NOFOLLOW, mode);
}

/* The runtime registers itself in /dev/shm, so that a second copy of it in the process can detect it. It does so in each forked
 * child, too, and removes the file only in exit(). Here it gets anonymous memory instead, which is freed once it has been written.
 * LLVM 16 aborts if it cannot open the file again, but accepts one that cannot be read. */
PUBLIC int shm_open(const char *name, int flags, mode_t mode) FRONT_OF(shm_open);
EXPORT_LIBC(shm_open);
PUBLIC int shm_open(const char *name, int flags, mode_t mode)
{
    static bool is_nameless;
    bool is_note = is_substituted && strncmp(name, "/__KMP_REGISTERED_LIB_", 22) == 0, is_new = flags & O_CREAT;
    if (is_note && is_nameless && !is_new)
        return NO_FILE;
    int fd = is_note && is_new ? (int)syscall(SYS_memfd_create, name + 1, 1u /* MFD_CLOEXEC */) : -1;
    is_nameless |= fd >= 0;
    return fd < 0 ? open_shared(name, flags, mode) : fd;
}
