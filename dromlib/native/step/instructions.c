/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"
#include "step.h"

enum { UID, GID, UMASK, APPEND, CWD, INPUT, OUTPUT, ERROR, GROUP, ARGC, FIRST_ARGUMENT };

static char *read_all(int fd, size_t *size)
{
    struct stat about;
    if (dromi_stat(fd, NULL, &about) < 0 || about.st_size <= 0)
        return NULL;
    *size = (size_t)about.st_size;
    char *text = malloc(*size);
    for (size_t got = 0; text && got < *size;) {
        ssize_t more = pread(fd, text + got, *size - got, (off_t)got);
        if (more == 0 || (more < 0 && errno != EINTR))
            return NULL;
        got += more > 0 ? (size_t)more : 0;
    }
    return text;
}

static size_t count_strings(const char *text, size_t size)
{
    size_t count = 0;
    for (size_t i = 0; i < size; i++)
        count += text[i] == '\0';
    return count;
}

bool read_instructions(struct instructions *instructions, int fd)
{
    size_t size;
    char *text = read_all(fd, &size);
    if (!text || text[size - 1] != '\0')
        return false;
    size_t count = count_strings(text, size);
    char **words = calloc(count + 2, sizeof *words); /* the arguments and the environment each end in a NULL */
    if (!words || count < FIRST_ARGUMENT)
        return false;
    for (size_t i = 0; i < count; i++, text += strlen(text) + 1)
        words[i] = text;
    size_t argc = strtoul(words[ARGC], NULL, 10);
    if (argc < 1 || argc > count - FIRST_ARGUMENT)
        return false;
    size_t end = FIRST_ARGUMENT + argc;
    memmove(words + end + 1, words + end, (count - end) * sizeof *words);
    words[end] = NULL;
    *instructions = (struct instructions){
        .uid = (uid_t)strtoul(words[UID], NULL, 10),
        .gid = (gid_t)strtoul(words[GID], NULL, 10),
        .umask = (mode_t)strtoul(words[UMASK], NULL, 10),
        .append = words[APPEND][0] == '1',
        .cwd = words[CWD],
        .input = words[INPUT],
        .output = words[OUTPUT],
        .error = words[ERROR],
        .group = words[GROUP],
        .argv = words + FIRST_ARGUMENT,
        .envp = words + end + 1,
    };
    return true;
}
