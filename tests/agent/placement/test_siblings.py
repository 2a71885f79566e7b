# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import TYPE_CHECKING

from drom.agent.model.cores import Cores
from drom.agent.placement.ranks import RankRequest
from drom.agent.placement.siblings import pack_threads
from hypothesis import given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Mapping

WHOLES = [(n // 2, n // 2, 0b10001 << n) for n in range(4)]
"""Two sockets of two cores of two threads: CPUs 0 and 4, 1 and 5 | 2 and 6, 3 and 7."""
CORES = Cores.of([(package, domain, mask & part) for package, domain, mask in WHOLES for part in (0xF, 0xF0)], WHOLES)


def together(fixed: Mapping[str, int] | None = None, /, **masks: int) -> dict[str, int]:
    """Return the masks of jobs of one task each, threads exchanged."""
    fixed = fixed or {}
    requests = [
        RankRequest((name, 0), mask.bit_count(), fixed=mask if name in fixed else 0) for name, mask in masks.items()
    ]
    return {
        name: mask for (name, _), mask in pack_threads(requests, {(n, 0): m for n, m in masks.items()}, CORES).items()
    }


def split(mask: int, within: int = 0xFF) -> int:
    """Return the cores of which a mask has a part only."""
    return sum(1 for _, _, core in WHOLES if core & within and core & mask not in (0, core))


def test_two_tasks_exchange_threads() -> None:
    """Tasks that have one thread of each of two cores get a core each."""
    assert together(a=0b00000011, b=0b00110000) == {"a": 0b00010001, "b": 0b00100010}


def test_whole_cores_stay() -> None:
    """A task keeps the cores it has whole."""
    assert together(a=0b00100010, b=0b00010001) == {"a": 0b00100010, "b": 0b00010001}


def test_single_threads_stay() -> None:
    """Tasks of one thread keep it, and two of them may share a core."""
    assert together(a=0b00000001, b=0b00010000, c=0b10) == {"a": 0b1, "b": 0b10000, "c": 0b10}


def test_a_fixed_mask_stays() -> None:
    """An exact mask is nobody else's, and its core is not whole for others."""
    assert together({"p": 1}, p=0b1, a=0b00000010 | 0b00010000) == {"p": 0b1, "a": 0b00100010}


def test_leftovers_go_to_the_core_of_the_same_job() -> None:
    """Tasks of one job rather share a core with each other than with strangers."""
    requests = [RankRequest(("a", 0), 1), RankRequest(("b", 0), 1), RankRequest(("b", 1), 2)]
    masks = {("a", 0): 0b0001, ("b", 0): 0b10000, ("b", 1): 0b100010}

    assert pack_threads(requests, masks, CORES) == masks


@st.composite
def nodes(draw: st.DrawFn) -> dict[str, int]:
    """Draw disjoint masks on the machine."""
    pool, masks = draw(st.permutations(range(8))), {}
    for name in "abcde":
        mine, pool = pool[: (n := draw(st.integers(0, 4)))], pool[n:]
        if mine:
            masks[name] = sum(1 << cpu for cpu in mine)
    return masks


@given(nodes())
def test_every_task_gets_the_whole_cores_it_can(masks: dict[str, int]) -> None:
    """Counts per socket stay, masks are disjoint, and n threads in a socket are floor(n / 2) whole cores and a rest."""
    found = together(**masks)

    assert sum(found.values()).bit_count() == sum(masks.values()).bit_count()
    for socket in (0x33, 0xCC):
        for name, mask in masks.items():
            threads = (mask & socket).bit_count()
            assert (found[name] & socket).bit_count() == threads
            assert split(found[name], socket) == threads % 2


@given(nodes())
def test_is_stable(masks: dict[str, int]) -> None:
    """Its own answer stays as it is."""
    found = together(**masks)

    assert together(**found) == found
