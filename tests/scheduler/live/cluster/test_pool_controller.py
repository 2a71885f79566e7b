# SPDX-License-Identifier: Apache-2.0
"""Policies of processors live: the decisions of the simulator, and the nodes on which the processors are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.interface import MALLEABLE, NEVER, RIGID
from drom.scheduler.live.cluster.controller import JobRequest
from drom.scheduler.live.cluster.pool_controller import PoolController
from drom.scheduler.simulator.adaptive import PoolModel
from drom.scheduler.simulator.simulation import Machine, Simulation
from drom.workloads.contracts import Terms, draw_contracts

from tests.support.schedules import workload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

EQUIPARTITION = load_policy("equipartition")
SIZES = (4, 2, 8, 2)
"""The cores of the nodes."""
FREE = PoolModel(minimum=0.3, maximum=1.5, shrink=0, expand=0, memory=0)
"""Changes cost nothing, and speedup is linear."""
HALF_RIGHT = """
from drom.scheduler.interface import NEVER, allot, start

POOL = True

def decide(state, event, options, actions):
    for job in state.queue:
        if state.jobs.least[job] == 1:
            start(actions, job)
        elif state.jobs.least[job] == 2:
            allot(actions, job, 1 << 30)
        elif state.jobs.least[job] == 3:
            allot(actions, job, 0)
        elif state.jobs.cls[job] == 0:
            allot(actions, job, 1)
        else:
            allot(actions, job, 5)
    return NEVER
