# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno
import os
import socket
import subprocess
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from drom.agent.execution import launch
from drom.agent.execution.launch import LaunchSite
from drom.agent.execution.mpi_hosts import mpi_hosts, node_of
from drom.agent.execution.spool import Folder, Status
from drom.agent.execution.step_requests import LARGEST, parse

from dromlib import native
from tests.support.agents import SECONDS
from tests.support.fake_scheduler import start

HERE = LaunchSite("n1", Path("/run/drom"))


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("", ""),
        ("out", "out"),
        ("%j.%n.%u.%x", "7.n1.tester.a_b"),
        ("100%%", "100%"),
        ("%%j", "%j"),
        ("%q%", "%q%"),
        ("%j%j/%", "77/%"),
    ],
)
def test_patterns_are_expanded(pattern: str, path: str) -> None:
    """Letters that mean nothing stay, and no name leaves the folder."""
    assert launch.expand(pattern, start(7, "true", name="a/b"), "n1") == path


def test_a_job_does_not_take_itself_for_another_task() -> None:
    """What a program inside a task or a rank of a launch had is not handed on by its submission."""
    task = {"DROM_TASK": "1:2", "DROM_CPUS": "0", "DROM_MAX_CPUS": "2"}
    env = {**task, "OMPI_COMM_WORLD_RANK": "1", "PMIX_RANK": "1", "MINE": "x"}

    found = launch.environment(start(7, "true", env=env, attempt=2), HERE)

    stand_ins = dict.fromkeys(launch.STAND_INS, f"{native.step_path()} remote")
    assert found == launch.UNBOUND | launch.OPEN_MPI | stand_ins | launch.HYDRA | {
        "HYDRA_LAUNCHER_EXEC": str(native.step_path()),
        "MINE": "x",
        "PATH": f"/usr/local/bin:/usr/bin:/bin:{native.run_path().parent}",
        "DROM_JOB_ID": "7",
        "DROM_JOB_ATTEMPT": "2",
        "DROM_JOB_NAME": "test",
        "DROM_NODE": "n1",
        "DROM_NODELIST": "n1",
        "DROM_HOSTS": "n1:1",
        "DROM_NTASKS": "1",
        "DROM_RUNTIME_DIR": "/run/drom",
    }


def test_what_tells_a_job_comes_first() -> None:
    """Agents read no more than the beginning of an environment."""
    found = launch.environment(start(7, "true", env={"A": "1", "PATH": "/bin", "DROM_JOB_ID": "3"}), HERE)

    assert [*found].index("DROM_JOB_ID") < [*found].index("A")
    assert found["DROM_JOB_ID"] == "7"


def test_a_job_of_several_nodes_finds_them_without_ssh() -> None:
    """Its launcher is led to the agents, unless its user leads it elsewhere."""
    wanted = start(7, "mpirun", nodes=("n1", "n2"), total_tasks=4, env={"PATH": "/bin", "OMPI_MCA_plm": "slurm"})

    found = launch.environment(wanted, HERE)

    assert (found["DROM_HOSTS"], found["OMPI_MCA_plm"]) == ("n1:2,n2:2", "slurm")
    assert {found[name] for name in launch.STAND_INS} == {f"{native.step_path()} remote"}


def test_a_job_of_one_node_finds_it_without_ssh() -> None:
    """Whatever it is called: a launcher that is given its name need not find a host of that name."""
    found = launch.environment(start(7, nodes=("n1",), total_tasks=2, script="#!/bin/sh\ntrue\n"), HERE)

    assert (found["DROM_HOSTS"], found["OMPI_MCA_plm"]) == ("n1:2", "rsh")
    assert {found[name] for name in launch.STAND_INS} == {f"{native.step_path()} remote"}
    assert not found.keys() & {*launch.HOSTFILES, launch.HYDRA_HOSTFILE}


@pytest.mark.parametrize(
    "name",
    ["h5.example.org", "a_b", "localhost", "Localhost", "8.8.8.8", "7", "slots", "cpu", "drom-node-1", "n" * 64],
)
def test_a_node_that_mpirun_would_misread_gives_its_job_aliases(name: str) -> None:
    """All nodes of the job have one, in their order; a name that mpirun takes as it is stays."""
    assert mpi_hosts(("n1", name)) == ["drom-node-0", "drom-node-1"]
    assert mpi_hosts(("n1", "node-7", "CPU-1")) == ["n1", "node-7", "CPU-1"]


def test_a_script_is_told_the_aliases_of_its_nodes(tmp_path: Path) -> None:
    """The list of hosts and the file of hosts agree, and the list of nodes has their names."""
    place = LaunchSite("a_b", tmp_path)
    wanted = start(7, nodes=("a_b", "n2"), total_tasks=4, script="#!/bin/sh\nmpirun ./solver\n")
    launch.write_script(wanted, place)

    found = launch.environment(wanted, place)

    assert (found["DROM_NODELIST"], found["DROM_HOSTS"]) == ("a_b,n2", "drom-node-0:2,drom-node-1:2")
    hosts = launch.hosts_path(wanted, place).read_text(encoding="ascii")
    assert hosts == "drom-node-0 slots=2\ndrom-node-1 slots=2\n"


