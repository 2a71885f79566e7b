/* SPDX-License-Identifier: Apache-2.0 */
/* The command `drom`. `drom run` is the launcher, in this process. Every other command is drom-cli beside this file, in the Python
 * that it was installed for, isolated from the user's Python variables, modules and current directory. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "run.h"

#define SCRIPT "drom-cli"
#define SHELL_FORM "\n'''exec' "

static void remove_end(char *text, const char *end)
{
    char *at = strstr(text, end);
    if (at)
        *at = '\0';
}

/* Get the interpreter in the first line of a script. If its path is too long for that line or has spaces, installers write it into
 * the second one: '''exec' "PATH" "$0" "$@" */
static bool read_interpreter(const char *script, char python[PATH_MAX])
{
    char text[PATH_MAX + 64];
    int file = open(script, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    if (length < 2 || memcmp(text, "#!", 2) != 0)
        return false;
    text[length] = '\0';
    const char *path = text + 2, *in_shell = strstr(text, SHELL_FORM);
    if (in_shell && strchr(text, '\n') == in_shell) {
        path = in_shell + strlen(SHELL_FORM);
        path += *path == '"';
        remove_end((char *)path, "\"$0\"");
    }
    path += strspn(path, " ");
    remove_end((char *)path, "\n");
    length = (ssize_t)strlen(path);
    while (length > 0 && strchr(" \"\r", path[length - 1]))
        length--;
    return *path == '/' && snprintf(python, PATH_MAX, "%.*s", (int)length, path) < PATH_MAX;
}

static int run_python(int argc, char **argv)
{
    char script[PATH_MAX], python[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", script, sizeof script - sizeof SCRIPT - 1);
    script[length < 0 ? 0 : length] = '\0';
    char *slash = strrchr(script, '/');
    if (!slash) {
        dromi_print("cannot find where drom is installed (/proc/self/exe: %s): mount /proc.", strerror(errno));
        return EXIT_REFUSED;
    }
    strcpy(slash + 1, SCRIPT);
    if (!read_interpreter(script, python)) {
        dromi_print("%s cannot be read or names no Python: install drom again.", script);
        return EXIT_REFUSED;
    }
    char **words = calloc((size_t)argc + 4, sizeof *words);
    if (!words) {
        dromi_print("there is not enough memory to start %s.", python);
        return EXIT_REFUSED;
    }
    words[0] = python;
    words[1] = "-I";
    words[2] = script;
    for (int i = 1; i < argc; i++)
        words[2 + i] = argv[i];
    sigset_t interrupt; /* Python would print a traceback on Ctrl-C; drom-cli unblocks it */
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    sigprocmask(SIG_BLOCK, &interrupt, NULL);
    execv(python, words);
    dromi_print("cannot run %s, the Python that drom is installed for (%s): %s.", python, strerror(errno),
                errno == EACCES ? "install drom for one that every user may run" : "install drom again");
    free(words);
    return EXIT_REFUSED;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "run") == 0)
        return run_command("drom run", argc - 1, argv + 1);
    return run_python(argc, argv);
}
