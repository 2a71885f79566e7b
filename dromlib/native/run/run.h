/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DROM_RUN_H
#define DROM_RUN_H

#include "task.h"

enum { EXIT_REFUSED = 1, EXIT_USAGE = 2 };

/* Become the command that the arguments name, under the name by which the launcher was called. Returns an exit status where
 * that fails, and exits as parse_options() does. */
int run_command(const char *called, int argc, char **argv);

/* Exits with 0 after --help and --version, and with 2 and a sentence after a bad value. */
void parse_options(struct options *options, const char *called, int argc, char **argv);

#endif
