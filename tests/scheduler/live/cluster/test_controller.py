# SPDX-License-Identifier: Apache-2.0
"""The live driver of a policy: it decides as the simulator does, and takes what a simulator never meets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.engine.state import FREE, NODE_GUESTS, RUNNERS, WAKE
from drom.scheduler.interface import MALLEABLE
from drom.scheduler.live.cluster.controller import GROUPS, ROOM, Controller, JobRequest
from drom.scheduler.simulator.measurement import row_of, size_of
from drom.scheduler.simulator.simulation import Machine

from tests.support.scheduler_requests import cost
from tests.support.schedules import simulation

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from drom.scheduler.engine.state import World
    from drom.scheduler.simulator.simulation import Simulation


pytestmark = pytest.mark.timeout(600)
"""SD-Policy takes half a minute to compile, once."""

NODES, CORES, JOBS = 8, 4, 400


def random_log(seed: int) -> list[tuple[int, int, int, int]]:
    """Return jobs of every size that come faster than they can run."""
    random = np.random.default_rng(seed)
    submit = np.cumsum(random.integers(0, 40, JOBS))
    run = random.integers(1, 300, JOBS)
    requested = run + random.integers(0, 200, JOBS)
    return list(
        zip(submit.tolist(), run.tolist(), requested.tolist(), random.integers(1, 7, JOBS).tolist(), strict=True)
    )


def cluster(name: str, *choices: str, nodes: int = NODES) -> Controller:
    """Return a controller of so many nodes, all up."""
    controller = Controller(load_policy(name, choices), CORES)
    for node in range(nodes):
        controller.node_up(node)
    return controller


class Meter:
    """What was measured of jobs so far, each with a curve of its own: most scale badly."""

    def __init__(self) -> None:
        self._known: dict[int, dict[int, float]] = {}

    def rates(self, job: int, size: int) -> dict[int, float]:
        """Return the rates of a job that has so many cores of each node now; 0: not as many of all."""
        known = self._known.setdefault(job, {})
        if size:
            known[size] = (job + 1) * (size / CORES) ** (job % 5 / 4)
        return known

    def measure(self, world: World) -> None:
        """Measure in a simulation."""
        for job in world.running[: world.scalars[RUNNERS]].tolist():
            world.rates[job] = row_of(self.rates(job, size_of(world, job)), CORES)

    def tell(self, controller: Controller) -> None:
        """Measure on a cluster."""
        for job in range(JOBS):
            if controller.runs(job):
                sizes = {controller.cores_on(job, node) for node in controller.nodes_of(job)}
                controller.measured(job, self.rates(job, sizes.pop() if len(sizes) == 1 else 0))


def replay(run: Simulation, controller: Controller) -> dict[int, tuple[int, list[int]]]:
    """Tell a controller what happened in a finished simulation; return start and nodes of each job."""
    jobs, ends = run.world.jobs, run.world.end
    events = sorted({*jobs.submit.tolist(), *ends.tolist()})
    meter = Meter()
    started: dict[int, tuple[int, list[int]]] = {}
    while events:
        now = min(events[0], controller.world.scalars[WAKE])
        if now == events[0]:
            events.pop(0)
        for job in sorted(np.flatnonzero(ends == now).tolist(), key=lambda job: int(run.world.order[job])):
            controller.ended(job, int(now))
        for job in np.flatnonzero(jobs.submit == now).tolist():
            asked = JobRequest(int(jobs.nodes[job]), int(jobs.requested[job]), MALLEABLE, least=int(jobs.least[job]))
            controller.submit(job, asked, int(now))
        for number in controller.turn(int(now)):
            started[number] = (int(now), controller.nodes_of(number))
        assert not controller.faults
        if controller.policy.measures:
            meter.tell(controller)
    return started


def decided(run: Simulation) -> dict[int, tuple[int, list[int]]]:
    """Return start and nodes of each job of a finished simulation."""
    house = run.world.nodes
    return {
        job: (int(run.world.jobs.start[job]), house.place[house.first[job] : house.first[job + 1]].tolist())
        for job in range(JOBS)
    }


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "words",
    [
        ("easy",),
        ("conservative",),
        ("slurm", "reservations=nodes"),
        ("sd", "interval=1", "max_slowdown=infinite"),
        ("sd", "reservations=nodes", "max_slowdown=dynavgsd", "recompute=1"),
        ("sd", "interval=1", "max_slowdown=infinite", "feedback=1"),
        ("sd", "reservations=nodes", "feedback=1", "least_factor=0.4"),
    ],
    ids=" ".join,
)
def test_the_controller_decides_as_the_simulator_does(words: Sequence[str], seed: int) -> None:
    """The same starts on the same nodes, told of the same submissions and ends, and of the same measurements."""
    run = simulation(random_log(seed), words[0], Machine(NODES, CORES), *words[1:])
    run.measure = Meter().measure
    run.run()
    assert replay(run, cluster(*words)) == decided(run)
    shared = int((run.world.given < CORES).sum())
    assert (shared > 20) == (words[0] == "sd")
    assert (len(set(run.world.given.tolist())) > 2) == run.policy.measures


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "words", [("interval=1", "max_slowdown=infinite"), ("reservations=nodes", "max_slowdown=dynavgsd", "recompute=1")]
)
def test_jobs_leave_nodes_as_in_the_simulator(words: Sequence[str], seed: int) -> None:
    """Jobs that may run on fewer nodes leave some for the same starts, and have their cores again when these end."""
    rows = random_log(seed)
    least = [row[3] - row[3] // 2 if number % 2 else row[3] for number, row in enumerate(rows)]
    run = simulation(rows, "sd", Machine(NODES, CORES), *words, least=least)
    run.run()
    controller = cluster("sd", *words)

    assert replay(run, controller) == decided(run)
    assert run.world.scalars[NODE_GUESTS] > 20
    assert not controller.world.away.any()


def test_a_node_of_any_number_is_taken_in() -> None:
    """Groups and jobs may name nodes beyond those there is room for, before these are up."""
    far = 3 * ROOM + 5
    controller = cluster("slurm", "interval=1", "reservations=nodes", nodes=0)
    controller.allow("gpu=1", [1, far])
    controller.restore(1, JobRequest(1, 60), {far - 1: CORES}, start=10, limit=60)
    controller.node_up(far)
    controller.submit(2, JobRequest(1, 60, group="gpu=1"), 20)

    assert controller.turn(20) == [2]
    assert (controller.nodes_of(1), controller.nodes_of(2)) == ([far - 1], [far])


def test_groups_of_which_no_job_is_left_are_forgotten() -> None:
    """However many there ever were, a policy looks at those of jobs that wait or run, on whose nodes these stay."""
    controller = cluster("slurm", "interval=1", "reservations=nodes")
    controller.allow("gpu=1", [NODES - 1])
    controller.submit(0, JobRequest(1, 60, group="gpu=1"), 0)
    forgotten = []
    for number in range(1, 1000):
        forgotten += controller.allow(f"memory={number}", [0])
        controller.submit(number, JobRequest(1, 60, group=f"memory={number}"), 0)
        controller.withdraw(number)

    assert len(controller.world.nodes.allowed) <= 2 * GROUPS
    assert set(forgotten) < {f"memory={number}" for number in range(1, 1000)}
    assert (controller.turn(1), controller.nodes_of(0)) == ([0], [NODES - 1])


def test_a_node_that_comes_later_is_for_the_groups_that_it_can_host() -> None:
    """And for none that it cannot, also where it has changed."""
    controller = cluster("slurm", "interval=1", "reservations=nodes")
    controller.allow("gpu=1", [0])
    controller.allow("memory=1", [0])
    controller.submit(1, JobRequest(2, 60, group="gpu=1"), 0)
    controller.submit(2, JobRequest(1, 60, group="memory=1"), 0)
    controller.allow_on(NODES, ["gpu=1"])
    controller.node_up(NODES)
    controller.allow_on(0, ["gpu=1", "unknown"])
    assert controller.turn(1) == [1]
    assert (controller.nodes_of(1), controller.waits(2)) == ([0, NODES], True)

    controller.allow_on(3, ["memory=1"])
    controller.ended(1, 2)
    assert (controller.turn(2), controller.nodes_of(2)) == ([2], [3])


def test_there_are_as_many_groups_as_jobs_want() -> None:
    """Each job is on the nodes of its own group."""
    count = 3 * GROUPS
    controller = cluster("slurm", "interval=1", "reservations=nodes", nodes=count)
    for number in range(count):
        assert controller.allow(f"node={number}", [number]) == []
        controller.submit(number, JobRequest(1, 60, group=f"node={number}"), 0)

    assert controller.turn(1) == list(range(count))
    assert [controller.nodes_of(number) for number in range(count)] == [[number] for number in range(count)]


def test_a_job_joins_the_queue_without_a_look_at_all_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By falling priority, then by number."""
    looks = []
    rank = Controller._rank

    def look(self: Controller, job: int) -> tuple[int, int]:
        looks.append(job)
        return rank(self, job)

    monkeypatch.setattr(Controller, "_rank", look)
    controller = cluster("easy", nodes=0)
    for number in range(1000):
        controller.submit(number, JobRequest(1, 60, priority=-(number % 2)), 0)
    looks.clear()
    controller.submit(1000, JobRequest(1, 60, priority=1), 0)
    assert len(looks) < 20

    controller.submit(1001, JobRequest(1, 60), 0)
    order = sorted(range(1002), key=controller.place)
    assert order == [1000, *range(0, 1000, 2), 1001, *range(1, 1000, 2)]


