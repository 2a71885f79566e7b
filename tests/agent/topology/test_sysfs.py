# SPDX-License-Identifier: Apache-2.0
"""Machines as ``/sys`` tells them."""

from __future__ import annotations

import json
import os
import tarfile
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from drom.agent.topology.machine import digest, usable_cores
from drom.agent.topology.sysfs import kinds_by_speed, parse_cpuinfo, read_topology
from hypothesis import given, settings
from hypothesis import strategies as st

from dromlib.cpulist import cpus, format_cpulist, mask_of
from tests.support.recorded_machines import CPU, NODE, cpu_files, grow, shape, two_by_two

if TYPE_CHECKING:
    from collections.abc import Callable

    from drom.agent.topology.machine import Topology

    Plant = Callable[[dict[str, str]], str]


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    """Return a function that writes files below a root, and returns the root."""
    return partial(grow, tmp_path)


def core_lists(topology: Topology) -> list[str]:
    """Return the CPU list of each core."""
    return [format_cpulist(core.cpus) for core in topology.cores]


class TestReadTopology:
    """What is understood of a tree of /sys."""

    def test_describes_a_plain_machine(self, plant: Plant) -> None:
        """Packages, nodes, cores and CPUs of a well-behaved tree are listed by OS index, without warnings."""
        memory = {f"{NODE}/node0/meminfo": "\nNode 0 MemTotal:   2 kB\n", "proc/meminfo": "MemTotal:  8 kB\n"}
        topology = read_topology(plant(two_by_two() | memory))

        assert topology.to_json() == {
            "schema_version": 1,
            "packages": [{"os": 0, "cpus": "0-1"}, {"os": 1, "cpus": "2-3"}],
            "numa": [{"os": 0, "cpus": "0-1", "memory": 2048}, {"os": 1, "cpus": "2-3", "memory": 0}],
            "dies": [],
            "groups": [],
            "cores": [
                {"package": 0, "numa": 0, "cpus": "0", "kind": ""},
                {"package": 0, "numa": 0, "cpus": "1", "kind": ""},
                {"package": 1, "numa": 1, "cpus": "2", "kind": ""},
                {"package": 1, "numa": 1, "cpus": "3", "kind": ""},
            ],
            "online": "0-3",
            "allowed": "0-3",
            "offline": "",
            "present": "0-3",
            "possible": "0-3",
            "isolated": "",
            "nohz_full": "",
            "quota": None,
            "memory": 8192,
            "emulated": True,
            "warnings": [],
        }

    def test_describes_this_machine(self) -> None:
        """The live machine's cores cover what is online, and allowed stays within our affinity."""
        topology = read_topology()

        assert not topology.emulated
        assert topology.online == mask_of(cpu for core in topology.cores for cpu in cpus(core.cpus))
        assert topology.online == mask_of(cpu for group in topology.packages for cpu in cpus(group.cpus))
        assert topology.allowed
        assert set(cpus(topology.allowed)) <= os.sched_getaffinity(0)
        assert json.loads(json.dumps(topology.to_json())) == topology.to_json()

    def test_allowed_follows_our_own_affinity(self) -> None:
        """A narrowed affinity narrows allowed and nothing else; the affinity is given back."""
        before = os.sched_getaffinity(0)
        try:
            os.sched_setaffinity(0, {min(before)})
            narrowed = read_topology()
        finally:
            os.sched_setaffinity(0, before)

        assert [min(before)] == cpus(narrowed.allowed)
        assert digest(narrowed) == digest(read_topology())
        assert before == os.sched_getaffinity(0)

    def test_sibling_lists_beat_repeating_core_ids(self, plant: Plant) -> None:
        """core_id may repeat inside a package: the lists of siblings say what a core is."""
        files = {f"{CPU}/online": "0-3"}
        for cpu in range(4):
            files |= cpu_files(cpu, "0", str(cpu), core_id=str(cpu % 2), die_id="0")

        assert core_lists(read_topology(plant(files))) == ["0", "1", "2", "3"]

    def test_core_ids_within_a_die_serve_without_siblings(self, plant: Plant) -> None:
        """Where no sibling list is written, equal core_id in one die and package is one core."""
        files = {f"{CPU}/online": "0-7"}
        for cpu in range(8):
            base = f"{CPU}/cpu{cpu}/topology"
            files[f"{base}/physical_package_id"] = "0"
            files[f"{base}/die_id"] = str(cpu // 2 % 2)
            files[f"{base}/core_id"] = str(cpu % 2)

        assert core_lists(read_topology(plant(files))) == ["0,4", "1,5", "2,6", "3,7"]

    def test_old_masks_with_nuls_are_read(self, plant: Plant) -> None:
        """Hexadecimal masks that end in newline and NUL serve where no lists exist."""
        files = {f"{CPU}/online": "0-1\n\0", f"{NODE}/node0/cpumap": "00000000,00000003\n\0"}
        for cpu in range(2):
            files[f"{CPU}/cpu{cpu}/topology/thread_siblings"] = "00000000,00000003\n\0"
            files[f"{CPU}/cpu{cpu}/topology/physical_package_id"] = "5\n\0"

        topology = read_topology(plant(files))

        assert shape(topology) == {
            "packages": [{"os": 5, "cpus": "0-1"}],
            "numa": [{"os": 0, "cpus": "0-1"}],
            "cores": [{"package": 5, "numa": 0, "cpus": "0-1"}],
            "online": "0-1",
            "allowed": "0-1",
        }

    def test_offline_siblings_and_gaps_are_left_out(self, plant: Plant) -> None:
        """A sibling that is offline is no part of a core, and CPU numbers may have gaps."""
        files = {f"{CPU}/online": "1,8,100\n", f"{NODE}/node3/cpulist": "0-200\n"}
        files |= cpu_files(1, "0", "0-1") | cpu_files(8, "0", "8,100") | cpu_files(100, "0", "8,100")

        topology = read_topology(plant(files))

        assert core_lists(topology) == ["1", "8,100"]
        assert format_cpulist(topology.numa[0].cpus) == "1,8,100"
        assert topology.warnings == ()

    def test_packages_without_an_id_are_the_sets_they_share(self, plant: Plant) -> None:
        """A package id of -1 leaves the CPUs that share a package's list together, numbered by us with a warning."""
        files = {f"{CPU}/online": "0-3"}
        for cpu in range(4):
            files |= cpu_files(cpu, "-1", str(cpu), core_siblings_list="0-1" if cpu < 2 else "2-3")

        topology = read_topology(plant(files))

        assert [(group.os, group.cpus) for group in topology.packages] == [(0, 3), (1, 12)]
        assert "CPUs 0-3 name no package" in " ".join(topology.warnings)

    def test_large_package_ids_are_kept(self, plant: Plant) -> None:
        """Package ids are names, not counts."""
        files = {f"{CPU}/online": "0-1"} | cpu_files(0, "4294967", "0") | cpu_files(1, "36", "1")

        topology = read_topology(plant(files))

        assert [group.os for group in topology.packages] == [36, 4294967]
        assert usable_cores(topology) == [(0, 0, 2), (1, 1, 1)]

    def test_missing_topology_makes_each_cpu_a_core(self, plant: Plant) -> None:
        """A kernel that describes no topology is taken for one package of one-CPU cores, with warnings."""
        files = {f"{CPU}/cpu3/physical_id": "3", f"{NODE}/node0/distance": "10"}
        files["proc/cpuinfo"] = "".join(f"processor\t: {cpu}\ncpu\t: PPC970MP\n\n" for cpu in range(4))
        root = plant(files)
        for cpu in range(4):
            Path(root, NODE, "node0", f"cpu{cpu}").symlink_to("nowhere")

        topology = read_topology(root)

        assert core_lists(topology) == ["0", "1", "2", "3"]
        assert [(group.os, group.cpus) for group in topology.packages] == [(0, 15)]
        assert [(group.os, group.cpus) for group in topology.numa] == [(0, 15)]
        assert "No list of online CPUs" in topology.warnings[0]
        assert "name no core" in topology.warnings[-1]

    def test_cpus_without_topology_are_offline_where_others_have_it(self, plant: Plant) -> None:
        """Without a list of online CPUs those described, and not switched off, are online."""
        files = cpu_files(0, "0", "0") | cpu_files(2, "0", "2") | cpu_files(3, "0", "3")
        files |= {f"{CPU}/cpu1/online": "1", f"{CPU}/cpu3/online": "0\n"}

        assert format_cpulist(read_topology(plant(files)).online) == "0,2"

    def test_nodes_without_cpus_and_absent_nodes(self, plant: Plant) -> None:
        """A node without CPUs is listed empty; a machine without nodes has none and cores in node -1."""
        files = {f"{CPU}/online": "0"} | cpu_files(0, "0", "0")

        without = read_topology(plant(files))
        empty = read_topology(plant({f"{NODE}/node0/cpulist": "0", f"{NODE}/node1/cpulist": "\n"}))

        assert without.numa == ()
        assert without.cores[0].numa == -1
        assert "No NUMA nodes" in " ".join(without.warnings)
        assert [(group.os, group.cpus) for group in empty.numa] == [(0, 1), (1, 0)]

    def test_a_cpu_in_two_nodes_counts_in_the_first(self, plant: Plant) -> None:
        """Where nodes overlap, as with two kinds of memory, a core's node is the first one."""
        files = two_by_two() | {f"{NODE}/node1/cpulist": "0-3", f"{NODE}/node2/cpulist": "0-3"}

        topology = read_topology(plant(files))

        assert [core.numa for core in topology.cores] == [0, 0, 1, 1]
        assert sum(node.cpus.bit_count() for node in topology.numa) == topology.online.bit_count()
        assert any(text.endswith(" are in several NUMA nodes: the first keeps them.") for text in topology.warnings)

    def test_contradicting_siblings_leave_cores_disjoint(self, plant: Plant) -> None:
        """Cores never overlap nor cross packages, whatever the lists claim; a warning tells."""
        files = {f"{CPU}/online": "0-3"} | cpu_files(0, "0", "0-1") | cpu_files(1, "0", "0-1")
        files |= cpu_files(2, "0", "1-3") | cpu_files(3, "1", "2-3")

        topology = read_topology(plant(files))

        assert core_lists(topology) == ["0-1", "2", "3"]
        assert "CPUs 2-3 share a core" in " ".join(topology.warnings)

    @pytest.mark.parametrize(
        ("lists", "told"), [(("0-3", "1", "2", "3"), "CPUs 1-3"), (("0-1", "1-2", "2-3", "0,3"), "CPUs 1,3")]
    )
    def test_siblings_that_do_not_agree_are_told(self, plant: Plant, lists: tuple[str, ...], told: str) -> None:
        """One that names others than those which name it."""
        files = {f"{CPU}/online": "0-3"}
        for cpu, siblings in enumerate(lists):
            files |= cpu_files(cpu, "0", siblings)

        assert f"{told} share a core" in " ".join(read_topology(plant(files)).warnings)

    def test_nonsense_is_left_out_with_a_warning(self, plant: Plant) -> None:
        """Files that are not CPU sets do not stop the reading, and are named."""
        files = two_by_two() | {f"{NODE}/node1/cpulist": "garbage", f"{CPU}/cpu0/topology/core_cpus_list": "9-1"}

        topology = read_topology(plant(files))

        assert core_lists(topology) == ["0", "1", "2", "3"]
        assert "/sys/devices/system/node/node1/cpulist is left out: 'garbage'" in " ".join(topology.warnings)

    def test_an_empty_root_is_one_cpu(self, plant: Plant) -> None:
        """Where nothing is described at all, one CPU is assumed."""
        assert read_topology(plant({})).online == 1

    def test_packages_are_the_sets_they_share(self, plant: Plant) -> None:
        """The sets say what a package is; where its id repeats, as on boards numbered apart, we number the second."""
        files = {f"{CPU}/online": "0-3"}
        for cpu in range(4):
            files |= cpu_files(cpu, "0", str(cpu), package_cpus_list="0-1" if cpu < 2 else "2-3")

        topology = read_topology(plant(files))

        assert [(group.os, group.cpus) for group in topology.packages] == [(0, 3), (1, 12)]
        assert "CPUs 2-3 name a package whose id repeats" in " ".join(topology.warnings)

    def test_a_set_beats_the_id_of_one_of_its_cpus(self, plant: Plant) -> None:
        """A CPU that names another package than those it shares one with is in the shared one."""
        files = {f"{CPU}/online": "0-1"} | cpu_files(0, "0", "0", package_cpus_list="0-1")
        files |= cpu_files(1, "7", "1", package_cpus_list="0-1")

        topology = read_topology(plant(files))

        assert [(group.os, group.cpus) for group in topology.packages] == [(0, 3)]
        assert "CPUs 1 name another package" in " ".join(topology.warnings)

    def test_one_core_packages_without_an_id(self, plant: Plant) -> None:
        """Where each core shares a package's set with itself alone, each is a package, as hwloc has it on POWER."""
        files = {f"{CPU}/online": "0-7"}
        for cpu in range(8):
            own = "0-3" if cpu < 4 else "4-7"
            files |= cpu_files(cpu, "-1", own, core_siblings_list=own)

        topology = read_topology(plant(files))

        assert [group.cpus for group in topology.packages] == [core.cpus for core in topology.cores] == [15, 240]

    def test_ids_beyond_what_kernels_hold_are_none(self, plant: Plant) -> None:
        """An id of -1 written without a sign is as good as none."""
        files = {f"{CPU}/online": "0"} | cpu_files(0, "4294967295", "0")

        assert [group.os for group in read_topology(plant(files)).packages] == [0]

    def test_more_than_a_thousand_cpus(self, plant: Plant) -> None:
        """The number of CPUs has no limit of its own."""
        files = {f"{CPU}/online": "0-2047", f"{NODE}/node0/cpulist": "0-2047"}
        for cpu in range(0, 2048, 512):
            files |= cpu_files(cpu, str(cpu // 1024), str(cpu), package_cpus_list=f"{cpu}-{cpu + 511}")

        topology = read_topology(plant(files))

        assert len(topology.cores) == 2048
        assert [group.os for group in topology.packages] == [0, 1, 2, 3]

    def test_several_nodes_in_a_package_and_packages_in_a_node(self, plant: Plant) -> None:
        """Sub-NUMA clustering and packages that share a node are leaf domains each."""
        files = {f"{CPU}/online": "0-3", f"{NODE}/node0/cpulist": "0", f"{NODE}/node2/cpulist": "1-3"}
        for cpu in range(4):
            files |= cpu_files(cpu, str(cpu // 2), str(cpu))

        assert usable_cores(read_topology(plant(files))) == [(0, 0, 1), (0, 1, 2), (1, 2, 4), (1, 2, 8)]

    def test_cpus_outside_all_nodes_are_told(self, plant: Plant) -> None:
        """A CPU that no node names is kept, in no node."""
        files = two_by_two() | {f"{NODE}/node1/cpulist": "3"}

        topology = read_topology(plant(files))

        assert [core.numa for core in topology.cores] == [0, 0, -1, 1]
        assert "CPUs 2 are in no NUMA node" in " ".join(topology.warnings)

    def test_a_core_in_two_nodes_is_told(self, plant: Plant) -> None:
        """Such a core is in the node of its first CPU; a thread that no node names is where its core is."""
        files = {f"{CPU}/online": "0-5", f"{NODE}/node0/cpulist": "0-2", f"{NODE}/node1/cpulist": "3-4"}
        for cpu in range(6):
            files |= cpu_files(cpu, "0", f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}")

        topology = read_topology(plant(files))

        assert [core.numa for core in topology.cores] == [0, 0, 1]
        assert "CPUs 2-3 are cores in several NUMA nodes" in " ".join(topology.warnings)
        assert "CPUs 5 are in no NUMA node" in " ".join(topology.warnings)

    def test_a_tree_of_which_a_part_is_missing_is_told(self, plant: Plant) -> None:
        """Where no list says which CPUs there are, and those that are described have gaps or do not begin with 0."""
        alone = {path: text for path, text in two_by_two().items() if f"{CPU}/cpu3/" in path}
        topology = read_topology(plant(alone))

        assert topology.online == 0b1000
        assert topology.warnings[0] == (
            "No list of online CPUs: 3 is assumed from what is described, and CPUs 0-2 are not: "
            "a part of /sys may be missing."
        )

    @pytest.mark.parametrize("path", ["offline", "cpu3/online"])
    def test_a_cpu_that_is_online_and_offline_is_left_alone(self, plant: Plant, path: str) -> None:
        """Whichever file says so."""
        topology = read_topology(plant(two_by_two() | {f"{CPU}/{path}": "3" if path == "offline" else "0"}))

        assert topology.online == 0b111
        assert "CPUs 3 are said to be online and offline: they are left alone." in topology.warnings

    def test_cores_of_compute_units(self, plant: Plant) -> None:
        """Siblings with core ids of their own are cores on AMD's family 21, and threads anywhere else."""
        files = {f"{CPU}/online": "0-1"} | cpu_files(0, "0", "0-1", core_id="0") | cpu_files(1, "0", "0-1", core_id="1")
        lists = []
        for family in (21, 25):
            files["proc/cpuinfo"] = f"processor : 0\nvendor_id : AuthenticAMD\ncpu family : {family}\n"
            lists.append(core_lists(read_topology(plant(files))))

        assert lists == [["0", "1"], ["0-1"]]


class TestCpuinfo:
    """Machines of which only /proc/cpuinfo tells."""

    def test_packages_and_cores_come_from_it(self, plant: Plant) -> None:
        """Without topology in /sys the ids of /proc/cpuinfo make packages and cores."""
        rows = [(0, 0, 0), (1, 1, 0), (2, 0, 0), (3, 1, 1)]
        text = "".join(f"processor\t: {cpu}\nphysical id\t: {pkg}\ncore id\t\t: {core}\n\n" for cpu, pkg, core in rows)

        topology = read_topology(plant({"proc/cpuinfo": text}))

        assert core_lists(topology) == ["0,2", "1", "3"]
        assert [(group.os, group.cpus) for group in topology.packages] == [(0, 5), (1, 10)]
        assert "No topology in /sys" in " ".join(topology.warnings)

    def test_forms_of_other_machines(self) -> None:
        """s390 numbers processors before a colon or as "cpu number"; others give no ids."""
        text = "vendor_id : IBM/S390\nprocessor 0: version = FF\nprocessor 1: version = FF\n"
        blocks = "cpu number      : 1\nphysical id     : 2\ncore id         : 3\n"

        assert parse_cpuinfo(text + blocks) == {0: (-1, -1), 1: (2, 3)}
        assert parse_cpuinfo("processor: 99999\nprocessor: x\n\0") == {}


class TestKinds:
    """Cores that differ."""

    def test_event_sources_of_hybrid_machines(self, plant: Plant) -> None:
        """The lists of x86's event sources name performance and efficiency cores."""
        files = two_by_two() | {"sys/devices/cpu_core/cpus": "0-1\n", "sys/devices/cpu_atom/cpus": "2-3\n"}
        files |= {f"{CPU}/cpu{cpu}/cpu_capacity": "9" if cpu else "1" for cpu in range(4)}

        kinds = [core.kind for core in read_topology(plant(files)).cores]

        assert kinds == ["performance", "performance", "efficiency", "efficiency"]

    def test_capacity_then_speed(self, plant: Plant) -> None:
        """Where there are none, the capacity counts, and the highest frequency where that is not told either."""
        speeds = {f"{CPU}/cpu{cpu}/cpufreq/cpuinfo_max_freq": str(2000 + 1000 * (cpu > 0)) for cpu in range(4)}
        by_speed = [core.kind for core in read_topology(plant(two_by_two() | speeds)).cores]
        capacities = {f"{CPU}/cpu{cpu}/cpu_capacity": str(1024 - 400 * (cpu > 2)) for cpu in range(4)}
        by_capacity = [core.kind for core in read_topology(plant(two_by_two() | speeds | capacities)).cores]

        assert by_speed == ["efficiency", "performance", "performance", "performance"]
        assert by_capacity == ["performance", "performance", "performance", "efficiency"]

    @pytest.mark.parametrize(
        ("speed", "kinds"),
        [
            ([], []),
            ([7, 7], []),
            ([5200, 5100, 4900], []),
            ([1024, 446, 871], ["performance", "efficiency", "performance"]),
            ([1024, 250, 700], ["performance", "efficiency", "medium"]),
            ([100, 80, 79], []),
            ([100, 79], ["performance", "efficiency"]),
        ],
    )
    def test_small_differences_are_none(self, speed: list[int], kinds: list[str]) -> None:
        """Favoured cores of one design are of one kind; a gap of more than a fifth begins another."""
        assert list(kinds_by_speed(dict(enumerate(speed))).values()) == kinds


class TestParts:
    """What divides a package, or holds several."""

    def test_dies_and_clusters(self, plant: Plant) -> None:
        """Dies within a package and clusters of cores are listed with their CPUs and ids."""
        files = {f"{CPU}/online": "0-7"}
        for cpu in range(8):
            die, cluster = ("0-3" if cpu < 4 else "4-7"), f"{cpu & ~1}-{cpu | 1}"
            ids = {"die_id": str(cpu // 4), "cluster_id": "-1"}
            more = {"package_cpus_list": "0-7", "die_cpus_list": die, "cluster_cpus_list": cluster}
            files |= cpu_files(cpu, "0", str(cpu), **more, **ids)

        parts = read_topology(plant(files)).parts

        assert [(part.kind, part.os, format_cpulist(part.cpus)) for part in parts] == [
            ("die", 0, "0-3"),
            ("die", 1, "4-7"),
            ("cluster", -1, "0-1"),
            ("cluster", -1, "2-3"),
            ("cluster", -1, "4-5"),
            ("cluster", -1, "6-7"),
        ]

    def test_parts_that_say_nothing_are_left_out(self, plant: Plant) -> None:
        """A die as large as its package, and one of a single core, are no news."""
        files = {f"{CPU}/online": "0-3"}
        for cpu in range(4):
            files |= cpu_files(cpu, "0", str(cpu), die_cpus_list="0-3", cluster_cpus_list=str(cpu))

        assert read_topology(plant(files)).parts == ()

    def test_books_and_drawers_hold_packages(self, plant: Plant) -> None:
        """The groups above packages of a mainframe are listed."""
        files = {f"{CPU}/online": "0-3"}
        for cpu in range(4):
            book = "00000003" if cpu < 2 else "0000000c"
            files |= cpu_files(
                cpu, str(cpu), str(cpu), book_siblings=book, book_id=str(cpu // 2 + 1), drawer_siblings="f"
            )

        parts = read_topology(plant(files)).parts

        assert [(part.kind, part.os, part.cpus) for part in parts] == [("book", 1, 3), ("book", 2, 12)]


class TestAllowed:
    """What may be managed of what is online."""

    def test_isolated_cpus_are_left_out(self, plant: Plant) -> None:
        """CPUs isolated at boot are kept from us, and reported with those without a tick."""
        files = two_by_two() | {f"{CPU}/isolated": "2-3\n", f"{CPU}/nohz_full": "3\n", f"{CPU}/possible": "0-7\n"}

        topology = read_topology(plant(files))

        assert (topology.allowed, topology.isolated, topology.nohz_full, topology.possible) == (3, 12, 8, 255)
        assert topology.warnings == ()

    def test_a_cpuset_of_isolated_cpus_alone_is_obeyed(self, plant: Plant) -> None:
        """Where only isolated CPUs are left to us, they were meant for us; a warning tells."""
        files = two_by_two() | {f"{CPU}/isolated": "2-3", "proc/self/cgroup": "0::/"}
        files["sys/fs/cgroup/cpuset.cpus.effective"] = "3"

        topology = read_topology(plant(files))

        assert topology.allowed == 8
        assert "CPUs 3 are isolated, and there are no others to use" in " ".join(topology.warnings)

    def test_sets_that_were_never_made(self, plant: Plant) -> None:
        """Kernels write "(null)" for a set nobody gave them."""
        topology = read_topology(plant(two_by_two() | {f"{CPU}/nohz_full": "(null)\n", f"{CPU}/isolated": "\n\0"}))

        assert (topology.allowed, topology.warnings) == (15, ())

    def test_offline_cpus_are_those_present_and_not_online(self, plant: Plant) -> None:
        """What is plugged in and switched off is reported; without a list, folders tell what is plugged in."""
        files = two_by_two() | {f"{CPU}/cpu9/online": "0"}
        by_folders = read_topology(plant(files)).offline
        by_list = read_topology(plant({f"{CPU}/present": "0-5\n"})).offline

        assert (by_folders, by_list) == (1 << 9, 0b110000)


class TestHostileFiles:
    """Trees that no kernel makes."""

    def test_what_is_not_a_plain_file_is_not_opened(self, plant: Plant) -> None:
        """Pipes, folders and loops in the place of files neither stop us nor make us wait, and are named."""
        root = Path(plant(two_by_two()))
        folder = root / CPU / "cpu0/topology"
        (folder / "core_cpus_list").unlink()
        os.mkfifo(folder / "core_cpus_list")
        (folder / "die_id").mkdir()
        (folder / "core_id").symlink_to("core_id")

        topology = read_topology(str(root))

        assert core_lists(topology) == ["0", "1", "2", "3"]
        told = " ".join(topology.warnings)
        assert "/sys/devices/system/cpu/cpu0/topology/core_cpus_list cannot be read: it is not a plain file." in told
        assert "core_id cannot be read: Too many levels of symbolic links." in told

    def test_endless_files_are_left(self, plant: Plant) -> None:
        """A file longer than any kernel writes is not read to its end."""
        root = Path(plant(two_by_two()))
        with (root / CPU / "online").open("wb") as file:
            file.truncate(1 << 40)

        topology = read_topology(str(root))

        assert format_cpulist(topology.online) == "0-3"
        assert "online cannot be read: it is longer than" in " ".join(topology.warnings)

    def test_many_faults_are_counted(self, plant: Plant) -> None:
        """Of many files with the same fault the first are named and the others counted."""
        files = {f"{CPU}/online": "0-9"}
        for cpu in range(10):
            files |= cpu_files(cpu, "0", "x")

        warnings = read_topology(plant(files)).warnings

        assert "6 more files are left out in the same way." in warnings
        assert sum("is left out: 'x'" in warning for warning in warnings) == 4


NUMBERS = st.integers(-2, 9).map(str) | st.sampled_from(["", "x", "4294967295", "9" * 400, "\0", "1e3", "0x1"])
LISTS = st.lists(st.integers(0, 9), max_size=4).map(lambda found: ",".join(map(str, found)))
TEXTS = NUMBERS | LISTS | st.sampled_from(["0-7", "0-99999", "3-1", "0-7:0", "ff", "00000000,0000000f", "max 5", "9 2"])
CONTENT = TEXTS.map(str.encode) | st.binary(max_size=12)
CPU_NAMES = (
    *(f"topology/{name}" for name in ("physical_package_id", "core_id", "die_id", "book_id", "core_cpus_list")),
    *(f"topology/{name}" for name in ("thread_siblings", "package_cpus_list", "core_siblings", "die_cpus")),
    *(f"topology/{name}" for name in ("cluster_cpus_list", "book_siblings", "drawer_siblings_list")),
    *("online", "cpu_capacity", "cpufreq/cpuinfo_max_freq"),
)
OTHER_NAMES = (
    *(f"{CPU}/{name}" for name in ("online", "present", "possible", "isolated", "nohz_full")),
    *(f"{NODE}/node{node}/{name}" for node in (0, 3) for name in ("cpulist", "cpumap", "meminfo", "cpu1")),
    *("sys/devices/cpu_core/cpus", "sys/devices/cpu_atom/cpus"),
    *(f"sys/fs/cgroup{path}{name}" for path in ("/", "/a/") for name in ("cpuset.cpus", "cpu.max", "memory.max")),
    *("proc/cpuinfo", "proc/meminfo", "proc/mounts", "proc/self/cgroup", "proc/self/mountinfo", "proc/self/cpuset"),
)
FILES = st.sampled_from(OTHER_NAMES) | st.builds(
    lambda cpu, name: f"{CPU}/cpu{cpu}/{name}", st.integers(0, 9), st.sampled_from(CPU_NAMES)
)
WHOLE_LINES = st.sampled_from(
    [b"0::/a\n", b"1:cpu,memory,cpuset:/a\n", b"processor : 1\ncore id : 2\nprocessor 3:\n", b"x MemTotal: 7 kB\n"]
)
MACHINES = st.dictionaries(FILES, CONTENT | WHOLE_LINES, max_size=60)


@settings(deadline=None, max_examples=300)
@given(files=MACHINES, folders=st.sets(FILES, max_size=2), pipes=st.sets(FILES, max_size=2))
def test_no_tree_stops_the_reader(files: dict[str, bytes], folders: set[str], pipes: set[str]) -> None:
    """Whatever files hold or are, a machine is described whose cores and packages partition what is online."""
    with TemporaryDirectory() as folder:
        for name, content in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        for name in (folders | pipes) - set(files):
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            (Path.mkdir if name in folders else os.mkfifo)(path)

        topology = read_topology(folder)

    check_machine(topology)


def check_machine(topology: Topology) -> None:
    """Assert what is true of every machine."""
    for groups in (topology.cores, topology.packages):
        masks = [group.cpus for group in groups]
        assert all(masks)
        assert sum(masks) == topology.online == mask_of(cpu for mask in masks for cpu in cpus(mask))
        assert sum(map(int.bit_count, masks)) == topology.online.bit_count()
    packages = {group.os: group.cpus for group in topology.packages}
    assert len(packages) == len(topology.packages)
    assert all(core.cpus & ~packages[core.package] == 0 for core in topology.cores)
    assert topology.allowed
    assert topology.allowed & ~topology.online == 0
    assert {core.numa for core in topology.cores} <= {-1, *(node.os for node in topology.numa)}
    assert all(warning.endswith(".") and warning.isprintable() for warning in topology.warnings)
    assert json.loads(json.dumps(topology.to_json())) == topology.to_json()
    assert usable_cores(topology)
    assert digest(topology) >= 0


RECORDED = os.environ.get("DROM_MACHINES", "")
# What hwloc answers: packages, NUMA nodes, cores, CPUs online, and the list of those allowed.
FACTS = {
    "16em64t-4s2c2t-offlines": (4, 1, 7, 12, "0-1,3-4,6-12,15"),
    "32intel64-2p8co2t+8ve": (2, 2, 16, 32, "0-31"),
    "32amd64-4s2n4c-cgroup2": (4, 8, 32, 32, "0-5"),
    "256ppc-8n8s4t": (64, 8, 64, 256, "0-255"),
    "4ppc-4c": (1, 1, 4, 4, "0-3"),
}


@pytest.fixture
def recorded(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Return the root of a recorded machine, unpacked."""
    archive = Path(RECORDED, f"{request.param}.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="tar")
    return str(next(path.parent for path in tmp_path.rglob("sys")))


@pytest.mark.skipif(not RECORDED, reason="DROM_MACHINES names no folder with recorded machines (NAME.tar.gz)")
@pytest.mark.parametrize(
    "recorded", sorted(path.name.removesuffix(".tar.gz") for path in Path(RECORDED).glob("*.tar.gz")), indirect=True
)
def test_a_recorded_machine(recorded: str, request: pytest.FixtureRequest) -> None:
    """Every recorded machine is described soundly, and the known ones as hwloc describes them."""
    topology = read_topology(recorded)

    check_machine(topology)
    found = (len(topology.packages), len(topology.numa), len(topology.cores), topology.online.bit_count())
    expected = next((facts for name, facts in FACTS.items() if f"[{name}]" in request.node.name), None)
    assert expected in {None, (*found, format_cpulist(topology.allowed))}
