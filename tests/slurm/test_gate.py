# SPDX-License-Identifier: Apache-2.0
"""What a real Slurm offers to a daemon that decides when jobs start: a licence, of which a reservation holds all.

Jobs with the licence wait until they are released, or until the reservation ends, as it does without a daemon.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
from drom.scheduler.slurm.checks import LICENCES
from drom.scheduler.slurm.reader import Reader
from drom.scheduler.slurm.records import GATE

from tests.slurm.programs import Program
from tests.slurm.test_check import check, environment
from tests.slurm.test_plugin import slurm_with_plugin
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.slurm.rig import Slurm

SETTINGS = f"JobSubmitPlugins=lua\nPriorityType=priority/multifactor\nLicenses={GATE}:{LICENCES}\n"
LEASE = "dromgate"
GATED = ("-L", f"{GATE}:1")
RELEASED = ("licenses=", "nice=-1000000")
TAKEN_BACK = (f"licenses={GATE}:1", "reqnodelist=", "nice=0")


@pytest.fixture(scope="module")
def site() -> Iterator[Slurm]:
    """Return a Slurm that is configured for level 2."""

    def copy_script(folder: Path) -> None:
        shutil.copy(ROOT / "contrib" / "slurm" / "job_submit.lua", folder)

    with slurm_with_plugin(settings=SETTINGS, prepare=copy_script) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def lease(site: Slurm) -> Iterator[None]:
    """Hold all licences for two minutes, and end all jobs after the test."""
    what = ("flags=license_only", f"licenses={GATE}:{LICENCES}", "starttime=now", "duration=2", "users=root")
    site.ask_slurm("scontrol", "create", "reservation", f"reservationname={LEASE}", *what)
    yield
    if LEASE in site.ask_slurm("scontrol", "show", "reservation", "-o"):
        site.ask_slurm("scontrol", "delete", f"reservationname={LEASE}")
    site.cancel_all()


def update(site: Slurm, job: str, *what: str) -> None:
    """Change a waiting job."""
    site.ask_slurm("scontrol", "update", f"jobid={job}", *what)


def state(site: Slurm, job: str) -> str:
    """Return the state of a job, in Slurm's word."""
    return site.ask_slurm("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").strip()


def await_state(site: Slurm, job: str, wanted: str) -> None:
    """Wait until a job has a state."""
    site.await_true(lambda: state(site, job) == wanted, f"job {job} to be {wanted}")


def await_later_job(site: Slurm, *options: str) -> None:
    """Submit a job without the licence, and wait until it has run: Slurm has then looked at all that came before."""
    job = site.submit("true", *options, cpus=1)
    site.await_true(lambda: state(site, job) in {"COMPLETED", "COMPLETING"}, f"the end of job {job}")


def test_jobs_wait_until_they_are_released(site: Slurm) -> None:
    """A job without the licence starts before them; a released one starts on the node that it is given."""
    first, second = (site.submit("sleep 1000", *GATED, cpus=1) for _ in range(2))
    await_later_job(site)
    assert [state(site, job) for job in (first, second)] == ["PENDING", "PENDING"]

    update(site, second, *RELEASED, f"reqnodelist={site.node}")
    await_state(site, second, "RUNNING")
    assert state(site, first) == "PENDING"


def test_jobs_start_when_the_reservation_ends(site: Slurm) -> None:
    """No one has to release them; until then the reservation can be prolonged."""
    job = site.submit("sleep 1000", *GATED, cpus=1)
    site.ask_slurm("scontrol", "update", f"reservationname={LEASE}", "endtime=now+2minutes")
    await_later_job(site)
    assert state(site, job) == "PENDING"

    site.ask_slurm("scontrol", "update", f"reservationname={LEASE}", "endtime=now+1")
    await_state(site, job, "RUNNING")


def test_a_released_job_can_be_taken_back(site: Slurm) -> None:
    """A job that found no free core waits for its release again, also when there is one."""
    holder = site.submit("sleep 1000")
    await_state(site, holder, "RUNNING")
    job = site.submit("sleep 1000", *GATED)
    update(site, job, *RELEASED, f"reqnodelist={site.node}")
    update(site, job, *TAKEN_BACK)
    site.ask_slurm("scancel", holder)
    await_later_job(site)

    assert state(site, job) == "PENDING"


def test_a_guest_starts_beside_its_mate_ahead_of_an_earlier_job(site: Slurm) -> None:
    """The earlier job waits for the mate's end, which the guest outlasts; the guest's nice value puts it first."""
    mate, guest = Program(site, "mate"), Program(site, "guest")
    malleable = ("-p", "malleable", "--malleable=1:2")
    one = site.submit(f"srun {' '.join(mate.words)}", *malleable, "-t", "60")
    site.await_true(lambda: site.ranks() == {f"slurm-{one}": ["0-1"]}, "both CPUs for the mate")
    rigid = site.submit("sleep 1000", "-p", "malleable", "-t", "60")
    two = site.submit(f"srun {' '.join(guest.words)}", *malleable, *GATED, "-t", "300")
    update(site, two, *RELEASED, f"reqnodelist={site.node}")

    site.await_true(lambda: site.ranks() == {f"slurm-{one}": ["0"], f"slurm-{two}": ["1"]}, "a CPU for each job")
    assert state(site, rigid) == "PENDING"


def test_a_running_job_gets_a_longer_limit(site: Slurm) -> None:
    """Its limit is raised by minutes."""
    job = site.submit("sleep 1000", "-t", "60")
    await_state(site, job, "RUNNING")
    update(site, job, "timelimit=+7")

    assert site.ask_slurm("squeue", "-h", "-j", job, "-o", "%l").strip() == "1:07:00"


def test_what_the_gate_consists_of_is_read(site: Slurm, tmp_path: Path) -> None:
    """The reader finds the licences, their reservation and the jobs that have one."""
    job = site.submit("sleep 1000", *GATED, cpus=1)
    reader = Reader(environment(site, tmp_path / "bin"))
    jobs, licences, reservations = reader.jobs(), reader.licences(), reader.reservations()
    (waiting,) = (one for one in jobs.records if str(one.number) == job)
    (licence,) = licences.records
    (lease,) = reservations.records

    assert (*jobs.faults, *licences.faults, *reservations.faults) == ()
    assert (waiting.waits, waiting.holds(GATE), waiting.licences) == (True, True, ((GATE, 1),))
    assert (licence.name, licence.total, licence.used, licence.reserved) == (GATE, LICENCES, 0, LICENCES)
    assert (lease.name, lease.is_active, lease.licences) == (LEASE, True, ((GATE, LICENCES),))


def test_this_slurm_is_ready_for_level_2(site: Slurm, tmp_path: Path) -> None:
    """The check finds nothing that must change."""
    status, said, _ = check(environment(site, tmp_path / "bin"), "--level", "2", "--json")
    findings = json.loads(said)["findings"]

    assert [one["what"] for one in findings if one["state"] == "change"] == []
    assert status == 0
