# SPDX-License-Identifier: Apache-2.0
"""A recorded machine whose files change."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from drom.agent.topology.availability import PERIOD, AvailabilityMonitor, CpuAvailability, remaining_cpus
from drom.agent.topology.synthetic import synthetic_topology
from drom.agent.topology.sysfs import read_topology

from tests.support.recorded_machines import CPU, grow, two_by_two

if TYPE_CHECKING:
    from pathlib import Path

    from drom.agent.topology.machine import Topology

CGROUP = "sys/fs/cgroup/job"


class Recorded:
    """Four CPUs in a control group of version 2, and who looks at them again and again."""

    def __init__(self, root: Path) -> None:
        self.path = root
        self.reads = 0
        self.now = 0.0
        files = two_by_two() | {"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}
        files |= {"proc/self/mountinfo": "31 23 0:28 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n"}
        self.root = grow(
            root, files | {f"{CGROUP}/cpuset.cpus.effective": "0-3\n", f"{CGROUP}/cpu.max": "max 100000\n"}
        )
        self.availability = AvailabilityMonitor(read_topology(self.root), self.read, root=self.root)
        assert not self.look()

    def read(self) -> Topology:
        """Read the machine, and count that."""
        self.reads += 1
        return read_topology(self.root)

    def look(self) -> bool:
        """Look once more, a period later."""
        self.now += PERIOD
        return self.availability.look(self.now)

    def write(self, **texts: str) -> None:
        """Write to files named by their last part."""
        names = {"online": f"{CPU}/online", "cpus": f"{CGROUP}/cpuset.cpus.effective", "quota": f"{CGROUP}/cpu.max"}
        grow(self.path, {names[name]: f"{text}\n" for name, text in texts.items()})


@pytest.fixture
def machine(tmp_path: Path) -> Recorded:
    """Return a machine that has been looked at once."""
    return Recorded(tmp_path)


def test_the_machine_is_read_only_when_a_file_says_something_else(machine: Recorded) -> None:
    """A look that finds nothing new reads a few small files, and one before its time none."""
    assert machine.reads == 1
    assert not machine.look()
    assert machine.reads == 1
    machine.write(cpus="0-1")
    assert not machine.availability.look(machine.now)
    assert machine.look()
    assert machine.reads == 2


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ({"cpus": "0-2"}, CpuAvailability(0b0111, 0b1000)),
        ({"online": "0,2-3"}, CpuAvailability(0b1101, 0b0010)),
        ({"quota": "200000 100000"}, CpuAvailability(0b0011, 0)),
        ({"cpus": "2-3", "quota": "100000 100000"}, CpuAvailability(0b0100, 0b0011)),
    ],
)
def test_what_goes_and_comes_back(machine: Recorded, texts: dict[str, str], found: CpuAvailability) -> None:
    """Hotplug, a cpuset and a quota take CPUs away; a quota takes none that programs may not run on any more."""
    machine.write(**texts)
    assert machine.look()
    assert machine.availability.available == found
    machine.write(cpus="0-3", online="0-3", quota="max 100000")
    assert machine.look()

    assert machine.availability.available == CpuAvailability(0b1111, 0)


def test_an_agent_that_is_moved_to_another_group(machine: Recorded) -> None:
    """The files of the new group are looked at."""
    grow(machine.path, {"sys/fs/cgroup/other/cpuset.cpus.effective": "3\n", "proc/self/cgroup": "0::/other\n"})
    assert machine.look()
    assert machine.availability.available.managed == 0b1000
    grow(machine.path, {"sys/fs/cgroup/other/cpuset.cpus.effective": "2-3\n"})

    assert machine.look()


def test_what_an_agent_could_manage_if_it_was_started_now() -> None:
    """CPUs that were not there at the start are told."""
    machine = synthetic_topology("pack:2 core:2")
    start = replace(machine, allowed=0b0011)

    assert remaining_cpus(start, machine) == CpuAvailability(0b0011, 0, 0b1100)


def test_threads_of_cores_that_are_switched_off() -> None:
    """A core is managed with the threads that are left of it."""
    machine = synthetic_topology("core:2 pu:2")

    assert remaining_cpus(machine, replace(machine, allowed=0b0101)) == CpuAvailability(0b0101, 0b1010)
