# SPDX-License-Identifier: Apache-2.0
"""Speeds of nodes as users write them; bad input; the command and Python."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from drom.scheduler.errors import SchedulerError
from drom.scheduler.simulator.simulation import Machine
from drom.scheduler.simulator.speeds import mean_speed, parse_speeds, speed_of_nodes
from drom.workloads.swf import write_swf

import drom
from tests.support.commands import drom as command
from tests.support.job_logs import synthetic
from tests.support.schedules import simulation, workload

if TYPE_CHECKING:
    from pathlib import Path

WORK = workload([(0, 10, 10, 2)])


def test_nodes_that_are_not_named_have_speed_1() -> None:
    """The others have theirs, in thousandths."""
    found = speed_of_nodes(parse_speeds(["0.8=2-3,5", "1.25004=0"]), 6, WORK)

    assert found.tolist() == [1250, 1000, 800, 800, 1000, 800]
    assert mean_speed(found) == pytest.approx(0.9416667)


def test_equal_nodes_have_no_speeds() -> None:
    """Their mean speed is 1."""
    found = speed_of_nodes(parse_speeds([]), 6, WORK)

    assert (len(found), mean_speed(found)) == (0, 1)


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (["0.8"], "--speed '0.8': write a speed from 0.01 to 100 and its nodes, such as 0.8=64-95,120."),
        (["0=1"], "--speed '0=1': write a speed from 0.01 to 100 and its nodes, such as 0.8=64-95,120."),
        (["nan=1"], "--speed 'nan=1': write a speed from 0.01 to 100 and its nodes, such as 0.8=64-95,120."),
        (["2=1;2"], "--speed '2=1;2': write a speed from 0.01 to 100 and its nodes, such as 0.8=64-95,120."),
        (["2=5-6"], "--speed 2: 5-6 is not among nodes 0-5, the lower number first."),
        (["2=1", "3=0-2"], "--speed 3: a node among 0-2 already has a speed: name each node once."),
    ],
)
def test_bad_speeds(texts: list[str], sentence: str) -> None:
    """One sentence that says what to do."""
    with pytest.raises(SchedulerError) as raised:
        speed_of_nodes(parse_speeds(texts), 6, WORK)
    assert str(raised.value) == sentence


def test_work_beyond_64_bits() -> None:
    """The largest jobs of the format cannot be counted with speeds."""
    with pytest.raises(SchedulerError, match="--speed: a job of 10,000,000,000,000,000 core-seconds is more than"):
        speed_of_nodes(parse_speeds(["2=1"]), 10**6, workload([(0, 10**10, 10**10, 10**6)]))


def test_a_run_is_resumed_with_the_same_speeds_only(tmp_path: Path) -> None:
    """They are part of the machine."""
    rows, file = [(0, 10, 10, 2), (5, 10, 10, 2)], tmp_path / "state"
    run = simulation(rows, "easy", Machine(4, speeds=((0.5, "2-3"),)))
    run.run(until=5)
    run.save(file)
    again = simulation(rows, "easy", Machine(4, speeds=((0.5, "2-3"),)))
    again.resume(file)
    again.run()

    assert again.world.end.tolist() == [10, 15]
    with pytest.raises(SchedulerError, match="was saved with machine speeds"):
        simulation(rows, "easy", Machine(4)).resume(file)


def test_the_command_and_python_agree(tmp_path: Path) -> None:
    """The summary has the speeds."""
    write_swf(synthetic(), tmp_path / "log.swf")
    options = ("--nodes", "64", "--speed", "0.5=16-63", "--speed", "2=0-7")
    told, _ = command("simulate", tmp_path / "log.swf", *options, "--json")
    summary = json.loads(told)
    found = drom.simulate(tmp_path / "log.swf", nodes=64, speed={0.5: "16-63", 2: "0-7"}, progress=False)

    assert summary["machine"]["speeds"] == [[0.5, "16-63"], [2.0, "0-7"]]
    assert summary["metrics"] == found.metrics


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--policy", "equipartition"], "--speed is for policies that place jobs on nodes"),
        (["--predict", "recent"], "--speed is for requested times, not --predict recent"),
        (["--policy", "sd", "--set", "recompute=1"], "--speed is not for recompute=1"),
        (["--fill"], "--fill is for equal nodes that stay up and on: omit --failures"),
    ],
)
def test_what_speeds_do_not_go_with(options: list[str], sentence: str, tmp_path: Path) -> None:
    """One sentence."""
    write_swf(synthetic(), tmp_path / "log.swf")
    _, said = command("simulate", tmp_path / "log.swf", "--nodes", "64", "--speed", "2=1", *options, code=2)

    assert sentence in said
