# SPDX-License-Identifier: Apache-2.0
"""The jobs of Slurm on a node, as control groups have them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.system.batch_jobs import BatchJobReader

from tests.support.recorded_machines import grow

if TYPE_CHECKING:
    from collections.abc import Callable

    Read = Callable[[dict[str, str]], dict[str, int]]

V1 = {"proc/self/mountinfo": "1 2 0:3 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"}
V2 = {"proc/self/mountinfo": "1 2 0:3 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"}
IN_V1 = "sys/fs/cgroup/cpuset/slurm_n1/uid_7"
IN_V2 = "sys/fs/cgroup/system.slice/n1_slurmstepd.scope"


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Return a function that makes files below a root, and returns the jobs but for slurm-99."""
    return lambda files: BatchJobReader(Path(grow(tmp_path, files))).read({"slurm-99"})


def job(folder: str, number: int, cpus: str, processes: str = "17\n") -> dict[str, str]:
    """Return the files of a job's group, of which one step has processes."""
    group = f"{folder}/job_{number}"
    return {
        f"{group}/cpuset.cpus": cpus,
        f"{group}/cgroup.procs": "",
        f"{group}/step_batch/cgroup.procs": "",
        f"{group}/step_batch/task_0/cgroup.procs": processes,
    }


@pytest.mark.parametrize(("mounts", "folder"), [(V1, IN_V1), (V2, IN_V2)], ids=["v1", "v2"])
def test_the_cpus_of_each_job_are_read(read: Read, mounts: dict[str, str], folder: str) -> None:
    """A job that the agent knows is left out."""
    files = mounts | job(folder, 12, "0-3\n") | job(folder, 13, "5\n", "0\n18\n") | job(folder, 99, "6\n")

    assert read(files) == {"slurm-12": 0x0F, "slurm-13": 0x20}


@pytest.mark.parametrize("processes", ["", "0\n0\n"], ids=["none", "of another pid namespace"])
def test_a_group_without_processes_is_left_out(read: Read, processes: str) -> None:
    """A daemon of Slurm that was killed leaves groups behind."""
    assert read(V1 | job(IN_V1, 12, "0-3\n", processes)) == {}


@pytest.mark.parametrize("cpus", ["", "\n", "all of them\n"])
def test_a_group_without_a_list_of_cpus_is_left_out(read: Read, cpus: str) -> None:
    """Slurm does not constrain the cores of the job."""
    assert read(V2 | job(IN_V2, 12, cpus)) == {}


def test_groups_that_users_can_make_are_no_jobs(read: Read) -> None:
    """Only the folders in which Slurm makes groups count."""
    mine = "sys/fs/cgroup/user.slice/slurmstepd.scope"
    assert read(V2 | job(mine, 12, "0-3\n") | job(f"{IN_V2}/job_0/step_0", 13, "4\n")) == {}


def test_a_group_that_slurm_removes_meanwhile_is_left_out(
    read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs of other users are read."""
    scan = os.scandir
    other = IN_V1.replace("uid_7", "uid_8")
    gone = tmp_path / other

    def remove_first(folder: Any) -> Any:
        if str(folder) == str(gone):
            shutil.rmtree(gone, ignore_errors=True)
        return scan(folder)

    monkeypatch.setattr("os.scandir", remove_first)

    assert read(V1 | job(IN_V1, 12, "0-3\n") | job(other, 13, "4\n")) == {"slurm-12": 0x0F}
    assert not gone.exists()


def test_an_agent_inside_a_job_sees_no_jobs(read: Read) -> None:
    """Its CPUs are those of the job, which it divides."""
    files = V1 | job(IN_V1, 12, "0-3\n") | {"proc/self/cgroup": "3:cpuset:/slurm_n1/uid_7/job_12/step_0\n"}

    assert read(files) == {}


def test_a_machine_without_slurm_has_no_jobs(read: Read) -> None:
    """Nor has one whose hierarchies cannot be read."""
    assert read(V1) == {}
    assert read({"proc/self/mountinfo": ""}) == {}
