/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "task.h"

struct launcher {
    const char *rank;
    const char *size;
    const char *session[3];
};

/* Under mpirun in a Slurm job the variables of both are set: MPI launchers come first. */
static const struct launcher LAUNCHERS[] = {
    {"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", NULL}},
    {"MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE", {"MPIRUN_ID", NULL, NULL}},
    {"MPI_LOCALRANKID", "MPI_LOCALNRANKS", {"PMI_JOBID", NULL, NULL}},
    {"PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE", {"PALS_APID", NULL, NULL}},
};

static bool number(const char *text, uint32_t *value)
{
    size_t length = text ? strlen(text) : 0;
    if (length == 0 || length > 9 || strspn(text, "0123456789") != length)
        return false;
    *value = (uint32_t)strtoul(text, NULL, 10);
    return true;
}

void copy_name(char name[DROM_NAME_SIZE], const char *text)
{
    size_t length = strnlen(text, DROM_NAME_SIZE);
    if (length == DROM_NAME_SIZE)
        for (length--; length && ((unsigned char)text[length] & 0xC0) == 0x80; length--)
            ;
    memcpy(name, text, length);
    name[length] = '\0';
}

/* Copy the end of a long id, which differs between launches. */
static void copy_tail(char session[DROM_NAME_SIZE], const char *text)
{
    size_t length = strlen(text);
    copy_name(session, length < DROM_NAME_SIZE ? text : text + length - (DROM_NAME_SIZE - 1));
}

static bool try_launcher(const struct launcher *launcher, struct rank *rank)
{
    if (!number(getenv(launcher->rank), &rank->local_rank) || !number(getenv(launcher->size), &rank->local_size))
        return false;
    /* Ranks of one launch on one node have the same parent, the launcher's proxy. */
    snprintf(rank->session, DROM_NAME_SIZE, "parent-%d", (int)getppid());
    for (const char *const *name = launcher->session; *name; name++) {
        const char *value = getenv(*name);
        if (value && *value) {
            copy_tail(rank->session, value);
            break;
        }
    }
    return true;
}

/* Return the tasks on node `node`; `text` counts them per node, as in "2(x3),1". */
static uint32_t tasks_on_node(const char *text, uint32_t node)
{
    while (text && *text) {
        unsigned tasks = 0, nodes = 1;
        if (sscanf(text, "%u(x%u)", &tasks, &nodes) < 1)
            return 0;
        if (node < nodes)
            return tasks;
        node -= nodes;
        text = strchr(text, ',');
        text += text != NULL;
    }
    return 0;
}

/* Batch scripts have SLURM_LOCALID too, and with newer Slurms SLURM_STEP_ID, but only srun sets the tasks of the step. */
static bool try_srun(struct rank *rank)
{
    uint32_t node;
    const char *job = getenv("SLURM_JOB_ID");
    const char *step = getenv("SLURM_STEP_ID");
    if (!job || !step || !number(getenv("SLURM_LOCALID"), &rank->local_rank) || !number(getenv("SLURM_NODEID"), &node))
        return false;
    rank->local_size = tasks_on_node(getenv("SLURM_STEP_TASKS_PER_NODE"), node);
    char session[2 * DROM_NAME_SIZE];
    snprintf(session, sizeof session, "slurm-%.40s.%.20s", job, step);
    copy_name(rank->session, session);
    return true;
}

void find_rank(struct rank *rank)
{
    bool found = false;
    memset(rank, 0, sizeof *rank);
    for (size_t i = 0; !found && i < sizeof LAUNCHERS / sizeof *LAUNCHERS; i++)
        found = try_launcher(&LAUNCHERS[i], rank);
    if (!found)
        found = try_srun(rank);
    if (!found || rank->local_rank >= rank->local_size)
        memset(rank, 0, sizeof *rank);
}