def test_room_for_more_jobs_takes_little_memory_at_once() -> None:
    """One job of many comes upon full tables: it pays for new ones, within the bound of a request."""
    controller = cluster("easy", nodes=NODES)
    for number in range(NODES):
        controller.submit(number, JobRequest(1, 60), 0)
    assert controller.turn(0) == list(range(NODES))
    placed = [controller.nodes_of(number) for number in range(NODES)]
    full = 20_000
    for number in range(NODES, full):
        controller.submit(number, JobRequest(1, 60), 0)
    room = len(controller.world.queue)
    for number in range(full, room):
        controller.submit(number, JobRequest(1, 60), 0)
    with cost() as paid:
        controller.submit(room, JobRequest(1, 60), 0)

    assert len(controller.world.queue) > room
    assert paid.peak < 10e6
    assert [controller.nodes_of(number) for number in range(NODES)] == placed
    assert [controller.place(number) for number in (NODES, full, room)] == [1, full - NODES + 1, room - NODES + 1]


def test_a_limit_that_was_stretched_before_a_restart_does_not_fall() -> None:
    """What the job had lost by then is not known, only what it was promised."""
    controller = cluster("sd", "interval=1", "max_slowdown=infinite", "reservations=nodes", "recompute=1", nodes=1)
    controller.restore(1, JobRequest(1, 3600, MALLEABLE), {0: CORES}, start=0, limit=4800)
    controller.submit(2, JobRequest(1, 60), 3700)
    controller.turn(3700)

    assert controller.limit(1) == 4800


