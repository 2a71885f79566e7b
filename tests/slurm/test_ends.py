# SPDX-License-Identifier: Apache-2.0
"""Jobs of a real Slurm that are cancelled or requeued: nothing stays of them, and their CPUs are granted again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.slurm.rig import Slurm

SLEEP = "drom-run sleep 1000"
STUBBORN = "drom-run sh -c 'trap \"\" TERM; while :; do sleep 1000; done'"
AT_ONCE = 2.0
"""Seconds from the end of a program to the new grant of its CPUs, at most. The machine may be busy."""


@pytest.fixture(autouse=True)
def no_jobs(slurm: Slurm) -> Iterator[None]:
    """End all jobs after the test."""
    yield
    slurm.cancel_all()


def submit_sharing(slurm: Slurm, script: str) -> str:
    """Submit a job that shares both CPUs with others, and return its name for the agent."""
    return f"slurm-{slurm.submit(script, '-p', 'shared')}"


@pytest.mark.parametrize("program", [SLEEP, STUBBORN])
def test_the_cpus_of_a_cancelled_job_are_granted_at_once(slurm: Slurm, program: str) -> None:
    """The other job has all CPUs again as soon as the programs have ended, those too that Slurm had to kill."""
    stays = submit_sharing(slurm, SLEEP)
    slurm.await_true(lambda: slurm.ranks() == {stays: ["0-1"]}, "a job on both CPUs")
    goes = submit_sharing(slurm, program)
    slurm.await_true(lambda: slurm.ranks() == {stays: ["0"], goes: ["1"]}, "one CPU for each")

    slurm.ask_slurm("scancel", goes.partition("-")[2])
    slurm.await_true(lambda: not slurm.processes_of(goes), "the end of its programs")
    began = time.monotonic()
    slurm.await_true(lambda: slurm.ranks() == {stays: ["0-1"]}, "both CPUs for the job that stays")
    assert time.monotonic() - began < AT_ONCE


def test_the_cpus_of_a_cancelled_step_are_granted_at_once(slurm: Slurm) -> None:
    """The other step of the job has them, and the job goes on."""
    step = f"srun -n1 -c2 --overlap {SLEEP} &"
    job = slurm.submit(f"{step}\nuntil test -e second; do sleep 0.01; done\n{step}\nwait")
    slurm.await_true(lambda: slurm.ranks() == {f"slurm-{job}": ["0-1"]}, "a step on both CPUs")
    (slurm.folder / "work" / "second").touch()
    slurm.await_true(lambda: sorted(slurm.ranks()[f"slurm-{job}"]) == ["0", "1"], "one CPU for each step")

    slurm.ask_slurm("scancel", f"{job}.0")
    slurm.await_true(lambda: slurm.ranks() == {f"slurm-{job}": ["0-1"]}, "both CPUs for the step that stays")
    left = [f"{job}.1", f"{job}.batch"]  # Slurm notices the end of the step after the agent
    slurm.await_true(lambda: slurm.ask_slurm("squeue", "-h", "-s", "-j", job, "-o", "%i").split() == left, "its end")


def test_a_step_that_waits_for_a_cancelled_one_has_its_cpus(slurm: Slurm) -> None:
    """Slurm starts it on the CPU of the step that was cancelled, and so does the agent."""
    step = f"srun -n1 -c1 --exact {SLEEP} &"
    job = slurm.submit("\n".join([step, step, f"until test -e third; do sleep 0.01; done\n{step}", "wait"]))
    slurm.await_true(lambda: sorted(slurm.ranks().get(f"slurm-{job}", [])) == ["0", "1"], "a CPU for each step")
    before = {row["pid"]: row["granted"] for row in slurm.rows()}
    (slurm.folder / "work" / "third").touch()

    slurm.ask_slurm("scancel", f"{job}.0")
    slurm.await_true(lambda: len({row["pid"] for row in slurm.rows()} - {*before}) == 1, "the third step")
    slurm.await_true(lambda: sorted(slurm.ranks()[f"slurm-{job}"]) == ["0", "1"], "a CPU for each step")


def test_a_requeued_job_runs_again_and_is_registered_once(slurm: Slurm) -> None:
    """Programs of its script and its step are the agent's job of the same name, and none of the first try is left."""
    job = slurm.submit(f"{SLEEP} &\nsrun -n1 -c1 --overlap {SLEEP} &\nwait", "--requeue")
    name = f"slurm-{job}"
    slurm.await_true(lambda: sorted(slurm.ranks().get(name, [])) == ["0", "1"], "two programs")
    first = {row["pid"] for row in slurm.rows()}

    slurm.ask_slurm("scontrol", "requeue", job)
    slurm.await_true(lambda: not slurm.rows() and not slurm.processes_of(name), "the end of the first try")
    slurm.start_requeued(job)
    slurm.await_true(lambda: sorted(slurm.ranks().get(name, [])) == ["0", "1"], "two programs again")
    assert list(slurm.ranks()) == [name]
    assert first & {row["pid"] for row in slurm.rows()} == set()
    assert "Restarts=1 " in slurm.ask_slurm("scontrol", "-o", "show", "job", job)
