# SPDX-License-Identifier: Apache-2.0
"""Reservations on sets of nodes, partitions and contiguous nodes: against a slow reference, and by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.errors import SchedulerError
from drom.scheduler.interface import MALLEABLE, RIGID
from drom.scheduler.policies import nodesets
from drom.scheduler.simulator.partitions import parse_partitions
from drom.scheduler.simulator.simulation import Machine, Simulation
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import reference_nodes as reference
from tests.support.schedules import NODES, Row, jobs_of, logs, workload

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.timeout(600)
"""The policies take a minute to compile, once."""

ON_NODES = ("reservations=nodes", "interval=1", "resolution=1")
HALVES = ((1, "0-3"), (2, "2-7"))


def run_of(
    rows: Sequence[Row],
    policy: str,
    *choices: str,
    partitions: Sequence[int] = (),
    classes: Sequence[int] = (),
) -> Simulation:
    """Return a finished simulation on 8 nodes of 4 cores; `partitions` are those of the jobs, of `HALVES`."""
    work = workload(rows, 4)
    if partitions:
        work = work.with_columns(partition=np.array(partitions, np.int64))
    run = Simulation.of(
        work, Machine(NODES, 4, partitions=HALVES if partitions else ()), load_policy(policy, [*ON_NODES, *choices])
    )
    if classes:
        run.world.jobs.cls[:] = classes
    run.run()
    return run


def placed(run: Simulation) -> dict[int, tuple[int, list[int]]]:
    """Return start and nodes of each job."""
    jobs, house = run.world.jobs, run.world.nodes
    nodes = [house.place[house.first[job] : house.first[job + 1]].tolist() for job in range(len(jobs.start))]
    return {job: (int(jobs.start[job]), nodes[job]) for job in range(len(nodes))}


@pytest.mark.parametrize("policy", ["slurm", "sd"])
@settings(max_examples=120, deadline=None)
@given(data=st.data(), rows=logs(most=18), contiguous=st.booleans(), confined=st.booleans())
def test_against_a_table_of_every_node_and_second(
    policy: str, data: st.DataObject, rows: list[Row], contiguous: bool, confined: bool
) -> None:
    """Starts and nodes, with a bounded depth and window, coarse reservations, partitions that overlap; no mates."""
    sizes = {1: 4, 2: 6, 3: NODES}
    fitting = [[kind for kind, size in sizes.items() if size >= row[3]] for row in rows]
    kinds = [data.draw(st.sampled_from(fit)) for fit in fitting] if confined else []
    machine = reference.Machine(NODES, 4, 20, 7, contiguous=contiguous)
    for job, kind in enumerate(kinds):
        machine.allowed[job] = {1: set(range(4)), 2: set(range(2, 8)), 3: set(range(8))}[kind]
    choices = ("interval=3", "depth=4", "window=20", "resolution=7", f"contiguous={int(contiguous)}")
    run = run_of(rows, policy, *choices, partitions=kinds, classes=[RIGID] * len(rows))

    assert placed(run) == reference.simulate(jobs_of(rows), machine, ticks=3)


class TestByHand:
    """On 8 nodes, a pass at every second with an event."""

    def test_a_reservation_holds_its_nodes(self) -> None:
        """The second job has nodes 0-5 from 10 on, so the third starts on 6, not on the 4 that is free as well."""
        rows = [(0, 10, 10, 4), (1, 20, 20, 6), (2, 30, 30, 1)]

        assert placed(run_of(rows, "slurm"))[2] == (2, [6])
        assert placed(run_of(rows, "slurm"))[1] == (10, [0, 1, 2, 3, 4, 5])

    def test_numbers_would_be_enough_but_not_the_same_nodes_all_the_time(self) -> None:
        """One node is free at any second, but no node for long enough: by number the last job would start at 0."""
        rows = [(0, 10, 10, 7), (0, 10, 10, 8), (0, 20, 20, 1)]

        assert placed(run_of(rows, "slurm", "depth=3"))[2][0] == 20

    def test_a_partition_is_filtered_first(self) -> None:
        """A job of nodes 0-3 waits although 4-7 are free; one of 2-7 starts there."""
        rows = [(0, 10, 10, 4), (1, 5, 5, 2), (2, 5, 5, 4)]
        run = run_of(rows, "slurm", partitions=(1, 1, 2))

        assert placed(run) == {0: (0, [0, 1, 2, 3]), 1: (10, [0, 1]), 2: (2, [4, 5, 6, 7])}

    def test_mates_are_of_the_guests_partition(self) -> None:
        """Both trials see the same nodes: the mate that would be better is on nodes the guest may not have."""
        rows = [(0, 900, 900, 2), (0, 100, 100, 4), (0, 100, 100, 2), (1, 10, 10, 2)]
        confined = run_of(rows, "sd", partitions=(1, 2, 2, 2))

        assert run_of(rows, "sd").world.jobs.lent.tolist() == [1, 0, 0, 0]
        assert confined.world.jobs.lent.tolist() == [0, 0, 1, 0]
        assert confined.world.jobs.start[3] == 1

    def test_contiguous_nodes_are_exact(self) -> None:
        """Two free pairs are no place for four; what follows each other comes free at 9."""
        rows = [(0, 9, 9, 2), (0, 99, 99, 2), (0, 9, 9, 2), (1, 10, 10, 4)]
        rigid = (RIGID,) * 4

        assert placed(run_of(rows, "slurm", "contiguous=1"))[3] == (9, [4, 5, 6, 7])
        assert placed(run_of(rows, "sd", "contiguous=1", classes=rigid))[3] == (9, [4, 5, 6, 7])

    def test_free_nodes_of_a_guest_are_reserved_for_nobody(self) -> None:
        """With mix: the guest has the free node that is not kept for the job ahead."""
        rows = [(0, 100, 100, 6), (1, 10, 10, 8)]

        assert placed(run_of(rows, "sd", "mix=1", "max_slowdown=infinite"))[1] == (1, [0, 1, 2, 3, 4, 5, 6, 7])

    def test_a_guard_looks_at_the_nodes(self) -> None:
        """A mate on nodes of the first reservation may not stay longer; one on other nodes may."""
        rows = [(0, 300, 300, 4), (250, 200, 200, 4), (251, 50, 50, 4), (252, 10, 10, 4)]
        classes = (MALLEABLE, MALLEABLE, RIGID, MALLEABLE)

        assert run_of(rows, "sd", classes=classes).world.jobs.lent.tolist() == [1, 0, 0, 0]
        assert run_of(rows, "sd", "guard=1", classes=classes).world.jobs.lent.tolist() == [0, 1, 0, 0]

    def test_heads_start_between_passes_on_nodes_of_their_partition(self) -> None:
        """With main: the second job needs two nodes of 0-3 and stops those behind it."""
        rows = [(1, 20, 20, 3), (2, 5, 5, 2), (3, 5, 5, 1)]
        run = run_of(rows, "slurm", "main=1", "interval=30", partitions=(1, 1, 2))

        assert placed(run) == {0: (1, [0, 1, 2]), 1: (21, [0, 1]), 2: (21, [2])}


@given(st.sets(st.integers(0, 199)), st.integers(1, 8))
def test_sets_of_nodes(members: set[int], number: int) -> None:
    """As Python's sets."""
    words = np.zeros(4, np.uint64)
    for node in members:
        nodesets.insert(words, node)
    lowest, run = words.copy(), words.copy()
    nodesets.keep_lowest(lowest, number)
    starts = [node for node in sorted(members) if set(range(node, node + number)) <= members]
    found = nodesets.keep_run(run, number)

    assert nodesets.count(words) == len(members)
    assert nodesets.members(words).tolist() == sorted(members)
    assert nodesets.members(lowest).tolist() == sorted(members)[:number]
    assert found == bool(starts)
    assert not found or nodesets.members(run).tolist() == list(range(starts[0], starts[0] + number))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x=0-3", "'x=0-3' is not a partition: write its number in the log and its nodes, such as 2=0-99,120."),
        ("1=0-", "'1=0-' is not a partition: write its number in the log and its nodes, such as 2=0-99,120."),
        ("1=0-8", "Partition 1: 0-8 is not among nodes 0-7, the lower number first."),
        ("1=3-2", "Partition 1: 3-2 is not among nodes 0-7, the lower number first."),
        ("7=0", "job 1 asks for 2 nodes: partition 7 has 1; leave it out."),
    ],
)
def test_wrong_partitions(text: str, sentence: str) -> None:
    """A sentence says what is wrong."""
    work = workload([(0, 1, 1, 2)]).with_columns(partition=np.array([7]))
    with pytest.raises(SchedulerError) as raised:
        Simulation.of(
            work, Machine(NODES, partitions=parse_partitions([text])), load_policy("slurm", ["reservations=nodes"])
        )

    assert str(raised.value) == sentence


def test_a_policy_that_counts_knows_no_partitions() -> None:
    """A policy that only counts nodes is refused with partitions before anything is simulated."""
    with pytest.raises(SchedulerError, match="partitions need slurm or sd with reservations=nodes"):
        Simulation.of(workload([(0, 1, 1, 2)]), Machine(NODES, partitions=HALVES), load_policy("easy"))


@pytest.mark.parametrize(
    ("policy", "choices", "sentence"),
    [
        ("slurm", ["contiguous=1"], "policy slurm: contiguous=1 needs reservations=nodes."),
        ("slurm", ["reservations=2"], "policy slurm: reservations is counts or nodes, not 2."),
        ("sd", ["contiguous=1", "main=1"], "policy sd: contiguous=1 with main=1 needs reservations=nodes."),
        ("sd", ["contiguous=1", "mix=1"], "policy sd: contiguous=1 is for guests without free nodes: set mix=0."),
    ],
)
def test_contradictory_parameters(policy: str, choices: list[str], sentence: str) -> None:
    """They are named."""
    with pytest.raises(SchedulerError) as raised:
        load_policy(policy, choices)

    assert str(raised.value) == sentence
