// SPDX-License-Identifier: Apache-2.0
/* Loaded by LD_PRELOAD: a program that has acknowledged its Nth grant goes on when the file $DROM_TEST_GATES/N is there.
 *
 * So a program is at a known point while it is resized, however fast or slow the machine is. There are three gates.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "drom_layout.h"

enum { GATES = 3 };

static int is_mailbox(int fd)
{
    char link[32], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    return strstr(path, "/mail/") != NULL;
}

static void pass_gate(int number)
{
    const char *folder = getenv("DROM_TEST_GATES");
    char path[4096];
    snprintf(path, sizeof path, "%s/%d", folder ? folder : "", number);
    while (folder && number <= GATES && access(path, F_OK) != 0)
        usleep(1000);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    static int acknowledged;
    ssize_t (*real)(int, const void *, size_t, off_t);
    *(void **)&real = dlsym(RTLD_NEXT, "pwrite");
    ssize_t written = real(fd, data, size, offset);
    if (offset == offsetof(struct drom_mailbox, applied) && size == sizeof(uint64_t) && is_mailbox(fd))
        pass_gate(__atomic_add_fetch(&acknowledged, 1, __ATOMIC_RELAXED));
    return written;
}
