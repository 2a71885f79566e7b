/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "run.h"

static void leave_unless_optional(const struct options *options, int error, const char *dir)
{
    bool never = options->wait && error == ENAMETOOLONG;
    if (options->require || never) {
        dromi_explain(error, dir, "", ": ", "");
        exit(EXIT_REFUSED);
    }
    dromi_explain(error, dir, "", ": running unmanaged (", ")");
}

/* Why a command was not found, beside what the kernel says. */
static const char *remedy(const char *command, int error)
{
    if (error == ENOENT && access(command, F_OK) == 0 && strchr(command, '/'))
        return ": the interpreter in its first line, or its loader, is missing";
    return error == ENOENT && !strchr(command, '/') ? " in the folders of PATH" : "";
}

int run_command(const char *called, int argc, char **argv)
{
    static struct registration registration;
    struct options options;
    parse_options(&options, called, argc, argv);
    become_task(&registration, &options);
    switch (registration.verdict) {
    case VERDICT_REFUSED: dromi_say("refused: %s", registration.answer.reply.text); return EXIT_REFUSED;
    case VERDICT_UNMANAGED: dromi_say("running unmanaged: %s", registration.answer.reply.text); break;
    case VERDICT_NO_AGENT: leave_unless_optional(&options, registration.error, registration.dir); break;
    case VERDICT_GRANTED:
    case VERDICT_LATE: break; /* the latter needs a deadline */
    }
    execvp(options.command[0], options.command);
    int error = errno;
    dromi_say("cannot run '%s': %s%s.", options.command[0], strerror(error), remedy(options.command[0], error));
    return error == ENOENT ? 127 : 126;
}
