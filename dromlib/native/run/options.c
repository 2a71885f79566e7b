/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "run.h"

#define TEXT(number) AS_WRITTEN(number)
#define AS_WRITTEN(number) #number
#define VERSION TEXT(DROM_VERSION_MAJOR) "." TEXT(DROM_VERSION_MINOR) "." TEXT(DROM_VERSION_PATCH)

static const char HELP[] =
    " [OPTIONS] [--] COMMAND [ARGUMENT...]\n"
    "Run COMMAND on the CPUs the node's agent grants, in this terminal, with its own exit code.\n"
    "\n"
    "  --runtime-dir DIR   where the agent listens (default: $DROM_RUNTIME_DIR, /run/drom, $XDG_RUNTIME_DIR/drom)\n"
    "  --job NAME          name of the job (default: the command's)\n"
    "  --cpus N            CPUs to ask for (default: all the node has); where cores differ, whole cores that surely have N\n"
    "  --min N             CPUs below which the job must not go (default: one per task)\n"
    "  --class CLASS       malleable (default), moldable or rigid\n"
    "  --distribution D    compact, spread or per-socket=N; with a quoted ! after it, wait rather than make do\n"
    "  --mem SIZE          memory the command needs, such as 800M or 4G: it waits until the node has as much\n"
    "  --session ID        what ranks of one launch have in common (default: the MPI launcher's job id)\n"
    "  --malleability M    auto (default): an OpenMP program without drom.h follows its grant, and keeps the number of threads\n"
    "                      that it has asked for; next-region: it follows always; bind-only: it is bound to its CPUs\n"
    "  --openmp-runtime R  what a program built for GNU's OpenMP (libgomp) runs on: libomp (LLVM's), libgomp, or auto\n"
    "                      (default): libomp where it is installed and has all that the program needs\n"
    "  --require           fail when no agent answers instead of running unmanaged\n"
    "  --await             wait until an agent answers instead of running unmanaged\n"
    "  --deadline SECONDS  run unmanaged (with --require: fail) without a grant after so long, 1 to 86400 (default: no limit)\n"
    "  --for-parent        register the process that has started this one, not a COMMAND, and print the variables that it\n"
    "                      needs, a line `export NAME=VALUE` or `unset NAME` for each, as Slurm's TaskProlog does\n"
    "  --help, --version\n"
    "\n"
    "DROM_MALLEABILITY and DROM_OPENMP_RUNTIME in the environment stand for these two options where they are not given.\n"
    "The command finds DROM_TASK, DROM_RUNTIME_DIR, DROM_CPUS, DROM_MAX_CPUS and, unless they are set already,\n"
    "NUMBA_NUM_THREADS, GOMAXPROCS and RAYON_NUM_THREADS in its environment, the last three only if it is to follow its grant.\n"
    "DROM_RUN has this launcher and its options, a word in each line.\n"
    "Exit codes: the command's; 1 refused; 2 usage; 126 not executable; 127 not found.\n";

static const char *const CLASSES[CHOICES] = {"malleable", "moldable", "rigid"};
static const unsigned UNSET = CHOICES; /* no index of a word */

static const char *launcher; /* the name under which this program was called */

static _Noreturn void print_and_leave(const char *before, const char *text)
{
    if (printf("%s%s%s", before, launcher, text) < 0 || fflush(stdout) != 0) {
        dromi_print("cannot write to standard output (%s).", strerror(errno));
        exit(EXIT_REFUSED);
    }
    exit(EXIT_SUCCESS);
}

static uint32_t count_or_leave(const char *option, const char *text)
{
    uint32_t value = parse_number(text, DROM_MAX_MASK_BITS);
    if (value)
        return value;
    dromi_print("%s takes a number of CPUs from 1 to %u, not '%s'.", option, DROM_MAX_MASK_BITS, text);
    exit(EXIT_USAGE);
}

static const char *name_or_leave(const char *option, const char *text)
{
    if (*text && strlen(text) < DROM_NAME_SIZE)
        return text;
    dromi_print("%s takes a name of 1 to %u bytes%s", option, DROM_NAME_SIZE - 1,
                *text ? ": give a shorter one." : ", not an empty one.");
    exit(EXIT_USAGE);
}

/* Return the index of `text` among three words. */
static unsigned word_or_leave(const char *option, const char *const words[CHOICES], const char *text)
{
    unsigned place = find_choice(words, text);
    if (place < CHOICES)
        return place;
    dromi_print("%s takes %s, %s or %s, not '%s'.", option, words[0], words[1], words[2], text);
    exit(EXIT_USAGE);
}

/* Return the index of a variable's value among three words; 0 if it is unset or empty. */
static unsigned word_of_environment(const char *variable, const char *const words[CHOICES])
{
    const char *text = getenv(variable);
    return text && *text ? word_or_leave(variable, words, text) : 0;
}

static void distribution_or_leave(struct options *options, const char *text)
{
    size_t length = strlen(text);
    options->strict = length > 0 && text[length - 1] == '!';
    length -= options->strict;
    options->distribution = options->per_socket = 0;
    if (length == 7 && strncmp(text, "compact", 7) == 0)
        options->distribution = DROM_DISTRIBUTION_COMPACT;
    else if (length == 6 && strncmp(text, "spread", 6) == 0)
        options->distribution = DROM_DISTRIBUTION_SPREAD;
    else if (length > 11 && length < 21 && strncmp(text, "per-socket=", 11) == 0) {
        char number[16] = "";
        memcpy(number, text + 11, length - 11);
        options->distribution = DROM_DISTRIBUTION_PER_SOCKET;
        options->per_socket = parse_number(number, DROM_MAX_MASK_BITS);
    }
    if (options->distribution && (options->distribution != DROM_DISTRIBUTION_PER_SOCKET || options->per_socket))
        return;
    dromi_print("--distribution takes compact, spread or per-socket=N, each with or without !, not '%s'.", text);
    exit(EXIT_USAGE);
}

