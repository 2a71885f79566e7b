# SPDX-License-Identifier: Apache-2.0
"""Which rank of an adaptive MPI program gets which object: the strategies, and what they decide from."""

from __future__ import annotations

import ctypes
import subprocess
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dromlib import native
from tests.support import native_build
from tests.support.mpi_programs import MPIS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Case(NamedTuple):
    """What a strategy decides from."""

    work: list[float]
    speed: list[float]
    place: list[int]

    def times(self, place: Sequence[int]) -> list[float]:
        """Return how long each rank needs for objects that are placed so."""
        ranks = range(len(self.speed))
        return [
            sum(work for work, at in zip(self.work, place, strict=True) if at == rank) / self.speed[rank]
            for rank in ranks
        ]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Return objects of any work on ranks of unlike speed, some of whose ranks leave."""
    amounts = st.floats(0.01, 100)
    work = draw(st.lists(amounts, min_size=1, max_size=40))
    speed = draw(st.lists(st.floats(0.1, 10), min_size=1, max_size=6))
    places = st.lists(st.integers(-1, len(speed) - 1), min_size=len(work), max_size=len(work))
    return Case(work, speed, draw(places))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Return the strategies as a library: they use no MPI."""
    target = tmp_path_factory.mktemp("balance") / "balance.so"
    source = native.include_dir() / "drom_mpi_balance.c"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, source, "-o", target], check=True)
    return ctypes.CDLL(str(target))


def decide(library: ctypes.CDLL, name: str, case: Case) -> list[int]:
    """Return where a strategy places the objects."""
    objects, ranks = len(case.work), len(case.speed)
    place = (ctypes.c_int * objects)(*case.place)
    work, speed = (ctypes.c_double * objects)(*case.work), (ctypes.c_double * ranks)(*case.speed)
    library[name](ctypes.c_long(objects), work, ranks, speed, place)
    return list(place)


@pytest.mark.parametrize("name", ["drom_mpi_greedy", "drom_mpi_refine"])
@given(case=cases())
def test_every_object_gets_a_rank_that_runs(library: ctypes.CDLL, name: str, case: Case) -> None:
    """Each object is placed, and the same numbers lead to the same places."""
    placed = decide(library, name, case)

    assert all(0 <= rank < len(case.speed) for rank in placed)
    assert placed == decide(library, name, case)


@given(case=cases())
def test_greedy_is_within_one_object_of_the_even_time(library: ctypes.CDLL, case: Case) -> None:
    """No rank needs longer than all work at all speed, and one object on the slowest rank."""
    placed = decide(library, "drom_mpi_greedy", case)

    even = sum(case.work) / sum(case.speed)
    assert max(case.times(placed)) <= even + max(case.work) / min(case.speed) + 1e-9


@given(case=cases())
def test_refine_never_makes_the_longest_time_longer(library: ctypes.CDLL, case: Case) -> None:
    """Where no rank leaves, the rank that needs longest needs no longer afterwards."""
    staying = case._replace(place=[max(0, rank) for rank in case.place])
    placed = decide(library, "drom_mpi_refine", staying)

    assert max(staying.times(placed)) <= max(staying.times(staying.place)) * (1 + 1e-9)


@given(case=cases())
def test_refine_moves_nothing_between_ranks_that_are_even(library: ctypes.CDLL, case: Case) -> None:
    """Objects whose ranks need at most 5 % longer than the mean stay where they are."""
    staying = case._replace(place=[max(0, rank) for rank in case.place])
    times = staying.times(staying.place)
    even = sum(case.work) / sum(case.speed)
    placed = decide(library, "drom_mpi_refine", staying)

    if max(times) <= 1.049 * even:
        assert placed == staying.place


@pytest.mark.parametrize(
    ("name", "case", "placed"),
    [
        ("drom_mpi_greedy", Case([1, 1, 1, 1], [1, 1], [0, 0, 0, 0]), [0, 1, 0, 1]),
        ("drom_mpi_greedy", Case([1, 5, 1, 1, 1, 1], [1, 1], [-1] * 6), [1, 0, 1, 1, 1, 1]),
        ("drom_mpi_greedy", Case([1, 1, 1, 1], [3, 1], [1, 1, 1, 1]), [0, 0, 0, 1]),
        ("drom_mpi_refine", Case([7, 6, 2], [1, 1], [0, 0, 1]), [1, 0, 0]),
        ("drom_mpi_refine", Case([1, 1, 1, 1], [1, 1, 1], [0, -1, 2, -1]), [0, 1, 2, 0]),
        ("drom_mpi_refine", Case([1, 1], [1, 1], [7, 0]), [1, 0]),
    ],
    ids=["even", "heaviest first", "by speed", "level", "of those that leave", "of no rank"],
)
def test_places(library: ctypes.CDLL, name: str, case: Case, placed: list[int]) -> None:
    """Small cases that can be followed by hand."""
    assert decide(library, name, case) == placed


def test_speeds_are_measured_or_estimated(tmp_path: Path) -> None:
    """A rank that was not measured is as much slower than described as the others are; all objects have some work."""
    program = MPIS[0].compile(native_build.SOURCES / "decisions.c", tmp_path)
    done = subprocess.run([program], capture_output=True, text=True, check=True)

    assert done.stdout == "0.5 0.65 2.6\n1 1 4\n0.02 6 0.02 2, 1 1\n"
