# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of drom_mpi.c: arrays that move between splits, against index-by-index lists."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dromlib import native
from tests.support import native_build

if TYPE_CHECKING:
    from collections.abc import Iterator

WHOLE, BLOCK, CYCLIC, GIVEN = range(4)


class Axis(NamedTuple):
    """An axis as in drom_mpi.h."""

    size: int
    split: int
    block: int
    halo: int

    def own(self, part: int, parts: int) -> list[int]:
        """Return the indices of a part, from the definition of each split."""
        return [i for i in range(self.size) if self.owner(i, part, parts) == part]

    def owner(self, i: int, part: int, parts: int) -> int:
        """Return the part that has index `i`, `part` if each has all."""
        if self.split == WHOLE:
            return part
        if self.split == CYCLIC:
            return i // self.block % parts
        power = 1 if self.split == BLOCK else 2
        return next(p for p in range(parts) if i < self.size * (p + 1) ** power // parts**power)


def grids(rows: Axis, columns: Axis) -> st.SearchStrategy[tuple[int, int]]:
    """Return a strategy for grids of parts: an axis that is not split has one part."""
    return st.tuples(*(st.just(1) if axis.split == WHOLE else st.integers(1, 5) for axis in (rows, columns)))


AXES = st.builds(
    Axis, st.integers(0, 23), st.sampled_from([WHOLE, BLOCK, CYCLIC, GIVEN]), st.integers(1, 5), st.integers(0, 2)
)
MOVES = st.tuples(AXES, AXES).flatmap(lambda axes: st.tuples(st.just(axes), grids(*axes), grids(*axes)))


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """Start the program that moves arrays, under the address sanitizer where there is one."""
    folder = tmp_path_factory.mktemp("splits")
    if shutil.which("mpicc") is None:
        pytest.skip("needs mpicc")
    sanitizer = native_build.SANITIZERS["address"] if native_build.has_sanitizer(folder, "address") else []
    program, include, library = folder / "splits", native.include_dir(), native.library_path().parent
    flags = [*native_build.WARNINGS, *sanitizer, f"-I{include}", f"-L{library}", f"-Wl,-rpath,{library}"]
    subprocess.run(["mpicc", *flags, native_build.SOURCES / "splits.c", "-ldrom", "-o", program], check=True)
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin
        process.stdin.close()
        assert process.wait() == 0


@settings(max_examples=400, deadline=None)
@given(move=MOVES, size=st.sampled_from([4, 7, 8]))
def test_every_element_arrives_once_where_its_split_puts_it(
    splits: subprocess.Popen[str], move: tuple[tuple[Axis, Axis], tuple[int, int], tuple[int, int]], size: int
) -> None:
    """After a move each part has its own elements in order, whatever the splits, grids, halos and element sizes."""
    (rows, columns), old, new = move
    assert splits.stdin
    assert splits.stdout
    print(size, *rows, *columns, *old, *new, file=splits.stdin, flush=True)
    found = [list(map(int, line.split())) for line in iter(splits.stdout.readline, ".\n")]

    expected = [
        [i * columns.size + j for i in rows.own(p, new[0]) for j in columns.own(q, new[1])]
        for p in range(new[0])
        for q in range(new[1])
    ]
    assert found == expected
