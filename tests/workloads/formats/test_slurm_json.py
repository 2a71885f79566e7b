# SPDX-License-Identifier: Apache-2.0
"""Logs of Slurm as JSON, in the dialects of its data parsers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from drom.workloads.formats.slurm_json import VERSIONS
from drom.workloads.logs import read_log

from tests.workloads.formats.test_sacct import columns, fault_of, log_of

DATA = Path(__file__).parent / "data"


def counted(number: int, *, is_set: bool = True, infinite: bool = False) -> dict[str, Any]:
    """Return a number as Slurm's JSON has those that may be missing."""
    return {"set": is_set, "infinite": infinite, "number": number}


def job(number: int, **changes: Any) -> dict[str, Any]:
    """Return a job as `sacct --json` prints it, without the keys that nobody needs."""
    about = {
        "account": "physics",
        "array": {"job_id": 0, "task_id": counted(0, is_set=False)},
        "cluster": "hpc",
        "group": "staff",
        "job_id": number,
        "name": "md",
        "partition": "batch",
        "qos": "normal",
        "required": {"CPUs": 8, "memory_per_node": counted(8192)},
        "state": {"current": ["COMPLETED"], "reason": "None"},
        "steps": [
            {"tres": {"requested": {"total": [{"type": "cpu", "count": 9}, {"type": "mem", "count": 8 << 20}]}}},
            {"tres": {"requested": {"total": []}}},
        ],
        "time": {
            "submission": 1772362800 + number,
            "start": 1772362900,
            "end": 1772366500,
            "limit": counted(60),
            "total": {"seconds": 7999, "microseconds": 600000},
        },
        "tres": {
            "allocated": [{"type": "cpu", "count": 8}, {"type": "mem", "count": 16384}],
            "requested": [{"type": "cpu", "count": 8}, {"type": "mem", "count": 16384}],
        },
        "user": "ann",
    }
    return about | {"time": about["time"] | changes.pop("time", {})} | changes


def text_of(*jobs: Any, version: str = VERSIONS[-1]) -> str:
    """Return what `sacct --json` prints about some jobs."""
    plugin = {
        "v0.0.38": {"plugin": {"type": "openapi/dbv0.0.38", "name": "Slurm OpenAPI DB v0.0.38"}},
        "v0.0.39": {"plugins": {"data_parser": "data_parser/v0.0.39"}},
    }.get(version, {"plugin": {"data_parser": f"data_parser/{version}"}})
    return json.dumps({"jobs": jobs, "meta": plugin, "errors": []})


@pytest.mark.parametrize("version", VERSIONS)
def test_jobs_become_lines_of_swf(tmp_path: Path, version: str) -> None:
    """In all versions that are read; numbers may be plain, or missing, states a word or a list."""
    text = text_of(
        job(1),
        job(2, state={"current": "CANCELLED", "reason": ""}, time={"limit": counted(0, infinite=True)}, steps=[]),
        job(3, time={"end": 0}),
        job(4, tres={"allocated": [], "requested": []}),
        job(5, required={"CPUs": counted(16)}, time={"limit": 30, "total": {}}, user=None, association={"user": "bob"}),
        version=version,
    )
    log = log_of(tmp_path / "log.json", text)

    assert columns(log, "job", "submit", "wait", "run_time", "status") == [
        [1, 2, 5],
        [0, 1, 4],
        [99, 98, 95],
        [3600, 3600, 3600],
        [1, 5, 1],
    ]
    assert columns(log, "requested_processors", "requested_time", "cpu_time", "user") == [
        [8, 8, 16],
        [3600, -1, 1800],
        [1000, 1000, -1],
        [1, 1, 2],
    ]
    assert columns(log, "used_memory", "requested_memory") == [[1024, -1, 1024], [2 << 20, 2 << 20, 1 << 20]]
    assert "; Note: left out: 2 jobs that had not started or not ended" in log.comments


def test_both_logs_of_a_real_slurm_have_the_same_jobs() -> None:
    """Of 22.05: an array, failures, a time-out, cancelled and requeued jobs, a heterogeneous one that never ran."""
    names = ("job", "submit", "wait", "run_time", "processors", "cpu_time", "used_memory", "status", "user", "group")
    requests = ("requested_processors", "requested_time", "requested_memory", "partition")
    text, as_json = (read_log(DATA / f"slurm-22.05.{kind}") for kind in ("txt", "json.gz"))
    order = sorted(zip(*columns(text, *names, *requests), strict=True))

    assert order == sorted(zip(*columns(as_json, *names, *requests), strict=True))
    assert [row[:5] for row in order] == [
        (1, 0, 0, 4, 2),
        (2, 0, 0, 1, 1),
        (3, 0, 5, 1, 1),
        (4, 0, 5, 6, 1),
        (5, 0, 5, 3, 1),
        (6, 0, 5, 70, 1),
        (7, 0, 6, 8, 1),
        (11, 0, 105, 1, 1),
        (12, 0, 106, 1, 4),
        (13, 0, 0, 2, 1),
        (14, 0, 3, 2, 1),
        (15, 0, 3, 2, 1),
        (16, 23, 85, 0, 1),
        (16, 23, 262, 4, 1),
    ]
    assert [row[7] for row in order] == [1, 0, 1, 1, 1, 0, 5, 1, 1, 1, 1, 1, 2, 1]
    assert order[0][10:] == (2, 300, 51200, 1)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            text_of(job(1), version="v0.0.51"),
            " is Slurm's JSON 'v0.0.51', and v0.0.38 to v0.0.42 are read: write it with",
        ),
        (
            '{"meta": {"plugin": {"type": "openapi/dbv0.0.37"}}, "jobs": []}',
            " is Slurm's JSON 'v0.0.37', and",
        ),
        ('{"meta": 1, "jobs": []}', " is Slurm's JSON 'without a version', and v0.0.38 to v0.0.42 are read"),
        (text_of(job(1)).replace('"jobs"', '"others"'), " has no list of jobs: write it with sacct --json."),
        (text_of(7), ", jobs[0], job None has no job_id: leave the job out."),
        (text_of(job(1, time={"submission": 0})), ", jobs[0], job 1 has no time.submission: leave the job out."),
        (text_of(job(1, time={"start": "noon"})), ", jobs[0], job 1, time.start: 'noon' is not a number."),
        (text_of(job(1, time={"limit": [1]})), ", jobs[0], job 1, time.limit: '[1]' is not a number."),
        (text_of(job(1, time={"end": 1e400})), ", jobs[0], job 1, time.end: 'inf' is not a number."),
        (text_of(job(1, time={"end": 1772362899})), ", jobs[0], job 1: the job ends 1 s before it starts: "),
        (text_of(job(1))[:-5], " is not JSON: "),
        ("[" * 100_000, ", line 1"),
        ('{"jobs": []}', " is JSON of a format that is not known: choose slurm-json, batsim, history with --from."),
    ],
)
def test_bad_json_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    """It names the file and the job, and the version where it is another."""
    assert fault_of(tmp_path / "log.json", text).startswith(sentence)


def test_deep_json_is_refused(tmp_path: Path) -> None:
    """Also if it is said to be a log."""
    assert fault_of(tmp_path / "log", "[" * 100_000, name="slurm-json").startswith(" is not JSON: maximum recursion")
    assert fault_of(tmp_path / "log", "[]", name="batsim").startswith(" is JSON without a list of jobs: name a log of ")
