# SPDX-License-Identifier: Apache-2.0
"""Machines made of words."""

from __future__ import annotations

import pytest
from drom.agent.topology.machine import usable_cores
from drom.agent.topology.synthetic import TopologyError, synthetic_topology

from dromlib.cpulist import format_cpulist, parse_cpulist
from tests.support.recorded_machines import shape


class TestSynthetic:
    """Machines made of hwloc's words."""

    def test_hwloc_words(self) -> None:
        """CPUs are numbered depth first: packages, then cores, then hardware threads."""
        topology = synthetic_topology("pack:2 core:2 pu:2")

        assert shape(topology) == {
            "packages": [{"os": 0, "cpus": "0-3"}, {"os": 1, "cpus": "4-7"}],
            "numa": [{"os": 0, "cpus": "0-7"}],
            "cores": [
                {"package": 0, "numa": 0, "cpus": "0-1"},
                {"package": 0, "numa": 0, "cpus": "2-3"},
                {"package": 1, "numa": 0, "cpus": "4-5"},
                {"package": 1, "numa": 0, "cpus": "6-7"},
            ],
            "online": "0-7",
            "allowed": "0-7",
        }
        assert topology.emulated

    @pytest.mark.parametrize(
        ("words", "packages", "nodes", "cores", "total"),
        [
            ("pack:2 core:1", 2, 1, 2, 2),
            ("pack:3", 3, 1, 3, 3),
            ("core:4", 1, 1, 4, 4),
            ("pu:4", 1, 1, 1, 4),
            ("Socket:2 NUMANode:2 die:1 L3:2 l2cache:1 core:2 thread:2", 2, 4, 16, 32),
            ("numa:2 pack:2 core:3", 4, 2, 12, 12),
            ("package:2 die:2 node:1 core:1", 2, 4, 4, 4),
            ("Package:2 L3Cache:1(size=16777216) L2Cache:2 L1dCache:1 L1iCache:1 Core:1 PU:2", 2, 1, 4, 8),
            ("Package:2 [NUMANode(memory=1000000000)] Die:2 Core:2 PU:2", 2, 2, 8, 16),
            ("Group:2 group0:2 tile:2 pu:2", 1, 1, 8, 16),
            ("pack:1 core:2 l2:2 pu:2", 1, 1, 2, 8),
            ("SOCKET:2 Node:2 core:1", 2, 4, 4, 4),
            ("pack:2(memory=4GB) pu:2", 2, 1, 2, 4),
        ],
    )
    def test_levels(self, words: str, packages: int, nodes: int, cores: int, total: int) -> None:
        """Absent levels count one, dies and caches only group, and numa stands inside or outside pack."""
        topology = synthetic_topology(words)

        found = (len(topology.packages), len(topology.numa), len(topology.cores), topology.online.bit_count())
        assert (packages, nodes, cores, total) == found

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            ("pack:2 cor:4", "'cor:4' is not a level"),
            ("pack:0", "'pack:0' does not give a count"),
            ("core:-1", "'core:-1' does not give a count"),
            ("core:99999999", "'core:99999999' does not give a count from 1 to 999999: write for example 'core:2'."),
            ("core:x", "'core:x' does not give a count"),
            ("core", "'core' does not give a count"),
            ("core:2(indexes=0,1)", r"'core:2\(indexes=0,1\)' gives indexes of its own"),
            ("numa:2(memory=4XB) core:1", r"'numa:2\(memory=4XB\)' has an attribute that means nothing"),
            ("numa:2(colour=4) core:1", r"'numa:2\(colour=4\)' has an attribute that means nothing"),
            ("pack:2 [core:2]", r"'\[core:2\]' is not a level"),
            ("pack:2 [numa core:2", r"'\[numa core:2' is not a level"),
            ("pack:2 [numa] numa:2", "'numa:2' is out of place"),
            ("core:2 [numa]", r"'\[numa\]' is out of place"),
            ("2 4 2", "'2' is not a level"),
            ("c:2", "'c:2' is not a level"),
            ("pack(memory=1GB):2", r"'pack\(memory=1GB\)' does not give a count"),
            ("machine:1 pu:2", "'machine:1' is not a level"),
            ("core:2 pack:2", "'pack:2' is out of place"),
            ("pack:2 core:2 core:2", "'core:2' is out of place"),
            ("core:2 numa:2", "'numa:2' is out of place"),
            (" ", "is empty"),
            ("pack:999 core:999", "has 998001 CPUs"),
        ],
    )
    def test_errors_name_the_word(self, words: str, sentence: str) -> None:
        """A mistake is answered with one sentence that names the faulty word."""
        with pytest.raises(TopologyError, match=sentence):
            synthetic_topology(words)

    @pytest.mark.parametrize(
        ("text", "size"),
        [("4096", 4096), ("4kB", 4000), ("4KiB", 4096), ("2gb", 2 * 10**9), ("1GiB", 1 << 30), ("1TiB", 1 << 40)],
    )
    def test_memory_of_nodes(self, text: str, size: int) -> None:
        """Each node has the memory that is said of it, in units of a thousand or of 1024, and the machine their sum."""
        topology = synthetic_topology(f"numa:2(memory={text}) core:2")

        assert [node.memory for node in topology.numa] == [size, size]
        assert topology.memory == 2 * size

    def test_several_nodes_at_one_place(self) -> None:
        """The first has the CPUs; the others are memory alone, numbered as hwloc numbers them."""
        topology = synthetic_topology("pack:2 [numa(memory=4GB)] [numa(memory=1GB)] core:2")

        assert [(node.os, node.cpus, node.memory) for node in topology.numa] == [
            (0, 3, 4 * 10**9),
            (1, 0, 10**9),
            (2, 12, 4 * 10**9),
            (3, 0, 10**9),
        ]
        assert [core.numa for core in topology.cores] == [0, 0, 2, 2]

    def test_dies_and_groups_are_parts(self) -> None:
        """Dies and groups are listed where they are neither a package nor a core."""
        parts = synthetic_topology("group:1 pack:2 die:2 group:1 core:2").parts

        assert [(part.kind, part.os, part.cpus) for part in parts] == [
            ("die", 0, 0b11),
            ("die", 1, 0b1100),
            ("die", 2, 0b110000),
            ("die", 3, 0b11000000),
        ]

    def test_stands_on_real_cpus(self) -> None:
        """With real CPUs the i-th synthetic CPU is the i-th of the set, and affinity may be set."""
        topology = synthetic_topology("pack:2 core:1", parse_cpulist("3,8,11"))

        assert usable_cores(topology) == [(0, 0, 1 << 3), (1, 1, 1 << 8)]
        assert format_cpulist(topology.allowed) == "3,8"
        assert not topology.emulated

    def test_too_few_real_cpus(self) -> None:
        """The error names both numbers and the way out."""
        with pytest.raises(TopologyError, match=r"needs 16 CPUs and 2 may be used here: .* --emulate instead\."):
            synthetic_topology("pack:2 core:4 pu:2", cpus=3)
