# SPDX-License-Identifier: Apache-2.0
"""How long changes of ranks take, measured with few ranks and little data."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from drom.agent.errors import ControlError
from drom.scheduler.reproduction.adaptive.changes import DATA, Case, Changes, lines, network_seconds, run_all, to_json
from drom.scheduler.testbed.cluster import why_no_mpi

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.system
@pytest.mark.timeout(300)
@pytest.mark.skipif(bool(why_no_mpi()), reason=why_no_mpi())
def test_ranks_leave_and_return_with_all_data() -> None:
    """Each change and each plain exchange has a time, with each kind of data, which the program has checked."""
    wanted, shown = [Case(data, 4, 0.1) for data in DATA], list[float]()

    found = run_all(shown.append, wanted, 2)

    assert list(found) == wanted
    assert shown == [1 / 3, 2 / 3, 1]
    for changes in found.values():
        assert [len(part) for part in changes] == [2, 2, 4, 2, 2]
        assert all(0 < seconds < 60 for part in (*changes[:2], *changes[3:]) for seconds in part)
        assert min(changes.points) >= 1


@pytest.mark.system
@pytest.mark.skipif(bool(why_no_mpi()), reason=why_no_mpi())
def test_a_case_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence says what moved, among how many ranks, before what went wrong."""
    launcher = tmp_path / "mpirun"
    launcher.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    launcher.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    with pytest.raises(ControlError, match=r"^arrays, 4 ranks, 0\.1 MB: \w"):
        run_all(lambda _: None, [Case("arrays", 4, 0.1)], 1)


@pytest.mark.parametrize(
    ("case", "moved"),
    [
        (Case("objects", 4, 1), 2e6),  # both processors of the second node send all that they have
        (Case("arrays", 4, 1), 2e6),
        (Case("arrays", 8, 1), 4e6),  # the second node receives what the third and the fourth had
        (Case("objects", 64, 10), 20e6),
    ],
)
def test_a_network_is_as_slow_as_its_busiest_node(case: Case, moved: float) -> None:
    """Bytes between processors of one node are not on it."""
    assert network_seconds(case) == pytest.approx(moved * 8 / 10e9)


def test_tables_and_json() -> None:
    """A table for each way and each size, with medians, extremes and the ratio to the plain exchange."""
    found = {Case("arrays", 64, 1): Changes((0.02, 0.03, 0.1), (0.01,) * 3, (1,) * 6, (0.02,) * 3, (0.005,) * 3)}

    shrink, _, row, _, grow, *rest = lines(found)

    assert shrink == "Table 1: shrink, 1 MB a processor, ms (in the paper 86 between 128 and 64)"
    assert " ".join(row.split()) == "arrays 64 to 32 30.00 (20.00 to 100.00) 20.00 (20.00 to 20.00) 1.50 3.20"
    assert grow == "Table 2: grow, 1 MB a processor, ms (in the paper 67.6 between 128 and 64)"
    assert rest[1].split()[:4] == ["arrays", "32", "to", "64"]
    assert to_json(found)[0]["shrink"] == (0.02, 0.03, 0.1)
