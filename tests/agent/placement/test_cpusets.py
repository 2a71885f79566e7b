# SPDX-License-Identifier: Apache-2.0
"""Cores for ranks that may each have other cores, against all assignments of small machines."""

from __future__ import annotations

from itertools import combinations

from drom.agent.model.cores import Cores
from drom.agent.placement.cpusets import cpusets_differ, place_in_cpusets
from drom.agent.placement.ranks import NoPlacement, RankRequest
from hypothesis import given
from hypothesis import strategies as st

CORES = Cores(tuple(1 << cpu for cpu in range(6)))


def rank(job: str, cores: int, cpuset: int = 0, now: int = 0, fixed: int = 0) -> RankRequest:
    """Return a rank of a job, which has the CPUs `now`."""
    return RankRequest((job, 0), cores, held=now, granted=now, target=now, fixed=fixed, cpuset=cpuset)


@st.composite
def requests(draw: st.DrawFn) -> list[RankRequest]:
    """Return up to four ranks with cpusets, some of which run."""
    free, found = CORES.all, []
    for number in range(draw(st.integers(1, 4))):
        cpuset = draw(st.sampled_from([0, 1, 0b11, 0b110, 0b111, 0b11100, 0b111000, 0b101010]))
        now = free & (cpuset or CORES.all) & draw(st.integers(0, CORES.all))
        free &= ~now
        found.append(rank(f"j{number}", draw(st.integers(1, 3)), cpuset, now))
    return found


def is_possible(ranks: list[RankRequest], free: int = CORES.all) -> bool:
    """Return whether any assignment gives every rank its number of cores in its cpuset."""
    if not ranks:
        return True
    may = [core for core in CORES if core & free & (ranks[0].cpuset or free)]
    return any(is_possible(ranks[1:], free & ~sum(mine)) for mine in combinations(may, ranks[0].cores))


@given(requests())
def test_there_is_a_placement_exactly_if_an_assignment_exists(ranks: list[RankRequest]) -> None:
    """Masks are disjoint, inside the cpusets, and of the right size; without one a job that takes part is named."""
    masks = place_in_cpusets(ranks, CORES)

    assert isinstance(masks, NoPlacement) != is_possible(ranks)
    if isinstance(masks, NoPlacement):
        assert masks.job in {one.key[0] for one in ranks}
        assert masks.reason.endswith(".")
        return
    assert sum(masks.values()).bit_count() == sum(mask.bit_count() for mask in masks.values())
    assert all(masks[one.key].bit_count() == one.cores and not masks[one.key] & ~(one.cpuset or 63) for one in ranks)


@given(requests())
def test_cores_are_kept_where_nobody_has_to_make_room(ranks: list[RankRequest]) -> None:
    """Every rank that keeps its number of cores keeps its cores."""
    stay = [rank(one.key[0], one.now.bit_count(), one.cpuset, one.now) for one in ranks]

    assert place_in_cpusets(stay, CORES) == {one.key: one.now for one in stay}


def test_a_rank_makes_room_for_one_with_a_narrower_cpuset() -> None:
    """It moves to cores that only it may have, along with a third one in between."""
    ranks = [rank("wide", 2, 0, 0b11), rank("middle", 1, 0b1110, 0b100), rank("new", 3, 0b111)]

    assert place_in_cpusets(ranks, CORES) == {("wide", 0): 0b110000, ("middle", 0): 0b1000, ("new", 0): 0b111}


def test_who_cannot_be_placed_is_named_with_the_cpus_there_are() -> None:
    """The job that would grow most among those that share too few cores; others play no part."""
    ranks = [rank("a", 2, 0b11, 0b11), rank("b", 1, 0b11), rank("far", 3, 0b111000)]

    assert place_in_cpusets(ranks, CORES) == NoPlacement(
        "a, b would need 3 CPUs together, and the kernel lets them use CPUs 0-1.", "b"
    )


def test_cpusets_differ_unless_all_ranks_may_have_all_that_is_left() -> None:
    """Fixed ranks, which may be those outside an area, leave the rest."""
    outside = rank("", 3, fixed=0b111000)
    assert not cpusets_differ([rank("a", 1), rank("b", 1)], CORES)
    assert not cpusets_differ([rank("a", 1, 0b111), rank("b", 1, 0b111), outside], CORES)
    assert cpusets_differ([rank("a", 1, 0b11), rank("b", 1, 0b111), outside], CORES)
    assert cpusets_differ([rank("a", 1, 0b111), rank("b", 1)], CORES)
