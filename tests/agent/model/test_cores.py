# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from drom.agent.model.cores import Cores

HYBRID = Cores((0b11, 0b1100, 0b10000))
"""Two cores of two threads, one of one."""


def test_counts_the_cores_a_mask_touches() -> None:
    """A core counts once, however many of its threads are named."""
    assert [HYBRID.count(mask) for mask in (0, 0b1, 0b11, 0b110, 0b11111)] == [0, 1, 1, 2, 3]


def test_completes_a_mask_to_whole_cores() -> None:
    """Every thread of a touched core belongs to the whole; CPUs that are no core's are dropped."""
    assert HYBRID.whole(0b10010) == 0b10011
    assert HYBRID.whole(1 << 40) == 0


def test_any_cores_have_at_least_the_threads_of_the_narrowest() -> None:
    """The threads of n cores are counted from the narrowest core up."""
    assert [HYBRID.cpus(n) for n in range(4)] == [0, 1, 3, 5]


def test_some_cores_have_at_most_the_threads_of_the_widest() -> None:
    """The most threads of n cores are counted from the widest core down."""
    assert [HYBRID.cpus_at_most(n) for n in range(1, 5)] == [2, 4, 5, 5]


def test_rounds_threads_up_to_whole_cores() -> None:
    """As many cores are needed as the widest ones would be; no thread needs no core."""
    assert [HYBRID.needed_for(cpus) for cpus in (0, 1, 2, 3, 4, 5)] == [0, 1, 1, 2, 2, 3]
    assert Cores(()).needed_for(3) == 3


def test_is_sure_of_threads_whichever_the_cores() -> None:
    """The narrowest cores have to hold them; where all do not, more cores are needed than there are."""
    assert [HYBRID.sure_of(cpus) for cpus in range(7)] == [0, 1, 2, 2, 3, 3, 4]
    assert [Cores((0b11, 0b1100)).sure_of(cpus) for cpus in (1, 2, 3, 4, 5, 7)] == [1, 1, 2, 2, 3, 4]
    assert Cores(()).sure_of(3) == 3


def test_is_a_collection_of_masks() -> None:
    """Its length, its members and all its CPUs are what it was made of."""
    assert (len(HYBRID), list(HYBRID), HYBRID.all, HYBRID.widest) == (3, [0b11, 0b1100, 0b10000], 0b11111, 2)


ROWS = [(0, 0, 0b01_0001), (0, 0, 0b10_0010), (3, 1, 0b0100), (3, 2, 0b1000)]
"""Two cores of two threads (CPUs 0 and 4, 1 and 5) in package 0, and two of one in two domains of package 3."""
UNITS = [(package, domain, 1 << cpu) for package, domain, mask in ROWS for cpu in range(6) if mask >> cpu & 1]


def test_sockets_are_the_packages_with_cores() -> None:
    """Sockets are numbered from 0 whatever their packages are called; without rows there is one."""
    cores = Cores.of(ROWS)

    assert (cores.names, cores.sizes, cores.socket_of) == ((0, 3), (2, 2), (0, 0, 1, 1))
    assert cores.domains_of_socket == ((0,), (1, 2))
    assert (HYBRID.names, HYBRID.sizes, HYBRID.domains_of_socket) == ((0,), (3,), ((0,),))


def test_numbers_the_cores_of_a_mask() -> None:
    """A core counts once, by its lowest CPU in the mask; foreign CPUs are no core's."""
    assert Cores.of(ROWS).numbers(0b1_11_1000) == [3, 0, 1]


def test_threads_of_a_core_stand_together() -> None:
    """Where threads are handed out, siblings follow each other, and whole cores are known by domain."""
    threads = Cores.of(sorted(UNITS, key=lambda row: row[2]), ROWS)

    assert threads.masks == (0b1, 0b1_0000, 0b10, 0b10_0000, 0b100, 0b1000)
    assert threads.siblings == ((0b01_0001, 0b10_0010), (0b0100,), (0b1000,))
    assert threads.widest == 1
    assert Cores.of(ROWS).siblings == ()


def test_a_thread_of_no_whole_core_is_one_by_itself() -> None:
    """Where fewer cores than threads are known, as under a CPU quota, no thread is lost."""
    threads = Cores.of(UNITS, ROWS[:1])

    assert threads.siblings == ((0b01_0001, 0b10, 0b10_0000), (0b0100,), (0b1000,))
