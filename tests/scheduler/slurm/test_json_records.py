# SPDX-License-Identifier: Apache-2.0
"""The three dialects of Slurm's JSON, recorded at the same moment as its text."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.errors import SlurmError
from drom.scheduler.slurm import text_records
from drom.scheduler.slurm.json_records import parse_jobs, parse_nodes

from tests.scheduler.slurm.recorded import SEPARATOR, VERSIONS, recorded

if TYPE_CHECKING:
    from drom.scheduler.slurm.records import Job


def common(job: Job) -> Job:
    """Return a job without what JSON lacks: how it shares its cores, and in 22.05 the CPUs of a task.

    The words for why a job waits differ as well.
    """
    return replace(job, sharing="", cpus_per_task=0, reason="")


@pytest.mark.parametrize("version", VERSIONS)
def test_json_and_text_give_the_same_jobs(version: str) -> None:
    """All other fields agree, for every job."""
    text = text_records.parse_jobs(recorded(version, "squeue.txt"), SEPARATOR)
    read = parse_jobs(recorded(version, "squeue.json"))

    assert read.faults == ()
    assert sorted(map(common, read.records), key=repr) == sorted(map(common, text.records), key=repr)


@pytest.mark.parametrize(("version", "sharing"), [("22.05", "YES"), ("24.11", "YES"), ("26.05", "")])
def test_json_says_that_a_job_shares_in_words_of_its_version(version: str, sharing: str) -> None:
    """The words are those of squeue; 26.05 leaves them out."""
    (gated,) = [job for job in parse_jobs(recorded(version, "squeue.json")).records if job.name == "gated"]

    assert gated.sharing == sharing


@pytest.mark.parametrize("version", VERSIONS)
def test_json_and_text_give_the_same_nodes(version: str) -> None:
    """22.05 prints nodes by `sinfo`, later versions by `scontrol show nodes`."""
    assert parse_nodes(recorded(version, "nodes.json")) == text_records.parse_nodes(recorded(version, "node.txt"))


def test_groups_of_nodes_are_refused() -> None:
    """From 24.11 on `sinfo --json` has groups: the sentence names the command that has nodes."""
    with pytest.raises(SlurmError, match=r"no list of nodes: give what 'scontrol show nodes --json' prints\."):
        parse_nodes(recorded("24.11", "sinfo.json"))


@pytest.mark.parametrize("text", ["", "squeue: error", "[]", '{"jobs": 3}', '{"jobs": [3]}'])
def test_other_json_is_refused(text: str) -> None:
    """The sentence says what to give."""
    with pytest.raises(SlurmError, match="give what 'squeue --json' prints"):
        parse_jobs(text)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"job_state": []}, "job_state is [], which is not a state"),
        ({"nodes": "n[1-"}, "nodes is 'n[1-', which is not a list of nodes such as n[1-4]"),
        ({"cpus": {"set": False, "infinite": False, "number": 0}}, "which is not a whole number"),
        ({"priority": {"set": True, "infinite": False, "number": "9"}}, "which is not a whole number"),
        ({"comment": None}, "comment is None, which is not a text"),
        ({"nice": 0.5}, "nice is 0.5, which is not a whole number"),
        ({"nice": float("inf")}, "nice is inf, which is not a whole number"),
    ],
)
def test_a_broken_field_leaves_out_its_job(change: dict[str, Any], fault: str) -> None:
    """The sentence names the field and the job."""
    document = json.loads(recorded("24.11", "squeue.json"))
    document["jobs"] = document["jobs"][:2]
    document["jobs"][0] |= change
    read = parse_jobs(json.dumps(document))

    assert [job.number for job in read.records] == [2]
    (sentence,) = read.faults
    assert sentence.startswith("Slurm's record of job 1 is left out: ")
    assert fault in sentence


def test_a_missing_field_leaves_out_its_job() -> None:
    """A later dialect may have renamed it."""
    document = json.loads(recorded("26.05", "squeue.json"))
    del document["jobs"][0]["licenses"]

    assert parse_jobs(json.dumps(document)).faults == ("Slurm's record of job 1 is left out: licenses is missing.",)
