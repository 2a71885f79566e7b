# SPDX-License-Identifier: Apache-2.0
"""Backfilling over resources against the planner of the CP simulator, which plans with the whole profile over time."""

from __future__ import annotations

import numpy as np
from drom.scheduler.allocation.backfill import MOST_DEPTH, Answer, Held, Machine, Requests, decide, suited_nodes
from drom.scheduler.cp import placement
from drom.scheduler.cp.jobs import Jobs
from drom.scheduler.interface import NEVER, Ints
from hypothesis import given, settings
from hypothesis import strategies as st

NOW = 100


def ints(values: object, *shape: int) -> Ints:
    """Return an array of whole numbers."""
    return np.array(values, np.int64).reshape(*shape or (-1,))


class Case:
    """A machine with three resources, running jobs of one unit, and waiting jobs that fit on the empty machine."""

    def __init__(self, seed: int, most: int = NEVER) -> None:
        rng = np.random.default_rng(seed)
        nodes = int(rng.integers(1, 7))
        self.capacity = np.stack([rng.integers(1, 9, nodes), rng.integers(0, 9, nodes), rng.integers(0, 3, nodes)], 1)
        self.free = self.capacity.copy()
        parts = []
        for _ in range(rng.integers(0, 14)):
            node, amount = int(rng.integers(nodes)), rng.integers((1, 0, 0), (4, 3, 2))
            if (self.free[node] >= amount).all():
                self.free[node] -= amount
                parts.append((NOW + int(rng.integers(1, 30)), node, amount))
        self.held = Held(
            ints([end for end, _, _ in parts]),
            ints([node for _, node, _ in parts]),
            ints([a for *_, a in parts], -1, 3),
        )
        asked = [
            (int(rng.integers(1, 5)), int(rng.integers(1, 30)), rng.integers((1, 0, 0), (5, 4, 2))) for _ in range(12)
        ]
        asked = [job for job in asked if np.minimum(self.room(self.capacity, job[2]), most).sum() >= job[0]]
        self.units, self.length = ints([job[0] for job in asked]), ints([job[1] for job in asked])
        self.amount = ints([job[2] for job in asked], -1, 3)
        everywhere = np.ones(nodes, np.int64)
        rows = [suited_nodes(self.capacity, everywhere, (amount > 0).astype(np.int64)) for amount in self.amount]
        self.suited = ints(rows, len(rows), nodes)

    @staticmethod
    def room(free: Ints, amount: Ints) -> Ints:
        """Return how many units fit on each node."""
        return ints((free[:, amount > 0] // amount[amount > 0]).min(axis=1))

    def decide(self, depth: int, most: int = NEVER) -> Answer:
        """Return the decisions."""
        jobs = len(self.units)
        requests = Requests(self.units, np.full(jobs, most), self.length, np.arange(jobs), self.amount)
        return decide(NOW, Machine(self.capacity, self.free, self.suited), requests, self.held, depth)

    def planned(self, depth: int, most: int) -> placement.Plan:
        """Return the plan of the CP simulator's rule of this depth, in which running jobs come first."""
        running, jobs = len(self.held.end), len(self.held.end) + len(self.units)
        request = np.concatenate((self.held.amount, self.amount))
        units = np.concatenate((np.ones(running, np.int64), self.units))
        length = np.concatenate((self.held.end - NOW, self.length))
        first = np.concatenate(([0], np.cumsum(units)))
        zeros = np.zeros(jobs, np.int64)
        nodes = np.concatenate((np.zeros((running, len(self.capacity)), np.int64), self.suited))
        table = Jobs(
            queue=zeros,
            submit=zeros,
            walltime=length,
            run_time=length,
            chunk=np.arange(jobs + 1),
            unit=first,
            units=units,
            request=request,
            total=request * units[:, None],
            nodes=nodes,
            most=np.concatenate((np.ones(running, np.int64), np.full(len(self.units), most))),
        )
        started, node = np.full(jobs, NEVER), np.full(int(first[-1]), -1)
        started[:running], node[:running] = NOW, self.held.node
        state = placement.State(NOW, np.arange(running), np.arange(running, jobs), self.capacity, started, node)
        plan = placement.planned(state, table, state.waiting, depth, whole=False)
        return placement.Plan(plan.start[running:], plan.node[running:])


@given(st.integers(0, 1 << 32), st.integers(0, 12), st.sampled_from((1, 2, NEVER)))
@settings(max_examples=300, deadline=None)
def test_decisions_are_those_of_a_plan_over_the_whole_profile(seed: int, depth: int, most: int) -> None:
    """Each job starts, or has its reservation, at the same second and on the same nodes."""
    case = Case(seed, most)
    answer, plan = case.decide(depth, most), case.planned(depth, most)

    assert answer.start.tolist() == plan.start.tolist()
    found = [(job, node) for job, node, units in answer.rows.tolist() for _ in range(units)]
    starts = np.repeat(plan.start == NOW, case.units)
    jobs = np.repeat(np.arange(len(case.units)), case.units)[starts]
    assert sorted(found) == sorted(zip(jobs.tolist(), plan.node[starts].tolist(), strict=True))


@given(st.integers(0, 1 << 32), st.integers(0, 3), st.integers(1, 2))
@settings(max_examples=200, deadline=None)
def test_units_fit_and_a_node_has_no_more_of_a_job_than_it_may(seed: int, depth: int, most: int) -> None:
    """What starts is on suitable nodes, with all its units, in what is free."""
    case = Case(seed)
    answer = case.decide(depth, most)

    free = case.free.copy()
    for job, node, units in answer.rows.tolist():
        free[node] -= units * case.amount[job]
        assert 1 <= units <= most
    assert (free >= 0).all()
    started = np.flatnonzero(answer.start == NOW)
    counted = np.bincount(answer.rows[:, 0], answer.rows[:, 2], len(case.units))
    assert counted.astype(np.int64).tolist() == np.where(answer.start == NOW, case.units, 0).tolist()
    assert depth or not ((answer.start > NOW) & (answer.start < NEVER)).any()
    for job in set(range(len(case.units))) - set(started.tolist()) if depth == 0 else ():
        assert np.minimum(case.room(free, case.amount[job]), most).sum() < case.units[job]  # first-fit leaves no room


def test_a_job_that_only_nodes_have_room_for_that_are_down_does_not_hold_up_others() -> None:
    """It has no reservation, and the next one has it instead."""
    machine = Machine(ints([[4], [2]], 2, 1), ints([[4], [0]], 2, 1), ints([[1, -1]], 1, 2))
    requests = Requests(ints([1, 1, 1]), ints([1, 1, 1]), ints([9, 9, 9]), ints([0, 0, 0]), ints([4, 2, 1], 3, 1))
    answer = decide(NOW, machine, requests, Held(ints([NOW + 5]), ints([1]), ints([2], 1, 1)), MOST_DEPTH)

    assert answer.start.tolist() == [NEVER, NOW + 5, NOW + 14]
    assert not len(answer.rows)


def test_jobs_without_gpus_leave_nodes_with_gpus_to_others() -> None:
    """The order in which nodes are tried begins with those that have least of what a job does not use."""
    capacity, everywhere = ints([[8, 4], [8, 0], [8, 2]], 3, 2), ints([1, 1, 1])

    assert suited_nodes(capacity, everywhere, ints([1, 0])).tolist() == [1, 2, 0]
    assert suited_nodes(capacity, everywhere, ints([1, 1])).tolist() == [0, 1, 2]
    assert suited_nodes(capacity, ints([1, 0, 1]), ints([1, 0])).tolist() == [2, 0, -1]
