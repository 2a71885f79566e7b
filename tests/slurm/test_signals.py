# SPDX-License-Identifier: Apache-2.0
"""Signals that a real Slurm sends to jobs: those below `drom run` receive the same as others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.slurm.rig import Slurm

CATCH = """\
caught=$1
trap 'echo USR1 >> $caught' USR1
echo ready > $caught
while :; do sleep 0.02; done
"""
"""A program that writes the signals that it receives into its first argument."""
SCRIPT = """\
trap 'echo USR1 >> script' USR1
srun -n1 -c1 --overlap {run} sh {catch} step &
{run} sh {catch} program &
echo ready > script
while :; do wait; sleep 0.02; done
"""
"""A job with a step and a program without one."""
EARLY = 25
"""Seconds before the end of a limit of a minute at which Slurm sends the signal: 5 to 35 s after the job's start."""


@pytest.fixture(autouse=True)
def no_jobs(slurm: Slurm) -> Iterator[None]:
    """End all jobs after the test."""
    yield
    slurm.cancel_all()


class Job:
    """A job that runs `SCRIPT` in a folder of its own, on one CPU."""

    def __init__(self, slurm: Slurm, name: str, run: str, *options: str) -> None:
        self._slurm = slurm
        self._folder = slurm.folder / "work" / name
        self._folder.mkdir()
        catch = self._folder / "catch"
        catch.write_text(CATCH)
        script = SCRIPT.format(run=run, catch=catch)
        self.number = slurm.submit(script, "-D", str(self._folder), *options, cpus=1)

    @property
    def caught(self) -> dict[str, str]:
        """What the script, the step and the program have written."""
        files = {name: self._folder / name for name in ("script", "step", "program")}
        return {name: file.read_text() if file.exists() else "" for name, file in files.items()}

    def await_caught(self, **counts: int) -> None:
        """Wait until script, step and program are ready and have received the signal so many times, or never."""
        wanted = {name: "ready\n" + "USR1\n" * counts.get(name, 0) for name in self.caught}
        self._slurm.await_true(lambda: self.caught == wanted, f"{wanted}")


@pytest.mark.parametrize("run", ["drom-run", ""], ids=["drom", "plain"])
def test_scancel_sends_a_signal(slurm: Slurm, run: str) -> None:
    """Steps receive it, or the script, or all processes of the job, and all of them go on."""
    job = Job(slurm, f"signals{run}", run)
    job.await_caught()
    slurm.ask_slurm("scancel", "--signal=USR1", job.number)
    job.await_caught(step=1)
    slurm.ask_slurm("scancel", "--signal=USR1", "--batch", job.number)
    job.await_caught(step=1, script=1)
    slurm.ask_slurm("scancel", "--signal=USR1", "--full", job.number)
    job.await_caught(step=2, script=2, program=1)


def test_slurm_sends_a_signal_before_the_time_limit(slurm: Slurm) -> None:
    """With --signal=USR1@N the steps of a job receive it, and with --signal=B:USR1@N its script."""
    steps = Job(slurm, "limit-steps", "drom-run", "--time=1", f"--signal=USR1@{EARLY}")
    script = Job(slurm, "limit-script", "drom-run", "--time=1", f"--signal=B:USR1@{EARLY}")
    steps.await_caught(step=1)
    script.await_caught(script=1)
