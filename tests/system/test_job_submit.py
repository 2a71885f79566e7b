# SPDX-License-Identifier: Apache-2.0
"""The job_submit.lua of contrib/slurm in a Lua interpreter, with a table in Slurm's place."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.support.paths import ROOT

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