@pytest.mark.parametrize(
    ("host", "node"),
    [
        ("drom-node-0", "a_b"),
        ("drom-node-1", "h5.example.org"),
        ("drom-node-2", "drom-node-2"),
        ("drom-node-", "drom-node-"),
        ("drom-node-1x", "drom-node-1x"),
        ("drom-node-9999999999", "drom-node-9999999999"),
        ("h5.example.org", "h5.example.org"),
    ],
)
def test_the_stand_in_for_ssh_translates_aliases(tmp_path: Path, host: str, node: str) -> None:
    """What stands for no node of the job is what the agent is asked for, and refuses."""
    environment = {
        "DROM_JOB_ID": "7",
        "DROM_JOB_ATTEMPT": "1",
        "DROM_NODE": "n1",
        "DROM_RUNTIME_DIR": str(tmp_path),
        "DROM_NODELIST": "a_b,h5.example.org",
    }
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as agent:
        agent.bind(str(tmp_path / "steps"))
        agent.listen()
        with subprocess.Popen([native.step_path(), "remote", host, "true"], env=environment) as asks:
            with agent.accept()[0] as connection:
                request = parse(connection.recv(LARGEST), 0)
                connection.send(b"0")
            assert asks.wait(SECONDS) == 0
    assert request is not None
    assert request.host == node


def test_an_adaptive_job_has_a_host_file(tmp_path: Path) -> None:
    """Programs find the name of the host file, which is there once their nodes have changed, and is replaced then."""
    place = LaunchSite("n1", tmp_path)
    job = start(7, "heat", nodes=("n1", "h.org"), total_tasks=4, rests=True, env={"DROM_MPI_HOSTFILE": "mine"})
    file = Path(launch.environment(job, place)["DROM_MPI_HOSTFILE"])
    assert not file.exists()

    for ranks, text in (((2, 2), "n1 slots=2\nh.org slots=2 host=drom-node-1\n"), ((2, 0), "n1 slots=2\n")):
        launch.write_ranks(job, place, ("n1", "h.org"), ranks)
        assert (file.read_text(encoding="ascii"), file.stat().st_mode & 0o777) == (text, 0o400)
    launch.remove_script(job, place)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("host", "node"),
    [("drom-node-1", "h.org"), ("drom-node-2", "drom-node-2"), ("drom-node-", "drom-node-"), ("n1", "n1")],
)
def test_an_alias_stands_for_a_node_of_the_job(host: str, node: str) -> None:
    """A position that the list of nodes does not have is no alias."""
    assert node_of(host, ("n1", "h.org")) == node


def test_a_script_finds_its_nodes_in_a_file(tmp_path: Path) -> None:
    """Its launches need not name them; the file is its user's, and goes with the script."""
    place = LaunchSite("n1", tmp_path)
    wanted = start(7, nodes=("n1", "n2"), total_tasks=4, script="#!/bin/sh\nmpirun ./solver\n")
    launch.write_script(wanted, place)

    found = launch.environment(wanted, place)

    files = {Path(found[name]) for name in launch.HOSTFILES}
    assert [(path.read_text(encoding="ascii"), path.stat().st_mode & 0o777) for path in files] == [
        ("n1 slots=2\nn2 slots=2\n", 0o400)
    ]
    assert Path(found[launch.HYDRA_HOSTFILE]).read_text(encoding="ascii") == "n1:2\nn2:2\n"
    launch.remove_script(wanted, place)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("refused", "number", "fault"),
    [
        ("cwd", 2, "job"),
        *((what, number, "job") for what in ("cwd", "input", "output", "error") for number in (5, 11, 12, 23, 24)),
        ("output", 28, "job"),
        ("error", 122, "job"),
        ("output", 30, "job"),
        ("cwd", 30, "job"),
        ("output", 13, "job"),
        ("process", 11, "busy"),
        ("spool", 28, "busy"),
        ("spool", 30, "node"),
        ("keeper", 0, "node"),
        ("memory", 2, "node"),
        ("memory", 12, "busy"),
        ("program", 8, "job"),
        ("program", 5, "job"),
        ("program", 11, "job"),
        ("program", 12, "busy"),
        ("program", 23, "busy"),
        ("user", 2, "job"),
        ("user", 5, "node"),
        ("user", 23, "busy"),
    ],
)
def test_whose_fault_it_is(refused: str, number: int, fault: str) -> None:
    """What a job asked for is its own fault, whatever comes of it: no user can have a node drained by a path."""
    found, sentence = launch.why_refused(Status(refused=refused, errno=number), start(7, "true"), HERE)

    assert (found, sentence[-1]) == (fault, ".")


