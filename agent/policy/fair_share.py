# SPDX-License-Identifier: Apache-2.0
"""How many cores each job gets if no scheduler decides. Pure: counts in, counts out; the unit is the whole core.

An arrival is entitled to its equal share of the node (equal among users, then among a user's jobs), capped by its
request. It takes free cores first, then cores of running malleable jobs, the largest first, never below a job's minimum
nor below its own equal share, and from each at most SharingFactor of what that job has. If that is less than the
arrival's minimum, it may also take cores that bring jobs below their share; if that is not enough either, it waits.
A job whose program reports that it can use fewer cores gives up the others; the cores that the program reports it needs
are protected like a share. Cores that come free go back to the jobs they were taken from, then to waiting arrivals,
those of the user with the fewest cores first, then to the smallest jobs that can use them.

Fixed jobs keep their cores, and minima above an equal share are kept: the rest is shared equally.

A site may cap what one user's jobs have together (`cap`, cores; 0: no cap). At the cap they share among themselves.

Messages count CPUs: `told` converts numbers of cores for the reasons.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from drom.agent.model.copies import Value
from drom.agent.text import counted

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence
    from collections.abc import Set as AbstractSet


@dataclass(frozen=True, slots=True)
class JobCores(Value):
    """One job as the policy sees it. `minimum`, `maximum` and `cores` count cores over all its `tasks`.

    `fixed` jobs (rigid, moldable once started, held by an order) neither lend nor grow. A job that `rests` was resized
    lately and does not grow; a job that is `due` has rested or waited, so that any gain is worth a resize. Arrivals
    leave a job the cores that it `keeps` if they can start without them.
    """

    name: str
    user: int
    tasks: int
    minimum: int
    maximum: int
    cores: int = 0
    fixed: bool = False
    rests: bool = False
    due: bool = False
    keeps: int = 0


class Counting(Protocol):
    """How messages give numbers of cores; `drom.agent.model.cores.Cores` implements it."""

    @property
    def noun(self) -> str:
        """The unit that `shown` counts."""

    def shown(self, cores: int) -> int:
        """Return the number of cores in units of `noun`."""


class CpusAsCores:
    """A `Counting` for cores of one CPU each."""

    noun = "CPU"

    def shown(self, cores: int) -> int:
        """Return the number of CPUs in `cores` cores."""
        return cores


ONE_EACH = CpusAsCores()


@dataclass(frozen=True, slots=True)
class Wait:
    """Returned when an arrival has to wait for a `resource`: cores, memory, its user's cap, or one this node lacks.

    `reason` is a sentence for users.
    """

    reason: str
    resource: str = "cores"


def max_min_fair(amount: int, limits: Sequence[int]) -> list[int]:
    """Divide `amount` as equally as `limits` allow (max-min fairness); earlier places get the remainder."""
    level, left = 0, amount
    for rank, limit in enumerate(sorted(limits)):
        step = min(limit - level, left // (len(limits) - rank))
        level += step
        left -= step * (len(limits) - rank)
        if level < limit:
            break
    given = [level if level < limit else limit for limit in limits]  # noqa: FURB136 - of a thousand jobs at each arrival
    if left:
        more = [i for i, limit in enumerate(limits) if limit > level]
        for i in more[:left]:
            given[i] += 1
    return given


def max_min_fair_above(amount: int, limits: Sequence[int], floors: Sequence[int]) -> list[int]:
    """Divide `amount` as equally as `limits` allow among places that never get less than their floors.

    Places whose equal part would be below their floor get the floor; the rest is divided among the other places.
    """
    given, rest, kept = max_min_fair(amount, limits), amount, set[int]()
    while below := [i for i, got in enumerate(given) if got < floors[i]]:
        kept.update(below)
        rest -= sum([floors[i] for i in below])
        others = [i for i in range(len(limits)) if i not in kept]
        given = list(floors)
        for i, got in zip(others, max_min_fair(max(0, rest), [limits[i] for i in others]), strict=True):
            given[i] = got
    return given


def equal_shares(jobs: Sequence[JobCores], total: int, cap: int = 0) -> dict[str, int]:
    """Return the cores of `total` that each job is entitled to: equal among users, then among each user's jobs.

    Fixed jobs keep their cores, and no job gets less than its minimum: the rest is divided equally.
    """
    by_user = defaultdict[int, list[JobCores]](list)
    for job in jobs:
        by_user[job.user].append(job)
    wishes = [[job.cores if job.fixed else job.maximum for job in theirs] for theirs in by_user.values()]
    floors = [[job.cores if job.fixed else job.minimum for job in theirs] for theirs in by_user.values()]
    least = [sum(kept) for kept in floors]
    most = [max(least[i], min(cap or total, sum(wanted))) for i, wanted in enumerate(wishes)]
    shares: dict[str, int] = {}
    per_user = max_min_fair_above(total, most, least)
    for theirs, wanted, kept, cores in zip(by_user.values(), wishes, floors, per_user, strict=True):
        shares.update(zip([job.name for job in theirs], max_min_fair_above(cores, wanted, kept), strict=True))
    return shares


def why_never(new: JobCores, could: int, cap: int, *, told: Counting = ONE_EACH) -> Wait | None:
    """Return why a job cannot run on a node that hands out at most `could` cores; None if it can.

    The machine or the rules may have changed since the job was accepted, and may change again.
    """
    needs = f"needs at least {counted(told.shown(new.minimum), told.noun)}"
    if new.minimum > could:
        return Wait(f"{needs}: this node hands out {told.shown(could)} now.", "none")
    if cap and new.minimum > cap:
        return Wait(f"{needs}: the jobs of one user get {told.shown(cap)} together here now.", "none")
    return None


def admit(
    new: JobCores,
    running: Sequence[JobCores],
    total: int,
    sharing_factor: float,
    cap: int = 0,
    *,
    told: Counting = ONE_EACH,
) -> dict[str, int] | Wait:
    """Return the cores of every job once `new` runs too, or why it has to wait.

    `total` is the number of the node's cores; the sum of the result never exceeds it.
    """
    left = total - sum([job.cores for job in running])
    room = user_headroom(new.user, running, total, cap)
    free = min(left, room)
    lenders = [job for job in running if not job.fixed and job.cores > job.minimum]
    shares = equal_shares([*running, new], total, cap) if lenders else {}  # without lenders it gets the free cores
    wanted = max(new.minimum, min(new.maximum, max(shares.get(new.name, 0), free)))
    limits = {job.name: _may_lend(job.cores, job.minimum, sharing_factor) for job in lenders}
    gentle = {j.name: max(0, min(limits[j.name], j.cores - max(shares[j.name], j.keeps))) for j in lenders}
    others = {j.name for j in lenders if j.user != new.user}
    loans = _take_from_lenders(wanted - free, lenders, gentle, others, room - free)
    if free + sum(loans.values()) < new.minimum:
        loans = _take_from_lenders(new.minimum - free, lenders, limits, others, room - free)
    got = free + sum(loans.values())
    if got < new.minimum:
        lent = sum(_take_from_lenders(new.minimum - left, lenders, limits).values())
        needs = f"needs at least {counted(told.shown(new.minimum), told.noun)}"
        if left + lent < new.minimum:
            return Wait(f"{needs}: {told.shown(max(0, left))} free, running jobs may lend {told.shown(lent)}.")
        return Wait(f"{needs}: its user's jobs may have {counted(told.shown(cap), told.noun)} together.", "user")
    got = min(got, wanted)
    if loans:
        # Tasks get equal counts (D26), but free cores beyond that are taken too: no job loses them.
        got = max(new.minimum, free, got - got % new.tasks)
        limits = {j.name: loans.get(j.name, 0) for j in lenders}
        loans = _take_from_lenders(got - free, lenders, limits, others, room - free)
    return _without(loans, running) | {new.name: got}


def could_lend(
    enough: int, cores: Mapping[str, int], jobs: Sequence[JobCores], total: int, sharing_factor: float
) -> bool:
    """Return whether an arrival could get `enough` cores, free and lent ones, if `jobs` have `cores`."""
    left = enough - total + sum(cores.values())
    for job in jobs:
        if left <= 0:
            break
        if not job.fixed:
            left -= max(0, _may_lend(cores[job.name], job.minimum, sharing_factor))
    return left <= 0


def _may_lend(cores: int, minimum: int, sharing_factor: float) -> int:
    """Return how many of its `cores` a job that has at least its minimum may lend to one arrival."""
    return min(cores - minimum, math.floor(cores * sharing_factor + 1e-9))


def _without(loans: Mapping[str, int], jobs: Sequence[JobCores]) -> dict[str, int]:
    """Return the cores of every job after it has given up its loan."""
    cores = {job.name: job.cores for job in jobs}
    for name, loan in loans.items():
        cores[name] -= loan
    return cores


def user_headroom(user: int, running: Sequence[JobCores], total: int, cap: int) -> int:
    """Return how many more cores the user's jobs may have."""
    return max(0, cap - sum(job.cores for job in running if job.user == user)) if cap else total


