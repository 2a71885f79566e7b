/* SPDX-License-Identifier: Apache-2.0 */
/* The message that tells users why a program has no agent, and what they can do. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "internal.h"

#define TEXT_OF(number) TEXT(number)
#define TEXT(number) #number
#define LONGEST (sizeof ((struct sockaddr_un *)NULL)->sun_path - sizeof "/control")

#define START "start one with: drom agent --runtime-dir %s"
#define CANNOT_START "you cannot start one there: ask an administrator to, or name the directory of your own agent with DROM_RUNTIME_DIR"

/* Each text contains the runtime directory at most once; in remedies it is quoted for a shell. */
static const struct reason {
    int error;
    const char *what;
    const char *remedy;
} REASONS[] = {
    {0, "the agent in %s cannot be reached", "see `drom doctor`"}, /* any other error */
    {ENOENT, "no agent answers in %s", START},
    {ECONNREFUSED, "no agent answers in %s", START},
    {ECONNRESET, "the agent in %s has ended", START},
    {DROMI_UNSAFE, "%s is not a directory that only you or root may write", "name your agent's with DROM_RUNTIME_DIR"},
    {DROMI_OTHER_USER, "the agent in %s belongs to another user than you or root", "name your agent's directory with DROM_RUNTIME_DIR"},
    {EACCES, "you may not enter %s", "name the directory of an agent that you may use with DROM_RUNTIME_DIR"},
    {ENOTDIR, "%s is not a directory", "name that of an agent with DROM_RUNTIME_DIR"},
    {ELOOP, "%s is a link to itself", "name the directory of an agent with DROM_RUNTIME_DIR"},
    {EPROTOTYPE, "%s/door is not a socket of an agent", "name the directory of an agent with DROM_RUNTIME_DIR"},
    {ETIMEDOUT, "the agent in %s has not answered for " TEXT_OF(DROMI_ANSWER_SECONDS) " s", "see `drom doctor`"},
    {EAGAIN, "the agent in %s has not answered for " TEXT_OF(DROMI_ANSWER_SECONDS) " s", "see `drom doctor`"},
    {EPROTO, "the agent in %s answers what this version of drom cannot use", "bring both to one version"},
    {EMFILE, "this program has no free file descriptor for the agent in %s", "give it more (ulimit -n)"},
    {ENFILE, "this machine has no free file descriptor for the agent in %s", "raise its limit (sysctl fs.file-max)"},
};

/* Return whether this user may create `dir`, or files in it. */
static bool may_write(const char *dir)
{
    char *path = strdup(dir);
    while (path && access(path, F_OK) < 0 && errno == ENOENT && strcmp(path, "/") != 0 && strcmp(path, ".") != 0) {
        char *last = strrchr(path, '/');
        if (!last)
            strcpy(path, ".");
        else
            last[last == path] = '\0';
    }
    bool may = !path || access(path, W_OK | X_OK) == 0;
    free(path);
    return may;
}

/* Quote a text as one word of a shell. NULL: no memory. */
static char *quoted(const char *text)
{
    static const char PLAIN[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_";
    if (*text && text[strspn(text, PLAIN)] == '\0')
        return strdup(text);
    char *word = malloc(4 * strlen(text) + 3), *end = word;
    if (!word)
        return NULL;
    *end++ = '\'';
    for (; *text; text++) {
        *end++ = *text;
        if (*text == '\'') {
            memcpy(end, "\\''", 3);
            end += 3;
        }
    }
    memcpy(end, "'", 2);
    return word;
}

void dromi_report_no_agent(int error, const char *dir, const char *before, const char *between, const char *end)
{
    char *what, *remedy, *word = quoted(dir);
    const struct reason *reason = REASONS;
    for (size_t i = 1; i < sizeof REASONS / sizeof *REASONS; i++)
        if (REASONS[i].error == error)
            reason = &REASONS[i];
    if (error == ENAMETOOLONG) {
        dromi_print("%sthe path %s is longer than the %zu bytes that the sockets of an agent allow%sstart one with a shorter "
                    "--runtime-dir, and name that with DROM_RUNTIME_DIR%s", before, dir, LONGEST, between, end);
    } else if (word && asprintf(&what, reason->what, dir) >= 0) {
        const char *advice = strcmp(reason->remedy, START) == 0 && !may_write(dir) ? CANNOT_START : reason->remedy;
        if (asprintf(&remedy, advice, word) >= 0) {
            dromi_print("%s%s%s%s%s", before, what, between, remedy, end);
            free(remedy);
        }
        free(what);
    }
    free(word);
}
