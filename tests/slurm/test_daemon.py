# SPDX-License-Identifier: Apache-2.0
"""The daemon `drom slurm` decides for a real Slurm which jobs start where; without it Slurm goes on alone."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from drom.agent.system import python_command
from drom.scheduler.testbed.namespaces import MachineError
from drom.scheduler.testbed.slurm import HEAD, SlurmCluster, build_plugin, plugin_line, why_no_slurm, write_job_submit

if TYPE_CHECKING:
    from collections.abc import Iterator


SETTINGS = """\
JobSubmitPlugins=lua
Licenses=drom_gate:1000000
PriorityType=priority/multifactor
PartitionName=main Nodes={nodes} Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES:2
PartitionName=other Nodes={nodes} MaxTime=INFINITE State=UP OverSubscribe=NO
"""
SLEEP = "srun sleep 1000"
WHOLE = ("--malleable=1:4", "-c4")


@contextmanager
def gated_cluster(prefix: str, settings: str = SETTINGS) -> Iterator[SlurmCluster]:
    """Return a Slurm of three nodes whose main partition has a gate, up in the block."""
    if reason := why_no_slurm():
        pytest.skip(reason)
    with TemporaryDirectory(prefix="drom-slurm-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        write_job_submit(folder, gated="main")
        plugin = plugin_line(build_plugin(folder), 30)
        with SlurmCluster(
            folder, nodes=3, settings=settings, plugstack=plugin, prefix=f"{prefix}{os.getpid()}-"
        ) as cluster:
            yield cluster


@pytest.fixture(scope="module")
def site() -> Iterator[SlurmCluster]:
    """Return the Slurm of these tests."""
    with gated_cluster("g") as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def no_jobs(site: SlurmCluster) -> Iterator[None]:
    """End all jobs after the test."""
    yield
    end_all(site)


def end_all(site: SlurmCluster) -> None:
    """Cancel all jobs, and wait until Slurm has none."""
    site.ask("scancel", "--user", "root")
    site.await_true(lambda: not site.ask("squeue", "-h"), "the end of all jobs")


def owned_folder(site: SlurmCluster, user: str) -> Path:
    """Return a folder of a user that others cannot read, as systemd makes it for the daemon."""
    folder = site.folder / f"of-{user}"
    folder.mkdir(mode=0o700)
    shutil.chown(folder, user, user)
    return folder


def await_requeued(site: SlurmCluster, number: int) -> None:
    """Wait until a requeued job waits at the gate as at first, and let Slurm start it before two minutes are over.

    A job that starts in the second in which its first try ended is refused by slurmd: its credential counts as revoked.
    """
    query = ("squeue", "-h", "-j", str(number), "-o", "%T|%W|%n|%y")
    site.await_true(lambda: site.ask(*query).strip() == "PENDING|drom_gate:1||0", "the job at the gate")
    site.ask("scontrol", "update", f"jobid={number}", "starttime=now+2")


def states(site: SlurmCluster) -> dict[int, str]:
    """Return the state of each job that has not ended."""
    rows = site.ask("squeue", "-h", "-o", "%i %T").split()
    return {int(number): state for number, state in zip(rows[::2], rows[1::2], strict=True)}


def nodes(site: SlurmCluster, number: int) -> list[str]:
    """Return the nodes that a job has."""
    return site.ask(
        "scontrol", "show", "hostnames", site.ask("squeue", "-h", "-j", str(number), "-o", "%N").strip()
    ).split()


def test_jobs_start_where_the_policy_wants_them(site: SlurmCluster) -> None:
    """The third is a guest of one of the others: it is short, and each agent gives it half of its node."""
    with site.decided("main"):
        long = [site.submit(SLEEP, "-N1", "-n1", "-t600", *WHOLE) for _ in range(3)]
        site.await_true(lambda: set(states(site).values()) == {"RUNNING"}, "three jobs")
        guest = site.submit(SLEEP, "-N1", "-n1", "-t1", *WHOLE)
        site.await_true(lambda: states(site).get(guest) == "RUNNING", "the guest")
        (node,) = nodes(site, guest)
        site.await_true(
            lambda: sorted(len(row["granted"]) for row in site.tasks(node)) == [3, 3], "half of the node for each"
        )

    assert len({*map(str, (nodes(site, number) for number in long))}) == 3
    assert (
        f"event=slurm_released job={guest} nodes={node} mates={next(n for n in long if nodes(site, n) == [node])}"
        in site.output_of("daemon")
    )


def test_a_rigid_job_waits_for_whole_nodes(site: SlurmCluster) -> None:
    """Though Slurm itself would start it nowhere else either, it is the daemon that releases it."""
    with site.decided("main"):
        first = site.submit(SLEEP, "-N3", "-n3", "-t600", *WHOLE)
        site.await_true(lambda: states(site) == {first: "RUNNING"}, "a job on all nodes")
        rigid = site.submit("sleep 1000", "-N1", "-n1", "-c4", "-t1")
        site.await_true(lambda: "drom_gate" in site.ask("squeue", "-h", "-j", str(rigid), "-o", "%W"), "the gate")
        assert states(site)[rigid] == "PENDING"
        site.ask("scancel", str(first))
        site.await_true(lambda: states(site) == {rigid: "RUNNING"}, "the rigid job")


def test_tasks_of_an_array_are_released_once(site: SlurmCluster) -> None:
    """The text of squeue shows a task that was released and waits with those of its array that wait at the gate."""
    with site.decided("main", "--interval", "0.05"):
        array = site.submit("sleep 1000", "--array", "1-3", "-N1", "-n1", "-c4", "-t5")
        site.await_true(lambda: site.ask("squeue", "-h", "-r", "-o", "%T").split() == ["RUNNING"] * 3, "three tasks")

    events = [line for line in site.output_of("daemon").splitlines() if f" job={array}_" in line]
    assert sorted(line.partition(" job=")[2].split()[0] for line in events) == [f"{array}_{n}" for n in (1, 2, 3)]


def test_without_the_daemon_slurm_starts_the_jobs(site: SlurmCluster) -> None:
    """A daemon that is stopped opens the gate at once."""
    with site.decided("main"):
        blocker = site.submit("sleep 1000", "-p", "other", "-N3", "-n3", "-c4")
        site.await_true(lambda: states(site) == {blocker: "RUNNING"}, "a job of another partition")
        waits = site.submit(SLEEP, "-N1", "-n1", "-t5", *WHOLE)
        site.ask("scancel", str(blocker))
        site.await_true(lambda: states(site) == {waits: "RUNNING"}, "a job of the partition")
    alone = site.submit(SLEEP, "-N1", "-n1", "-t5", *WHOLE)
    site.await_true(lambda: states(site).get(alone) == "RUNNING", "a job without the daemon")


def test_another_daemon_goes_on(site: SlurmCluster) -> None:
    """It knows the jobs that run, whoever started them, and plans around them."""
    with site.decided("main") as first:
        started = site.submit(SLEEP, "-N2", "-n2", "-t600", *WHOLE)
        site.await_true(lambda: states(site) == {started: "RUNNING"}, "a job")
        first.end(signal.SIGKILL)
    meanwhile = site.submit(SLEEP, "-N1", "-n1", "-t600", *WHOLE)
    with site.decided("main"):
        site.await_true(lambda: states(site).get(meanwhile) == "RUNNING", "the job that came meanwhile")
        guest = site.submit(SLEEP, "-N1", "-n1", "-t1", *WHOLE)
        site.await_true(lambda: states(site).get(guest) == "RUNNING", "a guest")
    assert len(nodes(site, started)) == 2


def test_users_cannot_pass_the_gate_themselves(site: SlurmCluster) -> None:
    """Neither at submission, nor later."""
    with site.decided("main"):
        site.submit(SLEEP, "-N3", "-n3", "-t600", *WHOLE)
        answer = site.ask_as("games", "sbatch", "-N1", "-L", "drom_gate:1", "--wrap", "true")
        assert "the licence drom_gate is not for users: leave it out." in answer
        number = site.ask_as(
            "games", "sbatch", "--parsable", "-N3", "-n3", "-c4", "-D", "/", "-o", "/dev/null", "--wrap", "true"
        ).strip()
        answer = site.ask_as("games", "scontrol", "update", f"jobid={number}", "licenses=")
        assert answer.startswith("Unspecified error")  # Slurm 22.05 passes the sentence on at submission alone
        assert "drom_gate" in site.ask("squeue", "-h", "-j", number, "-o", "%W")
        site.ask("scancel", number)


def test_a_dry_run_says_what_would_start(site: SlurmCluster) -> None:
    """It changes nothing: the job waits on for a daemon that looks once a minute."""
    with site.decided("main"):
        for _ in range(3):
            site.submit(SLEEP, "-N1", "-n1", "-t600", *WHOLE)
        site.await_true(lambda: set(states(site).values()) == {"RUNNING"} and len(states(site)) == 3, "three jobs")
    with site.decided("main", "--interval", "60"):
        site.await_true(lambda: "drom_gate" in site.ask("scontrol", "show", "reservation"), "the daemon's first look")
        guest = site.submit(SLEEP, "-N1", "-n1", "-t1", *WHOLE)
        words = python_command.drom("slurm", "--partition", "main", "--dry-run")
        forecast = site.run_on(HEAD, *words, log="forecast", NUMBA_DISABLE_JIT="1")
        site.await_true(lambda: forecast.poll() is not None, "the forecast")
        said = site.output_of("forecast")
        assert states(site)[guest] == "PENDING"
    assert f"\n{guest}" in said
    assert "1 of 1 waiting job would start now, 1 of them beside running jobs." in said


def test_a_requeued_job_is_released_again(site: SlurmCluster) -> None:
    """The second try has no task, licence or nice value of the first."""
    with site.decided("main"):
        job = site.submit(SLEEP, "-N1", "-n1", "-t600", "--requeue", *WHOLE)
        first = await_task(site, job)
        site.ask("scontrol", "requeue", str(job))
        await_requeued(site, job)
        second = await_task(site, job)
    log = site.output_of("daemon")

    assert first != second
    assert log.count(f"event=slurm_released job={job} ") == 2
    assert log.count(f"event=slurm_taken_back job={job}\n") == 1
    assert "Restarts=1 " in site.ask("scontrol", "-o", "show", "job", str(job))


def await_task(site: SlurmCluster, number: int) -> tuple[str, int]:
    """Wait until a job has one task with a whole node, and return its node and process; no other node may have one."""

    def found() -> list[tuple[str, int]]:
        rows = [(name, row) for name in site.names for row in site.tasks(name) if row["job"] == f"slurm-{number}"]
        return [(name, row["pid"]) for name, row in rows if row["granted"] == "0-3" == row["held"]]

    (task,) = site.await_true(found, f"a task of job {number}")
    return task


def test_the_daemon_works_as_slurms_user(site: SlurmCluster) -> None:
    """The daemon of the user slurm closes the gate, releases jobs, takes them back, and is followed by another."""
    state = owned_folder(site, "slurm") / "state"
    with site.decided("main", "--state", str(state), user="slurm") as first:
        assert Path(f"/proc/{first.pid}").stat().st_uid == pwd.getpwnam("slurm").pw_uid
        job = site.submit(SLEEP, "-N1", "-n1", "-t600", "--requeue", *WHOLE)
        await_task(site, job)
        site.ask("scontrol", "requeue", str(job))
        await_requeued(site, job)
        await_task(site, job)
        assert "ReservationName=drom_gate " in site.ask("scontrol", "show", "reservation", "-o")
        first.end(signal.SIGKILL)
    with site.decided("main", "--state", str(state), user="slurm"):
        later = site.submit(SLEEP, "-N1", "-n1", "-t5", *WHOLE)
        await_task(site, later)
    assert "drom_gate" not in site.ask("scontrol", "show", "reservation", "-o")
    assert "event=slurm_failed" not in site.output_of("daemon")
    assert sorted(file.name for file in state.iterdir()) == ["history.sqlite", "slurm.sqlite"]


def test_other_users_cannot_run_the_daemon(site: SlurmCluster) -> None:
    """One sentence says whose rights it needs."""
    state = owned_folder(site, "games")
    with (
        pytest.raises(MachineError, match="run this as SlurmUser or root"),
        site.decided("main", "--state", str(state), user="games"),
    ):
        pass


def test_the_daemon_works_with_slurms_basic_priorities() -> None:
    """A guest starts ahead of an earlier job that waits for its nodes, and requeued jobs wait at the gate again."""
    with gated_cluster("p", SETTINGS.replace("multifactor", "basic")) as basic, basic.decided("main"):
        mates = [basic.submit(SLEEP, "-N1", "-n1", "-t600", "--requeue", *WHOLE) for _ in range(3)]
        for mate in mates:
            await_task(basic, mate)
        earlier = basic.submit("sleep 1000", "-p", "other", "-N3", "-n3", "-c4", "-t600")
        guest = basic.submit(SLEEP, "-N1", "-n1", "-t1", *WHOLE)
        basic.await_true(lambda: states(basic).get(guest) == "RUNNING", "the guest")
        assert states(basic)[earlier] == "PENDING"

        basic.ask("scancel", str(earlier), str(guest))
        basic.ask("scontrol", "requeue", str(mates[0]))
        await_requeued(basic, mates[0])
        await_task(basic, mates[0])
        end_all(basic)
        assert "event=slurm_failed" not in basic.output_of("daemon")
