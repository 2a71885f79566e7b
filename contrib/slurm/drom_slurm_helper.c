/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads jobs and nodes of Slurm, and changes waiting jobs, for `drom slurm --helper`: much faster than Slurm's
 * commands, since it requests from slurmctld only what has changed. Started and ended by the daemon; see docs/slurm.md.
 *
 * It first writes "drom-slurm-helper PROTOCOL VERSION". Then it writes one answer to each line that it reads, a line
 * "WORD BYTES" and so many bytes:
 *
 *   jobs SEPARATOR          ok: all jobs, as `squeue -O` prints them in UTC, each field followed by the separator, and each
 *                           job by another one;
 *   nodes                   ok: all nodes, as `scontrol show node -o` prints them;
 *                           same: nothing has changed since the last answer
 *   update NAME=VALUE ...   ok: the change of `scontrol update` is done
 *
 * "failed" is followed by Slurm's reason; the answer to any other line is "bad". It exits at the end of its input.
 */
#include <stdint.h>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PROTOCOL = 1, LONGEST_LINE = 1 << 20 };

/* Words of Slurm for numbers, which libslurm exports and its header does not declare. */
typedef const char *words_of(uint32_t);
static words_of *state_of, *reason_of;

static char *separator;
static char *text; /* of the answer */
static size_t length;
static FILE *answer;

/* --- answers ---------------------------------------------------------------------------------------------------- */

static void begin_answer(void)
{
    answer = open_memstream(&text, &length);
    if (!answer)
        exit(1);
}

/* Write the answer that was begun, with its word before it. */
static void end_answer(const char *word)
{
    if (fclose(answer))
        exit(1);
    if (printf("%s %zu\n", word, length) < 0 || fwrite(text, 1, length, stdout) != length || fflush(stdout))
        exit(1);
    free(text);
}

static void fail(void)
{
    int number = errno;

    begin_answer();
    fputs(slurm_strerror(number), answer);
    end_answer("failed");
}

static void reply(const char *word, const char *what)
{
    begin_answer();
    fputs(what, answer);
    end_answer(word);
}

/* --- jobs ------------------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 1, 2))) static void field(const char *format, ...)
{
    va_list values;

    va_start(values, format);
    vfprintf(answer, format, values);
    va_end(values);
    fputs(separator, answer);
}

static void text_field(const char *value)
{
    field("%s", value && *value ? value : "(null)");
}

static void number_field(uint32_t value, bool is_set)
{
    if (is_set)
        field("%u", value);
    else
        field("N/A");
}

static void time_field(time_t at)
{
    char shown[32];
    struct tm parts;

    if (at > 0 && at != (time_t)INFINITE && at != (time_t)NO_VAL && gmtime_r(&at, &parts) &&
        strftime(shown, sizeof shown, "%Y-%m-%dT%H:%M:%S", &parts))
        field("%s", shown);
    else
        field("N/A");
}

static void user_field(const slurm_job_info_t *job)
{
    static uint32_t last_uid;
    static char last_name[64];
    const struct passwd *user;

    if (job->user_name && *job->user_name) {
        field("%s", job->user_name);
        return;
    }
    if (!*last_name || last_uid != job->user_id) {
        user = getpwuid(job->user_id);
        if (user)
            snprintf(last_name, sizeof last_name, "%s", user->pw_name);
        else
            snprintf(last_name, sizeof last_name, "%u", job->user_id);
        last_uid = job->user_id;
    }
    field("%s", last_name);
}

static const char *sharing_of(const slurm_job_info_t *job)
{
    switch (job->shared) {
    case JOB_SHARED_NONE:
        return "NO";
    case JOB_SHARED_OK:
        return "YES";
    case JOB_SHARED_USER:
        return "USER";
    case JOB_SHARED_MCS:
        return "MCS";
    default:
        return "OK";
    }
}

static void memory_field(uint64_t memory)
{
    if (memory == NO_VAL64)
        memory = 0;
    if (memory & MEM_PER_CPU)
        field("%lluMc", (unsigned long long)(memory & ~(uint64_t)MEM_PER_CPU));
    else if (memory)
        field("%lluM", (unsigned long long)memory);
    else
        field("0");
}

/* Write a job as squeue would; the order of the fields is that of JOB_COLUMNS in scheduler/slurm/text_records.py. */
static void write_job(const slurm_job_info_t *job)
{
    field("%u", job->job_id);
    field("%u", job->array_job_id ? job->array_job_id : job->job_id);
    if (job->array_task_str)
        field("%s", job->array_task_str);
    else
        number_field(job->array_task_id, job->array_task_id != NO_VAL);
    user_field(job);
    field("%u", job->user_id);
    text_field(job->account);
    text_field(job->partition);
    text_field(state_of(job->job_state));
    text_field(job->state_desc ? job->state_desc : reason_of(job->state_reason));
    field("%u", job->priority);
    time_field(job->submit_time);
    time_field(job->eligible_time);
    time_field(job->start_time);
    time_field(job->time_limit == INFINITE && job->end_time > time(NULL) ? 0 : job->end_time);
    if (job->time_limit == INFINITE || job->time_limit == NO_VAL)
        field("UNLIMITED");
    else
        field("%u:00", job->time_limit);
    field("%u", job->num_nodes);
    field("%u", job->max_nodes);
    field("%u", job->num_tasks);
    number_field(job->cpus_per_task, job->cpus_per_task != (uint16_t)NO_VAL);
    field("%u", job->num_cpus);
    field("%s", sharing_of(job));
    text_field(job->licenses);
    text_field(job->dependency);
    text_field(job->req_nodes);
    field("%lld", (long long)job->nice - (long long)NICE_OFFSET);
    number_field(job->het_job_id, job->het_job_id != 0);
    text_field(job->nodes);
    memory_field(job->pn_min_memory);
    text_field(job->resv_name);
    field("%u", job->restart_cnt);
    text_field(job->name);
    text_field(job->comment);
    text_field(job->admin_comment);
    fputs(separator, answer);
}

