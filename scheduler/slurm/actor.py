# SPDX-License-Identifier: Apache-2.0
"""Carry out orders, and keep the gate closed for as long as the daemon lives."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from drom.agent.errors import SlurmError
from drom.scheduler.slurm.engine import Asked, Order, Release
from drom.scheduler.slurm.records import GATE

if TYPE_CHECKING:
    from drom.scheduler.slurm.reader import Reader

LEASE_MIN = 2
"""Minutes for which the gate stays closed after it was closed last: Slurm counts reservations in minutes."""
RENEW = 20.0
"""Seconds after which the gate is closed anew."""
FIRST_NICE = -1_000_000
"""The nice value that puts a job before all others under priority/multifactor."""
FIRST_PRIORITY = 4_294_967_290
"""The priority that does so under priority/basic, where a nice value would put it last."""


class Actor:
    """Changes jobs of the Slurm that `reader` reads. Each method raises SlurmError if Slurm refuses."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._is_basic = bool(re.search(r"^PriorityType\s*=\s*priority/basic", reader.configuration(), re.MULTILINE))

    def carry_out(self, order: Order) -> None:
        """Carry out an order."""
        if isinstance(order, Release):
            self._release(order)
        else:
            self._take_back(order.job, order.asked)

    def _release(self, order: Release) -> None:
        words = [f"licenses={order.licences}"]
        if order.nodes:  # before all others that wait for the same nodes
            first = f"priority={FIRST_PRIORITY}" if self._is_basic else f"nice={FIRST_NICE}"
            words += [f"reqnodelist={','.join(order.nodes)}", first]
        self._reader.update(f"jobid={order.job}", *words)

    def _take_back(self, job: str, asked: Asked) -> None:
        words = [f"licenses={asked.licences}", f"reqnodelist={asked.nodes}"]
        words += [] if self._is_basic else [f"nice={asked.nice}"]
        self._reader.update(f"jobid={job}", *words)
        if self._is_basic:  # gives the job the last place of the queue
            self._reader.command("scontrol", "hold", job)
            self._reader.command("scontrol", "release", job)


class Lease:
    """Keeps the gate closed: a reservation of all its licences, which ends by itself soon after the daemon has died."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._due = 0.0

    def renew(self, now: float) -> None:
        """Close the gate again if that is due at `now`, in seconds of any clock.

        Raises SlurmError if Slurm has no such licence, and if it refuses.
        """
        if now < self._due:
            return
        until = f"endtime=now+{LEASE_MIN}minutes"
        try:
            self._reader.command("scontrol", "update", f"reservationname={GATE}", until)
        except SlurmError:  # there is none yet, or not any more
            self._create()
        self._due = now + RENEW

    def _create(self) -> None:
        total = next((licence.total for licence in self._reader.licences().records if licence.name == GATE), 0)
        if not total:
            msg = f"Slurm has no licence {GATE}: add Licenses={GATE}:1000000 to slurm.conf, and restart slurmctld."
            raise SlurmError(msg)
        when = ("starttime=now", f"duration={LEASE_MIN}", "flags=license_only", f"licenses={GATE}:{total}")
        self._reader.command("scontrol", "create", "reservation", f"reservationname={GATE}", *when, "users=root")

    def end(self) -> None:
        """Open the gate: Slurm starts the jobs that wait there itself."""
        self._due = 0.0
        with suppress(SlurmError):
            self._reader.command("scontrol", "delete", f"reservationname={GATE}")
