/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "task.h"

#define LIBRARY "libdrom-preload.so"

__attribute__((format(printf, 2, 3))) static bool exists(char path[PATH_MAX], const char *format, ...)
{
    char made[4 * PATH_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(made, sizeof made, format, arguments);
    va_end(arguments);
    return realpath(made, path) != NULL;
}

/* Find a part in the Python packages of an installation with scripts in `self` and libraries in `libraries` (lib, or lib64). */
static bool find_in_python(const char *self, const char *libraries, const char *part, char path[PATH_MAX])
{
    bool found = false;
    char folder[2 * PATH_MAX];
    snprintf(folder, sizeof folder, "%s/../%s", self, libraries);
    DIR *pythons = opendir(folder);
    for (struct dirent *entry; pythons && !found && (entry = readdir(pythons));)
        found = strncmp(entry->d_name, "python3", 7) == 0 &&
                (exists(path, "%s/%s/site-packages/dromlib/%s", folder, entry->d_name, part) ||
                 exists(path, "%s/%s/dist-packages/dromlib/%s", folder, entry->d_name, part)); /* Debian's name for it */
    if (pythons)
        closedir(pythons);
    return found;
}

/* Find a part of the package relative to drom-run: in the package, in a build folder, or beside an environment's scripts. */
static bool find_part(const struct options *options, const char *part, char path[PATH_MAX])
{
    char self[PATH_MAX] = "";
    char *slash = NULL;
    ssize_t length = options->launcher ? 0 : readlink("/proc/self/exe", self, sizeof self - 1);
    self[length < 0 ? 0 : length] = '\0';
    if (!options->launcher || exists(self, "%s", options->launcher))
        slash = strrchr(self, '/');
    if (!slash)
        return false;
    *slash = '\0';
    return exists(path, "%s/../%s", self, part) || exists(path, "%s%s", self, strrchr(part, '/')) ||
           find_in_python(self, "lib", part, path) || find_in_python(self, "lib64", part, path);
}

/* Find the file that execvp() will run. */
static bool find_command(const char *name, char path[PATH_MAX])
{
    if (strchr(name, '/'))
        return snprintf(path, PATH_MAX, "%s", name) < PATH_MAX;
    char standard[PATH_MAX];
    const char *folders = getenv("PATH");
    if (!folders)
        folders = confstr(_CS_PATH, standard, sizeof standard) ? standard : "";
    for (;;) {
        int length = (int)strcspn(folders, ":");
        if (snprintf(path, PATH_MAX, "%.*s/%s", length ? length : 1, length ? folders : ".", name) < PATH_MAX &&
            access(path, X_OK) == 0)
            return true;
        if (!folders[length])
            return false;
        folders += length + 1;
    }
}

/* Return whether a program runs with more rights than its user: the loader then ignores LD_PRELOAD. */
static bool gains_rights(const char *path)
{
    struct stat about;
    if (dromi_stat(-1, path, &about) < 0)
        return false;
    return ((about.st_mode & S_ISUID) && about.st_uid != geteuid()) || ((about.st_mode & S_ISGID) && about.st_gid != getegid()) ||
           (geteuid() != 0 && getxattr(path, "security.capability", NULL, 0) > 0);
}

static bool is_foreign(const char *path)
{
    struct program program;
    read_program(&program, path);
    return program.foreign;
}

/* Return why the library cannot be loaded into a program, or NULL. */
static const char *why_not(const struct program *program, const char *path)
{
    if (gains_rights(path))
        return "runs with another user's rights (setuid), for which the loader ignores LD_PRELOAD";
    if (program->foreign)
        return "is for another processor or word size";
    if (program->is_static)
        return "is linked statically; link it dynamically, or use drom.h";
    if (program->is_musl)
        return "uses the C library musl; build it with glibc, or use drom.h";
    if (program->is_asan)
        return "is built with the address sanitizer, which must be loaded first";
    return NULL;
}

/* Return the position of a part in a colon-separated list, or NULL. */
static char *find_in_list(char *list, const char *part)
{
    size_t length = strlen(part);
    for (char *at = list; (at = strstr(at, part)); at += length)
        if ((at == list || at[-1] == ':') && (!at[length] || at[length] == ':'))
            return at;
    return NULL;
}

static void take_from_list(const char *name, const char *part)
{
    char *before = getenv(name), *rest = before ? strdup(before) : NULL, *at = rest ? find_in_list(rest, part) : NULL;
    char *end = at ? at + strlen(part) : NULL;
    if (end && *end)
        memmove(at, end + 1, strlen(end));
    else if (end)
        at[at > rest ? -1 : 0] = '\0';
    if (end && *rest)
        setenv(name, rest, 1);
    else if (end)
        unsetenv(name);
    free(rest);
}

static void put_first(const char *name, const char *part)
{
    char *before = getenv(name), *all = NULL;
    if (before && find_in_list(before, part))
        return;
    if (asprintf(&all, "%s%s%s", part, before && *before ? ":" : "", before ? before : "") < 0)
        return;
    setenv(name, all, 1);
    free(all);
}

void put_last(const char *name, const char *part)
{
    char *before = getenv(name), *all = NULL;
    if (asprintf(&all, "%s%s%s", before ? before : "", before && *before ? ":" : "", part) < 0)
        return;
    setenv(name, all, 1);
    free(all);
}

/* Put the library before the user's in LD_PRELOAD, and `runtime`, if any, after them. The library removes the latter from the
 * environment again, as it is for this program only. */
static void load_around(const char *library, const char *runtime)
{
    put_first("LD_PRELOAD", library);
    if (runtime) {
        put_last("LD_PRELOAD", runtime);
        setenv("DROM_PRELOADED_RUNTIME", runtime, 1);
    }
}

/* A child built with the address sanitizer would refuse to start because the sanitizer is not loaded first. It need not be: drom's
 * library intercepts none of the functions that it replaces. */
static void spare_asan(void)
{
    put_first("ASAN_OPTIONS", "verify_asan_link_order=0");
}

/* Find the folder that Python is to search first. */
static bool find_hook(const struct options *options, char folder[PATH_MAX])
{
    if (!find_part(options, "startup/sitecustomize.py", folder))
        return false;
    *strrchr(folder, '/') = '\0';
    return true;
}

/* Prepare Python for any command: it may be a script that starts Python. */
static void hook_python(const struct options *options)
{
    char folder[PATH_MAX];
    if (!find_hook(options, folder))
        dromi_print("startup/sitecustomize.py is not where drom-run is installed: Python programs are bound from outside. "
                    "Install drom again.");
    else if (!strchr(folder, ':'))
        put_first("PYTHONPATH", folder);
}

void preload_nothing(const struct options *options)
{
    char path[PATH_MAX];
    if (find_part(options, "lib/" LIBRARY, path))
        take_from_list("LD_PRELOAD", path);
    if (find_hook(options, path))
        take_from_list("PYTHONPATH", path);
}

bool preload(const struct options *options, bool malleable)
{
    char library[PATH_MAX], command[PATH_MAX] = "", name[DROMI_FIRST_LINE + 1];
    struct program program;
    setenv("DROM_MALLEABILITY", MALLEABILITIES[options->malleability], 1);
    preload_nothing(options);
    if (!malleable || options->malleability == MALLEABILITY_BIND_ONLY)
        return false;
    hook_python(options);
    bool is_known = options->command[0] != NULL;
    if (is_known && !find_command(options->command[0], command))
        return false;
    read_program(&program, is_known ? command : "");
    const char *interpreter = is_known ? dromi_interpreter(command, name) : command;
    bool is_script = interpreter != command;
    if (is_script)
        program.foreign = is_foreign(interpreter);
    const char *reason = is_known ? why_not(&program, interpreter) : NULL;
    if (reason && is_script)
        dromi_print("'%.200s' is run by '%.200s', which %s: it is bound from outside.", options->command[0], interpreter, reason);
    else if (reason)
        dromi_print("'%.200s' %s: it is bound from outside.", options->command[0], reason);
    else if (!find_part(options, "lib/" LIBRARY, library))
        dromi_print("%s is not where drom-run is installed: the program is bound from outside. Install drom again.", LIBRARY);
    else if (strpbrk(library, " :"))
        dromi_print("'%.400s' has a space or a colon in its path, which LD_PRELOAD cannot hold: the program is bound from outside. "
                    "Install drom elsewhere.", library);
    else if (!takes_library(&program, command, library))
        dromi_print("'%.200s' uses a C library that does not load %s: it is bound from outside.", command, LIBRARY);
    else {
        spare_asan();
        load_around(library, choose_runtime(options, &program, command));
        return true;
    }
    return false;
}
