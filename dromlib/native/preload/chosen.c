/* SPDX-License-Identifier: Apache-2.0 */
/* LLVM's runtime where drom-run has chosen it: the program was made for another, which leaves nothing behind. */
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

#define NO_FILE INT_MAX /* a descriptor of no file: it can be neither mapped nor closed */

static bool is_chosen;

/* Of what it needs when it starts the program may have taken away something by its first region: its environment, say, or the
 * last descriptor. GNU's starts before main(), too. */
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

/* It is for this program alone: what the program starts finds the environment without it. */
static void forget(const char *runtime)
{
    const char *libraries = getenv("LD_PRELOAD");
    size_t all = libraries ? strlen(libraries) : 0, last = strlen(runtime);
    char *others = all > last && strcmp(libraries + all - last, runtime) == 0 ? strndup(libraries, all - last - 1) : NULL;
    if (others)
        setenv("LD_PRELOAD", others, 1);
    free(others);
    unsetenv("DROM_PRELOADED_RUNTIME");
}

/* In a forked child it starts anew. Until then the program may have changed its environment, or have none: it finds the one that
 * it was started with. */
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

static void go_on_in_child(void)
{
    environ = present_environment;
}

/* With these it does as GNU's where the user says nothing: schedule(runtime) is dynamic, and nobody hears of calls that are out of
 * fashion. */
static const char *const AS_GNU[][2] = {{"OMP_SCHEDULE", "dynamic"}, {"KMP_WARNINGS", "0"}};
#define SETTINGS (sizeof AS_GNU / sizeof *AS_GNU)

__attribute__((constructor)) static void prepare(void)
{
    const char *runtime = getenv("DROM_PRELOADED_RUNTIME");
    is_chosen = runtime != NULL;
    if (!is_chosen)
        return;
    bool said[SETTINGS];
    for (size_t i = 0; i < SETTINGS; i++) {
        said[i] = getenv(AS_GNU[i][0]) != NULL;
        setenv(AS_GNU[i][0], AS_GNU[i][1], 0);
    }
    first_environment = copy_environment();
    dromi_at_fork(NULL, NULL, begin_child); /* in a child the handlers run in this order, the runtime's own between these */
    start(runtime);
    dromi_at_fork(NULL, NULL, go_on_in_child);
    for (size_t i = 0; i < SETTINGS; i++)
        if (!said[i])
            unsetenv(AS_GNU[i][0]);
    forget(runtime);
}

/* Before glibc 2.34 it is in a library that may be loaded for another alone. */
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

/* In /dev/shm the runtime writes down that it is there, for a second copy of itself to find. It does so in each forked child too,
 * and takes it back in exit() alone. It gets memory without a name for that, which is gone once it has been written. LLVM 16 aborts
 * if it cannot open it again, and is content if there is nothing to be read. */
PUBLIC int shm_open(const char *name, int flags, mode_t mode) FRONT_OF(shm_open);
EXPORT_LIBC(shm_open);
PUBLIC int shm_open(const char *name, int flags, mode_t mode)
{
    static bool is_nameless;
    bool is_note = is_chosen && strncmp(name, "/__KMP_REGISTERED_LIB_", 22) == 0, is_new = flags & O_CREAT;
    if (is_note && is_nameless && !is_new)
        return NO_FILE;
    int fd = is_note && is_new ? (int)syscall(SYS_memfd_create, name + 1, 1u /* MFD_CLOEXEC */) : -1;
    is_nameless |= fd >= 0;
    return fd < 0 ? open_shared(name, flags, mode) : fd;
}
