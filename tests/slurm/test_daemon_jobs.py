# SPDX-License-Identifier: Apache-2.0
"""Jobs of every kind that users submit while `drom slurm` decides, or change while they wait: each runs to its end.

All are submitted at once, behind a job that has all nodes, and the tests look at what came of each.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from tests.slurm.test_daemon import SETTINGS, SLEEP, WHOLE, gated_cluster, states

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drom.scheduler.testbed.slurm import SlurmCluster

USER = "games"
NODE = ("-N1", "-n1", "-c4")
KINDS = {
    "plain": NODE,
    "malleable": ("--malleable=1:4", *NODE),
    "exclusive": ("--exclusive", *NODE),
    "exclusive-malleable": ("--exclusive", "--malleable=1:4", *NODE),
    "all-memory": ("--mem=0", *NODE),
    "heterogeneous": (*NODE, ":", *NODE),
    "other-partition": ("-p", "other", *NODE),
    "two-partitions": ("-p", "main,other", *NODE),
    "one-core": ("-n1", "-c1"),
    "range-of-nodes": ("-N1-3", "-n3", "-c4"),
    "named-node": ("-w", "{nodes[1]}", *NODE),
    "own-licence": ("-L", "tool:1", *NODE),
    "array": ("--array=1-4%2", *NODE),
}
"""What users give `sbatch`, by the name of the job."""
CHANGES = {
    "shorter": "timelimit=3",
    "renamed": "name=renamed",
    "moved-to-node": "reqnodelist={nodes[2]}",
    "moved-to-partition": "partition=other",
    "not-on-a-node": "excnodelist={nodes[0]}",
    "with-a-feature": "features=big",
    "later": "starttime=now+5",
    "licence-dropped": "licenses=",
    "licence-doubled": "licenses=drom_gate:2",
    "licence-changed": "licenses=tool:1",
}
"""What users change by `scontrol update`, by the name of the job."""
REFUSED = ("licence-dropped", "licence-doubled", "licence-changed")
LONGEST = 200.0
"""Seconds until all have ended: one that cannot run where it is sent is left to Slurm after a minute or so."""


@dataclass
class Ended:
    """What came of the jobs: their numbers by name, the answers to changes, and Slurm's last words on each number."""

    nodes: list[str]
    numbers: dict[str, int] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    records: str = ""
    log: str = ""
    most_of_array: int = 0

    def of(self, name: str, what: str) -> list[str]:
        """Return a value of each record of a job of this name."""
        ids = re.compile(rf"JobId=\d+.* (?:ArrayJobId|HetJobId)={self.numbers[name]} |JobId={self.numbers[name]} ")
        found = [line for line in self.records.splitlines() if ids.match(line)]
        return [re.findall(rf"\b{what}=(\S+)", line)[0] for line in found]


@pytest.fixture(scope="module")
def ended() -> Iterator[Ended]:
    """Return what came of all jobs."""
    settings = SETTINGS.replace("drom_gate:1000000", "drom_gate:1000000,tool:2")
    with gated_cluster("e", settings) as site:
        site.ask("scontrol", "update", f"nodename={site.names[2]}", "availablefeatures=big", "activefeatures=big")
        with site.decided("main"):
            found = run_all(site)
        found.log = site.output_of("daemon")
        yield found


def submit(site: SlurmCluster, *options: str) -> int:
    """Submit a short job of a user."""
    words = [option.format(nodes=site.names) for option in options]
    usual = ("--parsable", "-D", "/", "-o", "/dev/null", "-t5")
    return int(site.ask_as(USER, "sbatch", *usual, *words, "--wrap", "sleep 0.5").splitlines()[0])


def run_all(site: SlurmCluster) -> Ended:
    """Submit all jobs, change those to change, and wait until all have ended."""
    found = Ended(site.names)
    first = site.submit(SLEEP, "-N3", "-n3", "-t600", *WHOLE)
    site.await_true(lambda: states(site) == {first: "RUNNING"}, "a job on all nodes")
    for name, change in CHANGES.items():
        number = found.numbers[name] = submit(site, *NODE)
        words = ("scontrol", "update", f"jobid={number}", change.format(nodes=site.names))
        found.answers[name] = site.ask_as(USER, *words)
    for name, options in KINDS.items():
        found.numbers[name] = submit(site, *options)
    found.numbers["dependent"] = submit(site, "-d", f"afterok:{found.numbers['plain']}", *NODE)
    found.numbers["held"] = submit(site, "--hold", *NODE)
    site.ask("scancel", str(first))
    site.ask_as(USER, "scontrol", "release", str(found.numbers["held"]))
    deadline = time.monotonic() + LONGEST
    while left := site.ask("squeue", "-h", "-r", "-o", "%F %T").splitlines():
        running = left.count(f"{found.numbers['array']} RUNNING")
        found.most_of_array = max(found.most_of_array, running)
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    found.records = site.ask("scontrol", "-o", "show", "job")
    return found


@pytest.mark.parametrize("name", [*KINDS, *CHANGES, "dependent", "held"])
def test_a_job_runs_to_its_end(ended: Ended, name: str) -> None:
    """No job waits for ever, whatever its user asks for."""
    parts = {"array": 4, "heterogeneous": 2}.get(name, 1)

    assert ended.of(name, "JobState") == ["COMPLETED"] * parts, ended.log


def test_jobs_run_where_their_users_want_them(ended: Ended) -> None:
    """Nodes and features that users ask for, also later, are kept to."""
    first, second, third = ended.nodes

    assert ended.of("named-node", "NodeList") == [second]
    assert ended.of("moved-to-node", "NodeList") == ended.of("with-a-feature", "NodeList") == [third]
    assert ended.of("not-on-a-node", "NodeList") != [first]
    assert ended.of("moved-to-partition", "Partition") == ["other"]


def test_an_array_has_no_more_tasks_at_once_than_it_may(ended: Ended) -> None:
    """The daemon releases two tasks at a time."""
    assert 1 <= ended.most_of_array <= 2


def test_users_cannot_change_the_licences_of_a_waiting_job(ended: Ended) -> None:
    """Slurm 22.05 passes no sentence on to users of `scontrol`."""
    assert {name for name, answer in ended.answers.items() if answer} == {*REFUSED}
    assert all(ended.answers[name].startswith("Unspecified error") for name in REFUSED)


def test_the_daemon_has_no_complaint(ended: Ended) -> None:
    """Every order was carried out."""
    assert "event=slurm_failed" not in ended.log
