"""A node of two real cores: programs that share them, orders, restarts, metrics and signals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import zmq
from drom.agent.control.messages import endpoint
from drom.agent.errors import ControlError
from drom.agent.testbed.agent_process import STEERING
from prometheus_client.parser import text_string_to_metric_families

from dromlib import signals
from tests.support.agents import (
    SERVES_METRICS,
    Agent,
    Programs,
    affinity,
    launch_agent,
    lives,
    start_agent,
    wait_until,
)
from tests.support.checker import Watcher

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1"),
]
TWO = ("--topology", "pack:2 core:1")
COLUMNS = {
    "lent",
    "borrowed",
    "layout",
    "memory",
    "hold",
    "pin",
    "left",
    "attached",
    "pid", "job", "task", "uid", "class", "state", "mode", "reason", "detail", "min", "max",
    "owned", "target", "granted", "applied", "held", "polls", "progress", "wanted_min", "wanted_max", "points",
    "min_tasks", "max_tasks",
}  # fmt: skip
METRICS = {
    "drom_build_info", "drom_cpus", "drom_job_cpus", "drom_job_cpus_target", "drom_job_cpus_min", "drom_job_cpus_max",
    "drom_tasks", "drom_reconfigurations_total", "drom_reconfiguration_duration_seconds",
    "drom_distribution_duration_seconds", "drom_reaped_tasks_total", "drom_enforcements_total",
    "drom_cpu_seconds_total", "drom_frozen",
}  # fmt: skip


@pytest.fixture(scope="module")
def shared_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """One agent of two cores for the tests that leave it as they found it."""
    with start_agent(tmp_path_factory.mktemp("node"), *TWO, "--grace", "0.3") as agent:
        yield agent


@pytest.fixture
def agent(shared_agent: Agent, start: Programs) -> Iterator[Agent]:
    """The shared agent, watched; what the test has started is killed and the node is empty again."""
    with Watcher(shared_agent.dir):
        yield shared_agent
        shared_agent.assert_clean()
        start.kill()
        shared_agent.await_tasks()


def test_two_cooperative_programs_share_two_cores_and_give_them_back(
    tmp_path: Path, start: Programs, program: Path
) -> None:
    """The first program has both cores, shrinks by itself for the second, and has both again; as people start it."""
    with start_agent(tmp_path, *TWO, *SERVES_METRICS, compiled=True) as agent, Watcher(agent.dir):
        drom_run: list[str | Path] = [sys.executable, "-m", "drom", "run", "--runtime-dir", agent.dir]
        a = start.start(*drom_run, "--job", "a", "--cpus", "2", "--", program)
        a.await_out("cpus 0,1")
        agent.await_tasks(a="0-1")
        agent.assert_clean()
        b = start.start(*drom_run, "--job", "b", "--cpus", "2", "--", program)
        b.await_out("cpus 1$")
        rows = agent.await_tasks(a="0", b="1")
        assert {(row["state"], row["mode"]) for row in rows.values()} == {("running", "cooperative")}
        agent.await_log("event=applied job=a .*old=0-1 new=0 reason=share action=shrink")
        agent.assert_clean()
        assert b.quit() == 0
        agent.await_tasks(a="0-1")
        agent.await_log("event=applied job=a .*old=0 new=0-1 reason=return action=grow")
        a.await_out(r"cpus 0,1\n(.*\n)*.*cpus 0\n(.*\n)*.*cpus 0,1\n")
        agent.assert_clean()
        assert a.quit() == 0
        agent.await_tasks()


def test_ps_prints_exactly_the_promised_columns(agent: Agent, start: Programs, program: Path) -> None:
    """`drom ps --json` has schema version 1, the same columns for each task, CPU sets as lists; `drom ps` a table."""
    start.start(*agent.run("--job", "a", "--", program))
    agent.await_tasks(a="0-1")
    start.start(*agent.run("--job", "b", "--class", "moldable", "--", "sleep", "1000"))
    agent.await_tasks(a="0", b="1")
    value = json.loads(agent.cli("ps", "--json").stdout)
    assert value.keys() == {"schema_version", "observe", "frozen_since", "avoided", "unavailable", "foreign", "tasks"}
    assert value["schema_version"] == 1
    assert [row.keys() == COLUMNS for row in value["tasks"]] == [True, True]
    a, b = value["tasks"]
    assert (a["job"], a["task"], a["class"], a["min"], a["max"], a["owned"]) == ("a", 0, "malleable", 1, 2, "0-1")
    assert (b["job"], b["class"], b["mode"], b["granted"], b["owned"]) == ("b", "moldable", "bind-only", "1", "")
    lines = agent.cli("ps").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["JOB", "a", "b"]
    assert lines[0].split() == [
        "JOB",
        "USER",
        "PID",
        "CLASS",
        "STATE",
        "NCPUS",
        "CPUS",
        "OWNED",
        "LENT",
        "MODE",
        "REASON",
    ]
    assert (a["lent"], b["borrowed"], a["hold"], a["left"], a["attached"]) == ("1", "1", None, None, False)


@pytest.mark.parametrize("most", [4, 5])
def test_a_program_without_room_for_the_answer_keeps_no_seat(
    agent: Agent, start: Programs, program: Path, most: int
) -> None:
    """A program that may open one file or two of the three that it takes is bound by the agent, as orders come."""
    a = start.start(*agent.run("--job", "a", "--", "sh", "-c", f"ulimit -n {most}; exec {program}"))
    a.await_out("attached .* unmanaged")
    agent.await_log(f"event=responder_left job=a pid={a.pid}")
    start.start(*agent.run("--job", "b", "--", "sleep", "1000"))
    assert agent.await_tasks(a="0", b="1")["a"]["mode"] == "bind-only"
    assert f"event=enforced job=a task=0 pid={a.pid}" not in agent.log


def test_a_program_that_may_write_no_files_answers(agent: Agent, start: Programs, program: Path) -> None:
    """A limit of file sizes of 0 is no reason to be killed by SIGXFSZ, or to be bound by the agent."""
    a = start.start(*agent.run("--job", "a", "--", "sh", "-c", f"(ulimit -f 0; exec {program}) | cat"))
    a.await_out("cpus 0,1$")
    a.tell("1")
    agent.await_tasks(a="0")
    agent.await_log("event=applied job=a .*action=shrink")
    a.tell("2")
    assert agent.await_tasks(a="0-1")["a"]["mode"] == "cooperative"


def test_program_that_never_polls_is_enforced_after_the_grace_time(
    agent: Agent, start: Programs, program: Path
) -> None:
    """An attached program that passes no malleability point is bound by the agent, and its state says so."""
    a = start.start(*agent.run("--job", "a", "--", program, "--silent"))
    agent.await_log(f"event=responder_set job=a pid={a.pid}")
    start.start(*agent.run("--job", "b", "--", program))
    rows = agent.await_tasks(a="0", b="1")
    assert (rows["a"]["state"], rows["a"]["mode"]) == ("enforced", "cooperative")
    agent.await_log(f"event=enforced job=a task=0 pid={a.pid} .*action=shrink")
    assert affinity(a.pid) == "0"
    assert a.applied() == []


def test_a_program_that_becomes_a_deaf_one_is_waited_for_once(agent: Agent, start: Programs, program: Path) -> None:
    """A task has no responder one grace time after its responder has executed a program without libdrom."""
    a = start.start(*agent.run("--job", "a", "--", program, "--then", "sleep", "1000"))
    a.await_out("cpus 0,1$")
    agent.await_tasks(a="0-1")
    a.tell("x")
    wait_until(lambda: _comm(a.pid) == "sleep", lambda: _comm(a.pid))
    b = start.start(*agent.run("--job", "b", "--", program))
    assert agent.await_tasks(a="0", b="1")["a"]["mode"] == "bind-only"
    agent.await_log(f"event=enforced job=a task=0 pid={a.pid} .*action=shrink")
    agent.await_log(f"event=responder_left job=a pid={a.pid}")
    assert b.quit() == 0
    agent.await_tasks(a="0-1")
    agent.await_log(f"event=bound job=a task=0 pid={a.pid} .*action=grow")


def test_a_program_that_becomes_another_that_obeys_keeps_answering(
    agent: Agent, start: Programs, program: Path
) -> None:
    """What a responder executes sits down in its place, with wishes of its own."""
    a = start.start(*agent.run("--job", "a", "--", program, "--then", program))
    a.tell("1")
    agent.await_tasks(a="0")
    a.tell("x")
    a.await_out(r"attached (.*\n)+attached .* responder$")
    agent.await_tasks(a="0-1")
    start.start(*agent.run("--job", "b", "--", "sleep", "1000"))
    assert agent.await_tasks(a="0", b="1")["a"]["mode"] == "cooperative"
    agent.await_log(f"event=applied job=a task=0 pid={a.pid} .*action=shrink")


@pytest.mark.parametrize("options", [["--outside"], ["--outside", "--threads", "4"], ["--outside", "--children", "3"]])
def test_plain_program_is_bound_at_once(agent: Agent, start: Programs, program: Path, options: list[str]) -> None:
    """A program that knows nothing of drom is bound with its threads and children, without waiting, and grows again."""
    a = start.start(*agent.run("--job", "a", "--", program, *options))
    a.await_out("(?s)runs" + ".*runs" * (3 if "--children" in options else 0))
    b = start.start(*agent.run("--job", "b", "--", "sleep", "1000"))
    assert agent.await_tasks(a="0", b="1")["a"]["mode"] == "bind-only"
    agent.await_log(f"event=bound job=a task=0 pid={a.pid} .*action=shrink")
    agent.assert_clean()
    b.kill()
    agent.await_tasks(a="0-1")
    agent.assert_clean()


def test_children_of_a_script_are_bound_and_the_second_attacher_only_follows(
    agent: Agent, start: Programs, program: Path
) -> None:
    """In `sh -c 'prog & prog; wait'` one program responds, the others follow; all leave the core, one acknowledges."""
    script = f"exec 3<&0; {program} <&3 & {program} --silent <&3 & {program} <&3 & sleep 1000 & wait"
    a = start.start(*agent.run("--job", "a", "--", "sh", "-c", script))
    a.await_out("(?s)attached.*attached.*attached")
    modes = sorted(line.split()[2] for line in a.out.splitlines() if line.startswith("attached"))
    assert modes == ["follower", "follower", "responder"]
    start.start(*agent.run("--job", "b", "--", "sleep", "1000"))
    agent.await_tasks(a="0", b="1")
    agent.assert_clean()


def test_siblings_of_a_responder_shrink_and_grow_with_it(agent: Agent, start: Programs, program: Path) -> None:
    """Processes of a cooperative task that do not attend to grants have what it has, also after it has grown."""
    script = f"exec 3<&0; {program} <&3 & sleep 1000 & sleep 1000 & wait"
    a = start.start(*agent.run("--job", "a", "--", "sh", "-c", script))
    a.await_out("cpus 0,1$")
    children = psutil.Process(a.pid).children
    wait_until(lambda: len(children()) == 3, a.show)
    b = start.start(*agent.run("--job", "b", "--", program))
    agent.await_tasks(a="0", b="1")
    family = [a.pid, *(child.pid for child in children())]
    assert (len(family), {affinity(pid) for pid in family}) == (4, {"0"})
    assert b.quit() == 0
    agent.await_tasks(a="0-1")
    wait_until(lambda: {affinity(pid) for pid in family} == {"0,1"}, lambda: {pid: affinity(pid) for pid in family})


def test_a_follower_never_acknowledges(agent: Agent, start: Programs, program: Path) -> None:
    """While the responder is silent the follower's own application leaves the cores held until the agent enforces."""
    script = f"exec 3<&0; {program} --silent <&3 & sleep 1000 & wait"
    a = start.start(*agent.run("--job", "a", "--", "sh", "-c", script))
    a.await_out("attached [0-9]+ responder")
    task = dict(v.split(b"=", 1) for v in _environ(a.pid).split(b"\0") if b"=" in v)[b"DROM_TASK"].decode()
    follower = start.start(program, DROM_TASK=task, DROM_RUNTIME_DIR=str(agent.dir))
    follower.await_out("attached [0-9]+ follower")
    start.start(*agent.run("--job", "b", "--", "sleep", "1000"))
    follower.await_out("cpus 0$")
    agent.await_tasks(a="0", b="1")
    agent.await_log("event=enforced job=a .*action=shrink")
    assert f"event=applied job=a task=0 pid={a.pid}" not in agent.log


