# SPDX-License-Identifier: Apache-2.0
"""Orders to a real agent: taking in and letting go what runs, trying orders out, and who may give them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.errors import ControlError

from dromlib.cpulist import format_cpulist, mask_of
from tests.support import checker
from tests.support.agents import Agent, Program, Programs, affinity, environment, launch_agent, start_agent, wait_until
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1"),
]
TWO = ("--topology", "pack:2 core:1", "--grace", "0.2")
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")

STRANGER = """
import json, os, sys
from pathlib import Path
from drom.agent.control import client as control
run, uid, asked = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
os.setgroups([])
os.setresuid(uid, uid, uid)
for name, fields in asked:
    try:
        value = control.order(run, name, **fields)
        print(json.dumps(value.get("said") or value.get("changes") or "done"))
    except control.ControlError as error:
        print(json.dumps(str(error)))
"""
SLEEPER = "import os,sys; os.setresuid(*3*[int(sys.argv[1])]); print('ready', flush=True); sys.stdin.read()"


@pytest.fixture
def agent() -> Iterator[Agent]:
    """Return an agent of two cores, in a folder that everybody may enter."""
    with tempfile.TemporaryDirectory(prefix="drom-orders-") as folder:
        Path(folder).chmod(0o755)
        with start_agent(Path(folder), *TWO) as agent:
            yield agent


def ask_as(agent: Agent, uid: int, *asked: tuple[str, dict[str, Any]]) -> list[Any]:
    """Return what the agent answers to a user's orders."""
    command = [sys.executable, "-c", STRANGER, str(agent.dir), str(uid), json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def sleeper(start: Programs, uid: int = os.getuid()) -> Program:
    """Start a program of user `uid` that knows nothing of drom."""
    program = start.start(sys.executable, "-c", SLEEPER, str(uid))
    program.await_out("ready")
    return program


@needs_root
def test_only_masters_have_the_configuration_read_again(agent: Agent) -> None:
    """Another user is told who may."""
    sentence = "only root and the agent's own user may reload the configuration."
    assert ask_as(agent, NOBODY, ("reload", {})) == [sentence]


class TestAttach:
    """Taking in what runs."""

    def test_a_running_program_becomes_a_job_and_is_given_back(
        self, agent: Agent, start: Programs, program: Path
    ) -> None:
        """The program and its children are bound, share with a launched job, and get their affinity back."""
        old = start.start(program, "--outside", "--children", "1", "--threads", "2")
        before, everything = affinity(old.pid), format_cpulist(mask_of(os.sched_getaffinity(old.pid)))
        done = agent.cli("attach", str(old.pid), "--job", "old", "--max-nothing")
        assert done.returncode == 2
        done = agent.cli("attach", str(old.pid), "--job", "old", "--min", "1", "--mem", "1M")
        assert (done.returncode, done.stdout) == (0, f"process {old.pid} is job old on CPUs 0-1.\n")

        new = start.start(*agent.run("--job", "new", "--", program))
        rows = agent.await_tasks(old="0", new="1")
        assert rows["old"]["attached"]
        wait_until(lambda: affinity(old.pid) == "0", lambda: affinity(old.pid))
        assert "It ran before it was attached." in agent.cli("explain", "old").stdout
        agent.assert_clean()

        done = agent.cli("release", "old")
        assert done.stdout == (
            f"old (pid {old.pid}) may use CPUs {everything} again and is no longer managed: "
            "jobs on these CPUs share them with it.\n"
        )
        agent.await_tasks(new="0-1")
        assert affinity(old.pid) == before
        assert (old.quit(), new.quit()) == (0, 0)

    def test_a_program_that_attaches_itself_later_sits_down(self, agent: Agent, start: Programs, program: Path) -> None:
        """A program that was taken in and then calls drom_attach is the responder of that job."""
        old = start.start(program, "--outside", DROM_RUNTIME_DIR=str(agent.dir))
        agent.order("attach", pid=old.pid, job="old")
        old.tell("a")
        old.await_out("attached .* responder")

        assert agent.tasks().keys() == {"old"}
        assert agent.tasks()["old"]["mode"] == "cooperative"
        agent.order("release", job=str(old.pid))
        wait_until(lambda: agent.tasks() == {}, agent.tasks)
        new = start.start(*agent.run("--job", "new", "--", program))
        agent.await_tasks(new="0-1")
        assert old.applied() == ["0,1"]
        assert affinity(old.pid) == "0,1"
        assert (old.quit(), new.quit()) == (0, 0)

    def test_what_it_starts_belongs_to_it(self, agent: Agent, start: Programs, program: Path) -> None:
        """A process that an attached one starts later sits down in its job, although nobody told it so."""
        old = start.start("sh", "-c", f"read go; {program}; true", DROM_RUNTIME_DIR=str(agent.dir))
        agent.order("attach", pid=old.pid, job="old")
        old.tell("go\n")
        old.await_out("attached .* responder")

        assert agent.tasks().keys() == {"old"}
        with pytest.raises(ControlError, match=rf"^process [0-9]+ belongs to job old \(pid {old.pid}\)"):
            agent.order("attach", pid=int(old.await_out(r"attached (\d+) responder")[1]))
        assert old.quit() == 0

    def test_who_has_to_wait_runs_on(self, agent: Agent, start: Programs, program: Path) -> None:
        """Before its first cores an attached program keeps its affinity; it is bound when they come."""
        first = start.start(*agent.run("--job", "first", "--class", "rigid", "--", program))
        agent.await_tasks(first="0-1")
        old = sleeper(start)
        before = affinity(old.pid)
        said = agent.cli("attach", str(old.pid), "--job", "old").stdout

        assert said.startswith(
            f"process {old.pid} is job old, continues on its present CPUs, and waits: needs at least 1 CPU"
        )
        assert agent.tasks()["old"]["state"] == "waiting"
        assert affinity(old.pid) == before
        assert agent.cli("explain", "old").stdout.splitlines()[2].endswith("it runs on where it was.")
        agent.order("resize", job="first", cpus=None)
        first.quit()
        agent.await_tasks(old="0-1")
        assert affinity(old.pid) == "0,1"
        old.kill()
        wait_until(lambda: agent.tasks() == {}, agent.tasks)

    def test_the_next_agent_knows_it(self, tmp_path: Path, start: Programs) -> None:
        """After a crash an attached job is adopted with the affinity it is to get back."""
        agent = launch_agent(tmp_path / "run", *TWO)
        old = sleeper(start)
        os.sched_setaffinity(old.pid, {1})
        agent.order("attach", pid=old.pid, job="old", cpus=1)
        agent.await_tasks(old=agent.tasks()["old"]["granted"])
        agent.kill()
        with start_agent(tmp_path, *TWO) as agent:
            assert agent.tasks()["old"]["attached"]
            agent.order("release", job="old")
            assert affinity(old.pid) == "1"
            wait_until(lambda: agent.tasks() == {}, agent.tasks)

    def test_what_cannot_be_taken_in(self, agent: Agent, start: Programs, program: Path) -> None:
        """The gone, the kernel's, the agent, its ancestors and the managed are refused in one sentence each."""
        gone = sleeper(start)
        gone.kill()
        job = start.start(*agent.run("--job", "job", "--", program, "--children", "1"))
        job.await_out("attached .* follower")
        child = int(job.await_out(r"attached (\d+) follower")[1])
        refusals = {
            gone.pid: f"no process has the pid {gone.pid}: see `ps -e`.",
            99_999_999: "no process has the pid 99999999: see `ps -e`.",
            1: "process 1 is the parent of everything here: attach the programs themselves.",
            agent.pid: f"process {agent.pid} is the agent or an ancestor of it: ",
            os.getpid(): f"process {os.getpid()} is the agent or an ancestor of it: ",
            job.pid: f"process {job.pid} is already managed as job job: see `drom explain job`.",
            child: f"process {child} belongs to job job (pid {job.pid}), which is already managed.",
        }
        for pid, sentence in refusals.items():
            for dry_run in (False, True):
                with pytest.raises(ControlError) as refusal:
                    agent.order("attach", pid=pid, dry_run=dry_run)
                assert str(refusal.value).startswith(sentence)
        assert agent.tasks().keys() == {"job"}

    def test_threads_of_the_kernel(self, agent: Agent) -> None:
        """They are none of ours."""
        comm = Path("/proc/2/comm")
        if not comm.exists() or comm.read_text(encoding="utf-8") != "kthreadd\n":
            pytest.skip("needs to see the kernel's threads")
        with pytest.raises(ControlError, match=r"^2 is a thread of the kernel: attach a program\.$"):
            agent.order("attach", pid=2)

    def test_excluded_programs_are_left_alone(self, tmp_path: Path, start: Programs) -> None:
        """What the door would not take in no order does."""
        old = sleeper(start)
        with (
            start_agent(tmp_path, *TWO, "--exclude-programs", "python*") as agent,
            pytest.raises(ControlError, match=r"^the agent leaves python\* alone"),
        ):
            agent.order("attach", pid=old.pid)


class TestDryRuns:
    """What would be."""

    def test_nothing_changes(self, agent: Agent, start: Programs, program: Path) -> None:
        """Each order is told in full; registry, masks and tasks are as before, to the byte."""
        job = start.start(*agent.run("--job", "job", "--", program))
        job.await_out("responder")
        agent.await_tasks(job="0-1")
        old = sleeper(start)
        before = checker.read(agent.dir), affinity(job.pid), affinity(old.pid), agent.tasks().keys()
        who = {"job": "job", "task": 0, "pid": job.pid}
        order: dict[str, list[dict[str, Any]]] = {}
        asked: dict[str, dict[str, Any]] = {
            "resize": {"job": "job", "cpus": 1},
            "set": {"job": "job", "cpus": "1"},
            "release": {"job": "job"},
            "attach": {"pid": old.pid, "job": "old"},
        }
        for name, fields in asked.items():
            answer = agent.order(name, dry_run=True, **fields)
            assert (answer["dry_run"], answer["schema_version"]) == (True, 1)
            order[name] = answer["changes"]

        assert order["resize"] == [{**who, "action": "shrink", "from": "0-1", "to": "0", "why": "the order"}]
        assert order["set"] == [{**who, "action": "shrink", "from": "0-1", "to": "1", "why": "the order"}]
        (left,) = order["release"]
        assert (left["action"], left["from"], left["why"]) == ("release", "0-1", "is managed no longer")
        assert [(row["job"], row["action"], row["to"]) for row in order["attach"]] == [
            ("old", "attach", "1"),
            ("job", "shrink", "0"),
        ]
        assert order["attach"][1]["why"] == "makes room for old"
        assert (checker.read(agent.dir), affinity(job.pid), affinity(old.pid), agent.tasks().keys()) == before
        shown = agent.cli("resize", "job", "1", "--for", "10m", "--dry-run").stdout.splitlines()
        assert shown[1].split() == ["job", "0", str(job.pid), "shrink", "0-1", "0", "the", "order"]
        assert shown[2] == "This is a dry run: nothing was changed."
        assert job.quit() == 0

    def test_an_observing_agent_tries_out_too(self, tmp_path: Path, start: Programs) -> None:
        """Who only observes may be asked what would be."""
        with start_agent(tmp_path, *TWO, "--observe") as agent:
            old = sleeper(start)
            assert agent.order("attach", pid=old.pid, dry_run=True)["changes"][0]["action"] == "attach"
            with pytest.raises(ControlError, match="only observes"):
                agent.order("attach", pid=old.pid)


class TestTime:
    """Orders that end."""

    def test_an_order_for_a_time_ends_by_itself(self, agent: Agent, start: Programs, program: Path) -> None:
        """The job shrinks, says until when, and grows again without anybody doing anything."""
        job = start.start(*agent.run("--job", "job", "--", program))
        agent.await_tasks(job="0-1")
        agent.order("resize", job="job", cpus=1, **{"for": 1.5})
        row = agent.await_tasks(job="0")["job"]
        assert row["hold"] == 1
        assert 0 < row["left"] <= 1.5
        row = agent.await_tasks(job="0-1")["job"]
        assert (row["hold"], row["left"]) == (None, None)
        assert "when the time of the order for it was over" in agent.cli("explain", "job").stdout
        assert job.quit() == 0


class TestFrozen:
    """The kill switch."""

    def test_no_order_is_obeyed(self, agent: Agent, start: Programs, program: Path) -> None:
        """Attach and release are refused as resize is, and nothing moves."""
        job = start.start(*agent.run("--job", "job", "--", program))
        agent.await_tasks(job="0-1")
        old = sleeper(start)
        switch = agent.dir / "freeze"
        switch.touch()
        agent.await_log("event=frozen")
        for name, fields in (
            ("attach", {"pid": old.pid}),
            ("release", {"job": "job"}),
            ("resize", {"job": "job", "cpus": 1}),
        ):
            with pytest.raises(ControlError, match=rf"^the node is frozen: remove {switch} first\.$"):
                agent.order(name, **fields)
        assert agent.tasks().keys() == {"job"}
        assert "Nothing changes: the node is frozen until" in agent.cli("explain", "job").stdout
        switch.unlink()
        agent.await_log("event=thawed")
        assert job.quit() == 0


@needs_root
class TestOtherUsers:
    """Who is not root."""

    def test_what_is_ones_own(self, agent: Agent, start: Programs) -> None:
        """A user attaches, shrinks, lets go and releases what runs as him, and looks at everything."""
        mine = sleeper(start, NOBODY)
        said = ask_as(
            agent,
            NOBODY,
            ("attach", {"pid": mine.pid, "job": "mine"}),
            ("resize", {"job": "mine", "cpus": 1}),
            ("resize", {"job": "mine", "cpus": 2}),
            ("resize", {"job": "mine", "cpus": None}),
            ("explain", {"job": "mine"}),
            ("release", {"job": "mine"}),
        )

        assert said[0] == f"process {mine.pid} is job mine on CPUs 0-1."
        assert said[1] == said[3] == said[4] == "done"
        assert said[2] == "job mine has 1 CPU: only root and the agent's own user may order more than that."
        assert said[5].startswith(f"mine (pid {mine.pid}) may use CPUs ")
        assert affinity(mine.pid) == affinity(os.getpid())

    def test_what_is_not(self, agent: Agent, start: Programs) -> None:
        """Programs and orders of others are out of reach."""
        roots = sleeper(start)
        mine = sleeper(start, NOBODY)
        agent.order("attach", pid=mine.pid, job="mine")
        agent.order("resize", job="mine", cpus=1)
        said = ask_as(
            agent,
            NOBODY,
            ("attach", {"pid": roots.pid}),
            ("resize", {"job": "mine", "cpus": None}),
            ("set", {"job": "mine", "cpus": "1"}),
        )
        assert said == [
            f"process {roots.pid} belongs to another user: only root and the agent's own user may attach it.",
            "job mine is under an order of another user: only root and the agent's own user may change it.",
            "only root and the agent's own user may choose CPUs: ask for fewer with `drom resize`.",
        ]
        assert ask_as(agent, NOBODY - 1, ("release", {"job": "mine"}), ("ps", {})) == [
            "job mine belongs to another user: only root and the agent's own user may change it.",
            "done",
        ]
        assert agent.tasks()["mine"]["hold"] == 1


def test_odd_orders_are_answered(agent: Agent) -> None:
    """Whatever an order holds, the answer is one sentence and the agent lives."""
    odd: list[Any] = [None, True, -1, 0, 1.5, 1 << 62, "", "x" * 100_000, "\ud800", [], {}, [[]] * 99]
    for name in ("set", "resize", "attach", "release", "explain", "ps ", "\x00"):
        for value in odd:
            fields = {"job": value, "cpus": value, "pid": value, "for": value, "dry_run": value}
            with pytest.raises(ControlError) as refusal:
                agent.order(name, **fields)
            assert str(refusal.value).endswith(".")
            assert len(str(refusal.value)) < 300
    assert agent.tasks() == {}


def test_the_page_about_orders_is_right(agent: Agent, start: Programs, program: Path) -> None:
    """Its commands run one after the other as they stand there."""
    page = (ROOT / "docs" / "orders.md").read_text(encoding="utf-8")
    lines = "".join(re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    job = start.start(*agent.run("--job", "jacobi", "--", program))
    agent.await_tasks(jacobi="0-1")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = environment(PATH=path, DROM_RUNTIME_DIR=str(agent.dir), PID=str(sleeper(start).pid), NUMBA_DISABLE_JIT="1")
    done = subprocess.run(["bash", "-euxc", lines], env=env, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stderr.count("+ drom ") == lines.count("\ndrom ") + 1
    assert done.stdout.count("This is a dry run: nothing was changed.") == 2
    assert "is no longer managed: jobs on these CPUs share them with it." in done.stdout
    assert agent.tasks()["jacobi"]["pin"] == "0"
    assert job.quit() == 0


def test_ps_is_watched(agent: Agent, start: Programs) -> None:
    """The table comes again and again until somebody ends it."""
    watch = start.start(sys.executable, "-m", "drom", "ps", "--watch", "1", "--runtime-dir", agent.dir)
    watch.await_out(r"(?s)No task runs here.*No task runs here")
    watch.process.terminate()
    watch.wait()
