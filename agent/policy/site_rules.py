# SPDX-License-Identifier: Apache-2.0
"""The rules that a site sets for its node, as one value, and the checks of arriving jobs against them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from drom.agent.errors import Refused
from drom.agent.model.copies import Value
from drom.agent.text import counted, in_words

if TYPE_CHECKING:
    from drom.agent.model.cores import Cores
    from drom.agent.model.jobs import Arrival


@dataclass(frozen=True, slots=True)
class SiteRules(Value):
    """The rules an admin may set. Caps count CPUs (hardware threads), 0: no cap; a part of a core does not count.

    `sharing_factor`: the largest fraction of its cores that a running job lends to one arrival (0 to 1).
    `max_cpus_per_user`: the CPUs that all jobs of one user may have together; only an order gives more.
    `max_min`: the CPUs that a job may insist on; `max_rigid`: the CPUs of a job that gives none back while it runs.
    `spare_for_newcomers`: CPUs that an arrival leaves to be lent to a user without jobs, if its own user has two or
    more jobs and is not among the uids in `free`.
    `residence`: seconds for which a resized job does not grow again, unless an order makes it.
    `margin`: a growth by a smaller fraction of the job's cores waits up to `residence` for more cores to come free.
    """

    sharing_factor: float = 0.5
    max_cpus_per_user: int = 0
    max_min: int = 0
    max_rigid: int = 0
    spare_for_newcomers: int = 0
    free: frozenset[int] = frozenset()
    margin: float = 0.0
    residence: float = 0.0

    def most(self, job_class: str, cores: Cores, total: int) -> int:
        """Return the most cores of `total` that a job of this class may request."""
        caps = () if job_class == "malleable" else (self.max_cpus_per_user, self.max_rigid)
        return min([total, *(cores.within(cap) for cap in caps if cap)])

    def check(self, arrival: Arrival, least: int, cores: Cores) -> None:
        """Raise `Refused` if a job that needs `least` cores may never run here."""
        limits = [(self.max_cpus_per_user, "the jobs of one user get", "ask for fewer")]
        if arrival.job_class == "rigid":
            limits.append((self.max_rigid, "a rigid job gets", "ask for fewer, or let it be malleable"))
        else:
            insists = self.max_min if cores.cpus(least) > self.max_min else 0  # where cores differ, on more of them
            limits.append((insists, "a job may insist on", "ask for a smaller --min or fewer tasks"))
        if arrival.job_class == "moldable":
            limits.append((self.max_rigid, "a moldable job gets", "ask for fewer, or let it be malleable"))
        for cap, of_what, remedy in limits:
            if cap and least > cores.within(cap):
                needs = counted(cores.cpus_at_most(least), "CPU")
                msg = f"this needs {needs}, {of_what} at most {cap} on this node: {remedy}."
                raise Refused(msg)


def check_memory(needed: int, there: int) -> None:
    """Raise `Refused` if a job declares more memory than the node has (bytes; `there` 0: unknown)."""
    if there and needed > there:
        msg = f"this needs {in_words(needed)} of memory, this node has {in_words(there)}: declare less with --mem."
        raise Refused(msg)