def _environ(pid: int) -> bytes:
    with open(f"/proc/{pid}/environ", "rb") as file:
        return file.read()


def test_a_program_that_leaves_the_seat_is_bound_whole_and_may_come_back(
    agent: Agent, start: Programs, program: Path
) -> None:
    """After drom_detach the task is bind-only, and every process has the whole grant; it may attach again."""
    script = f"exec 3<&0; sleep 1000 & exec {program} <&3"
    a = start.start(*agent.run("--job", "a", "--", "sh", "-c", script))
    a.await_out("runs")
    b = start.start(*agent.run("--job", "b", "--", "sleep", "1000"))
    agent.await_tasks(a="0", b="1")
    b.kill()
    agent.await_tasks(a="0-1")
    a.tell("d")
    wait_until(lambda: agent.tasks()["a"]["mode"] == "bind-only", agent.tasks)
    (child,) = _children(a.pid)
    wait_until(lambda: affinity(child) == "0,1", lambda: affinity(child))
    start.start(*agent.run("--job", "b", "--", "sleep", "1000"))
    agent.await_tasks(a="0", b="1")
    a.tell("a")
    wait_until(lambda: agent.tasks()["a"]["mode"] == "cooperative", agent.tasks)


def _children(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children()]


def test_what_a_program_says_it_cannot_use_goes_to_others(agent: Agent, start: Programs, program: Path) -> None:
    """A program gives a core up, another starts there; once that one has ended, the first gets the core again."""
    a = start.start(*agent.run("--job", "a", "--", program))
    agent.await_tasks(a="0-1")
    a.await_out("attached .* responder")
    a.tell("1")
    a.await_out("cpus [01]$")
    held = wait_until(lambda: {"0": "0", "1": "1"}.get(agent.tasks()["a"]["held"]), agent.tasks)
    agent.await_tasks(a=held)
    assert agent.tasks()["a"]["wanted_max"] == 1
    told = agent.cli("explain", "a").stdout
    assert "It has the most that it says it can use." in told
    assert "It says that it can use up to 1 CPU: it gets no more." in told
    b = start.start(*agent.run("--job", "b", "--cpus", "1", "--", "sleep", "1000"))
    agent.await_tasks(a=held, b=str(1 - int(held)))
    a.tell("0")
    b.kill()
    agent.await_tasks(a="0-1")


