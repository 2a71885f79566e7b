# SPDX-License-Identifier: Apache-2.0
"""Turn numbers of cores per job into masks per task: which tasks may move, which stay, and where their cores lie.

`drom.agent.policy` decides the numbers, and `drom.agent.placement.reachable` finds the masks; this module turns the
jobs of a plan into the requests to be placed.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING

from drom.agent.node.areas import areas
from drom.agent.placement.layout_search import place_layouts
from drom.agent.placement.ranks import NoPlacement, RankKey, RankRequest, fixed_cpus
from drom.agent.placement.reachable import place, place_in_place
from drom.agent.policy import fair_share

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from drom.agent.model.jobs import Job
    from drom.agent.node.areas import Area
    from drom.agent.node.plan import Plan

UNMOVED: RankKey = ("", -1)
"""Key of the request of all tasks that stay where they are; no job has an empty name."""
AVOIDED: RankKey = ("", -2)
"""Key of the request on the cores that must not be handed out."""


def place_all(
    plan: Plan, counts: Mapping[str, int], pins: Mapping[RankKey, int], others: AbstractSet[str]
) -> dict[RankKey, int] | NoPlacement:
    """Return the masks of the tasks, or why they cannot be placed; `others` is the result of `other_jobs`.

    If there are very many tasks, those of jobs that do not have to move stay and are left out, if possible.
    """
    outside = plan.cores.all if plan.confined.members() else 0
    for name in counts if outside else ():
        outside &= ~plan.cpuset(plan.jobs[name])
    resting = {name for name, cores in counts.items() if not cores}
    if _are_many(plan, counts):
        masks = _place_ranks(plan, _mobile_ranks(plan, counts, pins, others), outside, resting)
        if not isinstance(masks, NoPlacement):
            return masks
    return _place_ranks(plan, _all_ranks(plan, counts, pins), outside, resting)


def divide(plan: Plan, job: Job, pins: Mapping[RankKey, int]) -> dict[RankKey, int] | None:
    """Return masks for the ranks of a job within its present cores, which it may not leave; None if there are none.

    `pins` has its ranks.
    """
    others = plan.cores.all & ~plan.cores.whole(job.planned)
    rest = RankRequest(UNMOVED, plan.cores.count(others), fixed=others)
    masks = place_in_place([*_rank_requests(plan, job, job.cores, pins), rest], plan.cores)
    return masks and {key: masks.get(key, 0) for key in pins}


def other_jobs(plan: Plan, counts: Mapping[str, int]) -> set[str]:
    """Return the jobs in `counts` with another number of cores in the plan, or with a rank without a target."""
    jobs = plan.jobs
    others = {name for name, cores in counts.items() if jobs[name].cores != cores}
    restless = [name for name in plan.restless.members() if counts.get(name)]
    return others | {name for name in restless if jobs[name].targets.keys() != jobs[name].ranks.keys()}


def layout_is_satisfied(plan: Plan) -> bool:
    """Return whether no layout could be satisfied better if every job keeps its number of cores."""
    if not plan.laid_out.members():
        return True
    return all(_is_laid_out(plan, area) for area in areas(plan))


def _is_laid_out(plan: Plan, area: Area) -> bool:
    counts = {job.name: job.cores for job in area.jobs() if job.cores}
    requests = _mobile_ranks(plan, counts, {}) if _are_many(plan, counts) else _all_ranks(plan, counts, {})
    better = place_layouts(_and_avoided(plan, requests, plan.cores.all & ~area.mask), plan.cores)
    return isinstance(better, NoPlacement) or all(
        request.target == better.get(request.key, request.target) for request in requests
    )


def _place_ranks(
    plan: Plan, requests: list[RankRequest], outside: int, resting: AbstractSet[str]
) -> dict[RankKey, int] | NoPlacement:
    """Return the masks of the ranks of all jobs with requests, and of the jobs that are `resting`."""
    masks = place(_and_avoided(plan, requests, outside), plan.cores, plan.place) if requests else {}
    if isinstance(masks, NoPlacement):
        return masks
    placed = {name for name, _ in masks if name} | resting
    at_rest = {(name, rank): 0 for name in placed for rank in plan.jobs[name].ranks}
    return at_rest | {key: mask for key, mask in masks.items() if key[0]}


def _are_many(plan: Plan, counts: Mapping[str, int]) -> bool:
    return len(counts) > plan.many or sum(len(plan.jobs[name].ranks) for name in counts) > plan.many


def _mobile_ranks(
    plan: Plan, counts: Mapping[str, int], pins: Mapping[RankKey, int], others: AbstractSet[str] = frozenset()
) -> list[RankRequest]:
    """Return the requests of `others`, and of jobs that have a layout, are not settled, or are affected by `pins`.

    All other tasks together form one request, which stays where it is.
    """
    pinned = plan.cores.whole(functools.reduce(operator.or_, pins.values(), 0))
    ordered = {name for name, _ in pins}
    in_the_way = {name for name in counts if plan.jobs[name].planned & pinned} if pinned else set()
    movers = plan.restless.members() | others | plan.laid_out.members() | ordered | in_the_way
    mobile = {name: cores for name, cores in counts.items() if name in movers}
    still = plan.ledger.planned
    for name in mobile:
        still &= ~plan.jobs[name].planned
    requests = _all_ranks(plan, mobile, pins)
    if still:
        requests.append(RankRequest(UNMOVED, plan.cores.count(still), held=still, granted=still, fixed=still))
    return requests


def _all_ranks(plan: Plan, counts: Mapping[str, int], pins: Mapping[RankKey, int]) -> list[RankRequest]:
    return [request for name, cores in counts.items() for request in _rank_requests(plan, plan.jobs[name], cores, pins)]


def _and_avoided(plan: Plan, requests: list[RankRequest], outside: int = 0) -> list[RankRequest]:
    """Return the requests, and one more for the cores avoided or `outside` that no fixed request has, if any."""
    rest = (plan.avoided | outside) & ~plan.cores.whole(fixed_cpus(requests))
    return [*requests, RankRequest(AVOIDED, plan.cores.count(rest), fixed=rest)] if rest else requests


def _split(plan: Plan, job: Job, cores: int, ranks: list[int]) -> list[int]:
    """Return how many of a job's cores each of these ranks gets: equally many, as far as its cpuset has them."""
    if job.cpusets:
        limits = [plan.cores.count(plan.cpuset(job, rank)) for rank in ranks]
        if sum(limits) >= cores:
            return fair_share.max_min_fair(cores, limits)
    return fair_share.split(cores, len(ranks))


