/* SPDX-License-Identifier: Apache-2.0 */
/* For ever makes regions, a while apart, and says of each that has another number of threads than the one before "on CPU...":
 * where the program was, and where each further thread begins. */
#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>

enum { MOST = 64 };

int main(void)
{
    int before = 1, threads = 0, cpus[MOST];
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (;; before = threads) {
        int home = sched_getcpu();
#pragma omp parallel
        {
            int me = omp_get_thread_num();
            cpus[me % MOST] = sched_getcpu();
            if (me == 0)
                threads = omp_get_num_threads();
        }
        cpus[0] = home;
        if (threads != before) {
            printf("on");
            for (int i = 0; i < threads; i++)
                printf(" %d", cpus[i]);
            puts("");
        }
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL); /* the team falls asleep */
    }
}
