"""A real agent whose CPUs are taken away and given back by real control groups."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.support.agents import Programs, start_agent, wait_until
from tests.support.control_groups import box

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.sched_getaffinity(0) != {0, 1}, reason="needs CPUs 0 and 1, and no others"),
]
TWO = ("--topology", "pack:2 core:1")


def test_a_smaller_cpuset_and_the_old_one_again(tmp_path: Path, start: Programs, program: Path) -> None:
    """Jobs leave the CPU that is gone, arrivals wait for it, ps says so, and all is as before when it is back."""
    with (
        start_agent(tmp_path, *TWO) as agent,
        box("cpuset", agent.pid, cpuset_cpus="0-1", cpuset_mems="0") as group,
    ):
        a = start.start(*agent.run("--job", "a", "--", program))
        a.await_out("attached .* responder")
        agent.await_tasks(a="0-1")
        (group / "cpuset.cpus").write_text("0", encoding="ascii")
        agent.await_log("event=cpus_changed managed=0 gone=1 more=none")
        agent.await_tasks(a="0")
        a.await_out("cpus 0$")
        b = start.start(*agent.run("--job", "b", "--min", "2", "--", program))
        b.await_err("waiting: needs at least 2 CPUs: this node hands out 1 now")
        assert "CPU 1 is gone, not allowed or reserved now" in agent.cli("ps").stdout
        agent.assert_clean()
        b.kill()
        agent.await_tasks(a="0")
        (group / "cpuset.cpus").write_text("0-1", encoding="ascii")
        agent.await_log("event=cpus_changed managed=0-1 gone=none")
        agent.await_tasks(a="0-1")
        assert agent.order("ps")["unavailable"] == ""
        agent.assert_clean()


def test_a_job_whose_minimum_has_no_place_any_more(tmp_path: Path, start: Programs, program: Path) -> None:
    """The job runs on with the CPUs that are left, and gets the reason; none of its processes is lost."""
    with (
        start_agent(tmp_path, *TWO) as agent,
        box("cpuset", agent.pid, cpuset_cpus="0-1", cpuset_mems="0") as group,
    ):
        a = start.start(*agent.run("--job", "a", "--min", "2", "--", program))
        a.await_out("attached .* responder")
        (group / "cpuset.cpus").write_text("1", encoding="ascii")
        agent.await_tasks(a="1")
        assert (
            "is short: CPU 0 is gone, and there is no room elsewhere for the 2 CPUs that job a needs"
            in agent.cli("ps").stdout
        )
        (group / "cpuset.cpus").write_text("0-1", encoding="ascii")
        agent.await_tasks(a="0-1")
        wait_until(lambda: "is short" not in agent.cli("ps").stdout, lambda: agent.log)
        agent.assert_clean()


def test_a_smaller_quota(tmp_path: Path, start: Programs, program: Path) -> None:
    """A quota of one CPU leaves one core to hand out; without it there are two."""
    with (
        start_agent(tmp_path, *TWO) as agent,
        box("cpu", agent.pid, cpu_cfs_quota_us="100000", cpu_max="100000 100000") as group,
    ):
        start.start(*agent.run("--job", "a", "--", program)).await_out("attached .* responder")
        agent.await_log("event=cpus_changed managed=0 gone=none")
        agent.await_tasks(a="0")
        for name, text in (("cpu.cfs_quota_us", "-1"), ("cpu.max", "max")):
            if (group / name).exists():
                (group / name).write_text(text, encoding="ascii")
        agent.await_log("event=cpus_changed managed=0-1 gone=none")
        agent.await_tasks(a="0-1")
