# SPDX-License-Identifier: Apache-2.0
"""What control groups, and the environment that Slurm sets, say of another process."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from drom.agent.system.confinement import Confinement, ConfinementReader

from tests.support.recorded_machines import grow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Read = Callable[[dict[str, str]], Confinement]

V1 = {"proc/self/mountinfo": "1 2 0:3 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"}
V2 = {"proc/self/mountinfo": "1 2 0:3 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"}
OURS = {"proc/self/cgroup": "3:cpuset:/\n0::/system.slice/drom.service\n"}
NOBODY = 1 << 22
"""A pid that the kernel does not give to anybody."""


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Return a function that makes files below a root, and returns what they say of the process `NOBODY`."""

    def look(files: dict[str, str]) -> Confinement:
        here = {path.replace("proc/PID", f"proc/{NOBODY}"): text for path, text in files.items()}
        return ConfinementReader(Path(grow(tmp_path, here))).read(NOBODY, 0)

    return look


class TestCpuset:
    """The CPUs that its control groups leave a process."""

    def test_it_is_that_of_the_process_as_far_as_the_groups_above_agree(self, read: Read) -> None:
        """A step of a batch system in a hierarchy of version 1."""
        job = "sys/fs/cgroup/cpuset/batch/job_7"
        files = V1 | OURS | {"proc/PID/cgroup": "3:cpuset:/batch/job_7/step_0\n"}
        files |= {f"{job}/step_0/cpuset.cpus": "1-3\n", f"{job}/cpuset.cpus": "2-3\n"}

        assert read(files) == Confinement(0b1100)

    def test_the_effective_set_counts_in_version_2(self, read: Read) -> None:
        """The set of the nearest group that has one."""
        files = V2 | OURS | {"proc/PID/cgroup": "0::/box/leaf\n"}
        files |= {"sys/fs/cgroup/box/cpuset.cpus.effective": "0,2\n"}

        assert read(files) == Confinement(0b101)

    def test_groups_in_which_an_agent_keeps_tasks_do_not_count(self, read: Read) -> None:
        """The group above such a group counts."""
        group = "box/task-0123abcd-9-77"
        files = V2 | OURS | {"proc/PID/cgroup": f"0::/{group}\n"}
        files |= {
            f"sys/fs/cgroup/{group}/cpuset.cpus.effective": "0\n",
            "sys/fs/cgroup/box/cpuset.cpus.effective": "0-1\n",
        }

        assert read(files) == Confinement(0b11)

    @pytest.mark.parametrize("groups", [OURS["proc/self/cgroup"], "", "nonsense", "0::/gone\n"])
    def test_our_own_groups_and_unknown_ones_confine_nothing(self, read: Read, groups: str) -> None:
        """A process in the agent's own groups, one that has ended, and groups without a file."""
        files = V2 | OURS | {"proc/PID/cgroup": groups}
        files |= {"sys/fs/cgroup/system.slice/drom.service/cpuset.cpus.effective": "0-1\n"}

        assert read(files) == Confinement()


