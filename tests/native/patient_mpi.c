/* SPDX-License-Identifier: Apache-2.0 */
/* A library for LD_PRELOAD with which waiting MPI ranks sleep: after some looks for messages in vain, a rank makes room
 * for ranks that are to send them and have no CPU. Open MPI calls sched_yield() there, if so told, MPICH on UCX nothing
 * but UCX. */
#include <dlfcn.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { LOOKS = 20 };

static _Thread_local int looks;

int sched_yield(void)
{
    looks = (looks + 1) % LOOKS;
    if (looks)
        return (int)syscall(SYS_sched_yield);
    return nanosleep(&(struct timespec){.tv_nsec = 1}, NULL);
}

unsigned ucp_worker_progress(void *worker)
{
    static unsigned (*progress)(void *);
    if (!progress) /* Python loads MPI where RTLD_NEXT does not look */
        progress = (unsigned (*)(void *))dlsym(dlopen("libucp.so.0", RTLD_LAZY | RTLD_NOLOAD), "ucp_worker_progress");
    unsigned done = progress(worker);
    if (!done)
        sched_yield();
    return done;
}