def test_a_program_outside_any_task_becomes_one(agent: Agent, start: Programs, program: Path) -> None:
    """A process that was not launched by drom and attaches is a task named after its command, and bound."""
    a = start.start(program, "--silent", DROM_RUNTIME_DIR=str(agent.dir))
    a.await_out("responder")
    assert agent.await_tasks(program="0-1")["program"]["pid"] == a.pid
    start.start(*agent.run("--job", "b", "--", "sleep", "1000"))
    agent.await_tasks(program="0", b="1")


def test_many_at_once_end_in_a_clean_node(agent: Agent, start: Programs, program: Path) -> None:
    """Launches that race each other run on disjoint cores; those beyond the cores wait and get their turn."""
    several = {f"j{i}": start.start(*agent.run("--job", f"j{i}", "--", program)) for i in range(6)}
    wait_until(lambda: len(agent.tasks()) == 6, agent.tasks)
    for number, job in enumerate(agent.tasks()):  # in the order of arrival, which is the order of their turns
        one = several[job]
        one.await_out("runs")
        agent.assert_clean()
        assert one.quit() == 0
        wait_until(lambda left=5 - number: len(agent.tasks()) == left, agent.tasks)  # type: ignore[misc]


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_a_slow_launcher_does_not_undo_a_shrink(agent: Agent, start: Programs) -> None:
    """A job that shrinks while its launcher has not yet run the command keeps to the smaller grant."""
    slow = ["strace", "-qq", "-o", "/dev/null", "-e", "trace=sched_setaffinity,execve", "-e"]
    slow += ["inject=sched_setaffinity:delay_enter=500000", "-e", "inject=execve:delay_enter=500000:when=2"]
    start.start(*slow, "--", *agent.run("--job", "a", "--", "sleep", "1000"))
    wait_until(lambda: agent.tasks().get("a"), agent.tasks)
    start.start(*agent.run("--job", "b", "--", "sleep", "1000"))
    pid = agent.await_tasks(a="0", b="1")["a"]["pid"]
    wait_until(lambda: _comm(pid) == "sleep", lambda: _comm(pid))
    assert affinity(pid) == "0"


