# SPDX-License-Identifier: Apache-2.0
"""Recovers the tasks of an agent that has died or handed over: living ones keep their CPUs, dead ones are removed.

The same is done by an agent that continues after a failure in the middle of a change, from its own registry.
"""

from __future__ import annotations

import time
from dataclasses import fields
from typing import TYPE_CHECKING

from drom.agent.daemon.acknowledgements import demand_in
from drom.agent.daemon.process_watch import first_process
from drom.agent.daemon.task_processes import EnvironmentTags, TaskProcesses
from drom.agent.ipc import registry
from drom.agent.ipc.registry import Owner, Registry, RegistryError, SlotRecord, is_obsolete
from drom.agent.model.jobs import Task
from drom.agent.system import proc
from drom.agent.system.proc import Identity, boot_id, scan

from dromlib import layout

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from drom.agent.daemon.context import Context
    from drom.agent.model.jobs import Action, Job


_WORLD = frozenset({"slot", "arrival", "responder", "said", "wish", "heeds_from", "told_waiting"})
"""Fields of a task that are not part of the plan."""


def recover_tasks(daemon: Context) -> None:
    """Adopt the tasks in the registry that the daemon has opened."""
    actions = _enter(daemon, {})
    tasks = list(daemon.node.tasks.values())
    dead = [task for task in tasks if not _still_lives(daemon, task)]
    daemon.mailboxes.keep_only({task.mailbox for task in tasks})
    daemon.report.adopted(tasks, len(dead))
    daemon.actuator.execute(actions)
    for task in dead:
        daemon.end(task, "exited")
    daemon.confine_all()
    daemon.acknowledgements.read_all()


class Recovery:
    """Rebuilds the plan of a node from the registry, after a failure in the middle of a change of the plan.

    If an attempt fails itself, what it has found is kept for the next attempt.
    """

    def __init__(self, daemon: Context) -> None:
        self._daemon = daemon
        self._known: dict[Identity, Task] = {}
        self._starting: list[Task] = []
        self._over: list[Task] = []

    def attempt(self) -> bool:
        """Recover and return True, or raise the error that prevents it.

        Tasks keep the CPUs they hold, and waiting launchers keep waiting. The next repair round corrects threads.
        """
        daemon = self._daemon
        node, actuator = daemon.node, daemon.actuator
        self._known = {first_process(task): task for task in node.tasks.values()} | self._known
        starting, over = actuator.drop()
        self._starting += starting
        self._over += over
        node.begin_anew()
        daemon.usable.update(time.monotonic())
        actuator.execute(_enter(daemon, self._known))
        for task in (*self._known.values(), *self._over):
            if node.tasks.get(task.slot) is not task:
                daemon.watcher.forget(task)
                daemon.registrations.forgotten(task)
        for task in self._starting:
            if node.tasks.get(task.slot) is task and task.started:
                daemon.registrations.started(task)
        for task in [task for task in node.tasks.values() if not daemon.watcher.is_watched(task)]:
            if not _still_lives(daemon, task):
                daemon.end(task, "exited")
        daemon.acknowledgements.read_all()
        self._known, self._starting, self._over = {}, [], []
        daemon.log("recovered", tasks=len(node.tasks))
        return True


def _enter(daemon: Context, known: dict[Identity, Task]) -> list[Action]:
    """Give the node the tasks in the registry, with the objects in `known` reused; return the actions to carry out."""
    found: list[tuple[Task, Job]] = []
    owned: dict[str, int] = {}
    for record in sorted(daemon.registry.records(), key=lambda r: r.fields["arrival"]):
        task, job = registry.restore(record)
        task.arrival = daemon.confined(task.arrival)
        if same := known.get(first_process(task)):
            for field in fields(Task):
                if field.name not in _WORLD:
                    setattr(same, field.name, getattr(task, field.name))
            task = same
        else:
            _restore_demand(daemon, task)
        found.append((task, job))
        owned[job.name] = owned.get(job.name, 0) | record.masks["owned"]
    daemon.node.grants.remember(daemon.registry.epochs(), daemon.registry.capacity)
    arrivals = daemon.registry.header("arrivals")
    return daemon.node.adopt(found, owned, arrivals, time.monotonic(), daemon.executor.reservations())


