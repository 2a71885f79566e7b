# SPDX-License-Identifier: Apache-2.0
"""Orders become commands of Slurm. scontrol is a script here, a real process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from drom.agent.errors import SlurmError
from drom.scheduler.slurm.actor import RENEW, Actor, Lease
from drom.scheduler.slurm.engine import Asked, Release, TakeBack
from drom.scheduler.slurm.reader import Reader

if TYPE_CHECKING:
    from pathlib import Path

SCONTROL = """#!/bin/sh
here=$(dirname "$0")
echo "$@" >> "$here/calls"
case "$1 $2" in
"show config") echo "PriorityType            = $(cat "$here/priority")" ;;
"show licenses") cat "$here/licences" ;;
"update reservationname=drom_gate") exit $(cat "$here/no_reservation") ;;
esac
"""
RELEASE = Release("7_3", ("n1", "n2"), "matlab:2", ("5",))
TAKE_BACK = TakeBack("7_3", Asked("drom_gate:1,matlab:2", "n4", 5))


class Site:
    """A Slurm that carries out everything, and what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "scontrol").write_text(SCONTROL, encoding="utf-8")
        (folder / "scontrol").chmod(0o755)
        self.set(priority="priority/multifactor", no_reservation="0", licences="")
        self.reader = Reader(os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"})

    def set(self, **files: str) -> None:
        """Let Slurm answer so."""
        for name, text in files.items():
            (self.folder / name).write_text(text, encoding="utf-8")

    def calls(self) -> list[str]:
        """Return what was asked since the last call."""
        path = self.folder / "calls"
        found = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return found


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Return a site."""
    return Site(tmp_path)


def carried_out(site: Site, order: Release | TakeBack) -> list[str]:
    """Return the commands for an order."""
    actor = Actor(site.reader)
    site.calls()
    actor.carry_out(order)
    return site.calls()


def test_a_release_puts_the_job_before_all_others(site: Site) -> None:
    """They wait for the same nodes. One without nodes is left to Slurm's order."""
    assert carried_out(site, RELEASE) == ["update jobid=7_3 licenses=matlab:2 reqnodelist=n1,n2 nice=-1000000"]
    assert carried_out(site, Release("8", (), "")) == ["update jobid=8 licenses="]


def test_a_job_that_is_taken_back_is_as_before(site: Site) -> None:
    """With its licences, its nodes and its nice value."""
    assert carried_out(site, TAKE_BACK) == ["update jobid=7_3 licenses=drom_gate:1,matlab:2 reqnodelist=n4 nice=5"]


def test_under_basic_priorities_the_priority_is_set(site: Site) -> None:
    """A nice value would put the job last there. Who is taken back joins the end of the queue."""
    site.set(priority="priority/basic")

    assert carried_out(site, RELEASE) == ["update jobid=7_3 licenses=matlab:2 reqnodelist=n1,n2 priority=4294967290"]
    assert carried_out(site, TAKE_BACK) == [
        "update jobid=7_3 licenses=drom_gate:1,matlab:2 reqnodelist=n4",
        "hold 7_3",
        "release 7_3",
    ]


def test_the_gate_is_closed_anew_when_that_is_due(site: Site) -> None:
    """Not at each look."""
    lease = Lease(site.reader)
    for now in (100.0, 101.0, 100.0 + RENEW - 1, 100.0 + RENEW):
        lease.renew(now)

    assert site.calls() == ["update reservationname=drom_gate endtime=now+2minutes"] * 2


def test_the_gate_is_made_where_there_is_none(site: Site) -> None:
    """It takes all licences of its name."""
    site.set(no_reservation="1", licences="LicenseName=drom_gate Total=5000 Used=3 Free=4997 Reserved=0 Remote=no\n")
    Lease(site.reader).renew(100.0)

    assert site.calls()[-1] == (
        "create reservation reservationname=drom_gate starttime=now duration=2 flags=license_only"
        " licenses=drom_gate:5000 users=root"
    )


def test_a_slurm_without_the_licence_is_told_what_to_add(site: Site) -> None:
    """Nothing is reserved."""
    site.set(no_reservation="1", licences="No licenses configured in Slurm.\n")
    with pytest.raises(SlurmError, match=r"add Licenses=drom_gate:1000000 to slurm.conf, and restart slurmctld\."):
        Lease(site.reader).renew(100.0)


def test_the_gate_opens_at_the_end(site: Site) -> None:
    """Slurm goes on alone."""
    Lease(site.reader).end()

    assert site.calls() == ["delete reservationname=drom_gate"]
