# SPDX-License-Identifier: Apache-2.0
"""What it takes before a program's word is believed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from agent import affinity
from agent.affinity import Result
from agent.jobs import Arrival
from agent.mailboxes import Mail
from agent.post import Post
from tests.nodes import MACHINES, make_node

if TYPE_CHECKING:
    from agent.mailboxes import Mailboxes

MOVED = Result(changed=2, kept=0, denied=0, invalid=0, passes=2, settled=True)


@pytest.mark.parametrize(
    ("result", "believed"),
    [
        (MOVED, True),
        (Result(changed=0, kept=2, denied=0, invalid=0, passes=1, settled=True), True),
        (Result(changed=1, kept=0, denied=1, invalid=0, passes=2, settled=True), False),
        (Result(changed=1, kept=0, denied=0, invalid=1, passes=2, settled=True), False),
        (Result(changed=9, kept=0, denied=0, invalid=0, passes=64, settled=False), False),
    ],
    ids=["moved", "there already", "denied", "another cpuset", "restless"],
)
def test_cores_change_hands_when_every_thread_has_left(
    monkeypatch: pytest.MonkeyPatch, result: Result, *, believed: bool
) -> None:
    """Whoever says that a shrink is applied keeps what it held as long as one of its threads may be there."""
    node = make_node(MACHINES[1])
    task, _ = node.arrive(Arrival(100, 7, 1, "a", "malleable"), 0.0)
    assert node.seat(task.slot, 100, 7)
    node.arrive(Arrival(101, 7, 1, "b", "malleable"), 0.0)
    before, after = (grant.mask for grant in task.grants)
    assert before & ~after
    following = SimpleNamespace(processes_of_all=lambda slots: {slot: set() for slot in slots})
    report = SimpleNamespace(confined=lambda *_: None)
    acting: Any = SimpleNamespace(node=node, binds=True, following=following, report=report, do=lambda _: None)
    mailboxes = SimpleNamespace(read=lambda _: Mail(applied=task.epoch, polls=1, progress=0))
    monkeypatch.setattr(affinity, "walk", lambda rules, _: dict.fromkeys(rules, result))

    Post(cast("Mailboxes", mailboxes), acting, lambda _: None).read_all()

    assert task.held == (after if believed else before)
    assert task.denied != believed
