/* SPDX-License-Identifier: Apache-2.0 */
/* endless: one parallel region that never ends. Its threads share units of work and meet after each, as codes do that
 * open one region for a whole run; for each unit it says how many milliseconds that took. */
#include <omp.h>
#include <stdio.h>

int main(void)
{
    enum { ITEMS = 2000000 };
    double sum = 0, began = omp_get_wtime();
    setvbuf(stdout, NULL, _IOLBF, 0);
#pragma omp parallel
    for (;;) {
#pragma omp for reduction(+ : sum)
        for (int i = 1; i <= ITEMS; i++)
            sum += 1.0 / i;
#pragma omp single
        {
            double now = omp_get_wtime();
            printf("%.3f\n", 1e3 * (now - began));
            began = now;
        }
    }
}