def _comm(pid: int) -> str:
    return psutil.Process(pid).name()


# --- killed programs and agents


@pytest.mark.parametrize("victim", ["a", "b"])
def test_a_killed_program_leaves_its_cores_to_the_other(
    agent: Agent, start: Programs, program: Path, victim: str
) -> None:
    """After kill -9 of either program the other one has both cores."""
    jobs = {"a": start.start(*agent.run("--job", "a", "--", program))}
    agent.await_tasks(a="0-1")
    jobs["b"] = start.start(*agent.run("--job", "b", "--", program))
    agent.await_tasks(a="0", b="1")
    jobs[victim].process.kill()
    rest = "b" if victim == "a" else "a"
    agent.await_tasks(**{rest: "0-1"})
    assert jobs[rest].process.poll() is None


@pytest.mark.parametrize("moment", ["alone", "both", "shrinking", "growing", "enforced", "waiting"])
def test_a_killed_agent_leaves_everything_in_place_for_the_next(
    tmp_path: Path, start: Programs, program: Path, moment: str
) -> None:
    """Nothing moves while no agent runs nor when the next adopts; after that work goes on."""
    with Watcher(tmp_path / "run"):
        agent = launch_agent(tmp_path / "run", *TWO, "--grace", "0.3" if moment == "enforced" else "60")
        try:
            options = ["--silent"] if moment == "enforced" else []
            a = start.start(*agent.run("--job", "a", "--", program, *options))
            a.await_out("runs")
            agent.await_tasks(a="0-1")
            if moment == "shrinking":
                a.tell_heard("h")
            b = None
            if moment not in ("alone", "waiting"):
                b = start.start(*agent.run("--job", "b", "--", program))
            if moment == "waiting":
                b = start.start(*agent.run("--job", "b", "--class", "rigid", "--cpus", "2", "--", program))
                b.await_err("waiting: needs at least 2 CPUs")
            if moment == "shrinking":
                wait_until(lambda: agent.tasks().get("a", {}).get("state") == "shrinking", agent.tasks)
            elif moment not in {"alone", "waiting"}:
                before = agent.await_tasks(a="0", b="1")
                assert (before["a"]["state"] == "enforced") == (moment == "enforced")
            if moment == "growing":
                assert b
                a.tell_heard("s")
                b.kill()
                wait_until(lambda: agent.tasks().get("a", {}).get("state") == "growing", agent.tasks)
                a.tell("p")
            epochs = {job: row["granted"] for job, row in agent.tasks().items()}
            agent.kill()
            assert lives(a.pid)
            agent = launch_agent(tmp_path / "run", *TWO)
            agent.await_log(f"event=adopted tasks={len(epochs)} dead=0")
            after = agent.tasks()
            assert {job: row["granted"] for job, row in after.items() if job in epochs} == epochs
            if moment == "shrinking":
                a.tell("g")
            expected = {"alone": {"a": "0-1"}, "growing": {"a": "0-1"}, "waiting": {"a": "0-1", "b": ""}}
            agent.await_tasks(**expected.get(moment, {"a": "0", "b": "1"}))
            assert lives(a.pid)
            agent.assert_clean()
            if b and moment != "growing":
                b.kill()
                agent.await_tasks(a="0-1")
            start.start(*agent.run("--job", "c", "--", program))
            agent.await_tasks(a="0", c="1")
            agent.assert_clean()
            agent.stop()
        finally:
            agent.discard()