HALF_RIGHT = """
import numpy as np
from drom.scheduler.interface import NEVER, NOBODY, place, resize

def decide(state, event, options, actions):
    taken = np.zeros(len(state.nodes.up), np.int64)
    for job in state.queue:
        need, cores = state.jobs.nodes[job], state.cores
        nodes, count = np.zeros(need, np.int64), 0
        for node in range(len(state.nodes.up)):
            if count < need and state.nodes.up[node] and state.nodes.resident[node, 0] == NOBODY and not taken[node]:
                nodes[count] = node
                count += 1
        if state.jobs.priority[job] > 0 and count > 1:
            kind = state.jobs.requested[job]
            if kind == 1:
                nodes[count - 1] = 1 << 40
            if kind == 2:
                nodes[count - 1] = nodes[0]
            if kind == 3:
                for node in range(len(state.nodes.up)):
                    if state.nodes.resident[node, 0] != NOBODY:
                        nodes[count - 1] = node
            if kind == 4:
                cores += 1
            if kind == 5:
                cores = (1 << 63) - 1
            if kind == 6:
                nodes[count - 1] = -1
            if kind in (7, 8):  # mates keep a core of the node, or leave it
                for mate in state.running:
                    first = state.nodes.first[mate]
                    resize(actions, mate, state.nodes.place[first : first + 1], 8 - kind)
                    nodes[0] = state.nodes.place[first]
                nodes[count - 1] = nodes[0]
            if kind == 7:
                cores = 1
        elif count == need:
            taken[nodes] = 1
        if count == need:
            place(actions, job, nodes, cores)
    return NEVER
"""
"""Places jobs in order on the free nodes with the lowest numbers, those of a priority wrongly at their last node."""


