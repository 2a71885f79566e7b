# SPDX-License-Identifier: Apache-2.0
"""Processes of a job that become another user: they stay in the job that they descend from, with real users."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from dromlib import native
from tests.support.agents import Agent, Program, Programs, affinity, lives, start_agent, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else"),
    pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1"),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv"),
]
SOURCES = Path(__file__).parent
ROOT = SOURCES.parents[1]
UID = 64903
CHANGED = f"setpriv --reuid {UID} --regid {UID} --clear-groups"
BOTH, ONE = "threads 2 cpus 01 01", "threads 1 cpus 0"
ATTACHES = """
import os, sys
from dromlib import attach
os.setgroups([])
os.setresgid(*[int(sys.argv[1])] * 3)
os.setresuid(*[int(sys.argv[1])] * 3)
with attach(adapters=()) as session:
    print("attached", session.mode, os.getuid(), os.getpid(), flush=True)
    while True:
        if grant := session.wait(0.05):
            session.apply(grant)
            print("applied", ",".join(map(str, grant.cpus)), flush=True)
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Return a folder that everybody may enter."""
    with tempfile.TemporaryDirectory(prefix="drom-descent-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def shared_agent(folder: Path) -> Iterator[Agent]:
    """Return an agent of two cores, patient with programs on a busy machine."""
    with start_agent(folder, "--topology", "pack:2 core:1", "--grace", "20") as agent:
        yield agent


@pytest.fixture
def agent(shared_agent: Agent, start: Programs) -> Iterator[Agent]:
    """Return the shared agent with what it logs from now on; its node is empty again after the test."""
    yield Agent(shared_agent.dir, shared_agent.log_file, shared_agent.process)
    start.kill()
    shared_agent.await_tasks()


@pytest.fixture(scope="module")
def openmp(folder: Path) -> Path:
    """Return an OpenMP program that knows nothing of drom."""
    if not shutil.which("gcc"):
        pytest.skip("needs gcc")
    command = ["gcc", "-O1", "-fopenmp", str(SOURCES / "openmp.c"), "-o", str(folder / "openmp")]
    subprocess.run(command, check=True)
    return folder / "openmp"


@pytest.fixture(scope="module")
def python(folder: Path) -> str:
    """Return the command of a Python program that becomes the user it is given, and attaches.

    It is loaded first: the user may not be able to read where Python is installed.
    """
    (folder / "attaches.py").write_text(ATTACHES, encoding="utf-8")
    return f"env PYTHONPATH={ROOT} {sys.executable} {folder / 'attaches.py'}"


def script(agent: Agent, start: Programs, text: str, *options: str) -> Program:
    """Start a script of root's as job a."""
    return start.start(*agent.run("--job", "a", *options, "--", "sh", "-c", text))


def await_last(program: Program, line: str) -> None:
    """Wait until the program has said this last."""
    wait_until(lambda: program.out.splitlines()[-1:] == [line], program.show)


def has_cpus(pid: int, cpus: str) -> bool:
    """Return whether these are the CPUs of the threads of a process."""
    return affinity(pid) == cpus


def child_of(pid: int) -> int:
    """Return the pid of the one child of a process."""
    return wait_until(psutil.Process(pid).children, lambda: f"no child of {pid}")[0].pid


def resize(agent: Agent, program: Program, said: dict[int, str], pid: int) -> None:
    """Shrink and grow job a; see what the program says, and that its threads are where `drom ps` says."""
    for cpus in (1, 2) * 2:
        agent.order("resize", job="a", cpus=cpus)
        (row,) = agent.await_tasks(a="0" if cpus == 1 else "0-1").values()
        assert (row["uid"], row["mode"]) == (0, "cooperative")
        await_last(program, said[cpus])
        wait_until(partial(has_cpus, pid, "0" if cpus == 1 else "0,1"), program.show)
    assert agent.log.count("event=arrived") == 1
    assert program.err == ""


@pytest.mark.parametrize("options", [(), ("--min", "2")])
def test_a_program_that_drom_run_starts_as_another_user(
    agent: Agent, start: Programs, openmp: Path, options: tuple[str, ...]
) -> None:
    """A launcher that becomes another user's program runs its first region at once, in its own job."""
    program = start.start(*agent.run("--job", "a", *options, "--", *shlex.split(CHANGED), openmp, "loop"))
    program.await_out(f"^{BOTH}$", seconds=20)
    if not options:
        resize(agent, program, {1: ONE, 2: BOTH}, program.pid)
    assert list(agent.tasks()) == ["a"]


@pytest.mark.parametrize("options", [(), ("--min", "2")])
def test_a_program_below_a_script_of_roots(
    agent: Agent, start: Programs, openmp: Path, options: tuple[str, ...]
) -> None:
    """A program of another user below a script runs its first region at once, in the script's job."""
    program = script(agent, start, f"{CHANGED} {openmp} loop; :", *options)
    program.await_out(f"^{BOTH}$", seconds=20)
    if not options:
        resize(agent, program, {1: ONE, 2: BOTH}, child_of(program.pid))
    assert list(agent.tasks()) == ["a"]


