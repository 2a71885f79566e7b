# SPDX-License-Identifier: Apache-2.0
"""The helper of `drom slurm` with a real Slurm: it reads what Slurm's commands print, and changes jobs as they do."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import psutil
import pytest
from drom.scheduler.slurm.helper import HelperReader
from drom.scheduler.slurm.reader import Reader
from drom.scheduler.testbed.slurm import SlurmCluster, build_helper, why_no_slurm, write_job_submit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drom.scheduler.slurm.records import Job, Reading

SETTINGS = """\
JobSubmitPlugins=lua
Licenses=drom_gate:1000000,matlab:3
PriorityType=priority/multifactor
PartitionName=main Nodes={nodes} Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES:2
PartitionName=other Nodes={nodes} MaxTime=60 State=UP OverSubscribe=NO
"""


@pytest.fixture(scope="module")
def site() -> Iterator[SlurmCluster]:
    """Return a Slurm of two nodes whose main partition has a gate, with the helper in its folder."""
    if reason := why_no_slurm():
        pytest.skip(reason)
    with TemporaryDirectory(prefix="drom-slurm-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        write_job_submit(folder, gated="main")
        build_helper(folder)
        with SlurmCluster(folder, nodes=2, settings=SETTINGS, prefix=f"h{os.getpid()}-") as cluster:
            (folder / "bin").mkdir()
            programs = {"squeue": "squeue", "scontrol": "scontrol", "helper": str(folder / "drom-slurm-helper")}
            for name, program in programs.items():
                script = f'#!/bin/sh\nPATH={os.environ["PATH"]}\nexec {" ".join(cluster.on_head(program))} "$@"\n'
                (folder / "bin" / name).write_text(script, encoding="utf-8")
                (folder / "bin" / name).chmod(0o755)
            yield cluster


@pytest.fixture(autouse=True)
def no_jobs(site: SlurmCluster) -> Iterator[None]:
    """End all jobs after the test."""
    yield
    site.ask("scancel", "--user", "root")
    site.await_true(lambda: not site.ask("squeue", "-h"), "the end of all jobs")


@pytest.fixture
def environ(site: SlurmCluster) -> dict[str, str]:
    """Return an environment whose Slurm commands run on the head."""
    return {"PATH": f"{site.folder / 'bin'}:/usr/bin:/bin", "SLURM_CONF": str(site.folder / "slurm.conf")}


@pytest.fixture
def helped(site: SlurmCluster, environ: dict[str, str]) -> Iterator[HelperReader]:
    """Return a reader with the helper, which is never given up."""
    told: list[str] = []
    with closing(HelperReader(environ, site.folder / "bin" / "helper", told.append)) as reader:
        yield reader
    assert told == []


def by_number(read: Reading[Job]) -> dict[tuple[int, int | None], Job]:
    """Return jobs by number and task."""
    assert read.faults == ()
    return {(job.number, job.task): job for job in read.records}


def test_records_equal_those_read_from_text(site: SlurmCluster, environ: dict[str, str], helped: HelperReader) -> None:
    """Jobs of many kinds, also one that runs and one that has ended, and all nodes."""
    ended = site.submit("true", "-p", "other", "-t1")
    running = site.submit("sleep 1000", "-N1", "-n1", "-c4", "-t60", "-p", "other", "--oversubscribe")
    held = site.submit("true", "-H", "-N1", "-n2", "-t90", "-L", "matlab:2", "--comment", "a b;c|d\nJobId=7", "-J", "é")
    site.submit("true", "-H", "--array", "1-90:3%2")
    site.submit("true", "--begin", "now+1hour", "--nice=7", "-p", "other,main")
    site.submit("true", "-d", f"afterok:{held}", "-w", site.names[0])
    site.submit("true", "-H", "--exclusive", "-N2-3", "--mem=50", "--account", "one")
    site.submit("true", "-H", "-t", "2-03:00:00")
    site.ask("sbatch", "-H", "-N1", "--wrap", "true", ":", "-n1", "-N1")
    states = ("squeue", "-h", "--states=all", "-o", "%T", "-j")
    site.await_true(lambda: site.ask(*states, str(ended)).strip() == "COMPLETED", "the end of a job")
    site.await_true(lambda: site.ask(*states, str(running)).strip() == "RUNNING", "a job that runs")
    text = Reader(environ)

    site.await_true(lambda: by_number(text.jobs()) == by_number(helped.jobs()), "equal jobs")
    assert len(helped.jobs().records) >= 10
    assert helped.nodes() == text.nodes()
    site.ask("scontrol", "update", f"nodename={site.names[1]}", "state=drain", "reason=a b State=IDLE")
    drained = text.nodes()
    site.ask("scontrol", "update", f"nodename={site.names[1]}", "state=resume")
    assert drained != text.nodes() == helped.nodes()


def test_jobs_and_tasks_of_arrays_are_changed(site: SlurmCluster, helped: HelperReader) -> None:
    """A job that is released has its nodes and is first; squeue would hide that a task differs from its array."""
    job = site.submit("true", "-H", "-L", "matlab:2")
    array = site.submit("true", "-H", "--array", "1-9%2")
    helped.jobs()
    helped.update(f"jobid={job}", "licenses=matlab:2", f"reqnodelist={site.names[1]}", "nice=-1000000")
    helped.update(f"jobid={array}_7", "licenses=", f"reqnodelist={site.names[0]}", "nice=-1000000")
    jobs = helped.jobs().records

    (changed,) = [one for one in jobs if one.number == job]
    assert (changed.licences, changed.requested_nodes, changed.nice) == ((("matlab", 2),), (site.names[1],), -1000000)
    (task,) = [one for one in jobs if (one.array, one.task) == (array, 7)]
    assert (task.licences, task.requested_nodes, task.nice) == ((), (site.names[0],), -1000000)
    (others,) = [one for one in jobs if one.array == array and one.task is None]
    assert (others.tasks_left, others.licences) == ("1-6,8-9%2", (("drom_gate", 1),))


def test_the_daemon_goes_on_without_its_helper(site: SlurmCluster) -> None:
    """A job is released by the helper, and another one by Slurm's commands after the helper was killed."""
    file = site.folder / "drom-slurm-helper"
    with site.decided("main", "--helper", str(file)):
        first = site.submit("true", "-N1", "-n1", "-c4", "-t1")
        site.await_true(lambda: f"slurm_released job={first} " in site.output_of("daemon"), "a release")
        (helper,) = [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == [str(file)]]
        helper.send_signal(signal.SIGKILL)
        second = site.submit("true", "-N1", "-n1", "-c4", "-t1")
        site.await_true(lambda: f"slurm_released job={second} " in site.output_of("daemon"), "another release")

    failures = [line for line in site.output_of("daemon").splitlines() if "event=slurm_failed" in line]
    assert len(failures) == 1
    assert "does not work (it ended with status -9): Slurm's commands are used for 10 min" in failures[0]
