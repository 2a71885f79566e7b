// SPDX-License-Identifier: Apache-2.0
// collatz.cpp - the longest Collatz chain below N: compute-bound, in C++ with std::thread, and malleable between two blocks.
//
//     g++ -O2 -pthread collatz.cpp -ldrom -o collatz
//     collatz [--below N]
//
// A chain halves even numbers and turns odd n into 3 n + 1 until it is at 1. Threads are made for each block of numbers, so their
// number may change there. A serial computation that remembers all chains is the check. Exit 0: right. 1: wrong. 2: wrong usage.
#include <drom.h> // malleable
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory> // malleable
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

using Chain = std::pair<unsigned, std::uint64_t>; // its steps, and the number that it begins with
constexpr std::uint64_t BLOCK = 1 << 18, PIECE = 1 << 10;

// malleable begin
using Handle = std::unique_ptr<drom, decltype(&drom_detach)>;

static void malleability_point(drom *handle, unsigned most, unsigned &threads)
{
    drom_grant grant;
    if (!drom_poll(handle) || drom_take(handle, &grant) <= 0)
        return;
    threads = std::min<unsigned>(grant.ncpus, most);
    drom_apply(handle, &grant); // binds every thread, then acknowledges
}
// malleable end

static Chain longer(Chain a, Chain b)
{
    return a.first > b.first || (a.first == b.first && a.second < b.second) ? a : b;
}

static Chain longest_between(std::uint64_t from, std::uint64_t to, unsigned threads)
{
    std::atomic<std::uint64_t> next{from};
    std::vector<Chain> found(threads, Chain{0, 1});
    std::vector<std::thread> team;
    for (Chain &best : found)
        team.emplace_back([&best, &next, to] {
            for (std::uint64_t first; (first = next.fetch_add(PIECE)) < to;)
                for (std::uint64_t start = first; start < std::min(first + PIECE, to); start++) {
                    Chain chain{0, start};
                    for (std::uint64_t n = start; n != 1; chain.first++)
                        n = n % 2 ? 3 * n + 1 : n / 2;
                    best = longer(best, chain);
                }
        });
    for (std::thread &thread : team)
        thread.join();
    return std::accumulate(found.begin(), found.end(), Chain{0, 1}, longer);
}

static Chain longest_serially(std::uint64_t below)
{
    std::vector<unsigned> steps(below);
    Chain best{0, 1};
    for (std::uint64_t start = 2; start < below; start++) {
        std::uint64_t n = start;
        unsigned count = 0;
        for (; n >= start; count++)
            n = n % 2 ? 3 * n + 1 : n / 2;
        steps[start] = count + steps[n];
        best = longer(best, Chain{steps[start], start});
    }
    return best;
}

int main(int argc, char **argv)
{
    char *end = nullptr;
    const double below = argc == 3 && !std::strcmp(argv[1], "--below") ? std::strtod(argv[2], &end) : argc == 1 ? 3e6 : 0;
    if (!(below >= 2 && below <= 1e9) || (end && *end)) {
        std::fputs("collatz: usage: collatz [--below N], from 2 to a billion\n", stderr);
        return 2;
    }
    const auto limit = static_cast<std::uint64_t>(below);
    const unsigned most = std::max(1u, std::thread::hardware_concurrency());
    unsigned threads = most;
    const Handle handle(drom_attach(), drom_detach); // malleable
    Chain best{0, 1};
    for (std::uint64_t done = 1; done < limit; done = std::min(done + BLOCK, limit)) {
        malleability_point(handle.get(), most, threads); // malleable
        best = longer(best, longest_between(done, std::min(done + BLOCK, limit), threads));
        drom_progress(handle.get(), done); // malleable
    }
    const bool right = best == longest_serially(limit);
    std::printf("collatz: below=%.0f steps=%u from %.0f %s\n", below, best.first, double(best.second), right ? "ok" : "WRONG");
    return right ? 0 : 1;
}
