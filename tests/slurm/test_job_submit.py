# SPDX-License-Identifier: Apache-2.0
"""Jobs of a real Slurm with the plugin and job_submit.lua: malleable ones share their cores without being told to."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.slurm.programs import Program
from tests.slurm.test_plugin import slurm_with_plugin
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.slurm.rig import Slurm

WHOLE = ("-p", "malleable", "-n1", "-c2")


@pytest.fixture(scope="module")
def site() -> Iterator[Slurm]:
    """Return a Slurm with the plugin and the script."""

    def copy_script(folder: Path) -> None:
        shutil.copy(ROOT / "contrib" / "slurm" / "job_submit.lua", folder)

    with slurm_with_plugin(settings="JobSubmitPlugins=lua\n", prepare=copy_script) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def no_jobs(site: Slurm) -> Iterator[None]:
    """End all jobs after the test."""
    yield
    site.cancel_all()


def oversubscribes(site: Slurm, number: str) -> str:
    """Return whether a job shares its cores, in Slurm's words."""
    words = site.ask_slurm("scontrol", "show", "job", number).split()
    return next(word.partition("=")[2] for word in words if word.startswith("OverSubscribe="))


def test_a_second_malleable_job_starts_beside_the_first(site: Slurm) -> None:
    """The first shrinks for it, and grows after it."""
    first, second = Program(site, "one"), Program(site, "two")
    site.launch("one", *WHOLE, "--malleable=1:2", *first.words)
    one = site.number_of("one")
    site.await_true(lambda: site.ranks() == {f"slurm-{one}": ["0-1"]}, "both CPUs for the first job")
    two = site.submit(" ".join(("srun", *second.words)), "-p", "malleable", "--malleable=1:2")
    site.await_true(lambda: site.ranks() == {f"slurm-{one}": ["0"], f"slurm-{two}": ["1"]}, "a CPU for each job")
    assert [oversubscribes(site, number) for number in (one, two)] == ["YES", "YES"]

    second.end()
    site.await_true(lambda: site.ranks() == {f"slurm-{one}": ["0-1"]}, "both CPUs for the first job again")


def test_a_job_of_fixed_size_shares_no_core(site: Slurm) -> None:
    """It waits in Slurm's queue while a malleable job has the cores."""
    site.launch("one", *WHOLE, "--malleable=1:2", "sleep", "1000")
    site.await_true(lambda: list(site.ranks().values()) == [["0-1"]], "both CPUs for the malleable job")
    rigid = site.submit("sleep 1000", "-p", "malleable")

    assert oversubscribes(site, rigid) == "OK"
    asked = ("squeue", "-h", "-j", rigid, "-o", "%T %r")
    site.await_true(lambda: site.ask_slurm(*asked).strip() == "PENDING Resources", "the reason why it waits")


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--exclusive", "with --exclusive this job keeps its nodes for itself."),
        ("--mem=0", "with --mem=0 this job keeps the memory of its nodes, and with it the nodes, for itself."),
    ],
)
def test_a_malleable_job_that_cannot_share_is_told_why(site: Slurm, option: str, sentence: str) -> None:
    """It runs as Slurm runs it."""
    done = site.srun(*WHOLE, option, "--malleable=1:2", "true")

    assert done.returncode == 0
    assert f"drom: {sentence}" in done.stderr


def test_a_heterogeneous_job_is_left_alone(site: Slurm) -> None:
    """None of its parts shares its cores unless its user says so."""
    part = ("-p", "malleable", "--malleable=1:1", "--begin=now+1hour")
    job = site.submit("true", *part, ":", "-n1", "-c1", *part, cpus=1)
    shown = site.ask_slurm("scontrol", "show", "job", job)

    assert [word for word in shown.split() if word.startswith("OverSubscribe=")] == ["OverSubscribe=OK"] * 2


def test_a_minimum_above_the_cpus_of_a_task_is_refused_at_submission(site: Slurm) -> None:
    """There is no job, and one sentence of drom's."""
    done = site.srun(*WHOLE, "--malleable=3:4", "true")

    sentence = "drom: --malleable=3:4: each task has 2 CPUs: give a minimum of at most 2, or more CPUs with -c."
    assert done.returncode
    assert sum("drom:" in line for line in done.stderr.splitlines()) == 1
    assert sentence in done.stderr


def test_a_waiting_malleable_job_may_be_changed_by_its_user(site: Slurm) -> None:
    """The script stands in no change's way."""
    job = site.submit("true", "-p", "malleable", "--malleable=1:2", "--begin=now+1hour")
    site.ask_slurm("scontrol", "update", f"jobid={job}", "timelimit=7")

    assert "TimeLimit=00:07:00" in site.ask_slurm("scontrol", "show", "job", job)