def test_a_program_that_cannot_be_limited_does_not_run(tmp_path: Path) -> None:
    """The process that was to become the program cannot join its control group."""
    folder = Folder(tmp_path / "7.1")
    wanted = start(7, "touch", str(tmp_path / "ran"), mode="launch")
    folder.begin(wanted, "boot")
    lock = folder.lock()
    assert lock is not None
    pid, told = launch.spawn(wanted, LaunchSite("n1", tmp_path), lock, tmp_path / "nosuch")
    os.close(lock)
    os.close(told)
    os.waitpid(pid, 0)

    assert folder.status() == Status(refused="memory", errno=errno.ENOENT)
    assert not (tmp_path / "ran").exists()


def test_a_launcher_that_the_users_path_finds_is_the_users() -> None:
    """Such a launcher may be on a file system of the user's own, which may fail in any way."""
    found, _ = launch.why_refused(Status(refused="program", errno=12), start(7, "mpirun", mode="launch"), HERE)

    assert found == "job"


@pytest.mark.parametrize(
    ("refused", "wanted"),
    [("cwd", {"cwd": "/" + "x" * 4094}), ("output", {"output": "%x" * 2000, "name": "n" * 255}), ("program", {})],
)
def test_a_long_path_is_cut_in_a_sentence(refused: str, wanted: dict[str, Any]) -> None:
    """What is to be done about it is still read, and fits in the message to the scheduler."""
    status, found = Status(refused=refused, errno=2), start(7, "x" * 9999, **wanted)

    _, sentence = launch.why_refused(status, found, HERE)

    assert "...: No such file" in sentence.replace("'", "").replace(" for the output of the job", "")
    assert len(sentence) < 500


def test_only_root_starts_programs_of_others() -> None:
    """An agent of another user refuses them, and says what to do; nobody can have its node drained by it."""
    assert launch.why_not_here(start(7, "true", uid=1000), 0) is None
    assert launch.why_not_here(start(7, "true", uid=1000), 1000) is None
    assert launch.why_not_here(start(7, "true", uid=1000), 1001) == (
        "job",
        "this agent runs as user 1001 and may not start programs as 1000: run it as root.",
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="takes another user")
@pytest.mark.parametrize("acls", [True, False], ids=["with-acls", "without-acls"])
def test_a_users_script_is_roots_file(monkeypatch: pytest.MonkeyPatch, *, acls: bool) -> None:
    """Its user may read and run it, and neither change its mode nor let it grow; no other user may read it."""
    if not acls:

        def unsupported(*_: object) -> None:
            raise OSError(errno.EOPNOTSUPP, "")

        monkeypatch.setattr(os, "setxattr", unsupported)
    with TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        place = LaunchSite("n1", Path(folder))
        job = start(7, "a", script="#!/bin/sh\necho $1 $0", uid=65534, gid=65534, nodes=("n1",))
        launch.write_script(job, place)
        path, hosts = launch.script_path(job, place), launch.hosts_path(job, place)
        tries = f"cat {path} {hosts} && chmod 0700 {path}; echo x >> {path}; echo x >> {hosts}; truncate -s 1M {path}"

        def run(user: int, *command: str) -> str:
            done = subprocess.run(
                command, user=user, group=user, extra_groups=[], capture_output=True, text=True, check=False
            )
            return done.stdout

        assert run(65534, "sh", str(path), "a") == f"a {path}\n"
        assert run(65534, "sh", "-c", tries) == f"{job.script}n1 slots=1\n"
        assert run(65533, "sh", "-c", tries) == ""
        assert [file.stat().st_uid for file in (path, hosts)] == [0, 0]
        assert path.read_text(encoding="utf-8") == job.script
        launch.remove_script(job, place)
        assert not list(Path(folder).iterdir())


def test_a_program_on_a_terminal_finds_its_nodes_as_a_script_does(tmp_path: Path) -> None:
    """The key of the terminal is in a file for its user alone, neither on the command line nor in the environment."""
    place = LaunchSite("n1", tmp_path)
    job = start(7, "bash", nodes=("n1", "n2"), total_tasks=4, terminal="desk:1 secret")

    launch.write_script(job, place)

    file = launch.terminal_path(job, place)
    assert (file.read_text(encoding="ascii"), file.stat().st_mode & 0o777) == ("desk:1 secret", 0o400)
    assert launch.hosts_path(job, place).read_text(encoding="ascii") == "n1 slots=2\nn2 slots=2\n"
    assert str(file) in launch.command(job, place)
    assert launch.environment(job, place).keys() >= {*launch.HOSTFILES}
    assert b"secret" not in launch.instructions(job, place, None)
    assert "secret" not in repr(job)
    launch.remove_script(job, place)
    assert not list(tmp_path.iterdir())
