# SPDX-License-Identifier: Apache-2.0
"""The jobs that Slurm runs on this node, and the CPUs of each, as its control groups have them (cgroup v1 and v2).

A group without a CPU list confines nothing and is left out: Slurm then does not constrain cores. So is a group without
a process that can be seen from here: what a daemon of Slurm that died left behind, or the job of another container.
"""

from __future__ import annotations

import glob
import os
from typing import TYPE_CHECKING

from drom.agent.system import cgroups
from drom.agent.system.confinement import job_of_group, own_jobs
from drom.agent.system.files import FileTree

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

_GROUPS = ("slurm*/uid_*/job_*", "system.slice/*slurmstepd.scope/job_*")
_MAX_JOBS = 1024
_MAX_GROUPS_OF_JOB = 64


class BatchJobReader:
    """Reads the jobs of Slurm below the folder `root`. An agent that runs inside a job of Slurm sees no jobs."""

    def __init__(self, root: Path) -> None:
        files = FileTree(root)
        mounted = cgroups.mounts(files)
        places = [place for kinds, _, place in mounted if {cgroups.V2, "cpuset"} & {*kinds}]
        self._root = root
        inside = own_jobs(mounted, files.text("proc/self/cgroup") or "")
        self._mounts = () if inside else tuple(place.lstrip("/") for place in places)

    def read(self, known: Collection[str]) -> dict[str, int]:
        """Return the OS CPUs of each job by its name, slurm-NUMBER, but for those `known`. Raises nothing."""
        files = FileTree(self._root)
        found: dict[str, int] = {}
        for mount in self._mounts:
            for pattern in _GROUPS:
                # Path.glob would fail if Slurm removed a group meanwhile.
                for group in glob.iglob(pattern, root_dir=self._root / mount):  # noqa: PTH207
                    name = job_of_group(group)
                    if name and name not in known and len(found) < _MAX_JOBS:
                        cpus = files.mask(f"{mount}/{group}/cpuset.cpus")
                        if cpus and _has_process(self._root / mount / group):
                            found[name] = found.get(name, 0) | cpus
        return found


def _has_process(group: Path) -> bool:
    """Return whether a group or one below it has a process. Processes of other pid namespaces appear as 0."""
    for seen, (folder, _, _) in enumerate(os.walk(group)):
        if seen == _MAX_GROUPS_OF_JOB:
            break
        try:
            with open(f"{folder}/cgroup.procs", "rb") as file:
                if any(line.strip() not in (b"", b"0") for line in file):
                    return True
        except OSError:  # the group has been removed meanwhile
            continue
    return False
