/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DROM_RUN_H
#define DROM_RUN_H

#include "internal.h"

enum { EXIT_REFUSED = 1, EXIT_USAGE = 2 };

enum malleability { MALLEABILITY_AUTO, MALLEABILITY_NEXT_REGION, MALLEABILITY_BIND_ONLY };
enum runtime_choice { RUNTIME_AUTO, RUNTIME_LIBOMP, RUNTIME_LIBGOMP };

struct options {
    const char *runtime_dir;
    const char *job;
    const char *session;
    uint32_t cpus;
    uint32_t min;
    uint32_t job_class;
    uint32_t distribution;
    uint32_t per_socket;
    uint64_t memory;
    bool strict;
    bool require;
    bool wait; /* for an agent, as long as it takes */
    enum malleability malleability;
    enum runtime_choice runtime;
    char **command;
};

/* A place among the ranks of one launch on this node; size 0: no launcher. */
struct rank {
    uint32_t local_rank;
    uint32_t local_size;
    char session[DROM_NAME_SIZE];
};

/* Become the command that the arguments name, under the name by which the launcher was called. Returns an exit status where
 * that fails, and exits as parse_options() does. */
int run_command(const char *called, int argc, char **argv);

/* Exits with 0 after --help and --version, and with 2 and a sentence after a bad value. */
void parse_options(struct options *options, const char *called, int argc, char **argv);

/* Return the decimal number in `text`, or 0 when it is none from 1 to `most`. */
uint32_t parse_number(const char *text, uint32_t most);

void find_rank(struct rank *rank);

/* Copy text that may be longer than a name: at most 63 bytes, no half characters. */
void copy_name(char name[DROM_NAME_SIZE], const char *text);

/* Load drom into the command, so that it becomes malleable as it is; say why not where that is impossible. `malleable`: its
 * grant may change while it runs. Returns whether it is loaded. */
bool preload(const struct options *options, bool malleable);

/* Put a part behind a list in the environment, whose parts are separated by colons. */
void put_last(const char *name, const char *part);

/* Take out of the environment what a drom-run above us has loaded into its command. */
void preload_nothing(void);

/* What the loader will make of a program file. */
struct program {
    bool is_elf;  /* else a script */
    bool foreign; /* for another processor or word size */
    bool is_static;
    bool is_musl;
    bool is_asan;          /* insists on being loaded first */
    char loader[PATH_MAX]; /* its dynamic loader, that of glibc; empty: none */
};

/* Read the file; everything is false when it cannot be read. */
void read_program(struct program *program, const char *path);

/* Whether the program's loader takes a library as it is; it does not where its glibc is too old. */
bool takes_library(const struct program *program, const char *path, const char *library);

/* The library to load before libgomp so that the program at `path` runs on LLVM's OpenMP instead, or NULL. Says so where the
 * user's wish cannot be met. */
const char *choose_runtime(const struct options *options, const struct program *program, const char *path);

enum verdict { VERDICT_GRANTED, VERDICT_REFUSED, VERDICT_UNMANAGED, VERDICT_NO_AGENT };
/* `wait`: ask again until an agent answers. `error` becomes a positive error where none does. */
enum verdict ask_for_cpus(const char *dir, const struct drom_request_message *request, struct answer *answer, bool wait, int *error);

#endif
