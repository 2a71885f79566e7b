/* SPDX-License-Identifier: Apache-2.0 */
/* A wall clock that jumps, for LD_PRELOAD: the seconds that stand in the file $DROM_TEST_CLOCK (an int64_t) are added to
 * CLOCK_REALTIME. Other clocks are the kernel's. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t *moved;

__attribute__((constructor)) static void find_clock(void)
{
    const char *path = getenv("DROM_TEST_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *at = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *moved, PROT_READ, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED)
        moved = at;
    if (fd >= 0)
        close(fd);
}

static int64_t jump(void)
{
    return moved ? __atomic_load_n(moved, __ATOMIC_RELAXED) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *at)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
    int rc = real(clock, at);
    if (rc == 0 && clock == CLOCK_REALTIME)
        at->tv_sec += jump();
    return rc;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}
