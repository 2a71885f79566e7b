# SPDX-License-Identifier: Apache-2.0
"""Turn numbers of cores per job into masks per task: which tasks may move, which stay, and where their cores lie.

`drom.agent.node.plan` decides the numbers, and `drom.agent.placement.reachable` finds the masks; this module turns the
jobs into the seats to be placed.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING

from drom.agent.node.ledger import Ledger
from drom.agent.placement.layout_search import place_layouts
from drom.agent.placement.ranks import Key, NoPlacement, Place, RankRequest
from drom.agent.placement.reachable import place, place_in_place
from drom.agent.policy import fair_share

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from drom.agent.model.cores import Cores
    from drom.agent.model.jobs import Job

MANY = 128
"""Number of tasks beyond which only the tasks of jobs that have to move are placed anew."""
STILL: Key = ("", -1)
"""Key of the seat of all other tasks in that case; no job has an empty name."""
AVOIDED: Key = ("", -2)
"""Key of the seat on the cores that must not be handed out."""


class CoreMapping:
    """The jobs of a node by name in the order of arrival, and their tasks' targets, which `ledger` records by core.

    `usable` are the CPUs, by whole cores, that may be handed out; tasks that may not move stay on others. `gone` are
    CPUs that do not exist any more: a core is handed out with its remaining ones. `busy` are CPUs that only the load of
    unmanaged programs keeps from being `usable`.
    """

    def __init__(self, cores: Cores, place: Place) -> None:
        self.cores = cores
        self.place = place
        self.usable = cores.all
        self.gone = 0
        self.busy = 0
        self.jobs: dict[str, Job] = {}
        self.ledger = Ledger(cores)
        self.restless: set[str] = set()
        """The names of all jobs that are not settled, and perhaps of others."""
        self.laid_out: set[str] = set()
        """The names of all jobs that requested a layout, and of some that have ended."""
        self.many = MANY

    @property
    def avoided(self) -> int:
        """The CPUs that must not be handed out."""
        return self.cores.all & ~self.usable

    @property
    def lost(self) -> int:
        """The CPUs of cores that have lost all their CPUs."""
        return sum(core for core in self.cores if not core & ~self.gone) if self.gone else 0

    def floor(self, job: Job) -> int:
        """Return the least number of CPUs in any grant of a task of the job."""
        return self.cores.cpus(job.task_min)

    def place_all(
        self, counts: Mapping[str, int], pins: Mapping[Key, int], others: AbstractSet[str]
    ) -> dict[Key, int] | NoPlacement:
        """Return the masks of the tasks, or why they cannot be placed; `others` is the result of `others_than`.

        If there are very many tasks, those of jobs that do not have to move stay and are left out, if possible.
        """
        if self._are_many(counts):
            masks = self._place_ranks(self._mobile_ranks(counts, pins, others))
            if not isinstance(masks, NoPlacement):
                return masks
        return self._place_ranks(self._all_ranks(counts, pins))

    def _place_ranks(self, seats: list[RankRequest]) -> dict[Key, int] | NoPlacement:
        masks = place(self._and_avoided(seats), self.cores, self.place)
        return masks if isinstance(masks, NoPlacement) else {key: mask for key, mask in masks.items() if key[0]}

    def _are_many(self, counts: Mapping[str, int]) -> bool:
        return len(counts) > self.many or sum(len(self.jobs[name].ranks) for name in counts) > self.many

    def _mobile_ranks(
        self, counts: Mapping[str, int], pins: Mapping[Key, int], others: AbstractSet[str] = frozenset()
    ) -> list[RankRequest]:
        """Return the seats of `others`, and of jobs that have a layout, are not settled, or are affected by `pins`.

        All other tasks together form one seat, which stays where it is.
        """
        self.restless = {name for name in self.restless if name in self.jobs and not self._is_unmoved(self.jobs[name])}
        pinned = self.cores.whole(functools.reduce(operator.or_, pins.values(), 0))
        ordered = {name for name, _ in pins}
        in_the_way = {name for name in counts if self.jobs[name].planned & pinned} if pinned else set()
        movers = self.restless | others | self.laid_out | ordered | in_the_way
        mobile = {name: cores for name, cores in counts.items() if name in movers}
        still = self.ledger.planned
        for name in mobile:
            still &= ~self.jobs[name].planned
        seats = self._all_ranks(mobile, pins)
        if still:
            seats.append(RankRequest(STILL, self.cores.count(still), held=still, granted=still, fixed=still))
        return seats

    def _is_unmoved(self, job: Job) -> bool:
        """Return whether a job is settled and has no CPUs that are gone, as such grants change without a plan."""
        return job.settled and not job.planned & self.gone

    def _all_ranks(self, counts: Mapping[str, int], pins: Mapping[Key, int]) -> list[RankRequest]:
        return [seat for name, cores in counts.items() for seat in self._rank_requests(self.jobs[name], cores, pins)]

    def divide(self, job: Job, pins: Mapping[Key, int]) -> dict[Key, int] | None:
        """Return masks for the ranks of a job within its present cores, which it may not leave; None if there are none.

        `pins` has its ranks.
        """
        others = self.cores.all & ~self.cores.whole(job.planned)
        rest = RankRequest(STILL, self.cores.count(others), fixed=others)
        masks = place_in_place([*self._rank_requests(job, job.cores, pins), rest], self.cores)
        return masks and {key: masks[key] for key in pins}

    def _and_avoided(self, seats: list[RankRequest]) -> list[RankRequest]:
        """Return the seats, and one more on the avoided cores that no fixed seat is on, if there are any."""
        taken = functools.reduce(operator.or_, (seat.fixed for seat in seats), 0)
        rest = self.avoided & ~self.cores.whole(taken)
        return [*seats, RankRequest(AVOIDED, self.cores.count(rest), fixed=rest)] if rest else seats

    def other_jobs(self, counts: Mapping[str, int]) -> set[str]:
        """Return the jobs in `counts` with another number of cores in the plan, or with a rank without a target."""
        jobs = self.jobs
        others = {name for name, cores in counts.items() if jobs[name].cores != cores}
        restless = [name for name in self.restless if counts.get(name)]
        return others | {name for name in restless if jobs[name].targets.keys() != jobs[name].ranks.keys()}

    def layout_is_satisfied(self) -> bool:
        """Return whether no layout could be satisfied better if every job keeps its number of cores."""
        self.laid_out &= self.jobs.keys()
        if not self.laid_out:
            return True
        counts = {job.name: job.cores for job in self.jobs.values() if job.cores}
        seats = self._mobile_ranks(counts, {}) if self._are_many(counts) else self._all_ranks(counts, {})
        better = place_layouts(self._and_avoided(seats), self.cores)
        return isinstance(better, NoPlacement) or all(
            seat.target == better.get(seat.key, seat.target) for seat in seats
        )

    def _rank_requests(self, job: Job, cores: int, pins: Mapping[Key, int]) -> list[RankRequest]:
        """Return one seat per rank, with the number of cores that it gets and its present CPUs."""
        seats = []
        ranks = sorted(job.ranks)
        pin_of = {rank: pins.get((job.name, rank), task.pin) for rank, task in job.ranks.items() if task}
        free = [rank for rank in ranks if not pin_of.get(rank)]
        rest = cores - sum(self.cores.count(pin_of[rank]) for rank in ranks if rank not in free)
        shares = dict(zip(free, fair_share.split(rest, len(free)), strict=True)) if free else {}
        keeps = job.frozen or bool(job.planned & self.avoided)
        for rank in ranks:
            task, pin = job.ranks[rank], pin_of.get(rank, 0)
            stays = keeps and (job.name, rank) not in pins and rank in job.targets
            seats.append(
                RankRequest(
                    key=(job.name, rank),
                    cores=self.cores.count(pin) if pin else shares[rank],
                    held=task.held if task else 0,
                    granted=task.granted if task else 0,
                    fixed=pin or (job.targets[rank] if stays else 0),
                    floor=self.floor(job),
                    target=job.targets.get(rank, 0),
                    layout=job.layout,
                ),
            )
        return seats
