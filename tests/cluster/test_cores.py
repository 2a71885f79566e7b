# SPDX-License-Identifier: Apache-2.0
"""Which CPUs the ranks of a job have on several nodes: those that the kernel binds them to, and sockets and threads."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest
from drom.agent.execution.launch import job_name
from drom.scheduler.testbed.cluster import HEAD

from dromlib.cpulist import format_cpulist, mask_of
from tests.cluster.rig import PairRig, SocketRig, rig
from tests.support.agents import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.rig import Rig

LONG = {"time": 3600}


def bound(here: Rig, number: int) -> dict[str, set[str]]:
    """Return the CPUs of the rank of a job on each node: what its agent has granted, and its threads may run on."""
    found = {}
    for name in here.names:
        for row in [row for row in here.tasks(name) if row["job"] == job_name(number)]:
            said = here.network[name].do("sh", "-c", f"cat /proc/{row['pid']}/task/*/status")
            found[name] = {row["granted"], *re.findall(r"^Cpus_allowed_list:\t(.+)$", said, re.MULTILINE)}
    return found


def await_bound(here: Rig, number: int, *lists: str) -> dict[str, set[str]]:
    """Wait until the ranks of a job are on one of these lists of CPUs on each of two nodes; return on which."""
    return wait_until(
        lambda: on if sorted(on := bound(here, number)) == ["n1", "n2"] and all_in(on, lists) else None,
        lambda: f"{bound(here, number)}\n{here.said(HEAD)}",
    )


def all_in(on: dict[str, set[str]], lists: tuple[str, ...]) -> bool:
    """Say whether all threads of a rank, and its agent, say the same, which is one of these lists."""
    return all(len(said) == 1 and said <= set(lists) for said in on.values())


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_the_kernel_binds_ranks_anew_when_their_job_is_resized(tmp_path: Path, ring: Path) -> None:
    """All threads of each rank leave a CPU of its node to a guest's rank, keep to the other, and have it back."""
    one, two = sorted(os.sched_getaffinity(0))[:2]
    both = format_cpulist(mask_of((one, two)))
    with rig(tmp_path / "c", nodes=2, kind=PairRig) as here:
        owner = here.submit(str(ring), "4000", nodes=2, **LONG)
        await_bound(here, owner, both)
        guest = here.submit(str(ring), "4000", nodes=2, time=600)
        theirs = await_bound(here, guest, str(one), str(two))
        left = await_bound(here, owner, str(one), str(two))
        before = here.await_steps(owner, 2) | here.await_steps(guest, 2)
        for number in (owner, guest):
            here.await_steps(number, 2, max(before.values()))

        assert all(left[name] | theirs[name] == {str(one), str(two)} for name in here.names)
        assert (bound(here, owner), bound(here, guest)) == (left, theirs)
        here.ask("cancel", job=guest)
        await_bound(here, owner, both)
        assert here.job(owner)["attempt"] == 1


def on_sockets(here: Rig, *numbers: int) -> dict[str, list[list[str]]]:
    """Return the CPUs that each rank of these jobs holds, by node, as `drom ps` tells."""
    rows = {name: here.tasks(name) for name in here.names}
    return {
        name: [sorted(row["held"] for row in rows[name] if row["job"] == job_name(number)) for number in numbers]
        for name in here.names
    }


def test_ranks_have_sockets_and_whole_cores_of_their_nodes(tmp_path: Path, ring: Path) -> None:
    """Each of two has a socket for itself; a guest has one for itself, with both threads of each core."""
    first, second = ["0-3", "4-7"], ["12-15", "8-11"]
    with rig(tmp_path / "c", nodes=2, kind=SocketRig) as here:

        def show() -> str:
            return f"{on_sockets(here, 1, 2)}\n{here.said(HEAD)}"

        alone = {name: [["0-7", "8-15"]] for name in here.names}
        owner = here.submit(str(ring), "4000", nodes=2, tasks=2, **LONG)
        wait_until(lambda: on_sockets(here, owner) == alone, show)
        guest = here.submit(str(ring), "4000", nodes=2, tasks=2, time=600)
        here.await_steps(guest, 4)
        wait_until(lambda: all(sorted(on) == [first, second] for on in on_sockets(here, owner, guest).values()), show)
        here.ask("cancel", job=guest)
        wait_until(lambda: on_sockets(here, owner) == alone, show)
        assert here.job(owner)["attempt"] == 1
