# SPDX-License-Identifier: Apache-2.0
"""What control groups leave us."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from drom.agent.system.cgroups import parse_cgroups, parse_cpu_max, parse_mounts
from drom.agent.topology.machine import usable_cores, warnings_of
from drom.agent.topology.sysfs import read_topology

from dromlib.cpulist import format_cpulist
from tests.support.recorded_machines import NODE, grow, two_by_two

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Plant = Callable[[dict[str, str]], str]


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    """Return a function that writes files below a root, and returns the root."""
    return partial(grow, tmp_path)


class TestCpuset:
    """The CPUs that our cgroup leaves us."""

    def test_cgroup_v2_of_the_nearest_ancestor_that_states_one(self, plant: Plant) -> None:
        """cpuset.cpus.effective of our cgroup, or of the nearest ancestor with one, limits allowed."""
        base = "sys/fs/cgroup/job"
        files = two_by_two() | {"proc/self/cgroup": "0::/job/step/leaf\n", f"{base}/cpuset.cpus.effective": "1-2\n"}
        files |= {"proc/self/mountinfo": "31 23 0:28 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n"}

        topology = read_topology(plant(files))

        assert format_cpulist(topology.allowed) == "1-2"
        assert format_cpulist(topology.online) == "0-3"
        assert usable_cores(topology) == [(0, 0, 2), (1, 1, 4)]

    def test_cgroup_found_by_cpuset_and_mounts(self, plant: Plant) -> None:
        """An older recording with /proc/self/cpuset and a hierarchy mounted elsewhere is understood."""
        files = two_by_two() | {"proc/self/cpuset": "/a/b\n", "proc/mounts": "none /cgroup/unified cgroup2 rw 0 0\n"}
        files["cgroup/unified/a/b/cpuset.cpus.effective"] = "0\n"

        assert format_cpulist(read_topology(plant(files)).allowed) == "0"

    def test_cgroup_v1(self, plant: Plant) -> None:
        """The v1 hierarchy with the cpuset controller limits allowed; cpuset.effective_cpus comes first."""
        files = two_by_two() | {"proc/self/cgroup": "5:memory:/m\n3:cpuset,cpu:/box\n0::/\n"}
        files["proc/mounts"] = "cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n"
        files |= {
            "sys/fs/cgroup/cpuset/box/cpuset.cpus": "0-3",
            "sys/fs/cgroup/cpuset/box/cpuset.effective_cpus": "3",
        }

        assert format_cpulist(read_topology(plant(files)).allowed) == "3"

    @pytest.mark.parametrize(("above", "allowed"), [("0-1", "1"), ("0-3", "1-2"), ("3", "1-2")])
    def test_a_set_that_is_not_called_effective_is_narrowed(self, plant: Plant, above: str, allowed: str) -> None:
        """By those of our ancestors, where anything is left then; else the contradiction is told."""
        files = two_by_two() | {"proc/self/cgroup": "3:cpuset:/x/y\n"}
        files |= {"sys/fs/cgroup/cpuset/x/cpuset.cpus": above, "sys/fs/cgroup/cpuset/x/y/cpuset.cpus": "1-2"}

        topology = read_topology(plant(files))

        own, above_it = (f"/sys/fs/cgroup/cpuset/x/{name}cpuset.cpus" for name in ("y/", ""))
        told = f"{above_it} is left out: its 3 has no CPU of 1-2 in {own}."
        assert format_cpulist(topology.allowed) == allowed
        assert (told in topology.warnings) == (above == "3")

    def test_container_sees_its_part_of_the_hierarchy(self, plant: Plant) -> None:
        """The part of the hierarchy that is mounted is taken off our path."""
        files = two_by_two() | {"proc/self/cgroup": "0::/docker/x/app\n"}
        files["proc/self/mountinfo"] = "31 23 0:28 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup rw\n"
        files["sys/fs/cgroup/app/cpuset.cpus.effective"] = "2"

        assert format_cpulist(read_topology(plant(files)).allowed) == "2"

    def test_a_path_outside_the_namespace_reads_the_top(self, plant: Plant) -> None:
        """A path that climbs out of the namespace never leaves the mounted hierarchy."""
        files = two_by_two() | {"proc/self/cgroup": "0::/../../other\n", "sys/fs/cgroup/cpuset.cpus.effective": "0-1"}
        files["sys/other/cpuset.cpus.effective"] = "3"

        assert format_cpulist(read_topology(plant(files)).allowed) == "0-1"

    def test_a_cpuset_without_our_cpus_is_left_out(self, plant: Plant) -> None:
        """A cpuset that holds no online CPU is ignored with a warning that names both."""
        files = two_by_two() | {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpuset.cpus.effective": "8-9"}

        topology = read_topology(plant(files))

        assert format_cpulist(topology.allowed) == "0-3"
        assert "/sys/fs/cgroup/cpuset.cpus.effective (8-9)" in topology.warnings[0]


class TestQuota:
    """The CPU time that our cgroups leave us."""

    def test_the_smallest_of_us_and_our_ancestors_counts(self, plant: Plant) -> None:
        """cpu.max of any group above ours limits us as ours does."""
        base = "sys/fs/cgroup"
        files = two_by_two() | {"proc/self/cgroup": "0::/a/b\n", f"{base}/a/b/cpu.max": "350000 100000\n"}
        files |= {f"{base}/a/cpu.max": "125000 50000\n", f"{base}/cpu.max": "max 100000\n"}

        topology = read_topology(plant(files))

        assert topology.quota == 2.5
        assert usable_cores(topology) == [(0, 0, 1), (0, 0, 2)]
        assert warnings_of(topology) == [
            "The CPU quota of 2.5 CPUs has room for 2 cores of 4: CPUs 0-1 are managed of 0-3."
        ]

    def test_cgroup_v1(self, plant: Plant) -> None:
        """The v1 hierarchy writes quota and period in files of their own; -1 is no limit."""
        base = "sys/fs/cgroup/cpu,cpuacct"
        files = two_by_two() | {"proc/self/cgroup": "2:cpuacct,cpu:/a/b\n"}
        files["proc/mounts"] = f"cgroup /{base} cgroup rw,cpuacct,cpu 0 0\n"
        files |= {f"{base}/a/cpu.cfs_quota_us": "50000\n", f"{base}/a/cpu.cfs_period_us": "100000\n"}
        files |= {f"{base}/a/b/cpu.cfs_quota_us": "-1\n", f"{base}/a/b/cpu.cfs_period_us": "100000\n"}

        topology = read_topology(plant(files))

        assert topology.quota == 0.5
        assert usable_cores(topology) == [(0, 0, 1)]

    def test_a_quota_with_room_for_all_says_nothing(self, plant: Plant) -> None:
        """A quota above what is allowed is reported and changes nothing."""
        files = two_by_two() | {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "900000 100000\n"}

        topology = read_topology(plant(files))

        assert (topology.quota, len(usable_cores(topology)), warnings_of(topology)) == (9.0, 4, [])

    @pytest.mark.parametrize("text", ["", "max", "max 100000", "0 100000", "5 0", "-1 100000", "x y", "1 2 3"])
    def test_what_is_no_limit(self, text: str) -> None:
        """Anything but two positive numbers limits nothing."""
        assert parse_cpu_max(text) is None

    @pytest.mark.parametrize(("name", "text"), [("cpu.max", "lots"), ("cpu.max", "400000"), ("memory.max", "much")])
    def test_what_cannot_be_understood_is_told(self, plant: Plant, name: str, text: str) -> None:
        """An unreadable limit is left out with a warning that names the file; `max` gives no warning."""
        path = f"sys/fs/cgroup/{name}"
        files = two_by_two() | {"proc/self/cgroup": "0::/\n", path: text}
        (warning,) = set(read_topology(plant(files)).warnings) - set(
            read_topology(plant(files | {path: "max"})).warnings
        )

        assert warning.startswith(f"/{path} is left out: it does not contain a ")


class TestMemory:
    """The memory that our cgroups leave us."""

    def test_the_smallest_limit_bounds_the_machine(self, plant: Plant) -> None:
        """memory.max of our group or an ancestor bounds what the machine has."""
        files = two_by_two() | {"proc/self/cgroup": "0::/a/b\n", "proc/meminfo": "MemTotal:  64 kB\n"}
        files |= {"sys/fs/cgroup/a/memory.max": "4096\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}

        assert read_topology(plant(files)).memory == 4096

    def test_cgroup_v1_without_a_limit(self, plant: Plant) -> None:
        """The huge number that v1 writes for no limit is none."""
        files = two_by_two() | {"proc/self/cgroup": "4:memory:/m\n", "proc/meminfo": "MemTotal:  64 kB\n"}
        files["sys/fs/cgroup/memory/m/memory.limit_in_bytes"] = "9223372036854771712\n"

        assert read_topology(plant(files)).memory == 64 * 1024

    def test_the_nodes_of_our_cpuset_bound_it(self, plant: Plant) -> None:
        """Where the cpuset names memory nodes, theirs is the memory."""
        files = two_by_two() | {"proc/self/cgroup": "0::/\n", "proc/meminfo": "MemTotal:  64 kB\n"}
        files |= {f"{NODE}/node{node}/meminfo": f"Node {node} MemTotal:  {30 + node} kB\n" for node in (0, 1)}
        files["sys/fs/cgroup/cpuset.mems.effective"] = "1\n"

        assert read_topology(plant(files)).memory == 31 * 1024


class TestParsers:
    """What /proc says of hierarchies."""

    def test_own_groups_by_controller(self) -> None:
        """A path may hold colons; named hierarchies and odd lines are no error."""
        text = "nonsense\n\n9:name=systemd:/\n2:cpu,cpuset:/a:b\n0::/c:d\n"

        assert parse_cgroups(text) == {
            "name=systemd": "/",
            "cpu": "/a:b",
            "cpuset": "/a:b",
            "cgroup2": "/c:d",
        }

    def test_mounts(self) -> None:
        """Both tables are read, blanks in names are restored, and what climbs out of the root is passed over."""
        assert parse_mounts("\nx\na b c\n1 2 3 / /m rw - tmpfs t rw\n1 2 3 / /m rw -\n") == []
        assert parse_mounts("none /dev/cpuset cpuset rw 0 0\n") == [(("cpuset",), "/", "/dev/cpuset")]
        assert parse_mounts("1 2 3 /a\\040b /m rw - cgroup2 c rw\n") == [(("cgroup2",), "/a b", "/m")]
        assert parse_mounts("none /sys/../../etc cgroup2 rw 0 0\n") == []

    @pytest.mark.parametrize("path", ["/" + "x/" * 5000, "/a\0b", "/\ud800"])
    def test_a_path_no_kernel_writes_is_not_followed(self, plant: Plant, path: str) -> None:
        """Whatever our path is said to be, the mounted top is read."""
        files = two_by_two() | {"proc/self/cgroup": f"0::{path.replace(chr(0xD800), '?')}\n"}
        files["sys/fs/cgroup/cpuset.cpus.effective"] = "0-1"

        assert format_cpulist(read_topology(plant(files)).allowed) == "0-1"
