# SPDX-License-Identifier: Apache-2.0
"""A control group for each task with the task's held CPUs as its cpuset: affinity no program can undo (cgroup v2).

The groups lie below the group of `HOLDER`, a service with no other purpose, or otherwise below the agent's own group.
The cpuset controller must be delegated to that group ::

    agent                   processes of the group itself, because a group with groups below it may hold none
    task-AGENT-PID-START    a task, by its first process; AGENT stands for the runtime directory

An agent that is a service itself uses `HOLDER`. With groups below it, the agent's own group would outlive the agent,
and systemd, which puts the next agent into the same group, could not start it.

Cpusets are written together with the registry: those that shrink before those that grow, and all before a grant is
published. Therefore the cpusets of two tasks never overlap either.
"""

from __future__ import annotations

import errno
import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from drom.agent.errors import ControlError
from drom.agent.system.cgroups import V2, parse_cgroups, parse_mounts

from dromlib.cpulist import format_cpulist

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from drom.agent.model.jobs import Task

OWN = "agent"
HOLDER = "system.slice/drom-tasks.service"
"""The group of the service that holds the groups of tasks."""
BELOW_ROOT = "drom"
"""The group that an agent in the root group creates for its tasks."""
_ORIGIN = "user.drom.origin"
"""The extended attribute of a group that names the group its processes came from."""
_MAX_PASSES = 64
ADVICE = "start drom-tasks.service, or use --enforce affinity"


class TaskCpusets:
    """The groups of an agent's tasks below the group `base` of the cgroup hierarchy that is mounted at `mount`.

    `raised`: groups are created; otherwise the groups that an earlier agent left are only removed.
    """

    def __init__(self, mount: Path, base: Path, runtime_dir: Path, *, raised: bool) -> None:
        self._mount = mount
        self._base = base
        self._prefix = f"task-{hashlib.sha256(os.fsencode(runtime_dir)).hexdigest()[:8]}-"
        self._raised = raised
        self._sets: dict[str, int] = {}

    def update(self, task: Task, mask: int, processes: Callable[[], Collection[int]]) -> str:
        """Confine the processes of a task to the CPUs in `mask`, if any; return an error message, or an empty text."""
        name = self._name(task)
        if not self._raised or not mask or self._sets.get(name) == mask:
            return ""
        group = self._base / name
        try:
            new = not group.exists()
            group.mkdir(exist_ok=True)
            (group / "cpuset.cpus").write_text(format_cpulist(mask), encoding="ascii")
            if new:
                with suppress(OSError):  # without the attribute they go to the agent's own group in the end
                    os.setxattr(group, _ORIGIN, os.fsencode(_group_of(task.arrival.pid)))
            if name not in self._sets:
                _move(group, processes)
        except OSError as error:
            return f"{group}: {os.strerror(error.errno or 0)}"
        self._sets[name] = mask
        return ""

    def remove(self, task: Task) -> bool:
        """Move the remaining processes of a task back to their group of origin; return whether the task had a group."""
        self._sets.pop(self._name(task), None)
        group = self._base / self._name(task)
        return group.exists() and self._dissolve(group)

    def remove_all_but(self, tasks: Iterable[Task]) -> None:
        """Remove the groups that an earlier agent in this runtime directory left, except those of `tasks`."""
        kept = {self._name(task) for task in tasks if self._raised}
        for group in self._base.glob(self._prefix + "*"):
            if group.name not in kept:
                self._dissolve(group)

    def _name(self, task: Task) -> str:
        return f"{self._prefix}{task.arrival.pid}-{task.arrival.start_time}"

    def _dissolve(self, group: Path) -> bool:
        """Remove a group; its processes go to the nearest group of their origin that accepts them, or to `OWN`."""
        origin = b""
        with suppress(OSError):
            origin = os.getxattr(group, _ORIGIN)
        there = self._mount / os.fsdecode(origin).lstrip("/")
        for place in ([there, *there.parents] if origin else []) + [self._base / OWN]:
            if place.is_relative_to(self._mount) and _move(place, lambda: _pids(group)):
                break
        with suppress(OSError):  # ending processes stay in the group for a moment; the next sweep removes it
            group.rmdir()
        return True


