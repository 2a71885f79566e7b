/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "run.h"

static void leave_unless_optional(const struct options *options, int error, const char *dir)
{
    bool never = options->wait && error == ENAMETOOLONG;
    if (options->require || never) {
        dromi_report_no_agent(error, dir, "", ": ", "");
        exit(EXIT_REFUSED);
    }
    dromi_report_no_agent(error, dir, "", ": running unmanaged (", ")");
}

/* Return why a command was not found, in addition to the kernel's error. */
static const char *remedy(const char *command, int error)
{
    if (error == ENOENT && access(command, F_OK) == 0 && strchr(command, '/'))
        return ": the interpreter in its first line, or its loader, is missing";
    return error == ENOENT && !strchr(command, '/') ? " in the folders of PATH" : "";
}

/* Print a line for Slurm's TaskProlog, whose format has no values of several lines. */
static void print_change(const char *name, const char *value, void *context)
{
    (void)context;
    if (value && !strchr(value, '\n'))
        printf("export %s=%s\n", name, value);
    else if (!value)
        printf("unset %s\n", name);
}

/* Print the outcome of a registration. Return an exit status, or -1 if the command is to run. */
static int report(const struct registration *registration, const struct options *options)
{
    switch (registration->verdict) {
    case VERDICT_REFUSED: dromi_print("refused: %s", registration->answer.reply.text); return EXIT_REFUSED;
    case VERDICT_UNMANAGED: dromi_print("running unmanaged: %s", registration->answer.reply.text); break;
    case VERDICT_NO_AGENT: leave_unless_optional(options, registration->error, registration->dir); break;
    case VERDICT_LATE:
        dromi_print("%sthe agent in %s has granted no CPUs before the deadline.", options->require ? "" : "running unmanaged: ",
                    registration->dir);
        return options->require ? EXIT_REFUSED : -1;
    case VERDICT_GRANTED: break;
    }
    return -1;
}

static int register_parent(struct registration *registration, const struct options *options)
{
    char **before = copy_environment(environ);
    become_task(registration, options);
    int status = report(registration, options);
    if (before && registration->verdict == VERDICT_GRANTED)
        compare_environments(before, environ, print_change, NULL);
    free(before);
    return (status > 0 && options->require) || fflush(stdout) != 0 ? EXIT_REFUSED : 0; /* the parent runs in any case */
}

/* Set DROM_RUN to the launcher and its options, a word in each line: adaptive MPI programs (drom_mpi.h) start themselves again. */
static void export_start(char **argv, char **command)
{
    char text[16 * PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", text, sizeof text);
    unsetenv("DROM_RUN");
    for (; length > 0 && argv < command; argv++) {
        if (strchr(*argv, '\n') || strlen(*argv) + 1 >= sizeof text - (size_t)length)
            return;
        length += sprintf(text + length, "\n%s", *argv);
    }
    if (length > 0)
        setenv("DROM_RUN", text, 1);
}

int run_command(const char *called, int argc, char **argv)
{
    static struct registration registration;
    struct options options;
    parse_options(&options, called, argc, argv);
    if (options.for_parent)
        return register_parent(&registration, &options);
    become_task(&registration, &options);
    int status = report(&registration, &options);
    if (status >= 0)
        return status;
    if (registration.verdict == VERDICT_GRANTED)
        export_start(argv + (strcmp(called, "drom-run") == 0), options.command);
    execvp(options.command[0], options.command);
    int error = errno;
    dromi_print("cannot run '%s': %s%s.", options.command[0], strerror(error), remedy(options.command[0], error));
    return error == ENOENT ? 127 : 126;
}
