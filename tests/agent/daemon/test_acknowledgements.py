# SPDX-License-Identifier: Apache-2.0
"""What it takes before a program's word is believed."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from drom.agent.daemon.acknowledgements import PAUSE, AckProcessor
from drom.agent.enforcement import affinity
from drom.agent.enforcement.affinity import Result
from drom.agent.enforcement.narrowed_masks import NarrowedMasks
from drom.agent.ipc.mailboxes import MailboxState
from drom.agent.model.jobs import Arrival

from dromlib import layout
from tests.support.nodes import MACHINES, make_node

if TYPE_CHECKING:
    from drom.agent.enforcement.affinity import Rule
    from drom.agent.ipc.mailboxes import Mailboxes
    from drom.agent.model.jobs import Task
    from drom.agent.node.node import Node

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
    node, task = shrinking()
    before, after = (grant.mask for grant in task.grants)
    assert before & ~after
    monkeypatch.setattr(affinity, "apply_rules", lambda rules, _, **__: dict.fromkeys(rules, result))

    post(node, task, task.epoch).read_all()

    assert task.held == (after if believed else before)
    assert task.denied != believed


@pytest.mark.parametrize("late", [False, True])
def test_who_writes_all_the_time_does_not_have_his_threads_looked_at_all_the_time(
    monkeypatch: pytest.MonkeyPatch, *, late: bool
) -> None:
    """Neither who goes on moving when it says that a shrink is applied, nor who applies what is over."""
    node, task = shrinking()
    if late:
        said, task.grants = task.grants[0].epoch, task.grants[1:]
    else:
        said = task.epoch
    looks: list[int] = []

    def walk(rules: dict[int, Rule], _: object, **__: object) -> dict[int, Result]:
        looks.extend(rules)
        return dict.fromkeys(rules, Result(1, 0, 0, 0, 64, settled=False))

    monkeypatch.setattr(affinity, "apply_rules", walk)
    mail = post(node, task, said)
    for now in (10.0, 10.1, 10.0 + PAUSE):
        monkeypatch.setattr(time, "monotonic", lambda now=now: now)
        mail.read_all()

    assert looks == [task.slot] * 2


def test_a_user_has_few_lines_about_who_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A responder that leaves is logged as an event of its user."""
    node, task = shrinking()
    told: list[tuple[int, str]] = []
    mail = post(node, task, layout.EPOCH_RETIRED)
    monkeypatch.setattr(mail._actuator.report, "user_event", lambda user, event, **_: told.append((user, event)))

    mail.read_all()

    assert told == [(task.arrival.uid, "responder_left")]


def shrinking() -> tuple[Node, Task]:
    """Return a task that is to give up cores, and its node."""
    node = make_node(MACHINES[1])
    task, _ = node.arrive(Arrival(100, 7, 1, "a", "malleable"), 0.0)
    assert node.grants.set_responder(task.slot, 100, 7)
    node.arrive(Arrival(101, 7, 1, "b", "malleable"), 0.0)
    return node, task


def post(node: Node, task: Task, applied: int) -> AckProcessor:
    """Return a post where the program says that it has applied a grant."""
    watcher = SimpleNamespace(processes_of_all=lambda slots: {slot: set() for slot in slots})
    report = SimpleNamespace(confined=lambda *_: None, user_event=lambda *_, **__: None)
    does: dict[str, Any] = {"execute": lambda _: None, "save": lambda: None}
    does |= {"node": node, "narrowed": NarrowedMasks(node)}
    actuator: Any = SimpleNamespace(binds=True, watcher=watcher, report=report, **does)
    mailboxes = SimpleNamespace(read=lambda _: MailboxState(applied=applied, polls=1, progress=0))
    assert task.responder
    return AckProcessor(cast("Mailboxes", mailboxes), actuator, lambda _: None)
