// SPDX-License-Identifier: Apache-2.0
// tbb THREADS: units of work shared out by oneTBB for ever; for each it says how many milliseconds that took. A wrong
// answer ends it with 1.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include <tbb/blocked_range.h>
#include <tbb/global_control.h>
#include <tbb/parallel_reduce.h>

static double add(const tbb::blocked_range<int> &range, double sum)
{
    for (int i = range.begin(); i != range.end(); i++)
        sum += 1.0 / i;
    return sum;
}

int main(int argc, char **argv)
{
    const std::size_t threads = argc == 2 ? std::strtoul(argv[1], nullptr, 10) : 2;
    tbb::global_control most(tbb::global_control::max_allowed_parallelism, threads);
    setvbuf(stdout, nullptr, _IOLBF, 0);
    for (;;) {
        const auto began = std::chrono::steady_clock::now();
        const double sum = tbb::parallel_reduce(tbb::blocked_range<int>(1, 2000001), 0.0, add, std::plus<double>());
        const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
        if (std::fabs(sum - 15.0858737) > 1e-6)
            return 1;
        std::printf("%.3f\n", took.count());
    }
}