static void answer_jobs(void)
{
    static job_info_msg_t *last;
    job_info_msg_t *jobs = NULL;

    if (slurm_load_jobs(last ? last->last_update : 0, &jobs, SHOW_ALL)) {
        if (errno == SLURM_NO_CHANGE_IN_DATA)
            reply("same", "");
        else
            fail();
        return;
    }
    begin_answer();
    for (uint32_t i = 0; i < jobs->record_count; ++i)
        write_job(&jobs->job_array[i]);
    end_answer("ok");
    slurm_free_job_info_msg(last);
    last = jobs;
}

/* --- nodes ------------------------------------------------------------------------------------------------------ */

static void answer_nodes(void)
{
    static time_t nodes_at, partitions_at;
    static partition_info_msg_t *partitions;
    node_info_msg_t *nodes = NULL;
    partition_info_msg_t *found = NULL;

    if (!slurm_load_partitions(partitions_at, &found, SHOW_ALL)) {
        slurm_free_partition_info_msg(partitions);
        partitions = found;
        partitions_at = found->last_update;
        nodes_at = 0;
    } else if (errno != SLURM_NO_CHANGE_IN_DATA) {
        fail();
        return;
    }
    if (slurm_load_node(nodes_at, &nodes, SHOW_ALL)) {
        if (errno == SLURM_NO_CHANGE_IN_DATA)
            reply("same", "");
        else
            fail();
        return;
    }
    slurm_populate_node_partitions(nodes, partitions);
    begin_answer();
    for (uint32_t i = 0; i < nodes->record_count; ++i)
        if (nodes->node_array[i].name)
            slurm_print_node_table(answer, &nodes->node_array[i], 1);
    end_answer("ok");
    nodes_at = nodes->last_update;
    slurm_free_node_info_msg(nodes);
}

/* --- changes ---------------------------------------------------------------------------------------------------- */

static bool is_number(const char *word, long long *value)
{
    char *end;

    errno = 0;
    *value = strtoll(word, &end, 10);
    return *word && !*end && !errno;
}

/* Take NAME=VALUE into a change. Return whether it is known. */
static bool take(job_desc_msg_t *job, char *word)
{
    char *value = strchr(word, '=');
    long long number;

    if (!value)
        return false;
    *value++ = '\0';
    if (!strcmp(word, "jobid"))
        job->job_id_str = value;
    else if (!strcmp(word, "licenses"))
        job->licenses = value;
    else if (!strcmp(word, "reqnodelist"))
        job->req_nodes = value;
    else if (!is_number(value, &number))
        return false;
    else if (!strcmp(word, "nice"))
        job->nice = (uint32_t)(NICE_OFFSET + number);
    else if (!strcmp(word, "priority"))
        job->priority = (uint32_t)number;
    else
        return false;
    return true;
}

static void answer_update(char *words)
{
    job_desc_msg_t job;
    job_array_resp_msg_t *parts = NULL;
    int status;

    slurm_init_job_desc_msg(&job);
    for (char *rest = NULL, *word = strtok_r(words, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        if (!take(&job, word)) {
            reply("bad", word);
            return;
        }
    if (!job.job_id_str) {
        reply("bad", "no jobid");
        return;
    }
    status = slurm_update_job2(&job, &parts);
    for (uint32_t i = 0; !status && parts && i < parts->job_array_count; ++i)
        if (parts->error_code[i]) {
            status = -1;
            errno = (int)parts->error_code[i];
        }
    if (status)
        fail();
    else
        reply("ok", "");
    if (parts)
        slurm_free_job_array_resp(parts);
}

/* --- the loop --------------------------------------------------------------------------------------------------- */

static void answer_line(char *line)
{
    if (!strncmp(line, "jobs ", 5) && line[5]) {
        free(separator);
        separator = strdup(line + 5);
        if (!separator)
            exit(1);
        answer_jobs();
    } else if (!strcmp(line, "nodes")) {
        answer_nodes();
    } else if (!strncmp(line, "update ", 7)) {
        answer_update(line + 7);
    } else {
        reply("bad", line);
    }
}

int main(void)
{
    char *line = NULL;
    size_t size = 0;
    ssize_t got;
    int nowhere;
    long version = slurm_api_version();

    state_of = (words_of *)dlsym(RTLD_DEFAULT, "slurm_job_state_string");
    reason_of = (words_of *)dlsym(RTLD_DEFAULT, "slurm_job_reason_string");
    if (!state_of || !reason_of) {
        fputs("this libslurm does not export the words for states and reasons of jobs\n", stderr);
        return 1;
    }
    nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (nowhere < 0 || dup2(nowhere, STDERR_FILENO) < 0) /* libslurm's messages there are in the answers as well */
        return 1;
    slurm_init(NULL);
    printf("drom-slurm-helper %d %ld.%02ld\n", PROTOCOL, SLURM_VERSION_MAJOR(version), SLURM_VERSION_MINOR(version));
    fflush(stdout);
    while ((got = getline(&line, &size, stdin)) > 0 && got < LONGEST_LINE) {
        if (line[got - 1] == '\n')
            line[got - 1] = '\0';
        answer_line(line);
    }
    return 0;
}
