/* SPDX-License-Identifier: Apache-2.0 */
/* Programs inherit this library in LD_PRELOAD from the program that starts them. If the loader cannot open it (in a 32-bit program,
 * a script with a 32-bit interpreter, a root or container without the file), it would print an error in each process, so the
 * variable is passed on without it. All functions here may run in a child of vfork(): they write only to the stack. */
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hooks.h"
#include "openmp.h"

enum { MOST_VARIABLES = 1024, MOST_TEXT = 4096 };

/* A changed environment. One that does not fit is passed on unchanged. */
struct room {
    char *variables[MOST_VARIABLES + 1];
    char text[MOST_TEXT];
};

static char own[PATH_MAX]; /* this library's file */

__attribute__((constructor)) static void find_own_path(void)
{
    struct link_map *map;
    if (base_of(own, &map))
        snprintf(own, sizeof own, "%s", map->l_name);
}

static bool is_of_other_word_size(const char *path)
{
    unsigned char ident[EI_NIDENT];
    char name[DROMI_FIRST_LINE + 1];
    int fd = open(dromi_interpreter(path, name), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    ssize_t length = fd < 0 ? 0 : read(fd, ident, sizeof ident);
    if (fd >= 0)
        close(fd);
    return length == sizeof ident && memcmp(ident, ELFMAG, SELFMAG) == 0 &&
           ident[EI_CLASS] != (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32);
}

/* `name` is searched in PATH if it has no slash. */
static bool is_command_of_other_word_size(const char *name)
{
    const char *folders = getenv("PATH");
    char path[PATH_MAX];
    if (strchr(name, '/') || !folders)
        return is_of_other_word_size(name);
    for (;; folders++) {
        int length = (int)strcspn(folders, ":");
        int written = snprintf(path, sizeof path, "%.*s/%s", length ? length : 1, length ? folders : ".", name);
        if (written < (int)sizeof path &&
            access(path, X_OK) == 0)
            return is_of_other_word_size(path);
        folders += length;
        if (!*folders)
            return false;
    }
}

/* Return the position of this library in a list of libraries, or NULL. */
static const char *find_own(const char *list)
{
    size_t length = strlen(own);
    for (const char *at = list; length && (at = strstr(at, own)); at += length)
        if ((at == list || strchr(": ", at[-1])) && (!at[length] || strchr(": ", at[length])))
            return at;
    return NULL;
}

static char **copy_without(char *const environment[], size_t at, const char *here, struct room *room)
{
    size_t count = 0, before = (size_t)(here - environment[at]), length = strlen(own);
    const char *after = here + length + (here[length] != '\0');
    int written = snprintf(room->text, sizeof room->text, "%.*s%s", (int)before, environment[at], after);
    if (written >= (int)sizeof room->text)
        return NULL;
    if (!*after && (room->text[written - 1] == ':' || room->text[written - 1] == ' '))
        room->text[--written] = '\0';
    for (size_t i = 0; environment[i]; i++) {
        if (count == MOST_VARIABLES)
            return NULL;
        if (i != at)
            room->variables[count++] = environment[i];
        else if (room->text[written - 1] != '=')
            room->variables[count++] = room->text;
    }
    room->variables[count] = NULL;
    return room->variables;
}

/* Return the environment for the file `path`, or for the command of that name. */
static char **environment_for(const char *path, char *const environment[], struct room *room, bool is_name)
{
    static const char variable[] = "LD_PRELOAD=";
    int saved = errno;
    char **other = NULL;
    for (size_t i = 0; environment && environment[i] && !other; i++) {
        bool is_list = strncmp(environment[i], variable, sizeof variable - 1) == 0;
        const char *here = is_list ? find_own(environment[i] + sizeof variable - 1) : NULL;
        if (here && (access(own, R_OK) < 0 || (is_name ? is_command_of_other_word_size : is_of_other_word_size)(path)))
            other = copy_without(environment, i, here, room);
    }
    errno = saved;
    return other ? other : (char **)environment;
}

static int front_execve(const char *path, char *const words[], char *const environment[])
{
    struct room room;
    return execve(path, words, environment_for(path, environment, &room, false));
}

static int front_execv(const char *path, char *const words[])
{
    struct room room;
    return execve(path, words, environment_for(path, environ, &room, false));
}

static int front_execvpe(const char *name, char *const words[], char *const environment[])
{
    struct room room;
    return execvpe(name, words, environment_for(name, environment, &room, true));
}

static int front_execvp(const char *name, char *const words[])
{
    return front_execvpe(name, words, environ);
}

static int front_posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                             const posix_spawnattr_t *attributes, char *const words[], char *const environment[])
{
    struct room room;
    return posix_spawn(pid, path, actions, attributes, words, environment_for(path, environment, &room, false));
}

static int front_posix_spawnp(pid_t *pid, const char *name, const posix_spawn_file_actions_t *actions,
                              const posix_spawnattr_t *attributes, char *const words[], char *const environment[])
{
    struct room room;
    return posix_spawnp(pid, name, actions, attributes, words, environment_for(name, environment, &room, true));
}

const struct front exec_fronts[] = {
    {"execve", (void *)front_execve},           {"execv", (void *)front_execv},
    {"execvp", (void *)front_execvp},           {"execvpe", (void *)front_execvpe},
    {"posix_spawn", (void *)front_posix_spawn}, {"posix_spawnp", (void *)front_posix_spawnp},
};
const size_t exec_front_count = sizeof exec_fronts / sizeof *exec_fronts;
