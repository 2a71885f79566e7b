# SPDX-License-Identifier: Apache-2.0
"""Parts of the agent's loop that fail: the agent goes on, and says what failed where."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from drom.agent.config.options import Options
from drom.agent.observe.guarded import EXIT_STATUS

from tests.support.agents import SERVES_METRICS, Agent, Programs, launch_agent, start_agent, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1"),
]

PARTS = {
    "deadlines": "drom.agent.node.node:Node.tick",
    "door": "drom.agent.daemon.registration_server:RegistrationServer.run",
    "following": "drom.agent.daemon.process_watch:ProcessWatcher.run",
    "freeze_file": "drom.agent.ipc.runtime_dir:freezes",
    "load": "drom.agent.system.unmanaged_load:LoadMonitor.look",
    "machine": "drom.agent.topology.availability:AvailabilityMonitor.look",
    "pacing": "drom.agent.observe.job_rates:RateMonitor.look",
    "repairs": "drom.agent.enforcement.repair:MaskRepair.run",
    "scheduler": "drom.agent.execution.executor:NoScheduler.run",
    "service_manager": "drom.agent.system.sd_notify:ServiceManager.heartbeat",
    "spreading": "drom.agent.enforcement.spread:ThreadSpreading.run",
    "widening": "drom.agent.enforcement.repair:MaskWidening.run",
}
"""A function of each part that every turn of the loop calls."""
MORE = {
    "binding": "drom.agent.enforcement.affinity:apply_rules",
    "due": "drom.agent.daemon.process_watch:ProcessWatcher.next_due",
    "events": "drom.agent.daemon.acknowledgements:AckProcessor.read",
    "order": "drom.agent.observe.snapshot:Snapshot.to_json",
    "plan": "drom.agent.node.grants:Grants.publish_next",
}
LEAVING = {
    "give_back": "drom.agent.daemon.daemon:Daemon.restore_affinity",
    "retire": "drom.agent.ipc.registry:Registry.retire",
    "remove_all_but": "drom.agent.ipc.mailboxes:Mailboxes.keep_only",
    "admission": "drom.agent.daemon.registration_server:RegistrationServer.close",
    "control": "drom.agent.control.server:Server.close",
    "following_close": "drom.agent.daemon.process_watch:ProcessWatcher.close",
    "steward": "drom.agent.execution.executor:NoScheduler.close",
}
"""Functions that an agent calls when it stops."""
LONG = "1000"


def faults(agent: Agent, part: str) -> int:
    """Return how many failures of a part the agent has counted."""
    found = re.search(rf'^drom_loop_faults_total{{part="{part}"}} (\S+)', agent.metrics(), re.MULTILINE)
    assert found
    return int(float(found[1]))


class Breakable:
    """An agent whose functions fail while they are `broken`."""

    def __init__(self, folder: Path, lasting: str = LONG) -> None:
        self.folder = folder / "broken"
        self.folder.mkdir()
        self._lasting = lasting
        options = Options(runtime_dir=str(folder / "run"), topology="pack:2 core:1", metrics=SERVES_METRICS[1])
        targets = [f"{name}={where}" for name, where in (PARTS | MORE | LEAVING).items()]
        within = (sys.executable, "-m", "tests.support.faulty_agent", str(self.folder), lasting, *targets, "--")
        self.agent = launch_agent(folder / "run", served=options, within=within)

    def breaks(self, name: str) -> None:
        """Have a function fail from now on."""
        (self.folder / name).touch()

    def mends(self, name: str) -> None:
        """Have it work again."""
        (self.folder / name).unlink()


@pytest.fixture
def breakable(tmp_path: Path) -> Iterator[Breakable]:
    """Start an agent that can be broken, and see that it can be stopped in good order afterwards."""
    found = Breakable(tmp_path)
    try:
        yield found
        found.agent.stop()
    finally:
        print(found.agent.log)
        found.agent.discard()


def test_each_part_of_the_loop_may_fail(breakable: Breakable, start: Programs, program: Path) -> None:
    """Each failure is logged once with its place and counted; the agent serves as before when it is over."""
    agent = breakable.agent
    first = start.start(*agent.run("--job", "a", "--", program))
    agent.await_tasks(a="0-1")
    for part, where in PARTS.items():
        before = faults(agent, part)
        breakable.breaks(part)
        wait_until(lambda part=part, before=before: faults(agent, part) > before + 1, lambda: agent.log)  # type: ignore[misc]
        breakable.mends(part)
        lines = [line for line in agent.log.splitlines() if f"event=fault part={part} " in line]
        assert len(lines) == 1
        assert re.search(r'error="OSError: \[Errno 5\] made to fail" at=\S+\.py:\d+', lines[0]), where

    second = start.start(*agent.run("--job", "b", "--", program))
    agent.await_tasks(a="0", b="1")
    agent.assert_clean()
    second.quit()
    agent.await_tasks(a="0-1")
    assert first.quit() == 0


def test_a_part_that_cannot_be_asked_when_it_is_due_stops_nothing(
    breakable: Breakable, start: Programs, program: Path
) -> None:
    """The failure is that of the part, whatever its kind, and the loop goes on."""
    agent = breakable.agent
    for name in ("due", "due.bug"):
        before = faults(agent, "following")
        breakable.breaks(name)
        wait_until(lambda before=before: faults(agent, "following") > before + 1, lambda: agent.log)  # type: ignore[misc]
        breakable.mends(name)
    start.start(*agent.run("--job", "a", "--", program))
    agent.await_tasks(a="0-1")


def test_a_plan_left_half_made_is_made_anew(breakable: Breakable, start: Programs, program: Path) -> None:
    """A failure between a change of the plan and its publication costs no program its CPUs or its place."""
    agent = breakable.agent
    for name, cpus in (("a", "1"), ("b", "0")):
        start.start(*agent.run("--job", name, "--cpus", "1", "--", program)).await_out(f"cpus {cpus}$")
    waits = start.start(*agent.run("--job", "c", "--cpus", "1", "--", program))
    wait_until(lambda: "c" in agent.tasks(), lambda: agent.log)

    breakable.breaks("plan.bug")
    start.started[1].quit()
    agent.await_log("event=fault part=events .*RuntimeError: made to fail in the middle")
    agent.await_log("event=fault part=recovery")
    breakable.mends("plan.bug")

    agent.await_log("event=recovered tasks=")
    waits.await_out("^applied .* cpus 0$")
    agent.await_tasks(a="1", c="0")
    agent.assert_clean()
    assert waits.quit() == 0
    assert start.started[0].quit() == 0
    agent.await_tasks()


def test_an_order_that_meets_a_fault_is_answered(breakable: Breakable) -> None:
    """The sentence says that drom is to blame, and where to look."""
    breakable.breaks("order.bug")
    with pytest.raises(Exception, match=r"this is a fault of drom \(RuntimeError\): report it, with event=fault"):
        breakable.agent.order("ps")
    breakable.mends("order.bug")

    assert breakable.agent.order("ps")["tasks"] == []
    assert faults(breakable.agent, "order") == 1


def test_mail_and_binding_are_tried_again(breakable: Breakable, start: Programs, program: Path) -> None:
    """An acknowledgement that could not be read is read later; threads that could not be bound are bound later."""
    agent = breakable.agent
    start.start(*agent.run("--job", "a", "--", program)).await_out("^applied .* cpus 0,1$")
    breakable.breaks("binding")
    breakable.breaks("events")
    start.start(*agent.run("--job", "b", "--cpus", "1", "--", "sleep", "1000"))
    agent.await_log("event=fault part=events")
    breakable.mends("events")
    wait_until(lambda: faults(agent, "repairs") + faults(agent, "mail") + faults(agent, "binding"), lambda: agent.log)
    breakable.mends("binding")
    agent.await_tasks(a="0", b="1")
    agent.assert_clean()


def test_descriptors_may_run_out(tmp_path: Path, start: Programs, program: Path) -> None:
    """While the agent can open nothing it says so and goes on; an end in that time is seen when it can again."""
    with start_agent(tmp_path, "--topology", "pack:2 core:1", *SERVES_METRICS) as agent:
        first = start.start(*agent.run("--job", "a", "--", program))
        agent.await_tasks(a="0-1")
        start.start(*agent.run("--job", "b", "--", program))
        agent.await_tasks(a="0", b="1")
        agent.metrics()
        soft, hard = resource.prlimit(agent.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (3, hard))
        agent.await_log(
            r'event=fault part=repairs error="OSError: .* Too many open files.* agent/daemon/process_watch.py:'
        )
        first.process.kill()
        first.process.wait()
        agent.await_log('event=fault part=events error="OSError: .*agent/daemon/process_watch.py:')
        resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (soft, hard))
        agent.await_tasks(b="0-1")
        agent.assert_clean()


@pytest.mark.parametrize("stops", [signal.SIGTERM, signal.SIGUSR1])
def test_each_part_of_stopping_may_fail(tmp_path: Path, start: Programs, program: Path, stops: signal.Signals) -> None:
    """Each failure is in the log with its place, the other parts are done, and the agent ends as told."""
    breakable = Breakable(tmp_path)
    agent = breakable.agent
    start.start(*agent.run("--job", "a", "--", program))
    agent.await_tasks(a="0-1")
    for name in LEAVING:
        breakable.breaks(name)
    try:
        os.kill(agent.pid, stops)
        assert agent.process.wait(60) == 0, agent.log
    finally:
        agent.discard()
    parts = re.findall(r'event=fault part=(\w+) error="OSError: \[Errno 5\] made to fail" at=', agent.log)
    left = {path.name for path in agent.dir.iterdir()}
    if stops == signal.SIGTERM:
        assert parts == ["binding", "registry", "mail", "door", "order", "following", "scheduler"]
        assert "event=stopped" in agent.log
        assert not left & {"door", "control", "signals"}
    else:
        assert parts == ["door", "order", "scheduler"]
        assert "event=handed_over" in agent.log
        assert "registry" in left


def test_an_agent_without_its_mailboxes_stops_in_good_order(tmp_path: Path, start: Programs, program: Path) -> None:
    """The log has the failure, newcomers are told to restart the agent, and no socket stays."""
    with start_agent(tmp_path, "--topology", "pack:2 core:1") as agent:
        start.start(*agent.run("--job", "a", "--", program))
        agent.await_tasks(a="0-1")
        shutil.rmtree(agent.dir / "mail")
        refused = start.start(*agent.run("--job", "b", "--", program))
        assert refused.wait() == 1
        remedy = "No such file or directory: restart the agent, which makes the directory again"
        assert refused.err == f"drom: refused: cannot make a mailbox in {agent.dir}/mail: {remedy}.\n"
    assert re.search(r"event=fault part=mail error=\"FileNotFoundError: .*\n.*event=stopped\n", agent.log), agent.log


def test_a_part_that_fails_for_good_ends_the_agent(tmp_path: Path, start: Programs, program: Path) -> None:
    """The agent ends with a status and a sentence of its own, and the next one goes on with the programs."""
    breakable = Breakable(tmp_path, "0.5")
    agent = breakable.agent
    runs = start.start(*agent.run("--job", "a", "--", program))
    agent.await_tasks(a="0-1")
    breakable.breaks("repairs")
    try:
        assert agent.process.wait(60) == EXIT_STATUS
    finally:
        agent.discard()
    assert re.search(
        r"drom: the agent ends, .*: repairs has failed \d+ times in \d+ seconds: see event=fault", agent.log
    )

    with start_agent(tmp_path, "--topology", "pack:2 core:1") as watcher:
        watcher.await_log("event=adopted tasks=1")
        watcher.await_tasks(a="0-1")
        assert runs.quit() == 0