def hold(
    name: str, cores: int, running: Sequence[JobCores], total: int, told: Counting = ONE_EACH
) -> dict[str, int] | Wait:
    """Return the cores of every job once an order has set job `name` to `cores`, or why that is impossible.

    An order takes free cores first, then cores of malleable jobs down to their minima, the largest first.
    """
    others = [job for job in running if job.name != name]
    free = total - sum(job.cores for job in others)
    lenders = [job for job in others if not job.fixed]
    loans = _take_from_lenders(cores - free, lenders, {j.name: j.cores - j.minimum for j in lenders})
    if free + sum(loans.values()) < cores:
        most = counted(told.shown(max(0, free + sum(loans.values()))), told.noun)
        return Wait(f"at most {most} are available: the other jobs are at their minimum.")
    return _without(loans, others) | {name: cores}


def shrink_to(running: Sequence[JobCores], total: int) -> dict[str, int] | Wait:
    """Return the cores of every job once all fit into `total`, or why they cannot.

    The largest jobs give up cores first; no job falls below its minimum.
    """
    lenders = [job for job in running if not job.fixed]
    excess = sum(job.cores for job in running) - total
    loans = _take_from_lenders(excess, lenders, {j.name: j.cores - j.minimum for j in lenders})
    if sum(loans.values()) < excess:
        return Wait("the running jobs would be below their minima.")
    return _without(loans, running)


