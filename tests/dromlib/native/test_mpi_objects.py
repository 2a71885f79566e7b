# SPDX-License-Identifier: Apache-2.0
"""Objects of adaptive MPI programs on their way between ranks: all kinds and sizes, with both MPI libraries."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support import native_build
from tests.support.agents import SECONDS, environment
from tests.support.mpi_programs import each_mpi

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.mpi_programs import Mpi

pytestmark = [pytest.mark.system, each_mpi]
KINDS = ("packed", "placed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the program is compiled, once for each MPI library."""
    return tmp_path_factory.mktemp("objects")


def move(mpi: Mpi, folder: Path, ranks: int, *words: str) -> list[float]:
    """Move objects between ranks and return how many have moved, and how much memory that took."""
    program = mpi.compile(native_build.SOURCES / "objects.c", folder)
    env = environment(**mpi.environment(folder), DROM_RUNTIME_DIR=str(folder))
    launch = mpi.launch(ranks, program, *words)
    done = subprocess.run(launch, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return [float(word) for word in done.stdout.split()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("count", "size"), [(3, 3_000_000), (40, 100_000), (4000, 100)])
def test_objects_of_all_sizes_arrive_whole(mpi: Mpi, folder: Path, kind: str, count: int, size: int) -> None:
    """Objects without content, small and large ones, few and many, go between all ranks in both directions at once."""
    moved, _ = move(mpi, folder, 4, kind, str(count), str(size), "10", "0")

    assert moved > count


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_needs_memory_for_what_it_receives(mpi: Mpi, folder: Path, kind: str) -> None:
    """While two ranks exchange all their objects, neither grows by more than 1.1 times the bytes that move."""
    moved, growth = move(mpi, folder, 2, kind, "128", str(1 << 20), "4", "1")

    assert moved == 4 * 128
    assert growth < 110
