/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DROM_RUN_H
#define DROM_RUN_H

#include "task.h"

enum { EXIT_REFUSED = 1, EXIT_USAGE = 2 };

/* Execute the command in the arguments; `called` is the launcher's name in messages. Return an exit status if that fails; exit as
 * parse_options() does. */
int run_command(const char *called, int argc, char **argv);

/* Parse the command line. Exit with 0 after --help and --version, and with 2 and a message after a bad value. */
void parse_options(struct options *options, const char *called, int argc, char **argv);

#endif
