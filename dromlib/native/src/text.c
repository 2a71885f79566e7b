/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

int dromi_stat(int fd, const char *path, struct stat *about)
{
    return (int)syscall(SYS_newfstatat, path ? AT_FDCWD : fd, path ? path : "", about, path ? 0 : AT_EMPTY_PATH);
}

bool dromi_number(const char **text, uint64_t *number)
{
    const char *first = *text;
    for (*number = 0; **text >= '0' && **text <= '9'; ++*text)
        *number = *number * 10 + (uint64_t)(**text - '0');
    return *text > first;
}

uint64_t dromi_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void dromi_log(const char *event, const char *format, ...)
{
    if (!secure_getenv("DROM_LOG"))
        return;
    char line[512];
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t used = strftime(line, sizeof line, "time=%Y-%m-%dT%H:%M:%SZ", &utc);
    used += (size_t)snprintf(line + used, sizeof line - used, " event=%s pid=%d ", event, (int)getpid());
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(line + used, sizeof line - used - 1, format, arguments);
    va_end(arguments);
    used += more < 0 ? 0 : (size_t)more;
    if (used > sizeof line - 2)
        used = sizeof line - 2;
    line[used++] = '\n';
    if (write(STDERR_FILENO, line, used) < 0)
        return; /* stderr is the only place for it */
}

void (*dromi_print_handler)(const char *message);

void dromi_print(const char *format, ...)
{
    char *text;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (length < 0)
        return;
    struct iovec parts[] = {{"drom: ", 6}, {text, (size_t)length}, {"\n", 1}};
    ssize_t written = 0;
    if (dromi_print_handler)
        dromi_print_handler(text);
    else
        written = writev(STDERR_FILENO, parts, 3);
    (void)written; /* stderr is the only place for it */
    free(text);
}

static bool has(const uint64_t *mask, uint32_t mask_words, uint32_t cpu)
{
    return cpu / 64 < mask_words && mask[cpu / 64] >> cpu % 64 & 1;
}

/* Return the interpreter in the first line of a script, or NULL if the file is no script that the kernel runs. The kernel reads
 * as many bytes of that line (binfmt_script.c). */
static const char *read_interpreter(const char *path, char line[DROMI_FIRST_LINE + 1])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    ssize_t length = fd < 0 ? 0 : read(fd, line, DROMI_FIRST_LINE);
    if (fd >= 0)
        close(fd);
    line[length > 0 ? length : 0] = '\0';
    if (strncmp(line, "#!", 2) != 0)
        return NULL;
    char *name = line + 2 + strspn(line + 2, " \t");
    size_t size = strcspn(name, " \t\n");
    if (size == 0 || name + size == line + DROMI_FIRST_LINE) /* none, or truncated */
        return NULL;
    name[size] = '\0';
    return name;
}

const char *dromi_interpreter(const char *path, char name[DROMI_FIRST_LINE + 1])
{
    enum { MOST_SCRIPTS = 5 }; /* the kernel fails with ELOOP beyond that */
    char line[DROMI_FIRST_LINE + 1];
    const char *found;
    for (int i = 0; i < MOST_SCRIPTS && (found = read_interpreter(path, line)); i++) {
        memcpy(name, found, strlen(found) + 1);
        path = name;
    }
    return path;
}

/* Write a mask in the kernel's list format, "0-3,8". Return the length without the NUL; more than size - 1: it was cut. */
size_t dromi_cpu_list(const uint64_t *mask, uint32_t mask_words, char *out, size_t size)
{
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t cpu = 0; cpu < mask_words * 64; cpu++) {
        if (!has(mask, mask_words, cpu))
            continue;
        uint32_t first = cpu;
        while (has(mask, mask_words, cpu + 1))
            cpu++;
        char *at = used < size ? out + used : NULL;
        size_t left = used < size ? size - used : 0;
        const char *comma = used ? "," : "";
        used += (size_t)(first == cpu ? snprintf(at, left, "%s%u", comma, first)
                                      : snprintf(at, left, "%s%u-%u", comma, first, cpu));
    }
    return used;
}
