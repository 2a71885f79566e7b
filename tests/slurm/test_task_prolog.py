# SPDX-License-Identifier: Apache-2.0
"""Jobs of a real Slurm with drom's TaskProlog, for sites that compile no plugin."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from dromlib import native
from tests.slurm.programs import Program, build_program, copy_package, is_touched, variables
from tests.slurm.rig import Slurm
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = (ROOT / "contrib" / "slurm" / "task_prolog.sh").read_text(encoding="utf-8")
MALLEABLE = ("-p", "malleable", "--oversubscribe", "-n1", "-c2", "--export=ALL,DROM_MALLEABLE=1:2")


@pytest.fixture(scope="module")
def site() -> Iterator[Slurm]:
    """Return a Slurm with the TaskProlog, whose first lines are adapted to it."""
    with TemporaryDirectory(prefix="drom-slurm-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        copy_package(folder)
        build_program(folder)
        settings = {
            "runtime_dir=/run/drom": f"runtime_dir={folder}/agent/run",
            "drom_run=/usr/local/bin/drom-run": f"drom_run={folder}/package/bin/drom-run",
            "deadline=30": "deadline=${TEST_DEADLINE:-30}",
        }
        script = SCRIPT
        for line, changed in settings.items():
            assert f"\n{line}\n" in script
            script = script.replace(line, changed)
        (folder / "task_prolog.sh").write_text(script, encoding="utf-8")
        (folder / "task_prolog.sh").chmod(0o755)
        with Slurm(folder, settings=f"TaskProlog={folder}/task_prolog.sh\n") as cluster:
            (folder / "work").chmod(0o777)
            yield cluster


@pytest.fixture(autouse=True)
def no_jobs(site: Slurm) -> Iterator[None]:
    """End all jobs after the test."""
    yield
    site.cancel_all()


def test_an_unmodified_program_is_resized_and_keeps_its_exit_code(site: Slurm) -> None:
    """A second job gets one of two CPUs, and the first has that back after it, each with as many threads as CPUs."""
    first, second = Program(site, "first"), Program(site, "second")
    ran = site.launch("first", *MALLEABLE, *first.words)
    one = f"slurm-{site.number_of('first')}"
    site.await_true(lambda: site.ranks() == {one: ["0-1"]}, "both CPUs for the first job")
    first.await_threads(2)
    also_ran = site.launch("second", *MALLEABLE, *second.words)
    other = f"slurm-{site.number_of('second')}"
    site.await_true(lambda: site.ranks() == {one: ["0"], other: ["1"]}, "a CPU for each job")
    first.await_threads(1)
    second.await_threads(1)

    second.end()
    site.await_true(lambda: site.ranks() == {one: ["0-1"]}, "both CPUs for the first job again")
    first.await_threads(2)
    first.end()
    assert [site.await_end(ran), site.await_end(also_ran)] == [7, 7]


def test_another_users_task_finds_drom_and_is_bound(site: Slurm) -> None:
    """The agent takes the task's process from the kernel, as the parent of the one that registers it."""
    show = ("sh", "-c", "id -un; echo PID=$$; env")
    done = site.srun(*MALLEABLE, *show, user="games")
    found = variables(done.stdout)

    assert (done.returncode, done.stderr, done.stdout.split("\n", 1)[0]) == (0, "", "games")
    assert found["DROM_TASK"].partition(":")[0] == found["PID"]
    assert found["DROM_CPUS"] == "0-1"
    assert found["LD_PRELOAD"] == str(site.folder / "package" / "lib" / native.preload_path().name)


def test_a_job_that_does_not_ask_is_left_alone(site: Slurm) -> None:
    """Its environment is as without the script."""
    done = site.srun("-n1", "-c2", "env")

    assert (done.returncode, done.stderr, is_touched(variables(done.stdout))) == (0, "", False)


BAD = ("2:1", "0:1", "1", "1:", ":1", "1:2:3", "x:y", "1:2;id", "99999999999999999999:1", "1:123456")


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_value_is_told_and_stops_no_task(site: Slurm, bad: str) -> None:
    """The sentence is in the job's output."""
    done = site.srun("-n1", "-c2", "env", DROM_MALLEABLE=bad)

    told = f"drom: DROM_MALLEABLE={bad}: give two numbers of CPUs per task, from 1 on, such as 4:48."
    assert (done.returncode, is_touched(variables(done.stdout))) == (0, False)
    assert told in done.stdout.splitlines()


def test_a_node_without_drom_run_stops_no_task(site: Slurm) -> None:
    """The sentence is in the job's output."""
    launcher = site.folder / "package" / "bin" / "drom-run"
    launcher.chmod(0o644)
    try:
        done = site.srun("-n1", "-c2", "env", DROM_MALLEABLE="1:2")
    finally:
        launcher.chmod(0o755)

    assert (done.returncode, is_touched(variables(done.stdout))) == (0, False)
    assert f"drom: this task runs unmanaged: there is no {launcher} on this node." in done.stdout.splitlines()


def test_a_task_runs_without_an_agent(site: Slurm) -> None:
    """Its environment is as without the script."""
    site.stop_agent()
    try:
        done = site.srun("-n1", "-c2", "env", DROM_MALLEABLE="1:2")
    finally:
        site.start_agent()

    assert (done.returncode, is_touched(variables(done.stdout))) == (0, False)


def test_a_task_that_waits_too_long_runs_on_slurms_cpus(site: Slurm) -> None:
    """After the deadline of the site it starts, unmanaged."""
    holder = Program(site, "holder")
    site.launch("holder", *MALLEABLE[:-1], "--export=ALL,DROM_MALLEABLE=2:2", *holder.words)
    job = f"slurm-{site.number_of('holder')}"
    site.await_true(lambda: site.ranks() == {job: ["0-1"]}, "a job that gives up no CPU")
    done = site.srun(*MALLEABLE[:-1], "sh", "-c", "taskset -cp $$; env", DROM_MALLEABLE="1:2", TEST_DEADLINE="1")

    assert done.returncode == 0
    assert done.stdout.splitlines()[0].endswith(": 0,1")
    assert not is_touched(variables(done.stdout))
    assert site.ranks() == {job: ["0-1"]}


def test_a_batch_script_is_no_task(site: Slurm) -> None:
    """A step in it is."""
    step = Program(site, "step")
    job = site.submit(f"env >script\nsrun {' '.join(step.words)}", "--export=ALL,DROM_MALLEABLE=1:2")
    site.await_true(lambda: site.ranks() == {f"slurm-{job}": ["0-1"]}, "the step")

    assert "DROM_TASK" not in variables((site.folder / "work" / "script").read_text())