def test_a_program_that_ends_without_an_agent_is_reaped_by_the_next(
    tmp_path: Path, start: Programs, program: Path
) -> None:
    """Tasks that died while no agent ran give their cores back when the next one starts."""
    agent = launch_agent(tmp_path / "run", *TWO)
    try:
        a = start.start(*agent.run("--job", "a", "--", program))
        b = start.start(*agent.run("--job", "b", "--", program))
        a.await_out("runs")
        b.await_out("runs")
        wait_until(lambda: {row["state"] for row in agent.tasks().values()} == {"running"}, agent.tasks)
        agent.kill()
        a.kill()
        agent = launch_agent(tmp_path / "run", *TWO)
        agent.await_log("event=adopted tasks=1 dead=1")
        agent.await_tasks(b="0-1")
        agent.stop()
    finally:
        agent.discard()


def test_a_stopped_agent_gives_masks_back_and_programs_run_on(tmp_path: Path, start: Programs, program: Path) -> None:
    """SIGTERM restores the affinity from before, retires the registry, and programs go on unmanaged."""
    with start_agent(tmp_path, *TWO) as agent:
        a = start.start(*agent.run("--job", "a", "--", program))
        b = start.start(*agent.run("--job", "b", "--", "sleep", "1000"))
        wait_until(lambda: {row["state"] for row in agent.tasks().values()} == {"running"}, agent.tasks)
        a.await_out("runs")
    assert affinity(a.pid) == affinity(b.pid) == affinity(os.getpid())
    assert a.quit() == 0


@pytest.mark.parametrize("how", ["stop", "release"])
def test_a_program_let_go_while_it_applies_a_grant_gets_its_affinity_back(
    tmp_path: Path, start: Programs, program: Path, how: str
) -> None:
    """Who has taken a grant and binds itself only when the agent has let it go is not left on the grant's CPUs."""
    with start_agent(tmp_path, *TWO) as agent:
        a = start.start(*agent.run("--job", "a", "--cpus", "1", "--", program, "--holds"))
        a.await_out("^takes")
        assert affinity(a.pid) != affinity(os.getpid())
        if how == "release":
            agent.order("release", job="a")
            a.tell("g")
            a.await_out("^applied")
    a.tell("g")
    a.await_out("^applied")
    assert affinity(a.pid) == affinity(os.getpid())
    assert a.quit() == 0


def test_who_applies_an_older_grant_than_the_one_enforced_is_confined(
    agent: Agent, start: Programs, program: Path
) -> None:
    """A program that had taken a grant when a smaller one was enforced is brought back when it applies the old one."""
    a = start.start(*agent.run("--job", "a", "--", program, "--holds"))
    a.await_out("^takes")
    a.tell_heard("s")
    start.start(*agent.run("--job", "b", "--", "sleep", "1000"))
    agent.await_tasks(a="0", b="1")
    a.tell("g")
    a.await_out("^applied .* cpus 0,1$")
    wait_until(lambda: affinity(a.pid) == "0", lambda: affinity(a.pid))
    agent.await_log("event=confined")


# --- waiting, classes, orders


def test_a_rigid_job_waits_with_a_sentence_and_starts_when_cores_come_free(
    agent: Agent, start: Programs, program: Path
) -> None:
    """A job that does not fit is told why it waits, shown as waiting, and started by the end of the other."""
    a = start.start(*agent.run("--job", "a", "--min", "2", "--", program))
    a.await_out("cpus 0,1")
    b = start.start(*agent.run("--job", "b", "--class", "rigid", "--cpus", "2", "--", program))
    b.await_err(r"^drom: waiting: needs at least 2 CPUs: 0 free, running jobs may lend 0\.$")
    row = agent.tasks()["b"]
    assert (row["state"], row["granted"]) == ("waiting", "")
    assert row["detail"].startswith("needs at least 2 CPUs")
    assert "waits: needs at least 2 CPUs" in agent.cli("ps").stdout
    assert b.out == ""
    assert a.quit() == 0
    b.await_out("cpus 0,1")
    agent.await_tasks(b="0-1")


def test_a_launcher_killed_while_it_waits_leaves_nothing(agent: Agent, start: Programs, program: Path) -> None:
    """Kill -9 of a waiting launcher removes its task; the next in line is not kept waiting by it."""
    a = start.start(*agent.run("--job", "a", "--class", "rigid", "--", program))
    agent.await_tasks(a="0-1")
    b = start.start(*agent.run("--job", "b", "--", program))
    c = start.start(*agent.run("--job", "c", "--", program))
    b.await_err("waiting:")
    c.await_err("waiting:")
    b.kill()
    wait_until(lambda: agent.tasks().keys() == {"a", "c"}, agent.tasks)
    assert a.quit() == 0
    agent.await_tasks(c="0-1")


def test_an_end_and_a_killed_launcher_in_one_turn(agent: Agent, start: Programs, program: Path) -> None:
    """Cores that come free for a launcher which died in the same moment go to the next."""
    a = start.start(*agent.run("--job", "a", "--class", "rigid", "--", "sleep", "1000"))
    agent.await_tasks(a="0-1")
    b = start.start(*agent.run("--job", "b", "--", program))
    c = start.start(*agent.run("--job", "c", "--", program))
    b.await_err("waiting:")
    c.await_err("waiting:")
    os.kill(agent.pid, signal.SIGSTOP)
    a.kill()
    b.kill()
    os.kill(agent.pid, signal.SIGCONT)
    agent.await_tasks(c="0-1")


