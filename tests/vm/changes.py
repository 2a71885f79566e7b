# SPDX-License-Identifier: Apache-2.0
"""Runs inside a virtual machine of 1 socket x 4 cores: CPUs go and come back while OpenMP programs run.

CPUs are unplugged, a cpuset and a quota of cgroup v2 are changed around a live agent, and another group takes CPUs
for itself (a partition). Prints one JSON object per look,
as `scenario` does.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dromlib.cpulist import parse_cpulist
from tests.vm.scenario import agent, cooperative, end, look, start

if TYPE_CHECKING:
    from collections.abc import Iterator

CGROUP = Path("/sys/fs/cgroup")
GROUP = CGROUP / "drom"
OTHER = CGROUP / "other"


def plug(cpu: int, state: int) -> None:
    """Take a CPU from the kernel (0) or give it back (1)."""
    Path(f"/sys/devices/system/cpu/cpu{cpu}/online").write_text(str(state), encoding="ascii")


def limit(name: str, text: str) -> None:
    """Write a limit of the group in which everything runs."""
    (GROUP / name).write_text(text, encoding="ascii")


def take_for_another(cpus: str) -> None:
    """Have another group take CPUs for itself alone (an empty list: give them back)."""
    OTHER.mkdir(exist_ok=True)
    if not cpus:
        (OTHER / "cpuset.cpus.partition").write_text("member", encoding="ascii")
        return
    (OTHER / "cpuset.cpus").write_text(cpus, encoding="ascii")
    (OTHER / "cpuset.cpus.partition").write_text("root", encoding="ascii")
    state = (OTHER / "cpuset.cpus.partition").read_text(encoding="ascii").strip()
    assert state == "root", state


@contextlib.contextmanager
def inside() -> Iterator[None]:
    """Be in a group of one's own for a block, with what is started there."""
    GROUP.mkdir()
    (GROUP / "cgroup.procs").write_text("0", encoding="ascii")
    try:
        yield
    finally:
        (CGROUP / "cgroup.procs").write_text("0", encoding="ascii")


def hold(count: int, *jobs: str) -> Any:
    """Return whether these jobs run, attend to grants, and hold so many CPUs together."""
    attend = cooperative(*jobs)

    def done(tasks: dict[str, dict[str, Any]]) -> bool:
        return attend(tasks) and sum(parse_cpulist(task["held"]).bit_count() for task in tasks.values()) == count

    return done


def main() -> None:
    """Play the scenario."""
    with inside(), agent():
        programs = [start("a"), start("b")]
        look("all", hold(4, "a", "b"))
        plug(3, 0)
        look("unplugged", hold(3, "a", "b"))
        plug(3, 1)
        look("plugged", hold(4, "a", "b"))
        take_for_another("2-3")  # before our group has a cpuset: it would overlap, and the partition be invalid
        look("partition", hold(2, "a", "b"))
        take_for_another("")
        look("partition again", hold(4, "a", "b"))
        limit("cpuset.cpus", "1-2")
        look("cpuset", hold(2, "a", "b"))
        limit("cpuset.cpus", "0-3")  # the kernel takes no empty set any more while there are processes
        look("cpuset again", hold(4, "a", "b"))
        limit("cpu.max", "200000 100000")
        look("quota", hold(2, "a", "b"))
        limit("cpu.max", "max")
        look("quota again", hold(4, "a", "b"))
        end(*programs)
        look("empty", lambda tasks: not tasks)


if __name__ == "__main__":
    main()