"""


def pool(*words: str, sizes: Sequence[int] = SIZES) -> PoolController:
    """Return a controller of nodes with these numbers of cores, all up."""
    found = PoolController(load_policy(words[0], words[1:]) if words else EQUIPARTITION)
    for node, cores in enumerate(sizes):
        found.describe(node, cores, 0, {})
        found.node_up(node)
    return found


def asked(least: int, most: int, *, seconds: int = 100, priority: int = 0) -> JobRequest:
    """Return what a policy knows of a job that can use from `least` to `most` cores."""
    return JobRequest(most, seconds, MALLEABLE if least < most else RIGID, priority, most=most, least=least)


def held(here: PoolController) -> dict[int, int]:
    """Return the cores of each running job."""
    return {job: sum(here.cores_on(job, node) for node in here.nodes_of(job)) for job in here.running}


def check(here: PoolController, sizes: Sequence[int]) -> None:
    """Assert that no node has more cores in use than it has, and no job more than it has ranks."""
    for node, cores in enumerate(sizes):
        assert sum(here.residents(node).values()) <= cores
    for job in here.running:
        for node, ranks in here.ranks_of(job).items():
            assert here.cores_on(job, node) <= ranks


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("name", "choices"),
    [("equipartition", ()), ("equipartition", ("cost=20",)), ("payoff", ())],
    ids=["free", "weighed", "payoff"],
)
def test_the_same_events_give_the_decisions_of_the_simulator(seed: int, name: str, choices: tuple[str, ...]) -> None:
    """At each event every job has as many processors live as simulated; rigid, moldable and adaptive jobs are mixed."""
    rng, count, total = np.random.default_rng(seed), 60, sum(SIZES)
    sizes = rng.integers(1, total + 1, count)
    seconds = rng.integers(1, 400, count)
    rows = [
        (int(at), int(s), int(s), int(n)) for at, s, n in zip(rng.integers(0, 3000, count), seconds, sizes, strict=True)
    ]
    classes = rng.choice((MALLEABLE, MALLEABLE, RIGID), count)
    policy = load_policy(name, choices)
    pays = draw_contracts(np.arange(count), seconds, sizes, Terms(penalty=0.5), seed)
    terms = pays if name == "payoff" else None
    # The time of a job is judged by what it takes with its most processors, as live jobs have no other size.
    model = FREE._replace(maximum=1) if choices or terms else FREE

    def simulation() -> Simulation:
        return Simulation.of(workload(rows), Machine(total), policy, classes, model, contracts=terms)

    run, whole = simulation(), simulation()
    whole.run()
    here, jobs = pool(name, *choices), run.world.jobs
    order, ends = whole.world.order, whole.world.end
    for now in sorted({*jobs.submit.tolist(), *ends.tolist()}):
        for job in sorted(np.flatnonzero(ends == now).tolist(), key=lambda job: int(order[job])):
            here.ended(job, now)
        for job in np.flatnonzero(jobs.submit == now).tolist():
            least, most = int(jobs.least[job]), int(jobs.most[job])
            request = JobRequest(most, int(jobs.requested[job]), int(jobs.cls[job]), most=most, least=least)
            contract = run.world.contracts[job].tolist() if terms else ()
            here.submit(job, request._replace(contract=contract), now)
        here.turn(now)
        run.run(now)

        assert held(here) == {job: int(jobs.held[job]) for job in range(count) if jobs.held[job]}
        assert not here.faults
        check(here, SIZES)
    assert here.counts == (0, 0)


def test_a_newcomer_gets_cores_that_others_give_up() -> None:
    """A job on all cores gives up half of them, where the newcomer then is; both have ranks on all nodes."""
    here = pool(sizes=(4, 4))
    here.submit(1, asked(2, 8), 0)
    assert here.turn(0) == [1]
    assert held(here) == {1: 8}
    assert here.changes() == {0: {1: 4}, 1: {1: 4}}

    here.submit(2, asked(2, 8), 5)
    assert here.turn(5) == [2]
    assert held(here) == {1: 4, 2: 4}
    assert here.changes() == {1: {1: 0, 2: 4}}
    assert here.ranks_of(1) == here.ranks_of(2) == {0: 4, 1: 4}
    assert here.nodes_of(2) == [1, 0]

    here.ended(1, 9)
    here.turn(9)
    assert here.changes() == {0: {2: 4}}


def test_a_job_changes_its_own_range() -> None:
    """It gives up what it cannot use, also all but its least, and has it back later; ranks stay where they are."""
    here = pool(sizes=(4, 4))
    here.submit(1, asked(2, 8), 0)
    here.submit(2, asked(1, 8), 0)
    here.turn(0)
    for now, (least, most), cores in ((1, (1, 1), 1), (2, (6, 6), 6), (3, (1, 8), 4)):
        here.set_range(1, least, most)
        here.turn(now)
        assert held(here) == {1: cores, 2: 8 - cores}
    assert here.ranks_of(1) == {0: 4, 1: 4}


def test_rigid_jobs_have_a_rank_for_each_core_and_keep_their_place() -> None:
    """They are on the node that they fill best; a rigid job of more cores than a node has is on several."""
    here = pool()
    for number, cores in enumerate((2, 10, 5), 1):
        here.submit(number, asked(cores, cores), 0)
    here.turn(0)

    assert [(here.nodes_of(job), here.ranks_of(job)) for job in here.running] == [([1], {}), ([2, 3], {})]
    assert held(here) == {1: 2, 2: 10}
    assert here.waiting == [3]
    assert here.spare == (4, 16)


def test_cores_of_nodes_that_are_down_are_given_to_no_job() -> None:
    """A job keeps what it has of such a node; when it shrinks, that comes last."""
    here = pool(sizes=(2, 2))
    here.submit(1, asked(1, 4), 0)
    here.turn(0)
    here.node_down(0)
    here.submit(2, asked(1, 4), 1)
    here.turn(1)

    assert held(here) == {1: 2, 2: 2}
    assert here.nodes_of(2) == [1]
    assert here.residents(0) == {1: 2}

    here.node_up(0)
    here.describe(2, 4, 0, {})
    here.node_up(2)
    here.turn(2)
    assert held(here) == {1: 2, 2: 2}, "they have no ranks on the new node"


def test_jobs_move_away_from_a_closed_node() -> None:
    """An adaptive job gives up its cores there if the minima of all fit elsewhere, a rigid one never."""
    here = pool(sizes=(4, 4))
    here.submit(1, asked(2, 8), 0)
    here.submit(2, asked(2, 2), 0)
    here.turn(0)
    assert held(here) == {1: 6, 2: 2}
    rigid = here.nodes_of(2)[0]
    for node, left in ((rigid, {1: 4, 2: 2}), (1 - rigid, {1: 2, 2: 2})):
        here.close(node, is_closed=True)
        here.node_down(node)
        here.turn(1)
        assert held(here) == left
        assert here.can_leave(1, node)
        assert here.cores_on(2, rigid) == 2
        here.close(node, is_closed=False)
        here.node_up(node)
        here.turn(2)
        assert held(here) == {1: 6, 2: 2}


def test_a_job_that_was_refused_waits_again_in_its_place() -> None:
    """It is asked about anew at once, and has its processors again if nothing else has changed."""
    here = pool(sizes=(4,))
    here.submit(1, asked(1, 4), 0)
    here.submit(2, asked(4, 4), 0)
    here.submit(3, asked(4, 4), 0)
    assert here.turn(0) == [1]
    here.refused(1, 1)
    assert here.waiting == [1, 2, 3]
    assert here.turn(1) == [1]


def test_limits_and_their_ends() -> None:
    """A job is late once its time is over, and no more if its limit is moved."""
    here = pool(sizes=(4,))
    here.submit(1, asked(1, 4, seconds=10), 0)
    here.turn(0)
    assert here.wake == 10
    here.launched(1, 3)
    assert (here.wake, here.limit(1)) == (13, 10)
    here.turn(13)
    assert here.late == [1]
    assert here.extend(1, 60, 14)
    assert (here.late, here.wake) == ([], 73)
    assert not here.extend(1, -60, 14)


def test_a_restored_job_keeps_its_cores() -> None:
    """Another scheduler knows where it has ranks, also where it has no cores, and takes cores of it for others."""
    here = pool(sizes=(4, 4))
    here.restore(7, asked(2, 8), {0: 4, 1: 0}, 0, 100)
    here.submit(8, asked(4, 4), 20)
    here.turn(20)

    assert held(here) == {7: 4, 8: 4}
    assert here.ranks_of(7) == {0: 4, 1: 4}


def test_the_order_of_the_queue() -> None:
    """Jobs of higher priority come first, and users' shares put the queue into another order."""
    here = pool(sizes=(2,))
    for number, priority in enumerate((0, 0, 1), 1):
        here.submit(number, asked(3, 3, priority=priority), 0)
    assert here.waiting == [3, 1, 2]
    assert (here.is_first(3), here.place(2), here.size(2)) == (True, 3, 3)
    here.turn(0)
    here.arrange([2, 1, 3])
    assert here.waiting == [2, 1, 3]
    assert here.has_news
    here.withdraw(1)
    assert here.waiting == [2, 3]


