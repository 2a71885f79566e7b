# SPDX-License-Identifier: Apache-2.0
"""Control groups of tasks, in a folder that stands for the kernel's; tests/vm has real ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from drom.agent.enforcement import cpusets
from drom.agent.enforcement.cpusets import TaskCpusets
from drom.agent.errors import ControlError

from tests.agent.ipc.test_registry import task_of

if TYPE_CHECKING:
    from drom.agent.model.jobs import Task

ME = os.getpid()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Return a group for tasks, with the agent's own in it."""
    (tmp_path / "base" / "agent").mkdir(parents=True)
    return tmp_path / "base"


def cpusets_of(base: Path, runtime_dir: str = "/run/drom", *, raised: bool = True) -> TaskCpusets:
    """Return the cpusets of tasks of the agent in a runtime directory."""
    return TaskCpusets(base.parent, base, Path(runtime_dir), raised=raised)


def group_of(base: Path, task: Task) -> Path:
    """Return the one group of a task."""
    (found,) = base.glob(f"task-*-{task.arrival.pid}-{task.arrival.start_time}")
    return found


def said(file: Path) -> str:
    """Return what was written to a file."""
    return file.read_text(encoding="ascii")


def test_the_cpuset_is_what_the_task_holds(base: Path) -> None:
    """The cpuset is written when the held CPUs change, and the processes of the task are moved once."""
    task, found, asked = task_of(0, (1, 0b1011)), cpusets_of(base), []

    def processes() -> list[int]:
        asked.append(1)
        return [ME]

    assert found.update(task, task.held, processes) == ""
    group = group_of(base, task)
    assert (said(group / "cpuset.cpus"), said(group / "cgroup.procs")) == ("0-1,3", str(ME))
    asked.clear()
    (group / "cpuset.cpus").unlink()
    assert found.update(task, task.held, processes) == ""
    assert not (group / "cpuset.cpus").exists()
    task.grants[0] = task_of(0, (2, 0b1)).grants[0]
    assert found.update(task, task.held, processes) == ""
    assert (said(group / "cpuset.cpus"), asked) == ("0", [])


def test_a_task_that_waits_has_no_group(base: Path) -> None:
    """A waiting task holds nothing, and an empty cpuset would stand for all CPUs."""
    assert cpusets_of(base).update(task_of(0), 0, lambda: [ME]) == ""
    assert [path.name for path in base.iterdir()] == ["agent"]


def test_a_group_that_cannot_be_made_is_told(base: Path) -> None:
    """With its name and the reason."""
    base.joinpath("agent").rmdir()
    base.rmdir()
    base.touch()
    fault = cpusets_of(base).update(task_of(0, (1, 1)), 1, lambda: [ME])

    assert fault.endswith(": Not a directory")


def test_what_is_left_of_a_task_goes_back(base: Path) -> None:
    """To the agent's own group where its origin is not known any more."""
    task, found = task_of(0, (1, 1)), cpusets_of(base)
    found.update(task, task.held, lambda: [ME])
    group = group_of(base, task)
    try:
        os.removexattr(group, "user.drom.origin")
    except OSError:
        assert not os.listxattr(group)
    assert found.remove(task)
    assert said(base / "agent/cgroup.procs") == str(ME)
    assert not found.remove(task_of(1))


def test_only_groups_of_ones_own_directory_are_taken_down(base: Path) -> None:
    """Two agents may share a group; an agent without cpusets removes those left in its directory."""
    mine, yours = task_of(0, (1, 1)), task_of(1, (1, 2))
    cpusets_of(base).update(mine, mine.held, lambda: [ME])
    cpusets_of(base, "/run/other").update(yours, yours.held, lambda: [ME])
    for path in (group_of(base, mine), group_of(base, yours)):
        (path / "cpuset.cpus").unlink()
        (path / "cgroup.procs").unlink()  # the kernel's files go with their group
    cpusets_of(base).remove_all_but([mine])
    assert group_of(base, mine).exists()
    cpusets_of(base, raised=False).remove_all_but([mine])
    assert list(base.glob(f"*-{mine.arrival.pid}-*")) == []
    assert group_of(base, yours).exists()


def test_the_group_of_the_service_that_holds_them_is_taken(tmp_path: Path) -> None:
    """Where it runs: then the agent stays in its own group, which ends with it."""
    holder, proc = tmp_path / "sys/fs/cgroup" / cpusets.HOLDER, tmp_path / "proc/self"
    for folder in (holder, proc):
        folder.mkdir(parents=True)
    (proc / "mountinfo").write_text("30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    (proc / "cgroup").write_text("0::/system.slice/drom-agent.service\n")
    for name, text in (("controllers", "cpuset"), ("procs", ""), ("subtree_control", "")):
        (holder / f"cgroup.{name}").write_text(text)
    assert cpusets.build(Path("/run/drom"), raised=True, root=tmp_path)

    assert said(holder / "cgroup.subtree_control") == "+cpuset"
    assert list((holder / "agent").iterdir()) == []


def test_without_delegation_there_is_a_sentence(tmp_path: Path) -> None:
    """For who wants cpusets; who does not want any goes on without."""
    assert cpusets.build(Path("/run/drom"), raised=False, root=tmp_path) is None
    with pytest.raises(
        ControlError, match=r"^no control groups of version 2 are mounted here: start drom-tasks\.service, "
    ):
        cpusets.build(Path("/run/drom"), raised=True, root=tmp_path)