def test_classes_and_minima_are_respected(agent: Agent, start: Programs, program: Path) -> None:
    """A moldable job keeps what it started with, a job at its minimum lends nothing, a small rigid job gets a core."""
    start.start(*agent.run("--job", "mold", "--class", "moldable", "--", program))
    agent.await_tasks(mold="0-1")
    waiting = start.start(*agent.run("--job", "late", "--", program))
    waiting.await_err("waiting:")
    start.started[0].quit()
    agent.await_tasks(late="0-1")
    rigid = start.start(*agent.run("--job", "rigid", "--class", "rigid", "--cpus", "1", "--", program))
    agent.await_tasks(late="0", rigid="1")
    waiting.quit()
    wait_until(lambda: agent.tasks().keys() == {"rigid"}, agent.tasks)
    agent.await_tasks(rigid="1")
    with pytest.raises(ControlError, match="rigid: it keeps its cores"):
        agent.order("resize", job="rigid", cpus=1)
    assert rigid.quit() == 0


def test_orders_hold_until_auto(agent: Agent, start: Programs, program: Path) -> None:
    """Resize and set hold a job where they put it; auto lets it go; the other job gets what is left."""
    a = start.start(*agent.run("--job", "a", "--", program))
    a.await_out("cpus 0,1")
    assert agent.cli("resize", "a", "1").returncode == 0
    agent.await_tasks(a="0")
    assert agent.tasks()["a"]["reason"] == "order"
    assert agent.cli("set", "a", "1").returncode == 0
    agent.await_tasks(a="1")
    b = start.start(*agent.run("--job", "b", "--", program))
    agent.await_tasks(a="1", b="0")
    assert agent.cli("set", str(b.pid), "1").returncode == 1
    assert agent.cli("resize", "a", "auto", "--json").returncode == 0
    agent.await_tasks(a="1", b="0")
    b.quit()
    agent.await_tasks(a="0-1")
    a.await_out(r"reason 4 cpus 1\n")


def test_two_jobs_cannot_be_swapped_but_moved_through_a_free_core(agent: Agent, start: Programs, program: Path) -> None:
    """`drom set` onto cores of another malleable job is done or refused, and held sets stay disjoint on the way."""
    start.start(*agent.run("--job", "a", "--", program))
    agent.await_tasks(a="0-1")
    start.start(*agent.run("--job", "b", "--", program))
    agent.await_tasks(a="0", b="1")
    refused = agent.cli("set", "a", "1")
    assert (refused.returncode, refused.stderr.count("\n")) in ((1, 1), (0, 0)), refused.stderr
    wait_until(lambda: {row["state"] for row in agent.tasks().values()} == {"running"}, agent.tasks)
    agent.assert_clean()


def test_observing_changes_no_mask(tmp_path: Path, start: Programs, program: Path) -> None:
    """With --observe plans are shown, programs run unmanaged on the CPUs they had, and orders are refused."""
    everything = affinity(os.getpid())
    with start_agent(tmp_path, *TWO, "--observe") as agent:
        a = start.start(*agent.run("--job", "a", "--", program))
        a.await_out("unmanaged")
        told = start.start(*agent.run("--job", "c", "--", "sh", "-c", "env; echo all"))
        told.await_out("^all$")
        names = {line.partition("=")[0] for line in told.out.splitlines()}
        mine = {"DROM_CONFIG", "DROM_RUN", "DROM_TASK", "DROM_RUNTIME_DIR"}
        told_of = {name for name in names if name.startswith((*STEERING, "LD_", "PYTHON", "NUMBA_"))}
        assert mine <= told_of <= mine | os.environ.keys()
        agent.await_tasks(a="0-1")
        b = start.start(*agent.run("--job", "b", "--", "sleep", "1000"))
        rows = agent.await_tasks(a="0", b="1")
        assert {row["mode"] for row in rows.values()} == {"unmanaged"}
        assert affinity(a.pid) == affinity(b.pid) == everything
        with pytest.raises(ControlError, match="only observes"):
            agent.order("resize", job="a", cpus=1)
        assert "only observes" in agent.cli("ps").stdout
    assert affinity(a.pid) == everything


def test_observing_survives_an_attach_that_had_to_wait(tmp_path: Path, start: Programs, program: Path) -> None:
    """A program that attaches while the plan is full is refused when its turn comes, and the agent lives on."""
    with start_agent(tmp_path, *TWO, "--observe") as agent:
        a = start.start(*agent.run("--job", "a", "--class", "rigid", "--", "sleep", "1000"))
        agent.await_tasks(a="0-1")
        b = start.start(program, DROM_RUNTIME_DIR=str(agent.dir))
        wait_until(lambda: "program" in agent.tasks(), agent.tasks)
        a.kill()
        b.await_out("unmanaged")
        agent.await_tasks(program="0-1")


# --- an emulated machine of two sockets