def test_a_program_in_a_session_of_its_own(agent: Agent, start: Programs, openmp: Path) -> None:
    """A program of another user stays in the job however far below it is, and whoever leads its session."""
    program = script(agent, start, f"setsid sh -c '{CHANGED} {openmp} loop; :' & wait")
    try:
        program.await_out(f"^{BOTH}$", seconds=20)
        resize(agent, program, {1: ONE, 2: BOTH}, child_of(child_of(program.pid)))
        assert list(agent.tasks()) == ["a"]
    finally:
        os.killpg(child_of(program.pid), signal.SIGKILL)


def test_a_launch_of_another_user_below_a_job_is_part_of_it(agent: Agent, start: Programs, openmp: Path) -> None:
    """A launcher that another user starts within a job is told the job's task and CPUs, and starts no job."""
    launch = f"{native.run_path()} --min 2 --job b -- sh -c 'echo $DROM_TASK on $DROM_CPUS; exec {openmp} loop'"
    program = script(agent, start, f"echo $DROM_TASK on $DROM_CPUS; {CHANGED} {launch}; :")
    program.await_out(f"^{BOTH}$", seconds=20)
    mine, theirs, *_ = program.out.splitlines()

    assert mine == theirs
    assert mine.endswith("on 0-1")
    resize(agent, program, {1: ONE, 2: BOTH}, child_of(program.pid))
    assert f"event=joined job=a pid={child_of(program.pid)} uid={UID}" in agent.log


def test_a_python_program_of_another_user_attaches_to_the_job_above_it(
    agent: Agent, start: Programs, python: str
) -> None:
    """Its parents decide, not its environment, which need not name the task."""
    program = script(agent, start, f"env -u DROM_TASK {python} {UID}; :")
    said = program.await_out(r"^attached (\w+) (\d+) (\d+)$")
    assert said.groups()[:2] == ("responder", str(UID))
    resize(agent, program, {1: "applied 0", 2: "applied 0,1"}, int(said[3]))


def test_an_orphan_stays_in_its_job_when_its_parents_end(agent: Agent, start: Programs, python: str) -> None:
    """An orphan of another user that was seen in a job keeps it alive and follows its orders; nothing else is left."""
    program = script(agent, start, f"{python} {UID} & read nothing")
    orphan = int(program.await_out(r"^attached responder \d+ (\d+)$")[1])
    agent.order("resize", job="a", cpus=1)
    agent.await_tasks(a="0")
    program.quit()
    agent.order("resize", job="a", cpus=2)
    (row,) = agent.await_tasks(a="0-1").values()

    assert row["pid"] == program.pid
    wait_until(partial(has_cpus, orphan, "0,1"), program.show)
    assert agent.log.count("event=arrived") == 1
    os.kill(orphan, signal.SIGKILL)
    agent.await_tasks()


def test_another_users_program_in_a_job_gives_no_orders_for_it(agent: Agent, start: Programs) -> None:
    """A user whose program takes part in a job of root's may change it as little as anybody."""
    asked = json.dumps([["resize", {"job": "a", "cpus": 1}], ["release", {"job": "a"}]])
    order = [sys.executable, str(SOURCES / "other_user.py"), str(UID), str(agent.dir), "give_orders", asked]
    program = script(agent, start, f"env PYTHONPATH={ROOT} {shlex.join(order)}; read nothing")
    said = json.loads(program.await_out(r"^\[.*\]$")[0])

    assert said == ["job a belongs to another user: only root and the agent's own user may change it."] * 2
    assert agent.await_tasks(a="0-1")


def test_who_has_left_the_seat_does_not_speak_for_the_next_one(agent: Agent, start: Programs, python: str) -> None:
    """The next responder of another user has a mailbox of its own, as the last one may have kept the old one open."""
    mail = agent.dir / "mail"
    program = script(agent, start, f"{python} {UID} & read nothing; {python} 0; :")
    first = int(program.await_out(rf"^attached responder {UID} (\d+)$")[1])
    (theirs,) = mail.iterdir()
    assert theirs.stat().st_uid == UID
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not lives(first), program.show)
    wait_until(lambda: agent.tasks()["a"]["mode"] == "bind-only", lambda: agent.log)
    program.tell("\n")
    program.await_out(r"^attached responder 0 (\d+)$")
    (ours,) = mail.iterdir()

    assert (ours.stat().st_uid, ours.name == theirs.name) == (0, False)
    assert agent.log.count("event=arrived") == 1


def test_an_environment_alone_makes_nobody_part_of_anothers_job(agent: Agent, start: Programs, openmp: Path) -> None:
    """A program that only names the task of another user has a job of its own, launched or as it attaches."""
    owner = script(agent, start, "echo $DROM_TASK; read nothing", "--class", "rigid", "--cpus", "1")
    task = owner.await_out(r"^\d+:\d+$")[0]
    launch = start.start(*shlex.split(CHANGED), *agent.run("--job", "b", openmp, "loop"), DROM_TASK=task)
    launch.await_out("^threads 1 cpus [01]$")
    assert {job: row["uid"] for job, row in agent.tasks().items()} == {"a": 0, "b": UID}
    launch.kill()
    agent.await_tasks(a=agent.tasks()["a"]["granted"])
    preload = native.library_path().with_name("libdrom-preload.so")
    there = {"DROM_TASK": task, "DROM_RUNTIME_DIR": str(agent.dir), "LD_PRELOAD": str(preload)}
    attached = start.start(*shlex.split(CHANGED), openmp, "loop", **there)
    attached.await_out("^threads 1 cpus [01]$")
    assert {job: row["uid"] for job, row in agent.tasks().items()} == {"a": 0, "openmp": UID}