def within_cap(running: Sequence[JobCores], cap: int, but: AbstractSet[int] = frozenset()) -> dict[str, int]:
    """Return the cores of every job once each user, except those in `but`, has at most `cap`.

    The largest jobs give up cores first; no job falls below its minimum.
    """
    loans: dict[str, int] = {}
    for user in {job.user for job in running} - but if cap else ():
        theirs = [job for job in running if job.user == user]
        lenders = [job for job in theirs if not job.fixed]
        loans |= _take_from_lenders(
            sum(job.cores for job in theirs) - cap, lenders, {j.name: j.cores - j.minimum for j in lenders}
        )
    return _without(loans, running)


def drop_surplus(running: Sequence[JobCores], name: str) -> dict[str, int]:
    """Return the cores of every job after job `name` has given up the cores beyond its maximum."""
    return {job.name: min(job.cores, job.maximum) if job.name == name else job.cores for job in running}


def return_to_owners(running: Sequence[JobCores], owed: Mapping[str, int], total: int, cap: int = 0) -> dict[str, int]:
    """Return the cores of every job after each owner that is not resting has taken back the free cores owed to it."""
    free = total - sum(job.cores for job in running)
    rooms = {user: user_headroom(user, running, total, cap) for user in {job.user for job in running}}
    cores = {job.name: job.cores for job in running}
    for job in [job for job in running if job.name in owed and not job.fixed and not job.rests]:
        back = min(owed[job.name], max(0, job.maximum - job.cores), free, rooms[job.user])
        cores[job.name] += back
        free -= back
        rooms[job.user] -= back
    return cores


def grow(running: Sequence[JobCores], total: int, cap: int = 0, margin: float = 0.0) -> dict[str, int]:
    """Return the cores of every job after free cores have gone, one by one, to the smallest job that can use one.

    A job grows only by at least the fraction `margin` of its cores, unless it is due: otherwise other jobs get those
    cores, if they can use them.
    """
    if sum(job.cores for job in running) >= total:
        return {job.name: job.cores for job in running}
    able = {job.name for job in running if not job.fixed and not job.rests}
    while True:
        cores = _raise_smallest(running, able, total, cap)
        gains = {job.name: cores[job.name] - job.cores for job in running if cores[job.name] > job.cores}
        small = [j.name for j in running if not j.due and 0 < gains.get(j.name, 0) < minimum_gain(j.cores, margin)]
        if not small:
            return cores
        able.remove(min(reversed(small), key=lambda name: gains[name]))


def minimum_gain(cores: int, margin: float) -> int:
    """Return the least gain in cores for which a job of `cores` is resized: margin * cores, rounded up, at least 1."""
    return max(1, math.ceil(margin * cores - 1e-9))


def _raise_smallest(running: Sequence[JobCores], able: set[str], total: int, cap: int) -> dict[str, int]:
    """Return the cores of every job after the smallest jobs in `able` have been raised, core by core."""
    cores = {job.name: job.cores for job in running}
    free = total - sum(cores.values())
    rooms = {user: user_headroom(user, running, total, cap) for user in {job.user for job in running}}
    heap = [(job.cores, i) for i, job in enumerate(running) if job.name in able and job.cores < job.maximum]
    heapq.heapify(heap)
    while free > 0 and heap:
        have, i = heapq.heappop(heap)
        job = running[i]
        if not rooms[job.user]:
            continue
        cores[job.name] += 1
        rooms[job.user] -= 1
        free -= 1
        if have + 1 < job.maximum:
            heapq.heappush(heap, (have + 1, i))
    return cores


def split(cores: int, tasks: int) -> list[int]:
    """Return the cores of each task of a job: they differ by at most one, and the first tasks have more."""
    return [cores // tasks + (i < cores % tasks) for i in range(tasks)]


def _take_from_lenders(
    amount: int,
    lenders: Sequence[JobCores],
    limits: Mapping[str, int],
    others: Container[str] = (),
    of_others: int = 0,
) -> dict[str, int]:
    """Return the cores taken from each lender, one by one from the largest, up to `amount` and each lender's limit.

    The lenders named in `others` together lend at most `of_others` cores.
    """
    loans: dict[str, int] = {}
    heap = [(-job.cores, i) for i, job in enumerate(lenders) if limits[job.name] > 0]
    heapq.heapify(heap)
    while amount > 0 and heap:
        have, i = heapq.heappop(heap)
        name = lenders[i].name
        if name in others:
            if of_others <= 0:
                continue
            of_others -= 1
        loans[name] = loans.get(name, 0) + 1
        amount -= 1
        if loans[name] < limits[name]:
            heapq.heappush(heap, (have + 1, i))
    return loans
