# SPDX-License-Identifier: Apache-2.0
"""Steps of a job of a real Slurm, and programs of its batch script: one job of the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.slurm.rig import Slurm

STEP = "srun -n1 -c1 --exact drom-run sleep 1000 &"


@pytest.fixture(autouse=True)
def no_jobs(slurm: Slurm) -> Iterator[None]:
    """End all jobs after the test."""
    yield
    slurm.cancel_all()


def test_steps_on_cpus_of_their_own_are_one_job(slurm: Slurm) -> None:
    """Each keeps to the CPU that Slurm gave it."""
    job = slurm.submit(f"{STEP}\n{STEP}\nwait")
    slurm.await_true(lambda: sorted(slurm.ranks().get(f"slurm-{job}", [])) == ["0", "1"], "a CPU for each step")

    assert list(slurm.ranks()) == [f"slurm-{job}"]


def test_programs_of_a_script_share_the_cpus_of_their_job(slurm: Slurm) -> None:
    """The one that stays has all of them again."""
    job = slurm.submit("drom-run sleep 1000 &\ndrom-run sh -c 'until test -e done; do sleep 0.01; done' &\nwait")
    slurm.await_true(lambda: sorted(slurm.ranks().get(f"slurm-{job}", [])) == ["0", "1"], "a CPU for each program")
    (slurm.folder / "work" / "done").touch()
    slurm.await_true(lambda: slurm.ranks() == {f"slurm-{job}": ["0-1"]}, "both CPUs for the one that is left")


def test_a_program_beside_another_on_one_cpu_does_not_wait(slurm: Slurm) -> None:
    """The second is part of the task of the first, as the job has no other CPU."""
    job = slurm.submit("drom-run sleep 1000 &\ndrom-run sh -c 'echo > started; sleep 1000' &\nwait", cpus=1)
    slurm.await_true((slurm.folder / "work" / "started").exists, "the second program")

    assert slurm.ranks() == {f"slurm-{job}": [slurm.cpus_of(job)]}


def test_an_agent_that_starts_again_knows_the_job(slurm: Slurm) -> None:
    """A program that is launched after that is one more task of it."""
    job = slurm.submit("drom-run sleep 1000 &\nuntil test -e again; do sleep 0.01; done\ndrom-run sleep 1000 &\nwait")
    slurm.await_true(lambda: slurm.ranks() == {f"slurm-{job}": ["0-1"]}, "the first program")
    slurm.restart_agent()
    (slurm.folder / "work" / "again").touch()

    slurm.await_true(lambda: sorted(slurm.ranks().get(f"slurm-{job}", [])) == ["0", "1"], "a CPU for each program")


def test_an_array_is_a_job_for_each_of_its_tasks(slurm: Slurm) -> None:
    """Each of two tasks at a time has exactly the CPU that Slurm gave it, also the third, which starts later."""
    array = slurm.submit("drom-run sleep 1000", "--array=1-3%2", cpus=1)
    await_tasks(slurm, f"{array}_1", f"{array}_2")
    slurm.ask_slurm("scancel", f"{array}_1")
    await_tasks(slurm, f"{array}_2", f"{array}_3")


def await_tasks(slurm: Slurm, *names: str) -> None:
    """Wait until these tasks of an array run and are the only jobs of the agent, each with Slurm's CPU."""
    query = ("squeue", "-h", "-t", "R", "-o", "%i %A")

    def numbers() -> list[str]:
        found = dict(line.split() for line in slurm.ask_slurm(*query).splitlines())
        return [*found.values()] if found.keys() == {*names} else []

    jobs = [f"slurm-{number}" for number in slurm.await_true(numbers, f"{names}")]
    slurm.await_true(lambda: slurm.ranks().keys() == {*jobs}, f"{jobs}")
    wanted = {job: [slurm.cpus_of(job.partition("-")[2])] for job in jobs}
    slurm.await_true(lambda: slurm.ranks() == wanted, f"{wanted}")
    assert sorted(wanted.values()) == [["0"], ["1"]]
