# SPDX-License-Identifier: Apache-2.0
"""Simulations saved, resumed, explained and summed up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from drom.scheduler.analysis.comparison import notes
from drom.scheduler.analysis.explain import explain
from drom.scheduler.analysis.metrics import FIGURES, Power, metrics, summary
from drom.scheduler.analysis.schedule import columns
from drom.scheduler.cli.messages import lines
from drom.scheduler.errors import SchedulerError
from drom.scheduler.simulator.simulation import BUDGET, Machine, next_budget
from drom.workloads.cleaning import CleaningReport, Rules

from tests.support.paths import ROOT
from tests.support.schedules import Row, simulation

if TYPE_CHECKING:
    from pathlib import Path

ROWS: list[Row] = [(0, 10, 20, 4), (1, 5, 5, 8), (2, 3, 3, 4), (3, 9, 9, 2)]


def test_resumed(tmp_path: Path) -> None:
    """From a file, to the same arrays."""
    whole, first, second = (simulation(ROWS, "conservative") for _ in range(3))
    whole.run()
    first.run(until=4)
    first.save(tmp_path / "saved")
    second.resume(tmp_path / "saved")
    second.run()

    assert not first.is_over
    assert second.is_over
    assert second.world.jobs.start.tolist() == whole.world.jobs.start.tolist()
    assert second.world.scalars.tolist() == whole.world.scalars.tolist()


def test_not_resumed(tmp_path: Path) -> None:
    """Another machine, other jobs, no saved simulation at all."""
    simulation(ROWS, "easy").save(tmp_path / "saved")
    (tmp_path / "text").write_text("nothing", encoding="utf-8")

    with pytest.raises(SchedulerError, match="was saved with machine nodes 8, not 9: give"):
        simulation(ROWS, "easy", Machine(9)).resume(tmp_path / "saved")
    with pytest.raises(SchedulerError, match="was saved with workload"):
        simulation([*ROWS[:3], (3, 9, 9, 3)], "easy").resume(tmp_path / "saved")
    with pytest.raises(SchedulerError, match="is not a saved simulation of this version"):
        simulation(ROWS, "easy").resume(tmp_path / "text")
    with pytest.raises(SchedulerError, match="cannot be read: No such file or directory: name another file"):
        simulation(ROWS, "easy").resume(tmp_path / "none")
    with pytest.raises(SchedulerError, match=r"cannot be saved to .*: No such file or directory: name another file"):
        simulation(ROWS, "easy").save(tmp_path / "none" / "saved")


def test_a_policy_file_that_was_changed(tmp_path: Path) -> None:
    """One of the same name and parameters that does something else does not go on."""
    file = tmp_path / "mine.py"
    text = "def decide(state, event, options, actions):\n    return 1 << 62\n"
    file.write_text(text, encoding="utf-8")
    simulation(ROWS, str(file)).save(tmp_path / "saved")
    simulation(ROWS, str(file)).resume(tmp_path / "saved")
    file.write_text(text.replace("return", "return state.now * 0 +"), encoding="utf-8")

    with pytest.raises(SchedulerError, match=r"was saved with policy file \w+, not \w+: give the same log and options"):
        simulation(ROWS, str(file)).resume(tmp_path / "saved")


def test_a_name_with_gz(tmp_path: Path) -> None:
    """A saved simulation is packed already: one sentence, and nothing is left behind."""
    with pytest.raises(SchedulerError, match=r"saved\.gz: its format is not gzip: name another file with --save"):
        simulation(ROWS, "easy").save(tmp_path / "saved.gz")

    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file(tmp_path: Path) -> None:
    """Cut anywhere, or with any byte of its first thousand changed: a sentence, or the same simulation."""
    run = simulation(ROWS, "easy")
    run.run(until=4)
    run.save(tmp_path / "saved")
    whole = (tmp_path / "saved").read_bytes()
    damaged = [whole[:size] for size in range(0, len(whole), 101)]
    damaged += [whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :] for at in range(0, 1000, 7)]
    for text in damaged:
        (tmp_path / "damaged").write_bytes(text)
        other = simulation(ROWS, "easy")
        try:
            other.resume(tmp_path / "damaged")
        except SchedulerError as error:
            assert str(error).startswith(str(tmp_path / "damaged"))  # noqa: PT017 - either is right
        else:
            assert other.world.jobs.start.tolist() == run.world.jobs.start.tolist()


def test_jobs_submitted_together_are_in_order_of_their_numbers() -> None:
    """Whatever their order in the log."""
    run = simulation(ROWS, "fcfs")
    turned = type(run).of(run.work.take(np.arange(4)[::-1]), run.machine, run.policy)

    assert turned.work.job.tolist() == [1, 2, 3, 4]


def test_metrics() -> None:
    """By hand: starts 0, 10, 2 and 15 seconds later."""
    run = simulation([(0, 10, 10, 4), (1, 5, 5, 8), (2, 8, 8, 4)], "easy")
    run.run()
    found = metrics(run, Power(100, 300))
    table = columns(run)

    assert table["start"].tolist() == [0, 10, 2]
    assert found["makespan_s"] == 15
    assert found["mean_response_s"] == pytest.approx((10 + 14 + 8) / 3)
    assert found["mean_wait_s"] == pytest.approx(9 / 3)
    assert found["mean_slowdown"] == pytest.approx((1 + 14 / 5 + 1) / 3)
    assert found["mean_bounded_slowdown"] == pytest.approx((1 + 1.4 + 1) / 3)
    assert found["utilisation"] == pytest.approx((40 + 40 + 32) / (8 * 15))
    assert found["energy_joule"] == 100 * 8 * 15 + 200 * (40 + 40 + 32)


def test_utilisation_of_much_work() -> None:
    """More processor-seconds than 64 bits hold: twelve jobs of the longest time on the most processors."""
    run = simulation([(0, 10**10, 10**10, 100)] * 12, "fcfs", Machine(100, 10**6))
    run.run()

    assert metrics(run, Power())["utilisation"] == pytest.approx(1)


def test_a_job_that_its_limit_ends_counts_for_what_it_did() -> None:
    """Where cleaning keeps overruns: 100 s of 1000, on all its cores or, as a guest on half of them, 50 s of them."""
    alone = simulation([(0, 1000, 100, 1), (0, 30, 60, 1)], "fcfs", Machine(1))
    guest = simulation([(0, 900, 900, 1), (0, 1000, 50, 1)], "sd", Machine(1, 2), "interval=1")
    for run in (alone, guest):
        run.run()
    told = summary(alone, CleaningReport(2, 2, Rules(), ()), Power(), "", 1)
    found = told["metrics"]

    assert (found["utilisation"], found["mean_slowdown"]) == (1, (1 + 130 / 30) / 2)
    assert columns(alone)["full_speed_run_time"].tolist() == [100, 30]
    assert columns(guest)["full_speed_run_time"].tolist() == [900, 50]
    assert guest.world.end.tolist() == [950, 100]
    assert (told["ended_at_limit"], told["predictions"]["too_short"]) == (1, 0)
    assert "  1 job ended at the limit with work left" in lines(told)


def test_a_partial_run_is_measured_up_to_its_last_event() -> None:
    """One job has ended, another is half done: of 1000 s on two nodes one was busy for 10 s, the other for 1000."""
    run = simulation([(0, 10, 10, 1), (0, 5000, 5000, 1), (1000, 1, 1, 2)], "fcfs", Machine(2))
    run.run(until=1000)
    found = metrics(run, Power(100, 300))

    assert found["makespan_s"] == 10
    assert found["node_utilisation"] == pytest.approx(1010 / 2000)
    assert found["utilisation"] == pytest.approx(10 / 2000)
    assert found["energy_joule"] == 100 * 2 * 1000 + 200 * 1010


def test_a_core_of_a_pool_takes_its_part_of_the_watts_of_a_node() -> None:
    """The same jobs on all cores of a machine take as much in a pool, whose summary says of which machine it is."""
    runs = [simulation([(0, 10, 10, 2)], policy, Machine(2, 8)) for policy in ("easy", "equipartition")]
    for run in runs:
        run.run()
    easy, pool = (summary(run, CleaningReport(1, 1, Rules(), ()), Power(100, 300), "", 1) for run in runs)

    assert easy["metrics"]["energy_joule"] == pool["metrics"]["energy_joule"] == 300 * 2 * 10
    assert (pool["power_model"]["idle_watt"], pool["pool_of"]) == (12.5, {"nodes": 2, "cores": 8})
    assert easy["pool_of"] is None
    assert notes(["easy", "pool"], [easy, pool]) == []


def test_how_often_it_is_looked_at() -> None:
    """Slow instants one by one, quick ones by the thousand, and never more than twice as many as before."""
    assert [next_budget(1, 0.5), next_budget(100, 0.4), next_budget(100, 0.0)] == [1, 50, 200]
    assert next_budget(BUDGET, 0.001) == BUDGET


def test_no_metrics_before_anything_has_ended() -> None:
    """None for each of them."""
    run = simulation(ROWS, "easy")
    run.run(until=1)
    found = metrics(run, Power())

    assert {found[name] for name in FIGURES} == {None}
    assert found["malleable_starts"] == 0


def test_a_backfilled_job_explained() -> None:
    """What was free, who waited, whom it overtook."""
    run = simulation(ROWS, "easy")
    run.run()

    asked = "Job 2 asks for 8 nodes for 5 s."
    assert explain(run, 2) == [
        f"{asked} It was submitted at 1, when 4 nodes of 8 stayed free and 0 jobs waited ahead of it.",
        "It started at 14, after 13 s, when 1 job ended (4 (2 nodes)); before, 6 nodes were free.",
        "2 later jobs started before it: 3 (4 nodes), 4 (2 nodes).",
    ]
    assert explain(run, 3)[1:] == [
        "It started at once.",
        "It was backfilled ahead of 1 job submitted before: 2 (8 nodes).",
    ]
    with pytest.raises(SchedulerError, match="There is no job 9"):
        explain(run, 9)


def test_a_shared_start_explained() -> None:
    """Who shrank, for whom, and what it cost."""
    rows = [(0, 100, 100, 1), (0, 90, 90, 1), (30, 20, 20, 2), (75, 5, 5, 1)]
    run = simulation(rows, "sd", Machine(2, 48), "interval=1")
    run.run()

    assert explain(run, 3)[1:3] == [
        "It started at once.",
        (
            "It started as a guest with 24 of 48 cores of each node. Its mates shrank for it, "
            "which has cost them: 1 (1 node) 20 s, 2 (1 node) 20 s."
        ),
    ]
    assert explain(run, 1)[2:] == ["It shrank for 2 guests, which has cost it: 3 (2 nodes) 20 s, 4 (1 node) 5 s."]


def test_a_waiting_job_explained() -> None:
    """With its reservation."""
    run = simulation(ROWS, "easy")
    run.run(until=4)

    assert explain(run, 2)[1] == "It has not started by 3; it is planned to start at 20."


def test_plain_python_gives_the_same_schedule() -> None:
    """Where numba is switched off."""
    script = (
        "from drom.scheduler.simulator.simulation import Machine\nfrom tests.support.schedules import simulation\n"
        "from tests.scheduler.simulator.test_simulation import ROWS\n"
        "for policy in ('fcfs', 'easy', 'conservative', 'slurm', 'sd', 'equipartition'):\n"
        "    run = simulation(ROWS, policy, Machine(8, 4))\n    run.run()\n"
        "    print(run.program.compiled, run.world.jobs.start.tolist())\n"
    )
    plain = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    out = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=plain, capture_output=True, text=True, check=True
    )
    expected = []
    for policy in ("fcfs", "easy", "conservative", "slurm", "sd", "equipartition"):
        run = simulation(ROWS, policy, Machine(8, 4))
        run.run()
        expected.append(f"False {json.dumps(run.world.jobs.start.tolist())}")

    assert out.stdout.splitlines() == expected