def find(root: Path, controller: str = "cpuset", advice: str = ADVICE) -> tuple[Path, Path]:
    """Return where the cgroup hierarchy is mounted below `root`, and the group for the tasks; nothing is changed.

    Raises `ControlError` with a sentence, which ends with `advice`, if no groups with `controller` can be created.
    """
    mounts = parse_mounts(_text(root / "proc/self/mountinfo"))
    mount = next((root / place.lstrip("/") for kinds, _, place in mounts if V2 in kinds), None)
    if mount is None:
        raise ControlError(f"no control groups of version 2 are mounted here: {advice}.")
    path = parse_cgroups(_text(root / "proc/self/cgroup")).get(V2, "/")
    if os.access(mount / HOLDER / "cgroup.subtree_control", os.W_OK):
        path = f"/{HOLDER}"
    own = mount / path.lstrip("/")
    if controller not in _words(own / "cgroup.controllers"):
        raise ControlError(f"the {controller} controller is not delegated to the control group {path}: {advice}.")
    base = own.parent if own.name == OWN else own / BELOW_ROOT if own == mount else own
    if not all(os.access(file, os.W_OK) for file in (own, own / "cgroup.procs", own / "cgroup.subtree_control")):
        raise ControlError(f"the control group {path} is not delegated to this user: {advice}.")
    return mount, base


def build(runtime_dir: Path, *, raised: bool, root: Path = Path("/")) -> TaskCpusets | None:
    """Return the task cpusets of the agent in a runtime directory, ready for tasks if they are to be `raised`.

    If `raised`, processes in the base group are moved into a group below it. Raises `ControlError` with a sentence if
    cpusets are to be `raised` and cannot be; returns None if they cannot be and need not be.
    """
    try:
        mount, base = find(root)
        if raised:
            prepare(mount, base, "cpuset")
    except ControlError:
        if raised:
            raise
        return None
    except OSError as error:
        msg = f"cannot make control groups in {base} ({os.strerror(error.errno or 0)}): {ADVICE}."
        raise ControlError(msg) from error
    return TaskCpusets(mount, base, runtime_dir, raised=raised)


def prepare(mount: Path, base: Path, controller: str) -> None:
    """Enable `controller` in groups below `base`, and move processes of `base` into one of them. Raises OSError."""
    (base / OWN).mkdir(parents=True, exist_ok=True)
    ours = set() if base == mount / HOLDER else {os.getpid()}
    _move(base / OWN, lambda: ({*_pids(base)} | ours) - set(_pids(base / OWN)))
    for group in (mount, base) if base.parent == mount else (base,):
        if controller not in _words(group / "cgroup.subtree_control"):
            (group / "cgroup.subtree_control").write_text(f"+{controller}", encoding="ascii")


def _move(group: Path, processes: Callable[[], Collection[int]]) -> bool:
    """Move processes, and those that they start meanwhile, into a group; return False if the group may hold none.

    Raises OSError if the group rejects them for another reason.
    """
    moved: set[int] = set()
    for _ in range(_MAX_PASSES):
        new = set(processes()) - moved
        if not all(_put(pid, group / "cgroup.procs") for pid in new):
            return False
        moved |= new
        if not new:
            break
    return True


def _put(pid: int, file: Path) -> bool:
    try:
        file.write_text(str(pid), encoding="ascii")
    except ProcessLookupError:
        return True
    except OSError as error:
        if error.errno in (errno.EBUSY, errno.ENOENT, errno.EOPNOTSUPP):
            return False
        raise
    return True


def _group_of(pid: int) -> str:
    return parse_cgroups(_text(Path(f"/proc/{pid}/cgroup"))).get(V2, "/")


def _pids(group: Path) -> list[int]:
    return [int(pid) for pid in _words(group / "cgroup.procs")]


def _words(file: Path) -> list[str]:
    return _text(file).split()


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
