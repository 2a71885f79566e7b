# SPDX-License-Identifier: Apache-2.0
"""Fillers on a real cluster: regular jobs drive them from node to node, and they lose nothing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from drom.scheduler.allocation.gaps import REMEMBERED, Gaps

from tests.agent.checkpoint.conftest import criu
from tests.support.agents import wait_until
from tests.support.clusters import Cluster, cluster
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

COUNT = """#!/bin/sh
n=0
while [ $n -lt {last} ]; do
    n=$((n + 1))
    echo $n
    sleep 0.02
done
"""
SAVES_ITSELF = """#!/bin/sh
n=0
[ -z "$DROM_RESTART" ] || read n <mine
trap 'echo $n >mine; exit 85' USR1
while [ $n -lt {last} ]; do
    n=$((n + 1))
    echo $n
    sleep 0.02
done
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster of two nodes under a policy over resources."""
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{ROOT / 'build' / 'criu'}")
    with cluster(tmp_path, "--policy", "resources", "--filler-lead", "1") as found:
        yield found


def _start(here: Cluster, script: str, last: int, *words: str) -> int:
    (here.folder / "fill").write_text(script.format(last=last), encoding="utf-8")
    return here.submit("--filler", *words, "-o", "out", "fill")


def _counted(here: Cluster) -> list[str]:
    """Return what a filler has printed: the numbers that it has counted."""
    path = here.folder / "out"
    return path.read_text(encoding="utf-8").split() if path.exists() else []


def _await_progress(here: Cluster) -> None:
    """Wait until a filler has counted on."""
    before = len(_counted(here))
    wait_until(lambda: len(_counted(here)) > before + 3, lambda: here.log)


def _drive_away(here: Cluster, filler: int) -> None:
    """Submit a regular job that needs the node of a running filler, and wait for its end."""
    (node,) = here.await_state(filler, "running")["shares"]
    regular = here.submit("-c", "4", "-w", node, "--", "sleep", "0.5")
    assert here.await_state(regular, "completed", "failed")["state"] == "completed"


def test_a_filler_in_a_container_is_driven_from_node_to_node(here: Cluster) -> None:
    """It counts on where it was, on either node, without a gap and without a number twice."""
    criu()
    filler = _start(here, COUNT, 1000)
    where = set()
    for _ in range(4):
        _await_progress(here)
        where |= here.job(filler)["shares"].keys()
        _drive_away(here, filler)
    done = here.await_state(filler, "completed", "failed")

    assert done["state"] == "completed"
    assert _counted(here) == [str(number) for number in range(1, 1001)], here.log
    assert where == {"n1", "n2"}
    saves = [entry for entry in done["history"] if entry["what"] == "saved"]
    assert len(saves) >= 4
    assert all(entry["detail"]["bytes"] > 0 for entry in saves)


@pytest.mark.parametrize("way", ["container", "program"])
def test_a_filler_is_saved_as_late_as_its_last_saves_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Before its first save it has the lead of the command line, and then one of its own."""
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{ROOT / 'build' / 'criu'}")
    if way == "container":
        criu()
    gaps = Gaps(20, 8)
    with cluster(tmp_path, "--policy", "resources", "--filler-slot", "20s", "--filler-lead", "8") as here:
        script = COUNT if way == "container" else SAVES_ITSELF
        filler = _start(here, script, 100_000, "--checkpoint", way)
        wait_until(lambda: len(_saves(here, filler)) >= 3, lambda: here.log, 300)
        found = _saves(here, filler)
        here.cli("cancel", str(filler))
    for count, (ordered, _) in enumerate(found):
        times = [round(1000 * took) for _, took in found[:count]][-REMEMBERED:]
        assert -(ordered % -20) <= gaps.lead_ms(times) / 1000, found
    assert any(-(ordered % -20) < 8 for ordered, _ in found), found


def _saves(here: Cluster, filler: int) -> list[tuple[float, float]]:
    """Return when saves of a filler were ordered, and how long they took."""
    history = here.job(filler)["history"]
    ordered = [entry["at"] for entry in history if entry["what"] == "saving"]
    took = [entry["detail"]["seconds"] for entry in history if entry["what"] == "saved"]
    return list(zip(ordered, took, strict=False))


def test_a_filler_that_saves_itself_goes_on_from_its_own_state(here: Cluster) -> None:
    """With the signal, the exit status and the variable that are documented."""
    filler = _start(here, SAVES_ITSELF, 300, "--checkpoint", "program")
    for _ in range(3):
        _await_progress(here)
        _drive_away(here, filler)
    done = here.await_state(filler, "completed", "failed")

    assert done["state"] == "completed"
    assert set(_counted(here)) == {str(number) for number in range(1, 301)}, here.log
    assert len(_counted(here)) <= 300 + 3 * 1, "a number may be counted again after a save"


def test_a_filler_that_cannot_be_saved_makes_room_and_says_why(tmp_path: Path) -> None:
    """The regular job does not wait for ever."""
    with cluster(tmp_path, "--policy", "resources", "--save-within", "3") as here:
        _does_not_save_itself(here)


def _does_not_save_itself(here: Cluster) -> None:
    ignores = "trap '' USR1; touch ignores; exec sleep 1000"
    filler = here.submit("--filler", "--checkpoint", "program", "--", "sh", "-c", ignores)
    wait_until((here.folder / "ignores").exists, lambda: here.log)
    _drive_away(here, filler)
    told = here.await_state(filler, "running")
    assert told["attempt"] == 2
    assert "not_saved" in {entry["what"] for entry in told["history"]}

    ends = here.submit("--filler", "--checkpoint", "program", "--", "sleep", "1000")
    _drive_away(here, ends)
    again = here.await_state(ends, "running")
    assert again["attempt"] == 2
    reasons = [entry["detail"]["reason"] for entry in again["history"] if entry["what"] == "not_saved"]
    assert reasons == ["SIGUSR1 ended its program, which has no handler for it, or had none yet."]

    exits = "trap 'exit 3' USR1; touch traps; sleep 1000 & wait"
    fails = here.submit("--filler", "--checkpoint", "program", "--", "sh", "-c", exits)
    wait_until((here.folder / "traps").exists, lambda: here.log)
    _drive_away(here, fails)
    assert here.await_state(fails, "failed")["reason"] == (
        "it was sent SIGUSR1 to save itself, and returned 3 instead of exiting with status 85"
    )