@pytest.fixture(scope="module")
def shared_sockets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """One emulated node of two sockets with four cores of two threads."""
    with start_agent(tmp_path_factory.mktemp("sockets"), "--emulate", "pack:2 core:4 pu:2") as agent:
        yield agent


@pytest.fixture
def sockets(shared_sockets: Agent, start: Programs) -> Iterator[Agent]:
    """The emulated node, watched; empty before and after."""
    with Watcher(shared_sockets.dir):
        yield shared_sockets
        shared_sockets.assert_clean()
        start.kill()
        shared_sockets.await_tasks()


def _settled(agent: Agent, jobs: int) -> dict[str, set[int]]:
    """Return the CPUs of each task once all is settled."""
    rows: dict[str, Any] = {}

    def settled() -> bool:
        nonlocal rows
        rows = agent.tasks()
        return len(rows) == jobs and all(r["state"] == "running" and r["granted"] == r["target"] for r in rows.values())

    wait_until(settled, lambda: f"{rows}\n{agent.log}")
    return {name: _cpus(row["granted"]) for name, row in rows.items()}


def _cpus(text: str) -> set[int]:
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def _socket_of(agent: Agent, cpus: set[int]) -> set[int]:
    packages = agent.order("topology")["packages"]
    return {i for i, package in enumerate(packages) if cpus & _cpus(package["cpus"])}


def test_two_jobs_have_a_socket_each(sockets: Agent, start: Programs, program: Path) -> None:
    """A job alone has the machine; with a guest each has its own socket; after the guest it has the machine again."""
    a = start.start(*sockets.run("--job", "a", "--", program))
    a.await_out("cpus " + ",".join(map(str, range(16))) + "$")
    b = start.start(*sockets.run("--job", "b", "--", program))
    cpus = _settled(sockets, 2)
    assert [len(cpus[job]) for job in "ab"] == [8, 8]
    assert {len(_socket_of(sockets, cpus[job])) for job in "ab"} == {1}
    assert cpus["a"] | cpus["b"] == set(range(16))
    sockets.assert_clean()
    b.quit()
    assert _settled(sockets, 1)["a"] == set(range(16))
    assert affinity(a.pid) == affinity(os.getpid())


def test_three_jobs_use_every_cpu_and_whole_cores(sockets: Agent, start: Programs, program: Path) -> None:
    """Three jobs cover the machine in whole cores, one socket is not shared, and each end gives cores back."""
    jobs = [start.start(*sockets.run("--job", name, "--", program)) for name in "ab"]
    _settled(sockets, 2)
    jobs.append(start.start(*sockets.run("--job", "c", "--", program)))
    cpus = _settled(sockets, 3)
    assert set.union(*cpus.values()) == set(range(16))
    assert sum(map(len, cpus.values())) == 16
    cores = [_cpus(core["cpus"]) for core in sockets.order("topology")["cores"]]
    for mine in cpus.values():
        assert all(core <= mine or not core & mine for core in cores)
    assert sorted(len(_socket_of(sockets, mine)) for mine in cpus.values())[:2] == [1, 1]
    jobs[0].quit()
    cpus = _settled(sockets, 2)
    assert cpus["b"] | cpus["c"] == set(range(16))
    assert not cpus["b"] & cpus["c"]


def test_a_guest_of_two_cores_takes_only_those(sockets: Agent, start: Programs, program: Path) -> None:
    """A guest that asks for four CPUs gets two cores of one socket, and the host keeps the other twelve."""
    start.start(*sockets.run("--job", "host", "--", program))
    _settled(sockets, 1)
    start.start(*sockets.run("--job", "guest", "--cpus", "4", "--", program))
    cpus = _settled(sockets, 2)
    assert [len(cpus[job]) for job in ("host", "guest")] == [12, 4]
    assert len(_socket_of(sockets, cpus["guest"])) == 1


def test_ranks_of_one_launch_are_tasks_of_one_job_on_their_own_sockets(
    sockets: Agent, start: Programs, program: Path
) -> None:
    """Two ranks by Open MPI's variables are one job, a socket each; a guest shares with them and leaves again."""
    ranks = [
        start.start(
            *sockets.run("--job", "mpi", "--session", "s1", "--", program),
            OMPI_COMM_WORLD_LOCAL_RANK=str(rank),
            OMPI_COMM_WORLD_LOCAL_SIZE="2",
        )
        for rank in range(2)
    ]
    cpus = _settled(sockets, 2)
    assert cpus.keys() == {"mpi.0", "mpi.1"}
    assert [len(mine) for mine in cpus.values()] == [8, 8]
    assert {len(_socket_of(sockets, mine)) for mine in cpus.values()} == {1}
    sockets.assert_clean()
    guest = start.start(*sockets.run("--job", "guest", "--", program))
    cpus = _settled(sockets, 3)
    assert set.union(*cpus.values()) == set(range(16))
    assert sum(map(len, cpus.values())) == 16
    assert min(len(mine) for mine in cpus.values()) >= 2
    sockets.assert_clean()
    guest.quit()
    assert [len(mine) for mine in _settled(sockets, 2).values()] == [8, 8]
    ranks[0].kill()
    cpus = _settled(sockets, 1)
    assert ranks[1].process.poll() is None


