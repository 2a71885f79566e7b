/* SPDX-License-Identifier: Apache-2.0 */
/* A thread binds itself while another one puts the next grant in force, which has CPU 1 instead of CPU 0. Prints the CPUs of the
 * thread after that, as "whole LIST" for a whole grant and "part LIST" for the second half of one. */
#include <sched.h>
#include <stdio.h>

#include "pinning.h"

struct session session;
static uint64_t in_force;

/* Each grant is superseded as soon as it has been copied for the first time. */
uint32_t copy_grant(drom_grant *g)
{
    uint32_t serial = session.serial;
    *g = (drom_grant){.mask_words = 1, .ncpus = 1, .mask = {in_force}};
    if (in_force == 1) {
        in_force = 2;
        session.serial++;
    }
    return serial;
}

static void print_cpus(const char *what)
{
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    printf("%s %s%s\n", what, CPU_ISSET(0, &set) ? "0" : "", CPU_ISSET(1, &set) ? "1" : "");
}

static void begin(void)
{
    in_force = 1;
    session.serial++;
}

int main(void)
{
    session.serial = 1;
    begin();
    bind_self();
    print_cpus("whole");
    begin();
    pin_self(1, 2, 0);
    print_cpus("part");
    in_force = 1; /* with the same serial: no new grant */
    pin_self(1, 2, 0);
    print_cpus("part");
    return 0;
}
