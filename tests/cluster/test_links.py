# SPDX-License-Identifier: Apache-2.0
"""Schedulers with home partitions on machines of their own, some of which do not reach others for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.linked import KINDS, Linked
from tests.support.agents import wait_until
from tests.support.prometheus import tool
from tests.support.schedulers import survive

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def linked(tmp_path: Path) -> Iterator[Linked]:
    """Return three schedulers on an etcd, and the agent of a node for each, on machines at a switch."""
    tool("etcd", "etcd-server")
    with Linked(tmp_path).up() as found:
        yield found


def test_an_isolated_scheduler_is_replaced_and_starts_nothing(linked: Linked) -> None:
    """Its home partition and its job are adopted by one that reaches etcd; it has them back when it is connected."""
    job = linked.submit("sleep", "1000", home="p1")
    linked.await_state(job, "running")
    linked.network.disconnect("s1")
    wait_until(lambda: "event=home_adopted home=p1" in linked.show(), linked.show)
    second = linked.submit("true", home="p1")
    assert linked.ask("job", job=second)["job"] == second  # which s1 does not know
    linked.network.connect("s1")
    wait_until(lambda: [row["leader_home"] for row in linked.ask("homes")["homes"]] == list(linked.homes), linked.show)
    linked.ask("cancel", job=job)
    linked.await_state(second, "completed")
    assert linked.ask("job", job=job)["attempt"] == 1


def test_commands_go_on_without_a_machine_that_is_gone(linked: Linked) -> None:
    """Its scheduler is named first; the others answer once one has adopted its home partition."""
    assert linked.at_desk("submit", "--hold", "--", "true").stdout == "Submitted job 100000001\n"
    linked.network.disconnect("s1")
    wait_until(lambda: "event=home_adopted home=p1" in linked.show(), linked.show)
    done = linked.at_desk("queue")
    assert (done.returncode, done.stdout.split("\n")[1].split()[0]) == (0, "100000001"), done.stderr


def test_no_job_is_lost_or_run_twice_when_links_are_cut(linked: Linked) -> None:
    """Whichever machines do not reach each other, in both directions or in one. KILLS and SEED may be set."""
    survive(linked, KINDS, linked.hurt)