class TestSlurm:
    """The job of Slurm that a process is part of."""

    @pytest.mark.parametrize("top", ["slurm", "slurm_n1"])
    def test_a_step_of_version_1(self, read: Read, top: str) -> None:
        """The step has some of the CPUs of its job. Slurm names its group by the node where it runs several daemons."""
        job = f"sys/fs/cgroup/cpuset/{top}/uid_1000/job_712"
        files = V1 | OURS | {"proc/PID/cgroup": f"3:cpuset:/{top}/uid_1000/job_712/step_0/task_0\n"}
        files |= {f"{job}/step_0/cpuset.cpus": "2-3\n", f"{job}/cpuset.cpus": "0-3\n"}

        assert read(files) == Confinement(0b1100, "slurm-712", 0b1111)

    @pytest.mark.parametrize("scope", ["slurmstepd.scope", "n1_slurmstepd.scope"])
    def test_a_step_of_version_2(self, read: Read, scope: str) -> None:
        """The scope of slurmstepd has a group for each job."""
        job = f"sys/fs/cgroup/system.slice/{scope}/job_7"
        files = V2 | OURS | {"proc/PID/cgroup": f"0::/system.slice/{scope}/job_7/step_batch/user/task_0\n"}
        files |= {f"{job}/step_batch/cpuset.cpus.effective": "1\n", f"{job}/cpuset.cpus.effective": "0-1\n"}

        assert read(files) == Confinement(0b10, "slurm-7", 0b11)

    def test_a_job_that_is_not_confined(self, read: Read) -> None:
        """Only the hierarchy by which Slurm finds its processes has a group for the job."""
        mounts = V1["proc/self/mountinfo"] + "3 2 0:4 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n"
        files = OURS | {"proc/self/mountinfo": mounts}
        files |= {"proc/PID/cgroup": "5:freezer:/slurm/uid_0/job_7/step_0\n3:cpuset:/\n"}

        assert read(files) == Confinement(0, "slurm-7")

    @pytest.mark.parametrize(
        "path",
        [
            "user.slice/user-1000.slice/user@1000.service/slurm/uid_1000/job_7/step_0",
            "user.slice/user-1000.slice/user@1000.service/system.slice/slurmstepd.scope/job_7/step_0",
            "system.slice/other.scope/job_7",
            "slurm/uid_1000/job_x/step_0",
            "slurm/uid_1000/job_7x",
        ],
    )
    def test_groups_that_users_can_make_name_no_job(self, read: Read, path: str) -> None:
        """Users may have groups of their own below those of their session."""
        assert read(V2 | OURS | {"proc/PID/cgroup": f"0::/{path}\n"}).job == ""

    def test_an_agent_inside_a_job_divides_that(self, read: Read) -> None:
        """For such an agent the steps of its own job are not parts of one job."""
        files = V1 | {"proc/self/cgroup": "3:cpuset:/slurm/uid_0/job_7/step_batch\n"}
        files |= {"proc/PID/cgroup": "3:cpuset:/slurm/uid_0/job_7/step_0\n"}
        files |= {"sys/fs/cgroup/cpuset/slurm/uid_0/job_7/cpuset.cpus": "0-1\n"}

        assert read(files) == Confinement(0b11)


@contextmanager
def process_with(**environment: str) -> Iterator[int]:
    """Run a process with this environment; yield its pid."""
    with subprocess.Popen(["sleep", "inf"], env={"PATH": os.environ["PATH"], **environment}) as process:
        try:
            yield process.pid
        finally:
            process.kill()


class TestWithoutGroups:
    """Slurm that makes no control groups (proctrack/linuxproc)."""

    @pytest.fixture
    def read(self, tmp_path: Path) -> Callable[[int], Confinement]:
        """Return a function that returns what confines a process whose affinity was CPUs 1 and 2."""
        return partial(ConfinementReader(tmp_path).read, affinity=0b110)

    def test_the_environment_of_a_task_names_its_job(self, read: Callable[[int], Confinement]) -> None:
        """Its affinity is its cpuset."""
        with process_with(SLURM_JOB_ID="12", SLURMD_NODENAME="n1") as pid:
            assert read(pid) == Confinement(0b110, "slurm-12")

    @pytest.mark.parametrize(
        "named", [{"SLURM_JOB_ID": "12"}, {"SLURMD_NODENAME": "n1"}, {"SLURM_JOB_ID": "x", "SLURMD_NODENAME": "n1"}]
    )
    def test_a_program_that_slurm_did_not_start_is_not_confined(
        self, read: Callable[[int], Confinement], named: dict[str, str]
    ) -> None:
        """A login shell below salloc has the job's number, too."""
        with process_with(**named) as pid:
            assert read(pid) == Confinement()