def test_a_missing_rank_frees_its_place_after_a_while(sockets: Agent, start: Programs, program: Path) -> None:
    """A rank that never comes keeps its reserved cores only for a while; then the others get them."""
    start.start(
        *sockets.run("--job", "mpi", "--session", "s2", "--", program),
        OMPI_COMM_WORLD_LOCAL_RANK="0",
        OMPI_COMM_WORLD_LOCAL_SIZE="2",
    )
    wait_until(lambda: "mpi" in sockets.tasks() and len(_cpus(sockets.tasks()["mpi"]["granted"])) == 8, sockets.tasks)
    start.start(*sockets.run("--job", "other", "--", program))
    cpus = _settled(sockets, 2)
    assert not cpus["mpi"] & cpus["other"]
    wait_until(lambda: set.union(*_settled(sockets, 2).values()) == set(range(16)), sockets.tasks)


def test_jobs_of_one_name_are_told_apart(sockets: Agent, start: Programs, program: Path) -> None:
    """A second launch with the name of a running job gets a name of its own."""
    start.start(*sockets.run("--job", "same", "--", program))
    _settled(sockets, 1)
    start.start(*sockets.run("--job", "same", "--", program))
    assert _settled(sockets, 2).keys() == {"same", "same.2"}


# --- metrics and signals


def _scrape(agent: Agent) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(agent.metrics())}


def _values(families: dict[str, Any], name: str) -> dict[tuple[str, ...], float]:
    return {tuple(s.labels.values()): s.value for f in families.values() for s in f.samples if s.name == name}


def test_metrics_tell_of_jobs_while_they_live(tmp_path: Path, start: Programs, program: Path) -> None:
    """Every promised metric is served and parses; the series of a job end with it."""
    with start_agent(tmp_path, *TWO, *SERVES_METRICS, "--grace", "0.1") as agent:
        start.start(*agent.run("--job", "a", "--", program, "--silent"))
        start.started[0].await_out("responder")
        b = start.start(*agent.run("--job", "b", "--", program))
        agent.await_tasks(a="0", b="1")
        families = _scrape(agent)
        names = {s.name for f in families.values() for s in f.samples} | {f.name for f in families.values()}
        assert names >= METRICS, METRICS - names
        assert _values(families, "drom_job_cpus") == {("a", "0"): 1, ("b", "1"): 1}
        assert _values(families, "drom_job_cpus_target") == {("a",): 1, ("b",): 1}
        assert _values(families, "drom_job_cpus_max") == {("a",): 2, ("b",): 2}
        assert _values(families, "drom_cpus")["0", "assigned"] == 1
        assert _values(families, "drom_reconfigurations_total")["shrink", "enforced"] == 1
        assert _values(families, "drom_enforcements_total") == {(): 1}
        assert _values(families, "drom_reconfiguration_duration_seconds_count")[()] >= 1
        b.quit()
        agent.await_tasks(a="0-1")
        families = _scrape(agent)
        assert "b" not in {s.labels.get("job_name") for f in families.values() for s in f.samples}
        assert _values(families, "drom_reaped_tasks_total")["exited",] == 1
        start.kill()
        agent.await_tasks()
        families = _scrape(agent)
        assert {s.labels["job_name"] for f in families.values() for s in f.samples if "job_name" in s.labels} == set()
        assert _values(families, "drom_cpus")["0", "free"] == 1


@contextmanager
def _subscribed(agent: Agent) -> Iterator[list[dict[str, Any]]]:
    """Collect the agent's signals in a block; the subscription is in force when it begins."""
    events: list[dict[str, Any]] = []
    stop = threading.Event()
    with zmq.Context() as context, context.socket(zmq.SUB) as sock:
        sock.setsockopt(zmq.SUBSCRIBE, b"")
        with closing(sock.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)) as monitor:
            sock.connect(endpoint(agent.dir, "signals"))
            assert monitor.poll(10000), "no handshake"
            sock.disable_monitor()

        def listen() -> None:
            while not stop.is_set():
                if sock.poll(20):
                    message = sock.recv()
                    events.append({"topic": message.partition(b" ")[0].decode(), **signals.event(message)})

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield events
        finally:
            stop.set()
            thread.join()


def test_signals_tell_what_happens(agent: Agent, start: Programs, program: Path) -> None:
    """Grants and applications are published on DIR/signals, by slot."""
    with _subscribed(agent) as events:
        a = start.start(*agent.run("--job", "a", "--", program))
        a.await_out("cpus 0,1")
        start.start(*agent.run("--job", "b", "--", program))
        agent.await_tasks(a="0", b="1")
        wait_until(lambda: any(e["event"] == "applied" and e["job"] == "a" for e in events), lambda: events)
    granted = [e for e in events if e["event"] == "granted" and e["job"] == "a"]
    assert [(e["old"], e["new"]) for e in granted][-1] == ("0-1", "0")
    done = next(e for e in events if e["event"] == "applied")
    assert (done["pid"], done["task"], done["old"], done["new"], done["action"]) == (a.pid, 0, "0-1", "0", "shrink")
    assert done["topic"].startswith("slot.000000000")