/* Parse bytes, or a number followed by K, M, G or T (powers of 1024), as Slurm's --mem but in bytes. */
static uint64_t memory_or_leave(const char *text)
{
    static const char units[] = "KMGT";
    size_t digits = strspn(text, "0123456789");
    uint64_t value = digits && digits <= 15 ? strtoull(text, NULL, 10) : 0;
    const char *unit = text[digits] ? strchr(units, text[digits]) : NULL;
    bool whole = !text[digits] || (unit && !text[digits + 1]);
    for (int power = unit ? (int)(unit - units) + 1 : 0; power > 0; power--)
        value = value > UINT64_MAX >> 10 ? 0 : value << 10;
    if (whole && value)
        return value;
    dromi_print("--mem takes a size such as 800M or 4G, not '%s'.", text);
    exit(EXIT_USAGE);
}

static uint64_t deadline_or_leave(const char *text)
{
    uint32_t seconds = parse_number(text, MOST_SECONDS);
    if (seconds)
        return dromi_now_ns() + seconds * UINT64_C(1000000000);
    dromi_print("--deadline takes seconds from 1 to %d, not '%s'.", MOST_SECONDS, text);
    exit(EXIT_USAGE);
}

static const char *directory_or_leave(const char *text)
{
    if (*text)
        return text;
    dromi_print("--runtime-dir takes the directory of a running agent, not an empty name.");
    exit(EXIT_USAGE);
}

static void check_together(const struct options *options)
{
    if (options->for_parent && options->command[0])
        dromi_print("--for-parent takes no command: write %s --for-parent.", launcher);
    else if (!options->for_parent && !options->command[0])
        dromi_print("no command is given: write %s -- COMMAND.", launcher);
    else if (options->cpus && options->min > options->cpus)
        dromi_print("--min %u is more than --cpus %u: lower the one or raise the other.", options->min, options->cpus);
    else
        return;
    exit(EXIT_USAGE);
}

static void set_option(struct options *options, int option)
{
    switch (option) {
    case 'd': options->runtime_dir = directory_or_leave(optarg); return;
    case 'j': options->job = name_or_leave("--job", optarg); return;
    case 'c': options->cpus = count_or_leave("--cpus", optarg); return;
    case 'm': options->min = count_or_leave("--min", optarg); return;
    case 'k': options->job_class = word_or_leave("--class", CLASSES, optarg); return;
    case 'D': distribution_or_leave(options, optarg); return;
    case 'a': options->malleability = word_or_leave("--malleability", MALLEABILITIES, optarg); return;
    case 'o': options->runtime = word_or_leave("--openmp-runtime", RUNTIMES, optarg); return;
    case 'M': options->memory = memory_or_leave(optarg); return;
    case 's': options->session = name_or_leave("--session", optarg); return;
    case 'r': options->require = true; return;
    case 'w': options->wait = true; return;
    case 't': options->deadline_ns = deadline_or_leave(optarg); return;
    case 'p': options->for_parent = options->fenced = true; return;
    case 'h': print_and_leave("Usage: ", HELP);
    case 'v': print_and_leave("", " " VERSION "\n");
    }
}

void parse_options(struct options *options, const char *called, int argc, char **argv)
{
    static const struct option known[] = {
        {"runtime-dir", required_argument, NULL, 'd'}, {"job", required_argument, NULL, 'j'},
        {"cpus", required_argument, NULL, 'c'},        {"min", required_argument, NULL, 'm'},
        {"class", required_argument, NULL, 'k'},       {"session", required_argument, NULL, 's'},
        {"distribution", required_argument, NULL, 'D'}, {"mem", required_argument, NULL, 'M'},
        {"malleability", required_argument, NULL, 'a'},  {"openmp-runtime", required_argument, NULL, 'o'},
        {"require", no_argument, NULL, 'r'},           {"await", no_argument, NULL, 'w'},
        {"deadline", required_argument, NULL, 't'},    {"for-parent", no_argument, NULL, 'p'},
        {"help", no_argument, NULL, 'h'},              {"version", no_argument, NULL, 'v'},
        {NULL, 0, NULL, 0},
    };
    memset(options, 0, sizeof *options);
    launcher = called;
    options->malleability = UNSET;
    options->runtime = UNSET;
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, "+:h", known, NULL)) != -1;) {
        if (option == ':' || option == '?') {
            const char *given = argv[optind - 1];
            if (option == ':')
                dromi_print("%s needs a value: see %s --help.", given, launcher);
            else
                dromi_print("%s is no option of %s: see %s --help.", given, launcher, launcher);
            exit(EXIT_USAGE);
        }
        set_option(options, option);
    }
    if (options->malleability == UNSET)
        options->malleability = word_of_environment("DROM_MALLEABILITY", MALLEABILITIES);
    if (options->runtime == UNSET)
        options->runtime = word_of_environment("DROM_OPENMP_RUNTIME", RUNTIMES);
    options->command = argv + optind;
    check_together(options);
}
