# SPDX-License-Identifier: Apache-2.0
"""The tasks of an agent that has died or handed over: the living keep what they hold, the dead are reaped."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from agent import processes, registry
from agent.following import first_process
from agent.post import wish_in
from agent.processes import Identity

if TYPE_CHECKING:
    from agent.daemon import Daemon
    from agent.jobs import Task


def adopt(daemon: Daemon) -> None:
    """Take over the tasks in the registry, which the daemon has opened."""
    dead: list[Task] = []
    found = []
    owned: dict[str, int] = {}
    for record in sorted(daemon.registry.records(), key=lambda r: r.fields["arrival"]):
        task, job = registry.restore(record)
        _hear_wish(daemon, task)
        found.append((task, job))
        owned[job.name] = owned.get(job.name, 0) | record.masks["owned"]
    now = time.monotonic()
    daemon.node.remember(daemon.registry.epochs(), daemon.registry.capacity)
    arrivals = daemon.registry.header("arrivals")
    actions = daemon.node.adopt(found, owned, arrivals, now, daemon.steward.reservations())
    for task, _ in found:
        if not _still_lives(daemon, task):
            dead.append(task)
    daemon.mailboxes.remove_all_but({task.mailbox for task, _ in found})
    daemon.report.adopted([task for task, _ in found], len(dead))
    daemon.acting.do(actions)
    for task in dead:
        daemon.end(task, "exited")
    daemon.confine_all()
    daemon.post.read_all()


def _hear_wish(daemon: Daemon, task: Task) -> None:
    """Let the wish of a responder that lives count again at once: a new agent changes nothing."""
    mail = daemon.mailboxes.read(task.mailbox)
    if mail and task.responder and processes.start_time(task.responder[0]) == task.responder[1]:
        task.said = task.wish = wish_in(mail)


def _still_lives(daemon: Daemon, task: Task) -> bool:
    who = [first_process(task)]
    if task.responder and task.responder != (who[0].pid, who[0].start_time):
        who.append(Identity(*task.responder))
    alive = [one for one in who if processes.start_time(one.pid) == one.start_time]
    for one in alive:
        daemon.following.follow(task, one)
    if task.responder and Identity(*task.responder) not in alive:
        task.responder = None
    return bool(alive) or daemon.following.follow_a_survivor(task)
