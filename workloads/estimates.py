# SPDX-License-Identifier: Apache-2.0
"""Requested times by the model of Tsafrir, Etsion and Feitelson, "Modeling user runtime estimates", JSSPP 2005.

Users ask for few, round values: twenty of them make up 89 % of the requests, and the maximum is the most popular. The
model's curves are the authors'; the popularity of the round values is a table newly fitted to four logs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from drom.workloads.errors import WorkloadError

if TYPE_CHECKING:
    from drom.workloads.workload import Floats, Ints

HEAD = 20
HEAD_SHARE = 0.89
MINUTE = 60
HOUR = 3600
_DISTINCT_JOBS = (0, 20, 200, 1000, 10_000, 70_000, 250_000)
_DISTINCT = (0, 10, 20, 35, 90, 340, 565)
_ROUND = tuple(m * MINUTE for m in (5, 10, 15, 20, 30)) + tuple(h * HOUR for h in (1, 2, 3, 4, 5, 6, 8, 10, 12, 18))
_STEPS = tuple(h * HOUR for h in (200, 100, 50, 10, 5, 2, 1)) + tuple(m * MINUTE for m in (20, 10, 5))
_RANKS = (
    *((3, 5, 8, 15), (4, 11, 7, 19), (2, 17, 4, 6), (12, 3, 9, 9), (9, 4, 3, 18), (8, 8, 19, 17), (18, 13, 20, 5)),
    *((6, 7, 6, 3), (7, 6, 13, 12), (11, 20, 5, 7), (20, 10, 2, 10), (16, 19, 11, 4), (5, 15, 12, 2), (14, 9, 15, 13)),
    *((13, 12, 14, 20), (10, 2, 17, 14), (15, 14, 16, 8), (17, 18, 18, 16), (19, 16, 10, 11)),
)
"""The popularity (1 is first) of the twenty most frequent requests except the largest, from the shortest to the
longest, in CTC-SP2-1996-3.1-cln, KTH-SP2-1996-2.1-cln, SDSC-BLUE-2000-4.2-cln and HPC2N-2002-2.2-cln (own counts)."""


def tsafrir(run_time: Ints, maximum: int, seed: int) -> Ints:
    """Return a requested time for each job, at least its run time, in seconds; of the shape of `run_time`.

    `maximum` is the longest request, at least an hour. If requests of the model are too short for the run times, which
    happens to few jobs, they are replaced by the next longer ones of its values. Raises WorkloadError if `maximum` is
    less, or if a job runs longer than that.
    """
    if maximum < HOUR or run_time.max(initial=0) > maximum:
        longest = int(run_time.max(initial=0))
        msg = f"Estimates up to {maximum} s cannot be: choose at least an hour and the longest run, {longest} s."
        raise WorkloadError(msg)
    generator = np.random.default_rng(seed)
    values, counts = estimates(len(run_time), maximum, generator)
    order = np.argsort(values)
    requests = np.repeat(values[order], counts[order])[::-1]
    return _assign(run_time, _long_enough(requests, run_time, values[order]), generator)


def maximum_for(run_time: Ints) -> int:
    """Return a common maximum request that is at least the longest run time: 18 h or a multiple of a day."""
    longest = int(run_time.max(initial=1))
    return 18 * HOUR if longest <= 18 * HOUR else -(-longest // (24 * HOUR)) * 24 * HOUR


def distinct(jobs: int) -> int:
    """Return the number of different requests of `jobs` jobs."""
    return max(1, round(float(np.interp(jobs, _DISTINCT_JOBS, _DISTINCT))))


def estimates(jobs: int, maximum: int, generator: np.random.Generator) -> tuple[Ints, Ints]:
    """Return the different requests in seconds and the number of jobs of each; the counts add up to `jobs`."""
    number = min(distinct(jobs), jobs)
    head = _head_values(min(HEAD, number), maximum)
    shares = _head_shares(len(head))[_match(len(head), generator) - 1]
    tail = _tail_values(number - len(head), number, maximum, set(head.tolist())) if number > len(head) else head[:0]
    if len(tail):
        ranks = np.arange(HEAD + 1, HEAD + 1 + len(tail))
        sizes = generator.permutation(ranks**-2.267)
        shares = np.concatenate((shares * HEAD_SHARE, sizes / sizes.sum() * (1 - HEAD_SHARE)))
    return np.concatenate((head, tail)), _counts(shares, jobs)


def _head_values(number: int, maximum: int) -> Ints:
    """Return up to `number` round values in increasing order, the last of which is the maximum."""
    values = {maximum, *[value for value in _ROUND if value < maximum][: number - 1]}
    for step in _STEPS:
        for value in range((maximum - 1) // step * step, 0, -step):
            if len(values) < number:
                values.add(value)
    return np.array(sorted(values), dtype=np.int64)


def _head_shares(number: int) -> Floats:
    """Return the shares of ranks 1 to `number` in the head, adding up to 1."""
    ranks = np.arange(2, HEAD + 1)
    percents = 14.0491 * np.exp(-0.177531 * ranks) + 0.462513
    shares = np.concatenate(([100 * HEAD_SHARE - percents.sum()], percents))[:number]
    return np.asarray(shares / shares.sum(), dtype=np.float64)


def _match(number: int, generator: np.random.Generator) -> Ints:
    """Return the popularity rank of each head value, from the shortest; the last, the maximum, has rank 1.

    At each position the pool receives the ranks seen there in the logs; of two draws the more popular one is taken. A
    rank that would not come again is taken first.
    """
    rows = np.array([[rank for rank in column if rank <= number] for column in zip(*_RANKS, strict=True)]).T
    last = {int(rank): position for position, row in enumerate(rows) for rank in row}
    pool: list[int] = []
    taken: list[int] = []
    for position, row in enumerate(rows):
        pool += [int(rank) for rank in row if rank not in taken]
        due = [rank for rank in pool if last[rank] <= position]
        draws = generator.integers(len(pool), size=2)
        rank = min(due) if due else min(pool[draws[0]], pool[draws[1]])
        taken.append(rank)
        pool = [other for other in pool if other != rank]
    return np.array([*taken, 1], dtype=np.int64)


def _tail_values(number: int, distinct_values: int, maximum: int, used: set[int]) -> Ints:
    """Return up to `number` further values, rounded to the minute, or near that if it is taken."""
    a = 1 + 12.1039 * distinct_values**-0.6026
    x = np.arange(1, number + 1) / number
    found = []
    for value in np.rint(maximum * (a - 1) * x / (a - x) / MINUTE).astype(np.int64) * MINUTE:
        for shift in (0, 10, -10, 20, -20, 30, -30):
            moved = int(value) + shift
            if 0 < moved < maximum and moved not in used:
                used.add(moved)
                found.append(moved)
                break
    return np.array(found, dtype=np.int64)


def _counts(shares: Floats, jobs: int) -> Ints:
    """Return whole numbers, at least 1 each, that add up to `jobs` and are about proportional to the shares."""
    counts = np.maximum(np.floor(shares / shares.sum() * jobs).astype(np.int64), 1)
    missing = jobs - int(counts.sum())
    if missing >= 0:
        more = np.argsort(shares * jobs - counts)[::-1][: missing % len(counts)]
        counts += missing // len(counts)
        counts[more] += 1
    for _ in range(-missing):
        counts[counts.argmax()] -= 1
    return np.asarray(counts, dtype=np.int64)


def _long_enough(requests: Ints, run_time: Ints, values: Ints) -> Ints:
    """Return `requests` (descending), each at least the next of the `values` (ascending) for the job at its place.

    Every job can have one if and only if the longest request is enough for the longest job, the second for the second,
    and so on: then nothing is changed.
    """
    return np.maximum(requests, values[np.searchsorted(values, np.sort(run_time)[::-1])])


def _assign(run_time: Ints, requests: Ints, generator: np.random.Generator) -> Ints:
    """Return `requests` (descending) assigned to jobs at random among those that are long enough for each.

    Starting with the longest job, each takes a random one of the remaining requests that are not shorter than it.
    """
    order = np.argsort(-run_time, kind="stable")
    enough = np.searchsorted(-requests, -run_time[order], side="right")
    first = np.arange(len(run_time))
    chosen = (first + generator.random(len(run_time)) * (enough - first)).astype(np.int64).tolist()
    left = requests.tolist()
    for position, other in enumerate(chosen):
        left[position], left[other] = left[other], left[position]
    given = np.empty_like(run_time)
    given[order] = left
    return given
