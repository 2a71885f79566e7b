"""The kill switch of a real agent: a file that keeps everything as it is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from drom.agent.errors import ControlError

from tests.support.agents import Programs, launch_agent, start_agent

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1"),
]
TWO = ("--topology", "pack:2 core:1", "--grace", "0.2")


def test_nothing_changes_until_the_file_is_removed(tmp_path: Path, start: Programs, program: Path) -> None:
    """Arrivals wait with the reason, orders are refused, deaths are noted; then all goes on, and ps says so."""
    with start_agent(tmp_path, *TWO) as agent:
        a = start.start(*agent.run("--job", "a", "--", program))
        agent.await_tasks(a="0-1")
        switch = agent.dir / "freeze"
        switch.touch()
        agent.await_log(f"event=frozen file={switch}")

        b = start.start(*agent.run("--job", "b", "--", program))
        gone = start.start(*agent.run("--job", "gone", "--", program))
        b.await_err(f"waiting: the node is frozen: it waits until {switch} is removed")
        gone.await_err("waiting: ")
        gone.kill()
        agent.await_log("event=task_ended job=gone")
        with pytest.raises(ControlError, match=rf"^the node is frozen: remove {switch} first\.$"):
            agent.order("resize", job="a", cpus=1)
        assert agent.tasks()["a"]["held"] == "0-1"
        assert "Frozen since " in agent.cli("ps").stdout

        switch.unlink()
        agent.await_tasks(a="0", b="1")
        agent.await_log("event=thawed")
        assert agent.order("ps")["frozen_since"] is None
        agent.assert_clean()
        assert (a.quit(), b.quit()) == (0, 0)


def test_a_reload_may_name_another_file(tmp_path: Path, start: Programs) -> None:
    """Who is refused something while both are there hears of the one that counts."""
    first, second, config = tmp_path / "first", tmp_path / "second", tmp_path / "drom.toml"
    first.touch()
    second.touch()
    config.write_text(f"freeze_file = '{first}'\n", encoding="utf-8")
    with start_agent(tmp_path, *TWO, "--config", config) as agent:
        stranger = start.start("sleep", "1000")
        for switch in (first, second):
            config.write_text(f"freeze_file = '{switch}'\n", encoding="utf-8")
            agent.cli("config", "reload")
            with pytest.raises(ControlError, match=rf"^the node is frozen: remove {switch} first\.$"):
                agent.order("attach", pid=stranger.pid)


def test_an_agent_that_starts_frozen_adopts_and_changes_nothing(tmp_path: Path, start: Programs, program: Path) -> None:
    """After a crash the switch holds before anything is bound or granted."""
    agent = launch_agent(tmp_path / "run", *TWO)
    start.start(*agent.run("--job", "a", "--", program))
    agent.await_tasks(a="0-1")
    start.started[0].await_out("attached .* responder")
    agent.kill()
    (agent.dir / "freeze").touch()
    with start_agent(tmp_path, *TWO) as agent:
        b = start.start(*agent.run("--job", "b", "--", program))
        b.await_err("the node is frozen")
        assert agent.log.index("event=frozen") < agent.log.index("event=adopted")
        assert agent.tasks()["a"]["held"] == "0-1"
        (agent.dir / "freeze").unlink()
        agent.await_tasks(a="0", b="1")
        b.await_out("attached .* responder")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file away")
def test_the_switch_of_a_stranger_counts_for_nothing(tmp_path: Path, start: Programs) -> None:
    """Where others may make files too, only root and the agent's user freeze the node."""
    switch = tmp_path / "switch"
    switch.touch()
    os.chown(switch, 65534, 65534)
    with start_agent(tmp_path, *TWO, "--freeze-file", switch) as agent:
        assert start.start(*agent.run("--job", "a", "--", "true")).wait() == 0
        agent.await_log("event=task_ended job=a")
        assert "event=frozen" not in agent.log
        os.chown(switch, 0, 0)
        agent.await_log(f"event=frozen file={switch}")
