# SPDX-License-Identifier: Apache-2.0
"""What confines a process: the cpuset of its control groups, and the job of Slurm that it is part of.

Slurm makes a control group for each job and step (cgroup v1 and v2), which users cannot forge. Where its plug-ins make
none (proctrack/linuxproc), the step's environment names the job, and the affinity that Slurm has set is its cpuset.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drom.agent.system import cgroups, proc
from drom.agent.system.files import FileTree

if TYPE_CHECKING:
    from pathlib import Path

    from drom.agent.system.cgroups import Mount

_OF_TASK = re.compile(r"/task-[0-9a-f]{8}-[0-9]+-[0-9]+(/|$)")
"""The group of a task, see `drom.agent.enforcement.cpusets`."""
_OF_JOB = re.compile(
    r"(?:slurm(?:_[^/]+)?/uid_[0-9]+|system\.slice/(?:[^/]+_)?slurmstepd\.scope)/job_([1-9][0-9]{0,9})(?=/|$)"
)
"""The group of a job of Slurm in a hierarchy of version 1, and of version 2."""
_NUMBER = re.compile(rb"[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True)
class Confinement:
    """The OS CPUs that a process may use, and the job of Slurm that it is part of.

    `cpus` are 0 if these are the CPUs of the agent, or not stated. `job` is slurm-NUMBER (empty: none), and `job_cpus`
    the CPUs of that whole job on this node, of which one step may have only some (0: not stated).
    """

    cpus: int = 0
    job: str = ""
    job_cpus: int = 0


class ConfinementReader:
    """Reads what confines processes, below the folder `root`. The mounted hierarchies are looked up once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._mounts: list[Mount] = []

    def read(self, pid: int, affinity: int) -> Confinement:
        """Return what confines a process. `affinity` is the mask of OS CPUs that it had before the agent bound it.

        Groups in which an agent of drom keeps a task do not count, nor does the job of Slurm in which this agent runs.
        Raises nothing.
        """
        files = FileTree(self._root)
        theirs, ours = (files.text(f"proc/{who}/cgroup") or "" for who in (pid, "self"))
        cpus, groups = 0, dict[str, list[list[str]]]()
        self._mounts = self._mounts or cgroups.mounts(files)
        if theirs and theirs != ours:
            paths = cgroups.parse_cgroups(theirs)
            for chain in cgroups.chains(self._mounts, paths, "cpuset"):
                cpus = _both(cpus, cgroups.cpuset(files, [group for group in chain if not _OF_TASK.search(group)]))
            groups = _groups_of_job(self._mounts, paths)
        job = next(iter(groups), "") or _job_in(proc.environment(pid))
        if not job or job in own_jobs(self._mounts, ours):
            return Confinement(cpus)
        if not groups:
            return Confinement(_both(cpus, affinity), job)
        job_cpus = 0
        for chain in groups[job]:
            job_cpus = _both(job_cpus, cgroups.cpuset(files, chain))
        return Confinement(cpus, job, job_cpus if cpus else 0)


def own_jobs(mounted: list[Mount], ours: str) -> set[str]:
    """Return the names of the jobs of Slurm in which this process runs, given its ``/proc/self/cgroup``."""
    return {*_groups_of_job(mounted, cgroups.parse_cgroups(ours)), _job_in(proc.environment(os.getpid()))} - {""}


def job_of_group(path: str) -> str:
    """Return the job of Slurm for which a group below a mount point was made; empty if that is no job's own group."""
    match = _OF_JOB.fullmatch(path)
    return f"slurm-{match[1]}" if match else ""


def _groups_of_job(mounted: list[Mount], paths: dict[str, str]) -> dict[str, list[list[str]]]:
    """Return the folders of a job of Slurm and their ancestors in each hierarchy, by the name of the job."""
    found: dict[str, list[list[str]]] = {}
    for place, parts in cgroups.places(mounted, paths):
        if match := _OF_JOB.match("/".join(parts)):
            depths = range(match[0].count("/") + 1, -1, -1)
            chain = ["/".join((place, *parts[:depth])) for depth in depths]
            found.setdefault(f"slurm-{match[1]}", []).append(chain)
    return found


def _job_in(environment: list[bytes]) -> str:
    """Return the name of the Slurm job that an environment belongs to; empty if slurmd did not set it."""
    named = dict(entry.partition(b"=")[::2] for entry in environment)
    job = named.get(b"SLURM_JOB_ID", b"")
    return f"slurm-{job.decode()}" if b"SLURMD_NODENAME" in named and _NUMBER.fullmatch(job) else ""


def _both(one: int, other: int) -> int:
    """Return the CPUs in both sets. 0 stands for any, and sets without a common CPU do not narrow each other."""
    return one & other or one or other