def test_what_a_policy_does_wrong_is_skipped(tmp_path: Path) -> None:
    """Each action that cannot be carried out is a fault with a clause; others are carried out."""
    (tmp_path / "half.py").write_text(HALF_RIGHT, encoding="utf-8")
    here = pool(str(tmp_path / "half.py"), sizes=(8,))
    for number, (least, most) in enumerate(((1, 2), (2, 3), (3, 4), (4, 4), (4, 5)), 1):
        here.submit(number, asked(least, most), 0)

    assert here.turn(0) == [5]
    assert [fault.job for fault in here.faults] == [1, 2, 3, 4]
    assert here.fault_of(2) == "policy half starts a job on nodes that have no room for it"
    assert here.wake == 100 < NEVER


def test_a_job_that_pays_more_a_second_overtakes() -> None:
    """Under policy payoff the later of two waiting jobs starts first, and one without a contract last."""
    here = pool("payoff", sizes=(4,))
    for number, contract in enumerate([(10, 20, 1, 0), (), (10**4, 10**4, 100, 0), (10**4, 10**4, 900, 0)]):
        here.submit(number, asked(4, 4)._replace(contract=contract), 0)
    started = []
    for now in range(0, 400, 100):
        started += here.turn(now)
        here.ended(started[-1], now + 100)

    assert started[:2] == [3, 2]
    assert sorted(started[2:]) == [0, 1]
