# SPDX-License-Identifier: Apache-2.0
"""Runs inside a virtual machine of 1 socket x 4 cores with cgroup v2: jobs in control groups as Slurm makes them.

Prints one JSON object per look, as `scenario` does.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from dromlib import native
from tests.vm.scenario import DIRECTORY, JACOBI, agent, end, look

if TYPE_CHECKING:
    from collections.abc import Iterator

CGROUP = Path("/sys/fs/cgroup")
SCOPE = "system.slice/slurmstepd.scope"


def make_group(path: str, cpus: str = "") -> Path:
    """Create a control group below the root, with its ancestors, and return it; empty: with all CPUs of its parent."""
    group = CGROUP
    for name in Path(path).parts:
        (group / "cgroup.subtree_control").write_text("+cpuset", encoding="ascii")
        group /= name
        group.mkdir(exist_ok=True)
    if cpus:
        (group / "cpuset.cpus").write_text(cpus, encoding="ascii")
    return group


@contextlib.contextmanager
def inside(job: int, cpus: str) -> Iterator[None]:
    """Move this process into the first task of a job, which has these CPUs, for a block."""
    make_group(f"{SCOPE}/job_{job}", cpus)
    task = make_group(f"{SCOPE}/job_{job}/step_0/user/task_0")
    (task / "cgroup.procs").write_text("0", encoding="ascii")
    try:
        yield
    finally:
        (CGROUP / "cgroup.procs").write_text("0", encoding="ascii")


def launch(job: int, cpus: str) -> subprocess.Popen[bytes]:
    """Start Jacobi under the launcher in a job."""
    with inside(job, cpus):
        words = [str(native.run_path()), "--runtime-dir", str(DIRECTORY), "--"]
        return subprocess.Popen([*words, str(JACOBI), "--size", "200", "--seconds", "3600"])


def main() -> None:
    """Play the scenario."""
    os.environ.pop("DROM_IGNORE_SLURM", None)
    with inside(8, "2-3"):
        foreign = subprocess.Popen(["sleep", "3600"])
    with agent():
        own = launch(7, "0-1")
        look("own", lambda jobs: "slurm-7" in jobs)
        guest = launch(9, "2-3")
        look("beside a foreign job", lambda jobs: "slurm-9" in jobs and len(jobs["slurm-9"]["held"]) == 1)
        end(foreign)
        look("alone", lambda jobs: "slurm-9" in jobs and jobs["slurm-9"]["held"] == "2-3")
        mate = launch(8, "2-3")
        look("shared", lambda jobs: "slurm-8" in jobs and jobs["slurm-8"]["state"] == "running")
        end(guest)
        look("back", lambda jobs: "slurm-9" not in jobs and jobs["slurm-8"]["held"] == "2-3")
        end(own, mate)


if __name__ == "__main__":
    main()
