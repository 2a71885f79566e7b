/* SPDX-License-Identifier: Apache-2.0 */
/* decisions - what drom_mpi_objects.c makes of measurements, without ranks: prints the speeds that it estimates. */
#include "drom_mpi.c"

int main(void)
{
    struct pace paces[] = {{0.5, 1}, {0, 1}, {1.6, 2}}, unknown[] = {{0, 1}, {0, 1}, {0, 2}};
    double speeds[] = {1, 1, 4}, described[] = {1, 1, 4}, work[] = {0, 6, 0, 2}, none[] = {0, 0};
    int before[] = {0, 1, 2}, after[] = {0, 1, 3};
    struct side old = {before, 3, 0}, new = {after, 3, 0};
    estimate_speeds(&old, &new, paces, speeds);
    printf("%g %g %g\n", speeds[0], speeds[1], speeds[2]);
    estimate_speeds(&old, &new, unknown, described);
    printf("%g %g %g\n", described[0], described[1], described[2]);
    fill_gaps(work, 4);
    fill_gaps(none, 2);
    printf("%g %g %g %g, %g %g\n", work[0], work[1], work[2], work[3], none[0], none[1]);
    return 0;
}
