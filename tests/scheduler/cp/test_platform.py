# SPDX-License-Identifier: Apache-2.0
"""Heterogeneous machines in TOML, and jobs for them: what is read, and the sentence for what cannot be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from drom.scheduler.cp.jobs import Chunk, Job, chunk_of, table_of
from drom.scheduler.cp.placement import State, planned
from drom.scheduler.cp.platform import load_platform, parse_platform
from drom.scheduler.errors import SchedulerError
from drom.scheduler.interface import NEVER

if TYPE_CHECKING:
    from pathlib import Path

GOOD = """
resources = ["cores", "gpu"]
[[group]]
name = "thin"
nodes = 2
cores = 4
[[group]]
name = "fat"
nodes = 1
cores = 8
gpu = 2
[[queue]]
name = "day"
expected_wait_s = 60
maximum_wait_s = 600
"""


def test_nodes_group_after_group() -> None:
    """Each node has what its group has, and nothing of what that does not name."""
    platform = parse_platform(GOOD, "small.toml")

    assert platform.name == "small"
    assert platform.capacity.tolist() == [[4, 0], [4, 0], [8, 2]]
    assert platform.queues[0] == ("day", 60, 600)


def test_eurora() -> None:
    """65 nodes as in the paper: 1,036 cores, 64 GPUs and 64 MICs."""
    platform = load_platform("eurora")

    assert platform.capacity.shape == (65, 4)
    assert dict(zip(platform.resources, platform.capacity.sum(axis=0).tolist(), strict=True)) == {
        "cores": 1036,
        "memory": 1040,
        "gpu": 64,
        "mic": 64,
    }


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("gpu = 2", "fpga = 2", ", group fat: there is no resource 'fpga': choose cores, gpu, or add it to resources."),
        ("nodes = 2", "nodes = 0", ", group thin: nodes is '0': write a whole number from 1 to 1000000000."),
        ("gpu = 2", "gpu = -2", ", group fat: gpu is '-2': write a whole number from 0 to 1000000000."),
        ("cores = 4", "cores = true", ", group thin: cores is 'True': write a whole number from 0 to 1000000000."),
        ("cores = 4", "", ", group thin: its nodes have no resources: set amounts of cores, gpu."),
        ("nodes = 2", "", ", group thin: it has no nodes: write nodes = and a whole number of at least 1."),
        (
            "expected_wait_s = 60",
            "",
            ", queue day: it has no expected_wait_s: write expected_wait_s = and a whole number of at least 1.",
        ),
        (
            "expected_wait_s = 60",
            "expected_wait_s = 601",
            ", queue day: it expects a wait of 601 s, and allows 600 s: write no more than is allowed.",
        ),
        ('"fat"', '"thin"', ": the group 'thin' is defined twice: give each its own name."),
        ('"gpu"', '"cores"', ": the resource 'cores' is defined twice: give each its own name."),
        ('"gpu"', '"nodes"', ": a resource cannot be called 'nodes': choose another name."),
        ("nodes = 2", "nodes = 200000", ": there are more than 100,000 nodes: write fewer."),
        ("[[queue]]", "[[row]]", ": there is no 'row': choose group, name, queue, resources."),
        ('name = "day"', "name = 1", ", queue 1: it has no name: write name = and a text."),
        (GOOD, 'resources = ["cores"]', ": there is no group: write at least one table [[group]]."),
    ],
)
def test_bad_platforms(before: str, after: str, sentence: str) -> None:
    """One sentence, with the place."""
    with pytest.raises(SchedulerError) as error:
        parse_platform(GOOD.replace(before, after), "m.toml")

    assert str(error.value) == f"m.toml{sentence}"


def test_files(tmp_path: Path) -> None:
    """A file that is not TOML, not text or not there, and a name that is none."""
    (tmp_path / "bad.toml").write_text("nodes = [")
    (tmp_path / "odd.toml").write_bytes(b"\xff")
    cases = {"bad.toml": "is not TOML: ", "odd.toml": "is not UTF-8 text", "none.toml": "No such file"}

    for name, words in cases.items():
        with pytest.raises(SchedulerError, match=words):
            load_platform(str(tmp_path / name))
    with pytest.raises(SchedulerError, match="'mars' is not a platform: choose eurora, or name a file"):
        load_platform("mars")


WIDE_FIRST = """
resources = ["cores", "gpu"]
[[group]]
name = "fat"
nodes = 1
cores = 8
gpu = 2
[[group]]
name = "thin"
nodes = 2
cores = 5
[[queue]]
name = "day"
expected_wait_s = 60
maximum_wait_s = 600
"""


def test_what_is_let_in_is_what_can_start() -> None:
    """Units go where they waste least: four cores each onto thin nodes, so that what needs more has the fat one."""
    platform = parse_platform(WIDE_FIRST, "wide.toml")
    four, eight, fives = Chunk(1, (4, 0)), Chunk(1, (8, 0)), Chunk(2, (5, 0))

    jobs = table_of([Job(0, 0, 9, 9, (four, eight))], platform)
    state = State(0, np.empty(0, np.int64), np.array([0]), platform.capacity, np.array([NEVER]), np.full(2, -1))
    assert planned(state, jobs, np.array([0]), 1, whole=True).start.tolist() == [0]

    with pytest.raises(SchedulerError, match="job 1: 2 units of 5 cores are more than wide has room for"):
        table_of([Job(0, 0, 9, 9, (Chunk(2, (4, 0)), fives))], platform)


@pytest.mark.parametrize(
    ("job", "sentence"),
    [
        (
            Job(0, 0, 9, 9, (Chunk(1, (9, 0)),)),
            "job 1: a unit asks for 9 cores, which no node of small has: ask for less.",
        ),
        (
            Job(0, 0, 9, 9, (Chunk(5, (3, 0)),)),
            "job 1: 5 units of 3 cores are more than small has room for: ask for less.",
        ),
        (
            Job(0, 0, 9, 9, (Chunk(1, (1, 2)), Chunk(1, (1, 1)))),
            "job 1: 1 units of 1 cores, 1 gpu are more than small has room for: ask for less.",
        ),
        (Job(1, 0, 9, 9, (Chunk(1, (1, 0)),)), "job 1: it is in queue 1, and small has 1."),
        (
            Job(0, 0, 9, 10, (Chunk(1, (1, 0)),)),
            "job 1: it runs for at least 1 s, at most for its walltime, and is submitted at 0 s or later.",
        ),
        (Job(0, 0, 9, 9, ()), "job 1: it has no units: write at least one."),
        (
            Job(0, 0, 9, 9, (Chunk(1, (0, 0)),)),
            "job 1: units must be at least 1, and request something, no amount below 0.",
        ),
    ],
)
def test_bad_jobs(job: Job, sentence: str) -> None:
    """What could never run is refused before anything is simulated."""
    with pytest.raises(SchedulerError) as error:
        table_of([job], parse_platform(GOOD, "small.toml"))

    assert str(error.value) == sentence


def test_unknown_resource() -> None:
    """A unit asks for resources that the platform has."""
    with pytest.raises(SchedulerError, match="a unit asks for 'mic': small has cores, gpu"):
        chunk_of(parse_platform(GOOD, "small.toml"), 1, {"mic": 1})


def test_preference() -> None:
    """Units without a GPU prefer nodes without one."""
    jobs = [Job(0, 0, 9, 9, (Chunk(1, (1, 0)), Chunk(1, (1, 1))))]

    assert table_of(jobs, parse_platform(GOOD, "small.toml")).nodes.tolist() == [[0, 1, 2], [0, 1, 2]]
