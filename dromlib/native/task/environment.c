/* SPDX-License-Identifier: Apache-2.0 */
/* Environments as arrays of entries. */
#include <stdlib.h>
#include <string.h>

#include "task.h"

/* Return the entry of an environment that has the same name as `entry`, or NULL. */
static char **find_entry(char **environment, const char *entry)
{
    size_t length = strcspn(entry, "=") + 1;
    while (*environment && strncmp(*environment, entry, length) != 0)
        environment++;
    return *environment ? environment : NULL;
}

char **copy_environment(char **environment)
{
    size_t count = 0;
    while (environment[count])
        count++;
    char **copy = calloc(count + 1, sizeof *copy);
    if (copy)
        memcpy(copy, environment, count * sizeof *copy);
    return copy;
}

static void report(const char *entry, bool has_value, change_function *change, void *context)
{
    const char *end = strchr(entry, '=');
    char *name = end ? strndup(entry, (size_t)(end - entry)) : NULL;
    if (name)
        change(name, has_value ? end + 1 : NULL, context);
    free(name);
}

void compare_environments(char **before, char **after, change_function *change, void *context)
{
    for (char **entry = before; *entry; entry++)
        if (!find_entry(after, *entry))
            report(*entry, false, change, context);
    for (char **entry = after; *entry; entry++) {
        char **old = find_entry(before, *entry);
        if (!old || *old != *entry)
            report(*entry, true, change, context);
    }
}

void move_to_front(char **environment, const char *name)
{
    char **entry = environment ? find_entry(environment, name) : NULL;
    if (!entry)
        return;
    char *moved = *entry;
    memmove(environment + 1, environment, (size_t)(entry - environment) * sizeof *environment);
    environment[0] = moved;
}
