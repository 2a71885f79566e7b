# SPDX-License-Identifier: Apache-2.0
"""What jobs of a real Slurm used is in their admin comments, in the history of `drom slurm`, and in its report."""

from __future__ import annotations

import json
import os
import signal
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.model.core_use import read_uses
from drom.agent.system import python_command
from drom.scheduler.testbed.slurm import SlurmCluster, build_plugin, plugin_line, why_no_slurm, write_job_submit

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS = """\
JobSubmitPlugins=lua
Licenses=drom_gate:1000000
PriorityType=priority/multifactor
MinJobAge=2
PartitionName=main Nodes={nodes} Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES:2
"""
WAIT = "srun sh -c 'while [ ! -e go-$SLURM_JOB_ID ]; do sleep 0.05; done'"
WHOLE = ("-N2", "-n2", "-c4", "--malleable=1:4", "-t600")


@pytest.fixture(scope="module")
def site() -> Iterator[SlurmCluster]:
    """Return a Slurm of two nodes with four cores each, of which the agents write comments."""
    if reason := why_no_slurm():
        pytest.skip(reason)
    with TemporaryDirectory(prefix="drom-slurm-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        write_job_submit(folder, gated="main")
        plugin = plugin_line(build_plugin(folder), 30)
        prefix = f"u{os.getpid()}-"
        with SlurmCluster(
            folder, nodes=2, settings=SETTINGS, plugstack=plugin, agent_options=("--slurm-comments",), prefix=prefix
        ) as cluster:
            yield cluster


def report(site: SlurmCluster, *words: str) -> dict[str, dict[str, Any]]:
    """Return the rows of the report by job."""
    command = python_command.drom("slurm", "report", "--jobs", "--json", "--state", str(site.folder / "gate"), *words)
    return {row["job"]: row for row in json.loads(site.ask(*command))["rows"]}


def comment(site: SlurmCluster, job: int) -> str:
    """Return the admin comment of a job."""
    return site.ask("squeue", "-h", "-j", str(job), "-O", "admin_comment:0").strip()


def cores(site: SlurmCluster, job: int) -> dict[str, tuple[float, ...]]:
    """Return the cores that a job holds, lends and borrows on each node by its comment."""
    return {node: tuple(use.cores) for node, use in read_uses(comment(site, job)).items()}


@contextmanager
def remembered(site: SlurmCluster) -> Iterator[None]:
    """Have Slurm keep jobs that end in the block until the block ends."""
    path = site.folder / "slurm.conf"
    usual = path.read_text()
    path.write_text(usual.replace("MinJobAge=2\n", "MinJobAge=600\n"))
    site.ask("scontrol", "reconfigure")
    try:
        yield
    finally:
        path.write_text(usual)
        site.ask("scontrol", "reconfigure")


def test_jobs_that_share_nodes_say_what_they_use(site: SlurmCluster) -> None:
    """The bounds that job_submit.lua wrote stay. After the ends the history has the jobs, which Slurm has forgotten."""
    one, two = site.names
    with site.decided("main"):
        first = site.submit(WAIT, *WHOLE)
        site.await_true(lambda: cores(site, first) == {one: (4, 0, 0), two: (4, 0, 0)}, "the words of both nodes")
        assert comment(site, first).startswith("drom:malleable=1:4 drom:use:")

        guest = site.submit(WAIT, *WHOLE[:-1], "-t5")
        site.await_true(lambda: cores(site, guest) == {one: (2, 0, 2), two: (2, 0, 2)}, "the words of the guest")
        site.await_true(lambda: cores(site, first) == {one: (2, 2, 0), two: (2, 2, 0)}, "the words of its mate")
        (site.work / f"go-{guest}").touch()
        site.await_true(lambda: cores(site, first) == {one: (4, 0, 0), two: (4, 0, 0)}, "the cores to be back")
        assert report(site).keys() >= {str(first), str(guest)}
        (site.work / f"go-{first}").touch()
        site.await_true(lambda: not site.ask("squeue", "-h", "--states=all"), "Slurm to forget both jobs")
    used = report(site)

    mate, other = used[str(first)], used[str(guest)]
    lasted = {job["job"]: job["ended"] - job["started"] for job in (mate, other)}
    assert (mate["cpus"], mate["nodes"], mate["user"]) == (8, 2, "root")
    assert mate["given"] == 8 * lasted[str(first)]
    # Slurm's times are whole seconds, and tasks start some time after their jobs.
    assert other["held"] == other["borrowed"] == pytest.approx(4 * lasted[str(guest)], abs=4 * 2.5)
    assert mate["lent"] == pytest.approx(other["borrowed"], abs=4 * 1.5)
    assert mate["held"] + mate["lent"] == pytest.approx(mate["given"], abs=8 * 2.5)


def test_each_task_of_an_array_has_its_own_comment(site: SlurmCluster) -> None:
    """The last one has the number of the array, by which Slurm would change the comments of all."""
    one, two = site.names
    with site.decided("main"):
        array = site.submit(WAIT, "-N1", "-n1", "-c4", "--malleable=1:4", "-t600", "--array=1-2", "--exclusive")

        def words() -> list[set[str]]:
            rows = site.ask("squeue", "-h", "-j", str(array), "-O", "admin_comment:0").splitlines()
            return sorted((set(read_uses(row)) for row in rows), key=sorted)

        site.await_true(lambda: words() == [{one}, {two}], "one word for each task")
        site.ask("scancel", str(array))
        site.await_true(lambda: not site.ask("squeue", "-h"), "the end of the array")


def test_an_agent_that_was_killed_goes_on_counting(site: SlurmCluster) -> None:
    """From the word that the one before it wrote."""
    one, _ = site.names
    with site.decided("main"):
        job = site.submit(WAIT, "-N1", "-n1", "-c4", "--malleable=1:4", "-t600", "-w", one)
        site.await_true(lambda: cores(site, job) == {one: (4, 0, 0)}, "the word of the node")
        before = read_uses(comment(site, job))[one]
        site.agents[one].end(signal.SIGKILL)
        site.start_agent(one)
        site.await_true(lambda: read_uses(comment(site, job))[one].at != before.at, "another word")
        after = read_uses(comment(site, job))[one]
        (site.work / f"go-{job}").touch()
        site.await_true(lambda: not site.ask("squeue", "-h"), "the end of the job")

    assert after.cores == before.cores
    assert after.total.held == pytest.approx(before.until(after.at).held, abs=8)


def test_the_report_needs_no_daemon(site: SlurmCluster) -> None:
    """Where cron runs it with --record, it stores the jobs that have ended."""
    elsewhere = ("--state", str(site.folder / "elsewhere"))
    job = site.submit(WAIT, "-N1", "-n1", "-c4", "--malleable=1:4", "-t600")
    site.await_true(lambda: cores(site, job), "the word of the node")
    with remembered(site):
        (site.work / f"go-{job}").touch()
        site.await_true(lambda: site.ask("squeue", "-h", "-j", str(job), "--states=COMPLETED", "-o", "%i"), "its end")
        assert str(job) in report(site, *elsewhere, "--record")
    site.await_true(lambda: not site.ask("squeue", "-h", "--states=all"), "Slurm to forget the job")

    assert str(job) in report(site, *elsewhere)
    assert (site.folder / "elsewhere" / "history.sqlite").stat().st_mode & 0o777 == 0o600
