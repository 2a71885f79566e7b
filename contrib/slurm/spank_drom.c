/* SPDX-License-Identifier: Apache-2.0 */
/* SPANK plugin (spank(7)) that makes the tasks of Slurm's steps tasks of the node's agent, as drom-run does, and their programs
 * malleable without a change. It never stops a job: without a grant, a task runs as without this plugin. */
#include <stdint.h>

#pragma GCC visibility push(default)
#include <slurm/slurm.h>
#include <slurm/spank.h>

SPANK_PLUGIN(drom, 1)
#pragma GCC visibility pop

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "task.h"

#define SECOND UINT64_C(1000000000)
#define CALLED_BY_SLURM __attribute__((visibility("default")))
enum { OPTION_MALLEABLE, OPTION_DROM };

/* What the site has set in plugstack.conf. */
static struct {
    const char *runtime_dir;
    const char *launcher; /* path of drom-run */
    uint32_t deadline_s;
    bool registers_all;
    bool is_valid;
} site = {"/run/drom", "/usr/local/bin/drom-run", 30, false, true};

/* The user's options. `min` and `max` are CPUs per task; 0: unspecified. */
static struct {
    bool is_malleable;
    bool is_off;
    bool is_on;
    uint32_t min;
    uint32_t max;
} user;

/* --- the site's settings --- */

static bool is_setting(const char *word, const char *name, const char **value)
{
    size_t length = strlen(name);
    *value = word + length;
    return strncmp(word, name, length) == 0;
}

/* Return whether a word of plugstack.conf is a valid setting, and store its value. */
static bool read_setting(const char *word)
{
    const char *value;
    if (is_setting(word, "runtime_dir=", &value)) {
        site.runtime_dir = strdup(value);
        return *value == '/' && site.runtime_dir;
    }
    if (is_setting(word, "drom_run=", &value)) {
        site.launcher = strdup(value);
        return *value == '/' && site.launcher;
    }
    if (is_setting(word, "deadline=", &value)) {
        site.deadline_s = parse_number(value, MOST_SECONDS);
        return site.deadline_s > 0;
    }
    if (is_setting(word, "default=", &value)) {
        site.registers_all = strcmp(value, "on") == 0;
        return site.registers_all || strcmp(value, "off") == 0;
    }
    return false;
}

static void read_settings(int count, char **words)
{
    for (int i = 0; i < count; i++)
        if (!read_setting(words[i])) {
            slurm_error("drom: '%s' in plugstack.conf is not runtime_dir=DIR, drom_run=FILE (both from /), deadline=SECONDS (1 to %d) or "
                        "default=on|off: correct it. Until then no job uses drom.", words[i], MOST_SECONDS);
            site.is_valid = false;
        }
}

/* --- the user's options --- */

/* Read a number of CPUs from 1 to the maximum of a mask, and advance past it. */
static bool read_cpus(const char **text, uint32_t *cpus)
{
    char number[16];
    size_t length = strspn(*text, "0123456789");
    if (length >= sizeof number)
        return false;
    memcpy(number, *text, length);
    number[length] = '\0';
    *text += length;
    *cpus = parse_number(number, DROM_MAX_MASK_BITS);
    return *cpus > 0;
}

/* Return why `text` is no value of --malleable, or NULL after storing it. Without text all CPUs of the task may be used. */
static const char *read_malleable(const char *text)
{
    uint32_t min = 0, max = 0;
    bool has_text = text && *text;
    if (has_text && (!read_cpus(&text, &min) || *text++ != ':' || !read_cpus(&text, &max) || *text))
        return "give two numbers of CPUs per task, from 1 on, such as --malleable=4:48";
    if (min > max)
        return "the minimum must not be above the maximum";
    user.is_malleable = true;
    user.min = min;
    user.max = max;
    return NULL;
}

static const char *read_drom(const char *text)
{
    user.is_on = text && strcmp(text, "on") == 0;
    user.is_off = text && strcmp(text, "off") == 0;
    return user.is_on || user.is_off ? NULL : "give on or off";
}

/* Slurm passes options from the environment (of a batch job) first, and then those of the command line, which take precedence. On
 * the node it passes them once more: a value that is bad only there does not fail the job. */
static int take_option(int option, const char *value, int remote)
{
    const char *reason = option == OPTION_MALLEABLE ? read_malleable(value) : read_drom(value);
    if (!reason)
        return ESPANK_SUCCESS;
    slurm_error("drom: --%s=%s: %s.", option == OPTION_MALLEABLE ? "malleable" : "drom", value ? value : "", reason);
    return remote ? ESPANK_SUCCESS : ESPANK_BAD_ARG;
}

static struct spank_option OPTIONS[] = {
    {"malleable", "MIN:MAX", "let drom resize each task between MIN and MAX of its CPUs (alone: 1 and all)", 2, OPTION_MALLEABLE, take_option},
    {"drom", "on|off", "register the tasks with drom's agent (--malleable does), or change nothing", 1, OPTION_DROM, take_option},
    SPANK_OPTIONS_TABLE_END,
};

