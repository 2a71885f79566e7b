/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products for ever, each checked against the first; says "products N" after every ten. */
#include <stdio.h>

#define N 300

void cblas_dgemm(int order, int transpose_a, int transpose_b, int m, int n, int k, double alpha, const double *a, int lda,
                 const double *b, int ldb, double beta, double *c, int ldc);

static double a[N * N], b[N * N], c[N * N];

static double product(void)
{
    double sum = 0;
    cblas_dgemm(101, 111, 111, N, N, N, 1, a, N, b, N, 0, c, N);
    for (int i = 0; i < N * N; i++)
        sum += c[i] * (i % 3);
    return sum;
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 0; i < N * N; i++) {
        a[i] = i % 7;
        b[i] = i % 5;
    }
    const double first = product(); /* whole numbers: exact in any order */
    for (long count = 1; product() == first; count++)
        if (count % 10 == 0)
            printf("products %ld\n", count);
    puts("wrong: product");
    return 1;
}
