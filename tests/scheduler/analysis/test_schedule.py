# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools

import numpy as np
import pytest
from drom.scheduler.analysis.schedule import node_lists, node_runs, parse_node_lists, schedule_of
from drom.scheduler.simulator.simulation import Machine
from hypothesis import given
from hypothesis import strategies as st

from tests.support.schedules import simulation


def nodes(first: list[int], runs: list[list[int]]) -> list[list[int]]:
    """Return the nodes of each job."""
    return [
        [node for low, high in runs[begin:end] for node in range(low, high + 1)]
        for begin, end in itertools.pairwise(first)
    ]


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 12), min_size=1, unique=True)), min_size=1))
def test_runs_of_nodes_and_their_text(jobs: list[tuple[bool, list[int]]]) -> None:
    """Whatever the nodes of a job, in their order; none before its start; text and back is the same."""
    first = np.concatenate(([0], np.cumsum([len(given) for _, given in jobs])))
    place = np.array([node if started else -1 for started, given in jobs for node in given])
    begins, runs = node_runs(first, place)
    run = simulation([(0, 1, 1, 1)], "fcfs")
    texts = node_lists(schedule_of(run)._replace(first=begins, runs=runs))
    again = parse_node_lists(texts)

    assert nodes(begins.tolist(), runs.tolist()) == [given if started else [] for started, given in jobs]
    assert (again[0].tolist(), again[1].tolist()) == (begins.tolist(), runs.tolist())


def test_the_text_of_nodes() -> None:
    """As Batsim writes it."""
    run = simulation([(0, 9, 9, 1), (0, 2, 2, 1), (0, 9, 9, 5), (3, 1, 1, 2), (4, 1, 1, 8)], "fcfs")
    run.run(until=3)

    assert node_lists(schedule_of(run)) == ["0", "1", "2-6", "1 7", ""]


def test_shares(sharing: str) -> None:
    """A guest starts on part of each node; who waits has none."""
    machine = Machine(2, 48)
    run = simulation([(0, 60, 90, 2), (20, 10, 10, 2), (99, 1, 1, 1)], sharing, machine, "share=0.25")
    run.run(until=20)
    schedule = schedule_of(run)

    assert schedule.table["share_at_start"].tolist() == [48, 12, -1]
    assert schedule.jobs(np.array([False, True, True])).table["job_id"].tolist() == [2, 3]
    assert node_lists(schedule.jobs(np.array([False, True, True]))) == ["0-1", ""]


@pytest.mark.parametrize("text", ["a", "1-b"])
def test_what_is_no_list_of_nodes(text: str) -> None:
    """Is refused."""
    with pytest.raises(ValueError, match="invalid literal"):
        parse_node_lists([text])