@pytest.mark.parametrize("wrong", range(1, 9))
def test_a_placement_that_is_half_right_changes_nothing(wrong: int, tmp_path: Path) -> None:
    """The job waits on and its fault is told; the same answer's other jobs start; no node and no core is lost."""
    (tmp_path / "half.py").write_text(HALF_RIGHT, encoding="utf-8")
    controller = cluster(str(tmp_path / "half.py"))
    controller.submit(1, JobRequest(2, 600, MALLEABLE, least=1), 0)
    assert controller.turn(0) == [1]
    before = [controller.residents(node) for node in range(NODES)]
    controller.submit(2, JobRequest(4, wrong, MALLEABLE, priority=1), 10)
    assert controller.turn(10) == []
    assert [fault.job for fault in controller.faults] == [2]
    assert controller.fault_of(2) == controller.faults[0].text
    assert not controller.world.away.any()
    assert [controller.residents(node) for node in range(NODES)] == before
    assert controller.waits(2)
    assert controller.world.scalars[FREE] == NODES - 2

    controller.submit(3, JobRequest(6, 60), 20)
    assert controller.turn(20) == [3]
    controller.withdraw(2)
    for number in (1, 3):
        controller.ended(number, 30)
    controller.submit(4, JobRequest(NODES, 60), 30)
    assert (controller.turn(30), controller.faults) == ([4], [])


def test_a_resize_that_is_half_right_changes_nothing(tmp_path: Path) -> None:
    """A node of the job's own is not resized where another node of the same action is not its own."""
    policy = """
import numpy as np
from drom.scheduler.interface import NEVER, JOB_ENDED, resize, start

def decide(state, event, options, actions):
    if event.kinds & JOB_ENDED:
        job = state.running[0]
        for nodes, cores in ((np.array([0, 5]), 1), (np.array([0, 1]), state.cores + 1), (np.array([0, 1]), 0)):
            resize(actions, job, nodes, cores)
    for job in state.queue:
        start(actions, job)
    return NEVER
"""
    (tmp_path / "half.py").write_text(policy, encoding="utf-8")
    controller = cluster(str(tmp_path / "half.py"))
    controller.submit(1, JobRequest(2, 600, MALLEABLE), 0)
    controller.submit(2, JobRequest(1, 600), 0)
    controller.turn(0)
    controller.ended(2, 10)
    controller.turn(10)
    assert [fault.job for fault in controller.faults] == [1, 1, 1]
    assert [controller.cores_on(1, node) for node in controller.nodes_of(1)] == [CORES, CORES]


SHRINKS_A_GUEST = """
import numpy as np
from drom.scheduler.interface import NEVER, place, resize, set_limit

def decide(state, event, options, actions):
    here = np.array([0])
    for job in state.queue:
        if state.jobs.requested[job] == 600:
            place(actions, job, here, state.cores)
        if state.jobs.requested[job] == 601:
            resize(actions, state.running[0], here, 2)
            place(actions, job, here, 2)
        if state.jobs.requested[job] == 602:
            for mate in state.running:
                if state.jobs.requested[mate] == 601:
                    resize(actions, mate, here, 1)
                    set_limit(actions, mate, 5000)
            place(actions, job, here, 2)
    return NEVER
"""
"""Places three jobs on a node, the third by shrinking the second too little."""


def test_a_guest_that_was_shrunk_in_vain_has_all_that_it_had(tmp_path: Path) -> None:
    """Its cores do not go to the owner of the node, its limit is as before, and it counts as one that lent nothing."""
    (tmp_path / "shrinks.py").write_text(SHRINKS_A_GUEST, encoding="utf-8")
    controller = cluster(str(tmp_path / "shrinks.py"))
    for number in (1, 2):
        controller.submit(number, JobRequest(1, 599 + number, MALLEABLE), number)
        assert controller.turn(number) == [number]
    controller.submit(3, JobRequest(1, 602, MALLEABLE), 3)
    assert controller.turn(3) == []

    assert [fault.job for fault in controller.faults] == [3]
    assert controller.residents(0) == {1: 2, 2: 2}
    assert (controller.limit(1), controller.limit(2)) == (600, 601)
    assert controller.world.jobs.lent[:3].tolist() == [1, 0, 0]