def _ranks_with_cores(job: Job, cores: int, ranks: list[int]) -> list[int]:
    """Return which of these ranks of a job share its cores: as many as can use them, if the others may rest.

    Ranks that have cores keep some if possible, since the data of others must move; then those that have yet to leave
    theirs.
    """
    if job.least_ranks == len(job.ranks):
        return ranks

    def has_none(rank: int) -> tuple[bool, bool]:
        task = job.ranks[rank]
        return not job.targets.get(rank), not (task and task.held)

    enough = max(job.most_ranks, -(-cores // job.task_max))
    return sorted(sorted(ranks, key=has_none)[: min(enough, cores // job.task_min)])


def _rank_requests(plan: Plan, job: Job, cores: int, pins: Mapping[RankKey, int]) -> list[RankRequest]:
    """Return one request per rank that does not rest, with the number of cores that it gets and its present CPUs."""
    requests = []
    ranks = sorted(job.ranks)
    pin_of = {rank: pins.get((job.name, rank), task.pin) for rank, task in job.ranks.items() if task}
    free = [rank for rank in ranks if not pin_of.get(rank)]
    rest = cores - sum(plan.cores.count(pin_of[rank]) for rank in ranks if rank not in free)
    free = _ranks_with_cores(job, rest, free)
    shares = dict(zip(free, _split(plan, job, rest, free), strict=True)) if free else {}
    keeps = job.frozen or bool(job.planned & plan.avoided)
    for rank in [rank for rank in ranks if rank in shares or pin_of.get(rank)]:
        task, pin = job.ranks[rank], pin_of.get(rank, 0)
        stays = keeps and (job.name, rank) not in pins and rank in job.targets
        requests.append(
            RankRequest(
                key=(job.name, rank),
                cores=plan.cores.count(pin) if pin else shares[rank],
                held=task.held if task else 0,
                granted=task.granted if task else 0,
                fixed=pin or (job.targets[rank] if stays else 0),
                floor=plan.floor(job),
                target=job.targets.get(rank, 0),
                layout=job.layout,
                cpuset=job.cpusets.get(rank, job.cpuset),
            ),
        )
    return requests
