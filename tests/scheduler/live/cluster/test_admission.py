# SPDX-License-Identifier: Apache-2.0
"""What can never run is refused at submission, with the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cluster import admission
from drom.scheduler.live.cluster.admission import check_dependencies
from drom.scheduler.live.cluster.jobs import CANCELLED, COMPLETED, FAILED, PENDING, RUNNING, Node
from drom.scheduler.live.cluster.settings import Settings
from drom.scheduler.live.cluster.spec import Dependency, Spec

STATES = {1: PENDING, 2: RUNNING, 3: COMPLETED, 4: FAILED, 5: CANCELLED}


def check(*after: tuple[str, int]) -> None:
    """Look at a job that waits for these."""
    spec = Spec(command=("true",), folder="/", after=tuple(Dependency(*one) for one in after))
    check_dependencies(spec, STATES.get)


def test_a_job_may_wait_for_what_can_still_be_or_has_been() -> None:
    """For the start, the end, success or failure of another."""
    for kind in ("after", "afterany", "afterok", "afternotok"):
        check((kind, 1), (kind, 2))
    check(("after", 3), ("afterany", 4), ("afterok", 3), ("afternotok", 4), ("afternotok", 5))


HOPELESS = "the job could never start, as it was to start {}: leave that out of --dependency, or name another job."


@pytest.mark.parametrize(
    ("after", "sentence"),
    [
        ([("after", 9)], "there is no job 9 to wait for: see drom queue --all."),
        ([("afterok", 4), ("after", 9)], "there is no job 9 to wait for: see drom queue --all."),
        ([("afterok", 1), ("afterok", 4)], HOPELESS.format("after success of job 4, which is failed")),
        ([("afternotok", 3)], HOPELESS.format("after failure of job 3, which is completed")),
    ],
)
def test_a_job_that_would_wait_for_good_is_refused(after: list[tuple[str, int]], sentence: str) -> None:
    """Such a job would be cancelled at the moment of its submission."""
    with pytest.raises(SchedulerError) as refused:
        check(*after)

    assert str(refused.value) == sentence


def node(memory: int) -> Node:
    """Return a node of so many bytes of memory; 0: nobody knows. It limits that of jobs."""
    return Node(f"n{memory}", 0, 4, memory=memory, limits_memory=True)


def test_memory_that_no_node_has_is_refused() -> None:
    """As far as nodes say how much they have; where none does, the user is told that it is not counted."""
    policy, spec = (
        load_policy("sd", ["reservations=nodes"]),
        Spec(command=("true",), folder="/", nodes=1, memory=8 << 30),
    )

    def check_on(nodes: list[Node]) -> None:
        admission.check(spec, admission.hosts(spec, nodes), nodes, Settings(), policy)

    check_on([node(8 << 30), node(0)])
    for nodes in ([node((8 << 30) - 1)], [node(4 << 30), node(0)]):
        with pytest.raises(SchedulerError, match=r"^the job asks for 8 GiB of memory on each node, and the "):
            check_on(nodes)
    check_on([node(0)])
    told = "no node here reports its memory, so --mem excludes no node."
    assert admission.warnings([spec, spec], [node(0)]) == [told]
    assert admission.warnings([spec], [node(8 << 30)]) == []
    assert admission.warnings([replace(spec, memory=0)], [node(0)]) == []


def test_memory_that_no_node_limits_is_reported() -> None:
    """Nodes on which a job cannot be do not count; a cluster without nodes is not known to lack anything."""
    spec = Spec(command=("true",), folder="/", nodes=1, memory=8 << 30)
    large, small = replace(node(8 << 30), limits_memory=False), node(1 << 30)
    told = "no node that fits limits the memory of jobs, so --mem stops no job that uses more."

    assert admission.warnings([spec, spec], [large, small]) == [told]
    assert admission.warnings([spec], [large, node(9 << 30)]) == []
    assert admission.warnings([replace(spec, memory=0)], [large]) == []
    assert told not in admission.warnings([spec], [])
