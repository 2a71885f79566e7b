# SPDX-License-Identifier: Apache-2.0
"""The job_submit.lua of contrib/slurm in a Lua interpreter, with a table in Slurm's place."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from drom.scheduler.testbed.slurm import write_job_submit

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

LUA = next(filter(None, map(shutil.which, ("lua5.3", "lua5.4", "lua"))), None)
pytestmark = pytest.mark.skipif(not LUA, reason="needs a Lua interpreter: apt-get install lua5.3.")

STUB = """
slurm = {SUCCESS = 0, ERROR = -1, log_user = function(...) print("user: " .. string.format(...)) end}
assert(dofile(arg[1]) == slurm.SUCCESS)
local job = {shared = 65534, cpus_per_task = 65534, pn_min_memory = 18446744073709551614.0, het_job_offset = 4294967294}
for name, value in pairs(JOB) do job[name] = value end
print("submit", slurm_job_submit(job, {}, 1000), job.shared)
print("modify", slurm_job_modify({}, job, {}, 1000))
"""
SHARES = "submit\t0\t1"
NUMBERS = "give two numbers of CPUs per task, from 1 on, such as --malleable=4:48."


def submitted(job: str, option: str | None = None) -> list[str]:
    """Return what Lua says of a job with these fields, and this value of --malleable."""
    words = 'spank_job_env_size = 2, spank_job_env = {[0] = "_SLURM_SPANK_OPTION_other_x=1", '
    env = "" if option is None else f'{words}[1] = "_SLURM_SPANK_OPTION_drom_malleable={option}"}},'
    script = f"JOB = {{{env} {job}}}\n{STUB}"
    command = [LUA or "", "-", str(ROOT / "contrib" / "slurm" / "job_submit.lua")]
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("modify\t0\n")
    return done.stdout.splitlines()[:-1]


@pytest.mark.parametrize(
    ("job", "shared"),
    [("", 65534), ("shared = 0", 0), ("shared = 1", 1), ("spank_job_env_size = 0, spank_job_env = {}", 65534)],
)
def test_a_job_that_is_not_malleable_is_untouched(job: str, shared: int) -> None:
    """Nothing is told to its user."""
    assert submitted(job) == [f"submit\t0\t{shared}"]


@pytest.mark.parametrize("option", ["1:2", "4:48", "48:48", "1:32768", ""])
def test_a_malleable_job_shares_its_cores(option: str) -> None:
    """Its user need not say so."""
    assert submitted("cpus_per_task = 48", option) == [SHARES]
    assert submitted("", option) == [SHARES]


@pytest.mark.parametrize(
    "option", ["0:2", "2:1", "1", "1:", ":2", "a:b", "1:2:3", "1:32769", "1:999999", "-1:2", " 1:2"]
)
def test_bad_bounds_are_refused(option: str) -> None:
    """The sentence has the value in it."""
    told = submitted("", option)

    assert told == [f"user: drom: --malleable={option}: {NUMBERS}", "submit\t-1\t65534"]


def test_a_minimum_above_the_cpus_of_a_task_is_refused() -> None:
    """The sentence says how many CPUs each task has."""
    told = submitted("cpus_per_task = 2", "3:4")

    sentence = "each task has 2 CPUs: give a minimum of at most 2, or more CPUs with -c."
    assert told == [f"user: drom: --malleable=3:4: {sentence}", "submit\t-1\t65534"]


@pytest.mark.parametrize(
    ("job", "shared", "sentence"),
    [
        ("shared = 0", "0", "with --exclusive this job keeps its nodes for itself."),
        ("het_job_offset = 1", "65534", "a part of a heterogeneous job keeps its CPUs for itself."),
        ("het_job_offset = 0", "65534", "a part of a heterogeneous job keeps its CPUs for itself."),
        (
            "pn_min_memory = 0",
            "65534",
            "with --mem=0 this job keeps the memory of its nodes, and with it the nodes, for itself.",
        ),
    ],
)
def test_a_malleable_job_that_cannot_share_is_left_alone(job: str, shared: str, sentence: str) -> None:
    """Its user is told why."""
    assert submitted(job, "1:2") == [f"user: drom: {sentence}", f"submit\t0\t{shared}"]


GATE = """
slurm = {SUCCESS = 0, ERROR = -1, log_user = function(...) print("user: " .. string.format(...)) end}
assert(dofile(arg[1]) == slurm.SUCCESS)
local job = {shared = 65534, cpus_per_task = 4, pn_min_memory = 18446744073709551614.0, het_job_offset = 4294967294}
for name, value in pairs(JOB) do job[name] = value end
local parts = {other = {flag_default = 0}, main = {flag_default = 1}}
local status = slurm_job_submit(job, parts, USER)
print(status, job.licenses, job.admin_comment)
print(slurm_job_modify({licenses = ""}, {licenses = job.licenses, user_id = 1000}, parts, USER))
"""


def gated(folder: Path, job: str = "", option: str | None = None, user: int = 1000) -> list[str]:
    """Return what Lua says of a job and of its user's attempt to drop its licences, where main has a gate."""
    write_job_submit(folder, gated="main")
    words = f'spank_job_env_size = 1, spank_job_env = {{[0] = "_SLURM_SPANK_OPTION_drom_malleable={option}"}},'
    script = f"USER = {user}\nJOB = {{{'' if option is None else words} {job}}}\n{GATE}"
    command = [LUA or "", "-", str(folder / "job_submit.lua")]
    return subprocess.run(command, input=script, capture_output=True, text=True, check=True).stdout.splitlines()


REFUSED = "user: drom: the licences of a job that waits for drom_gate stay as they are: cancel it and submit another."


@pytest.mark.parametrize(
    ("job", "option", "licences", "comment"),
    [
        ("", None, "drom_gate:1", "nil"),
        ('licenses = "matlab:2", partition = "main"', "2:8", "matlab:2,drom_gate:1", "drom:malleable=2:8"),
        ('admin_comment = "x"', "1:2", "drom_gate:1", "x drom:malleable=1:2"),
        ("", "", "drom_gate:1", "drom:malleable=1:4"),
    ],
)
def test_jobs_of_a_gated_partition_wait_at_the_gate(
    tmp_path: Path, job: str, option: str | None, licences: str, comment: str
) -> None:
    """Also where it is the default one. Their users cannot take them out, and the daemon reads their bounds."""
    assert gated(tmp_path, job, option) == [f"0\t{licences}\t{comment}", REFUSED, "-1"]


@pytest.mark.parametrize(
    "job",
    [
        'partition = "other"',
        'features = "fast"',
        'exc_nodes = "n1"',
        'reservation = "r"',
        'tres_per_node = "gres/gpu:1"',
        "het_job_offset = 0",
    ],
)
def test_jobs_that_the_daemon_cannot_place_do_not_wait_at_the_gate(tmp_path: Path, job: str) -> None:
    """Slurm starts them, and their licences are their users'."""
    assert gated(tmp_path, job) == ["0\tnil\tnil", "0"]


def test_only_root_may_ask_for_the_gate(tmp_path: Path) -> None:
    """It gets one of it."""
    told = "user: drom: the licence drom_gate is not for users: leave it out."
    asked = 'licenses = "a:1,drom_gate:1"'

    assert gated(tmp_path, asked)[:2] == [told, "-1\ta:1,drom_gate:1\tnil"]
    assert gated(tmp_path, asked, user=0) == ["0\ta:1,drom_gate:1\tnil", "0"]