def _restore_demand(daemon: Context, task: Task) -> None:
    """Apply the demand of a living responder at once, so that a new agent changes nothing."""
    mail = daemon.mailboxes.read(task.mailbox)
    if mail and task.responder and proc.start_time(task.responder[0]) == task.responder[1]:
        task.said = task.wish = demand_in(mail)


def _still_lives(daemon: Context, task: Task) -> bool:
    who = [first_process(task)]
    if task.responder and task.responder != (who[0].pid, who[0].start_time):
        who.append(Identity(*task.responder))
    alive = [one for one in who if proc.start_time(one.pid) == one.start_time]
    for one in alive:
        daemon.watcher.follow(task, one)
    if task.responder and Identity(*task.responder) not in alive:
        task.responder = None
    return bool(alive) or daemon.watcher.watch_survivor(task)


def unit_in_use(path: Path) -> str | None:
    """Return the unit, "core" or "thread", in which living tasks in the directory are counted; None if there are none.

    Raises `RegistryError` if the registry has another layout.
    """
    if not (path / "registry").exists() or is_obsolete(path / "registry", boot_id()):
        return None
    old = Registry.open(path / "registry")
    if old.boot_id != boot_id() or old.header("retired") or not _any_lives(old.records()):
        return None
    return "thread" if old.header("flags") & layout.HEADER_THREADS else "core"


def open_registry(path: Path, capacity: int, mask_bits: int, owner: Owner, usable: int) -> tuple[Registry, bool]:
    """Return the registry of the directory and whether it was adopted with the tasks in it.

    A registry of an earlier boot, or one that its agent has retired, is replaced. Raises `RegistryError` if programs
    follow a registry that cannot be adopted.
    """
    file = path / "registry"
    if is_obsolete(file, boot_id()):
        file.unlink()  # the file system may have no room for both
    if not file.exists():
        return Registry.create(file, capacity, mask_bits, owner), False
    old = Registry.open(file)
    records = old.records()
    in_force = bool(records) and old.boot_id == boot_id() and not old.header("retired")
    misfit = _misfit(old, mask_bits, owner, usable) if in_force else ""
    if misfit and _any_lives(records):
        msg = f"{misfit}: start the agent with the options of the last one, or let its programs end first."
        raise RegistryError(msg)
    if misfit or not in_force:
        old.retire()  # an agent that died while it stopped may not have retired all slots
        del old  # the file system may have no room for both, and the mapping keeps the space of the old one
        return Registry.create(file, capacity, mask_bits, owner), False
    old.sign(owner)
    return old, True


def _misfit(old: Registry, mask_bits: int, owner: Owner, usable: int) -> str:
    """Return why tasks in the registry cannot be taken over; empty if they can."""
    held = 0
    for record in old.records():
        held |= record.masks["held"] | record.granted
    differs = old.header("flags") ^ owner.flags
    if differs & layout.HEADER_EMULATED:
        return f"{old.path} differs from this agent in emulate or observe"
    if differs & layout.HEADER_THREADS:
        return f"{old.path} has another unit than this agent, cores or threads"
    if held & ~usable or mask_bits > old.mask_bits:
        return f"programs in {old.path} hold CPUs that this topology does not have"
    return ""


def _any_lives(records: Sequence[SlotRecord]) -> bool:
    """Return whether any process of these tasks still runs, or may: users may have too many processes to read."""
    tasks = {Identity(record.fields["pid"], record.fields["start_time"]): record.fields["uid"] for record in records}
    census = TaskProcesses(tasks, scan(), EnvironmentTags())
    return bool(census.unread) or any(map(census.processes, tasks))
