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

#include "run.h"

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

/* Below the folder of an installation's scripts, `self`, and its `libraries`: lib, or lib64. */
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

/* Finds a part of the package as seen from drom-run: in the package, in a build folder, or beside an environment's scripts. */
static bool find_part(const char *part, char path[PATH_MAX])
{
    char self[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length < 0 ? 0 : length] = '\0';
    char *slash = strrchr(self, '/');
    if (!slash)
        return false;
    *slash = '\0';
    return exists(path, "%s/../%s", self, part) || exists(path, "%s%s", self, strrchr(part, '/')) ||
           find_in_python(self, "lib", part, path) || find_in_python(self, "lib64", part, path);
}

/* The file that execvp() will run. */
static bool find_command(const char *name, char path[PATH_MAX])
{
    if (strchr(name, '/'))
        return snprintf(path, PATH_MAX, "%s", name) < PATH_MAX;
    const char *folders = getenv("PATH");
    while (folders && *folders) {
        int length = (int)strcspn(folders, ":");
        if (snprintf(path, PATH_MAX, "%.*s/%s", length ? length : 1, length ? folders : ".", name) < PATH_MAX &&
            access(path, X_OK) == 0)
            return true;
        folders += length + (folders[length] == ':');
    }
    return false;
}

/* The loader ignores what a user wants loaded into a program that runs with more rights than his. */
static bool gains_rights(const char *path)
{
    struct stat about;
    if (stat(path, &about) < 0)
        return false;
    return ((about.st_mode & S_ISUID) && about.st_uid != geteuid()) || ((about.st_mode & S_ISGID) && about.st_gid != getegid()) ||
           (geteuid() != 0 && getxattr(path, "security.capability", NULL, 0) > 0);
}

static const char *why_not(const struct program *program, const char *path)
{
    if (gains_rights(path))
        return "runs with another user's rights (setuid), so that the loader takes no library from us";
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

/* Put `first` in front of a list whose parts are separated by colons. */
static void add_to_list(const char *name, const char *first)
{
    const char *before = getenv(name);
    if (before && strstr(before, first))
        return; /* drom-run below drom-run */
    size_t size = strlen(first) + (before ? strlen(before) : 0) + 2;
    char *both = malloc(size);
    if (!both)
        return;
    snprintf(both, size, before && *before ? "%s:%s" : "%s", first, before);
    setenv(name, both, 1);
    free(both);
}

/* The library comes first, and `runtime`, if any, behind it. The library takes that out of the environment again: what the
 * program starts has needs of its own. */
static void load_first(const char *library, const char *runtime)
{
    const char *before = getenv("LD_PRELOAD");
    size_t length = strlen(library);
    char *all = NULL;
    if (before && strncmp(before, library, length) == 0)
        before += length + (before[length] == ':'); /* drom-run below drom-run */
    if (asprintf(&all, "%s%s%s%s%s", library, runtime ? ":" : "", runtime ? runtime : "", before && *before ? ":" : "",
                 before ? before : "") < 0)
        return;
    setenv("LD_PRELOAD", all, 1);
    if (runtime)
        setenv("DROM_PRELOADED_RUNTIME", runtime, 1);
    free(all);
}

/* A child built with the address sanitizer would refuse to start because it is not loaded first. It need not be: nothing of
 * ours stands in front of what it replaces. */
static void spare_asan(void)
{
    add_to_list("ASAN_OPTIONS", "verify_asan_link_order=0");
}

/* Whatever the command is: it may be a script that starts Python. */
static void hook_python(void)
{
    char hook[PATH_MAX];
    if (!find_part("startup/sitecustomize.py", hook)) {
        dromi_say("startup/sitecustomize.py is not where drom-run is installed: Python programs are bound from outside. "
                  "Install drom again.");
        return;
    }
    *strrchr(hook, '/') = '\0';
    if (!strchr(hook, ':'))
        add_to_list("PYTHONPATH", hook);
}

void preload(const struct options *options, bool malleable)
{
    static const char *const names[] = {"auto", "next-region", "bind-only"};
    char library[PATH_MAX], command[PATH_MAX];
    struct program program;
    setenv("DROM_MALLEABILITY", names[options->malleability], 1);
    if (!malleable || options->malleability == MALLEABILITY_BIND_ONLY)
        return;
    hook_python();
    if (!find_command(options->command[0], command))
        return;
    read_program(&program, command);
    const char *reason = why_not(&program, command);
    if (reason)
        dromi_say("'%.200s' %s: it is bound from outside.", options->command[0], reason);
    else if (!find_part("lib/" LIBRARY, library))
        dromi_say("%s is not where drom-run is installed: the program is bound from outside. Install drom again.", LIBRARY);
    else if (strpbrk(library, " :"))
        dromi_say("'%.400s' has a space or a colon in its path, which LD_PRELOAD cannot hold: the program is bound from outside. "
                  "Install drom elsewhere.", library);
    else if (!takes_library(&program, command, library))
        dromi_say("'%.200s' uses a C library that does not load %s: it is bound from outside.", command, LIBRARY);
    else {
        spare_asan();
        load_first(library, choose_runtime(options, &program, command));
    }
}