CALLED_BY_SLURM int slurm_spank_init(spank_t spank, int count, char **words)
{
    read_settings(count, words);
    for (struct spank_option *option = OPTIONS; option->name; option++) {
        spank_err_t rc = spank_option_register(spank, option);
        if (rc != ESPANK_SUCCESS)
            slurm_error("drom: Slurm does not take the option --%s (%s).", option->name, spank_strerror(rc));
    }
    return ESPANK_SUCCESS;
}

/* --- a task --- */

/* The user gets the messages of one task in hundreds; slurmd's log has all. */
static void print_to_user(const char *message)
{
    slurm_spank_log("drom: %s", message);
}

static void print_to_log(const char *message)
{
    slurm_info("drom: %s", message);
}

/* If Slurm makes no control group, the agent gets the job's name, and the affinity that Slurm has set, from this registration. */
static struct options options_of(spank_t spank)
{
    static char *nothing[] = {"?", NULL}, name[32];
    uint32_t cpus = 0, job = 0;
    int count = 0;
    struct options options = {
        .runtime_dir = site.runtime_dir,
        .launcher = site.launcher,
        .fenced = true,
        .deadline_ns = dromi_now_ns() + site.deadline_s * SECOND,
        .command = nothing,
    };
    if (spank_get_item(spank, S_JOB_ID, &job) == ESPANK_SUCCESS && snprintf(name, sizeof name, "slurm-%" PRIu32, job) > 0)
        options.job = name;
    if (spank_get_item(spank, S_JOB_ARGV, &count, &options.command) != ESPANK_SUCCESS || count < 1 || !options.command[0])
        options.command = nothing;
    const char *malleability = getenv("DROM_MALLEABILITY"), *runtime = getenv("DROM_OPENMP_RUNTIME");
    options.malleability = malleability ? find_choice(MALLEABILITIES, malleability) % CHOICES : MALLEABILITY_AUTO;
    options.runtime = runtime ? find_choice(RUNTIMES, runtime) % CHOICES : RUNTIME_AUTO;
    if (user.is_malleable) {
        options.min = user.min;
        options.cpus = user.max;
    } else {
        options.job_class = DROM_CLASS_RIGID;
        options.cpus = spank_get_item(spank, S_STEP_CPUS_PER_TASK, &cpus) == ESPANK_SUCCESS ? cpus : 0;
    }
    return options;
}

static void register_task(const struct options *options)
{
    static struct registration registration; /* large, and this process has one task */
    become_task(&registration, options);
    switch (registration.verdict) {
    case VERDICT_GRANTED: break;
    case VERDICT_REFUSED:
        dromi_print("this task runs unmanaged, on the CPUs that Slurm gave it: %s", registration.answer.reply.text);
        break;
    case VERDICT_UNMANAGED: dromi_print("this task runs unmanaged: %s", registration.answer.reply.text); break;
    case VERDICT_NO_AGENT: dromi_report_no_agent(registration.error, registration.dir, "this task runs unmanaged: ", " (", ")"); break;
    case VERDICT_LATE:
        dromi_print("this task runs unmanaged, on the CPUs that Slurm gave it: the agent in %s has granted it none within %" PRIu32 " s.",
                    registration.dir, site.deadline_s);
        break;
    }
}

/* --- the task's environment --- */

static void change(const char *name, const char *value, void *spank)
{
    spank_err_t rc = value ? spank_setenv(spank, name, value, 1) : spank_unsetenv(spank, name);
    if (rc != ESPANK_SUCCESS)
        slurm_info("drom: %s is not changed in the environment of a task: %s", name, spank_strerror(rc));
}

/* Register the task, or prepare a script: both read and change `environ`, which is the task's environment meanwhile. Nothing else
 * runs in this process, which was forked to execute the task. */
static void start_in_environment(spank_t spank, bool is_program)
{
    char **slurms = environ, **theirs = NULL, **before, **mine;
    if (spank_get_item(spank, S_JOB_ENV, &theirs) != ESPANK_SUCCESS || !theirs)
        return;
    before = copy_environment(theirs);
    mine = copy_environment(theirs);
    if (!before || !mine)
        return;
    environ = mine;
    struct options options = options_of(spank);
    if (is_program)
        register_task(&options);
    else
        prepare_starter(&options);
    char **after = environ;
    environ = slurms;
    compare_environments(before, after, change, spank);
    if (spank_get_item(spank, S_JOB_ENV, &theirs) == ESPANK_SUCCESS && theirs)
        move_to_front(theirs, "DROM_TASK=");
    free(before);
}

CALLED_BY_SLURM int slurm_spank_task_init(spank_t spank, int count, char **words)
{
    (void)count, (void)words;
    uint32_t step = 0;
    int task = 0;
    bool is_wanted = user.is_malleable || user.is_on || site.registers_all;
    if (!site.is_valid || user.is_off || !is_wanted || spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS)
        return ESPANK_SUCCESS;
    spank_get_item(spank, S_TASK_ID, &task);
    dromi_print_handler = task == 0 && (user.is_malleable || user.is_on) ? print_to_user : print_to_log;
    start_in_environment(spank, step <= SLURM_MAX_NORMAL_STEP_ID); /* otherwise a batch script or an interactive shell */
    dromi_print_handler = NULL;
    return ESPANK_SUCCESS;
}
