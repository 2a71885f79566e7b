# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

import pytest
from drom.agent.topology.machine import digest, reserve, split_sockets, usable_cores, warnings_of
from drom.agent.topology.synthetic import synthetic_topology

from dromlib.cpulist import format_cpulist, parse_cpulist


class TestUsableCores:
    """The rows the distribution works on."""

    def test_indexes_stay_when_allowed_changes(self) -> None:
        """Cores are cut to what is allowed and empty ones dropped, and indexes of packages and domains stay."""
        topology = synthetic_topology("pack:2 numa:2 core:2 pu:2")

        rows = usable_cores(replace(topology, allowed=parse_cpulist("3,12-15")))

        assert rows == [(0, 0, 1 << 3), (1, 3, 3 << 12), (1, 3, 3 << 14)]

    def test_sorted_by_package_domain_and_first_cpu(self) -> None:
        """The order does not depend on how CPUs are numbered."""
        topology = synthetic_topology("pack:2 core:2", parse_cpulist("0-3"))
        shuffled = replace(topology, cores=tuple(reversed(topology.cores)))

        assert usable_cores(shuffled) == [(0, 0, 1), (0, 0, 2), (1, 1, 4), (1, 1, 8)]

    def test_threads_may_be_the_units(self) -> None:
        """With threads as units each allowed CPU is a row of its own, in the place of its core."""
        topology = replace(synthetic_topology("pack:2 core:1 pu:2"), allowed=0b0111)

        assert usable_cores(topology, unit="thread") == [(0, 0, 1), (0, 0, 2), (1, 1, 4)]

    def test_reserved_cpus_take_their_cores_with_them(self) -> None:
        """Cores that a reserved CPU is part of are left out whole, with either unit."""
        topology = reserve(synthetic_topology("core:3 pu:2"), 0b100010)

        assert usable_cores(topology) == [(0, 0, 0b1100)]
        assert usable_cores(topology, "thread") == [(0, 0, 0b100), (0, 0, 0b1000)]

    @pytest.mark.parametrize(
        ("quota", "cores", "threads"),
        [(None, 4, 8), (8.0, 4, 8), (7.9, 3, 7), (2.5, 1, 2), (1.0, 1, 1), (0.1, 1, 1)],
    )
    def test_a_quota_bounds_the_units(self, quota: float | None, cores: int, threads: int) -> None:
        """As many whole units as the quota has CPUs for are given, from the front, and one at least."""
        topology = replace(synthetic_topology("pack:2 core:2 pu:2"), quota=quota)
        free = replace(topology, quota=None)

        assert usable_cores(topology) == usable_cores(free)[:cores]
        assert usable_cores(topology, "thread") == usable_cores(free, "thread")[:threads]

    def test_a_quota_counts_after_what_is_reserved(self) -> None:
        """What is reserved uses up none of the quota."""
        topology = replace(synthetic_topology("core:4"), quota=2.0)

        assert usable_cores(reserve(topology, 1)) == [(0, 0, 2), (0, 0, 4)]


class TestBounded:
    """A machine under limits."""

    def test_a_warning_names_quota_and_cores(self) -> None:
        """What the quota leaves out is told once, in numbers."""
        machine = replace(synthetic_topology("core:4 pu:2"), quota=2.5)

        assert warnings_of(machine) == [
            "The CPU quota of 2.5 CPUs has room for 1 core of 4: CPUs 0-1 are managed of 0-7."
        ]

    def test_a_warning_counts_what_is_managed(self) -> None:
        """Hardware threads where those are handed out one by one."""
        machine = replace(synthetic_topology("core:4 pu:2"), quota=1.0)

        assert warnings_of(machine, "thread") == [
            "The CPU quota of 1 CPU has room for 1 hardware thread of 8: CPU 0 is managed of 0-7."
        ]

    def test_a_quota_below_a_core_is_called_that(self) -> None:
        """One core is managed all the same, and nobody is told that it fits."""
        machine = replace(synthetic_topology("core:4 pu:2"), quota=0.5)

        (warning,) = warnings_of(machine)
        assert warning == (
            "The CPU quota of 0.5 CPUs is less than a whole core, so that programs will be throttled: "
            "CPUs 0-1 are managed of 0-7."
        )

    def test_no_warning_where_all_fits(self) -> None:
        """A quota as large as the machine, or none, says nothing."""
        machine = synthetic_topology("core:4 pu:2")

        assert warnings_of(replace(machine, quota=8.0)) == warnings_of(machine) == []


class TestDigest:
    """The fingerprint of a machine."""

    def test_is_stable(self) -> None:
        """The digest is the same on every machine: it is written in files that outlive the agent."""
        assert digest(synthetic_topology("pack:2 core:4 pu:2")) == 10435975245409959084

    def test_changes_with_the_machine_only(self) -> None:
        """Cores, nodes and online CPUs count; what is allowed, warnings and emulation do not."""
        topology = synthetic_topology("pack:2 core:2")
        others = [synthetic_topology(words) for words in ("pack:1 core:4", "numa:2 pack:1 core:2", "pack:2 pu:2")]

        assert len({digest(topology), *map(digest, others)}) == 4
        assert digest(topology) == digest(replace(topology, allowed=1, warnings=("odd",), emulated=False))

    def test_does_not_move_with_what_is_added(self) -> None:
        """Memory, kinds, parts, quotas and what is isolated or offline are no other machine."""
        plain = synthetic_topology("pack:2 numa:1 core:2")
        cores = tuple(replace(core, kind="efficiency") for core in plain.cores)
        more = replace(plain, cores=cores, quota=1.5, memory=7, isolated=1, nohz_full=1, present=255, possible=511)

        assert digest(plain) == digest(more)
        assert digest(synthetic_topology("numa:2(memory=1GiB) core:2")) == digest(synthetic_topology("numa:2 core:2"))


class TestHalves:
    """One package shown as two."""

    def test_each_half_is_a_package(self) -> None:
        """The cores of a one-package machine become two packages, the first one larger when odd."""
        split = split_sockets(synthetic_topology("pack:1 core:5 pu:2"))

        assert split is not None
        assert [format_cpulist(group.cpus) for group in split.packages] == ["0-5", "6-9"]
        assert [row[0] for row in usable_cores(split)] == [0, 0, 0, 1, 1]

    def test_halves_what_is_usable(self) -> None:
        """Cores that may not be used do not count when the halves are made."""
        machine = replace(synthetic_topology("pack:1 core:8"), allowed=parse_cpulist("4-7"))

        split = split_sockets(machine)

        assert split is not None
        assert [(row[0], row[2]) for row in usable_cores(split)] == [(0, 1 << 4), (0, 1 << 5), (1, 1 << 6), (1, 1 << 7)]

    def test_one_core_has_no_halves(self) -> None:
        """Fewer than two usable cores cannot be shared."""
        assert split_sockets(synthetic_topology("pack:1 core:1 pu:2")) is None

    def test_two_packages_stay(self) -> None:
        """A machine with two packages is shown as it is."""
        machine = synthetic_topology("pack:2 core:2")

        assert machine is split_sockets(machine)
