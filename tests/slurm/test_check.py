# SPDX-License-Identifier: Apache-2.0
"""Reading and checking a real Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from drom.scheduler.slurm import json_records
from drom.scheduler.slurm.reader import Reader

from tests.scheduler.slurm.test_json_records import common
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.slurm.rig import Slurm


def environment(slurm: Slurm, folder: Path) -> dict[str, str]:
    """Return an environment whose Slurm commands run on the head."""
    folder.mkdir(exist_ok=True)
    for name in ("squeue", "scontrol"):
        words = slurm.on_head(name)
        (folder / name).write_text(
            f'#!/bin/sh\nPATH={os.environ["PATH"]}\nexec {" ".join(words)} "$@"\n', encoding="utf-8"
        )
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin", "SLURM_CONF": str(slurm.folder / "slurm.conf")}


def check(environ: dict[str, str], *words: str) -> tuple[int, str, str]:
    """Run `drom slurm check`; return its exit status and output."""
    command = [sys.executable, "-m", "drom", "slurm", "check", *words]
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_a_running_slurm_is_checked(slurm: Slurm, tmp_path: Path) -> None:
    """This one is right for level 0; for level 1 it lacks the plugins."""
    environ = environment(slurm, tmp_path / "bin")
    status, said, _ = check(environ, "--level", "0", "--json")
    findings: list[dict[str, Any]] = json.loads(said)["findings"]

    assert (status, [one["what"] for one in findings if one["state"] != "ok"]) == (0, [])
    status, said, _ = check(environ, "--json")
    must = [one["what"] for one in json.loads(said)["findings"] if one["state"] == "change"]
    assert (status, must) == (1, ["JobSubmitPlugins", "PlugStackConfig"])


def test_jobs_and_nodes_of_a_running_slurm_are_read(slurm: Slurm, tmp_path: Path) -> None:
    """A job that waits and one that runs, each with what it asked for."""
    first = slurm.submit("sleep 1000", "--comment", "one; two|three", "-J", "a b")
    second = slurm.submit("sleep 1000", "--dependency", f"afterok:{first}", "-t", "90")
    reader = Reader(environment(slurm, tmp_path / "bin"))
    slurm.await_true(
        lambda: any(job.runs and str(job.number) == first for job in reader.jobs().records), "the first job"
    )
    read = reader.jobs()
    jobs = {str(job.number): job for job in read.records if not job.states & {"CANCELLED", "COMPLETED"}}
    slurm.cancel_all()

    assert read.faults == ()
    assert (jobs[first].name, jobs[first].comment, jobs[first].nodes) == ("a b", "one; two|three", (slurm.node,))
    assert (jobs[second].waits, jobs[second].limit_min) == (True, 90)
    assert jobs[second].dependency == f"afterok:{first}(unfulfilled)"
    (node,) = reader.nodes().records
    assert (node.cpus, node.cores, node.partitions) == (2, 2, ("divided", "shared", "malleable"))
    assert [one.oversubscribe for one in reader.partitions().records] == ["NO", "FORCE:2", "YES:2"]
    assert (reader.licences(), reader.reservations()) == (((), ()), ((), ()))


def test_json_and_text_of_a_running_slurm_agree(slurm: Slurm, tmp_path: Path) -> None:
    """Jobs that wait, and the node, read from both; a job's reason and its sharing have other words in JSON."""
    for options in (("-H", "-t", "90"), ("-H", "--array", "1-3%2"), ("--begin", "now+1hour", "--nice=7")):
        slurm.submit("true", "-J", "waits", *options)
    reader = Reader(environment(slurm, tmp_path / "bin"))
    text = [common(job) for job in reader.jobs().records if job.name == "waits"]
    jobs = json_records.parse_jobs(slurm.ask_slurm("squeue", "--states=all", "--json"))
    nodes = json_records.parse_nodes(slurm.ask_slurm(*list_nodes(slurm), "--json"))
    read_nodes = reader.nodes()
    slurm.cancel_all()

    assert (len(text), jobs.faults) == (3, ())
    assert sorted((common(job) for job in jobs.records if job.name == "waits"), key=repr) == sorted(text, key=repr)
    assert nodes == read_nodes


def list_nodes(slurm: Slurm) -> tuple[str, ...]:
    """Return the command of this version that prints nodes as JSON."""
    is_old = slurm.ask_slurm("sinfo", "--version").split()[-1].startswith("22.")
    return ("sinfo",) if is_old else ("scontrol", "show", "nodes")


@pytest.mark.parametrize("missing", ["munge", "slurmctld"])
def test_a_slurm_that_does_not_answer_is_a_sentence(slurm: Slurm, tmp_path: Path, missing: str) -> None:
    """Exit 2, and what to start."""
    text = (slurm.folder / "slurm.conf").read_text(encoding="utf-8")
    good = {"munge": f"socket={slurm.folder}/munge/socket", "slurmctld": "SlurmctldPort=26817"}[missing]
    other = {"munge": f"socket={tmp_path}/none", "slurmctld": "SlurmctldPort=26899\nMessageTimeout=2"}[missing]
    assert good in text
    changed = slurm.folder / f"without-{missing}.conf"
    changed.write_text(text.replace(good, other), encoding="utf-8")
    environ = environment(slurm, tmp_path / "bin") | {"SLURM_CONF": str(changed)}
    status, said, error = check(environ)

    assert (status, said) == (2, "")
    assert error.startswith(f"drom: {missing} does not answer")
