# SPDX-License-Identifier: Apache-2.0
"""Control groups that limit memory, in folders that stand for the kernel's; tests/system has real ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from drom.agent.enforcement import cpusets, memory_limits
from drom.agent.errors import ControlError

RUN = Path("/run/drom")
V1 = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
V2 = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"


def plant(root: Path, mounts: str, own: str, *groups: str, controllers: str = "memory") -> Path:
    """Make a root with these mounts, this /proc/self/cgroup and these groups; return it."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text(mounts, encoding="ascii")
    (root / "proc/self/cgroup").write_text(own, encoding="ascii")
    for group in groups:
        folder = root / "sys/fs/cgroup" / group
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in (("controllers", controllers), ("procs", ""), ("subtree_control", "")):
            (folder / f"cgroup.{name}").write_text(text, encoding="ascii")
    return root


def test_groups_of_version_1_are_below_the_agents_own(tmp_path: Path) -> None:
    """Limits of the agent's group then hold for jobs as well."""
    root = plant(tmp_path, V1 + V2, "4:memory:/box\n0::/\n", "memory/box")

    found = memory_limits.find(RUN, confined=True, root=root)

    assert found.base == tmp_path / "sys/fs/cgroup/memory/box"
    assert found.group(7, 2).name.endswith("-7.2")
    assert found.group(7, 2) != memory_limits.find(Path("/run/other"), confined=False, root=root).group(7, 2)


@pytest.mark.parametrize(("mounts", "below"), [(V1, "memory/"), (V2, "")])
def test_the_group_of_the_service_for_tasks_is_preferred(tmp_path: Path, mounts: str, below: str) -> None:
    """The service's group outlives the agent's, in each version."""
    own = "4:memory:/system.slice/drom-agent.service\n0::/system.slice/drom-agent.service\n"
    root = plant(tmp_path, mounts, own, f"{below}system.slice/drom-agent.service", below + cpusets.HOLDER)

    assert (
        memory_limits.find(RUN, confined=False, root=root).base == tmp_path / "sys/fs/cgroup" / below / cpusets.HOLDER
    )


@pytest.mark.parametrize(
    ("mounts", "controllers", "confined", "reason"),
    [
        ("", "memory", False, "no control groups of version 2 are mounted here: start drom-tasks.service."),
        (
            V2,
            "cpu",
            False,
            "the memory controller is not delegated to the control group /box: start drom-tasks.service.",
        ),
        (
            V2,
            "memory",
            False,
            "the control group {}/sys/fs/cgroup/box is not for jobs alone: start drom-tasks.service.",
        ),
        (V2, "memory", True, "tasks are in control groups for their CPUs: use --enforce affinity."),
    ],
)
def test_memory_that_cannot_be_limited_has_a_reason(
    tmp_path: Path, mounts: str, controllers: str, reason: str, *, confined: bool
) -> None:
    """One sentence says what is missing, and nothing is changed."""
    root = plant(tmp_path, mounts, "0::/box\n", "box", controllers=controllers)
    before = sorted(root.rglob("*"))

    with pytest.raises(ControlError) as refused:
        memory_limits.find(RUN, confined=confined, root=root)

    assert str(refused.value) == reason.format(root)
    assert sorted(root.rglob("*")) == before


def test_a_group_that_may_not_be_used_has_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent of another user than root has no groups of version 1."""
    root = plant(tmp_path, V1, "4:memory:/box\n", "memory/box")
    monkeypatch.setattr(os, "access", lambda *_: False)

    with pytest.raises(
        ControlError, match=r"^this user may not make control groups in .*/box: run the agent as root\.$"
    ):
        memory_limits.find(RUN, confined=False, root=root)


def test_swap_is_limited_as_well(tmp_path: Path) -> None:
    """In version 2 a job has none, in version 1 none beyond its memory; a kernel may not account for it."""
    for name, files in (
        ("v2", ("memory.max", "memory.swap.max")),
        ("v1", ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")),
        ("none", ("memory.limit_in_bytes",)),
    ):
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).touch()
        memory_limits.make(tmp_path / name, 4096)

    written = {str(path.relative_to(tmp_path)): path.read_text(encoding="ascii") for path in tmp_path.rglob("memory.*")}
    assert written == {
        "v2/memory.max": "4096",
        "v2/memory.swap.max": "0",
        "v1/memory.limit_in_bytes": "4096",
        "v1/memory.memsw.limit_in_bytes": "4096",
        "none/memory.limit_in_bytes": "4096",
    }


@pytest.mark.parametrize(
    ("file", "text", "exceeded"),
    [
        ("memory.events", "low 0\nhigh 0\nmax 9\noom 1\noom_kill 1\noom_group_kill 0\n", True),
        ("memory.events", "low 0\nhigh 0\nmax 9\noom 0\noom_kill 1\noom_group_kill 0\n", False),
        ("memory.events", "low 0\nhigh 0\nmax 9\noom 0\noom_kill 0\n", False),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", True),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n", False),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n", False),
        ("nothing", "", False),
    ],
)
def test_a_job_that_needed_more_is_known_by_the_kernels_counts(
    tmp_path: Path, file: str, text: str, *, exceeded: bool
) -> None:
    """In version 2 a kill because the machine had no memory left does not count."""
    (tmp_path / file).write_text(text, encoding="ascii")

    assert memory_limits.exceeded(tmp_path) is exceeded


def test_groups_that_were_left_are_removed(tmp_path: Path) -> None:
    """Those of other agents stay, and those of jobs that the agent knows."""
    mine, other = memory_limits.MemoryLimits(tmp_path, RUN), memory_limits.MemoryLimits(tmp_path, Path("/run/other"))
    for group in (mine.group(1, 1), mine.group(2, 1), other.group(3, 1)):
        group.mkdir()

    mine.remove_all_but([mine.group(1, 1), None])

    assert {*tmp_path.iterdir()} == {mine.group(1, 1), other.group(3, 1)}
