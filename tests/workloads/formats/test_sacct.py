# SPDX-License-Identifier: Apache-2.0
"""Logs of Slurm as text, in the forms that sacct(1) documents."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from drom.workloads.errors import WorkloadError
from drom.workloads.logs import read_log
from hypothesis import given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from pathlib import Path

    from drom.workloads.workload import Workload

HEAD = (
    "JobID|JobIDRaw|Cluster|User|Account|Partition|QOS|JobName|State|Submit|Start|End|Timelimit|AllocCPUS|ReqCPUS|NNodes|"
    "ReqMem|MaxRSS|NTasks|TotalCPU"
)
DAY = "2026-03-01"
LOG = f"""{HEAD}
7|7|hpc|ann|physics|batch|normal|md|COMPLETED|{DAY}T12:00:00|{DAY}T12:05:00|{DAY}T13:05:00|1-02:00:00|8|8|2|16G|||08:00:00
7.batch|7.batch|hpc||physics|||batch|COMPLETED|{DAY}T12:05:00|{DAY}T12:05:00|{DAY}T13:05:00||4|4|1||2048K|1|00:10.500
7.extern|7.extern|hpc||physics|||extern|COMPLETED|{DAY}T12:05:00|{DAY}T12:05:00|{DAY}T13:05:00||8|8|2||0|2|00:00:00
7.0|7.0|hpc||physics|||md|COMPLETED|{DAY}T12:05:01|{DAY}T12:05:01|{DAY}T13:05:00||8|8|2||1M|8|07:59:49
9_3|10|hpc|bob|bio|batch|high|blast|TIMEOUT|{DAY}T12:01:00|{DAY}T12:06:00|{DAY}T12:16:00|00:10:00|1|1|1|4000Mc|||
9_[4-6%2]|9|hpc|bob|bio|batch|high|blast|PENDING|{DAY}T12:01:00|Unknown|Unknown|00:10:00|0|1|1|4000Mc|||
11+0|11|hpc|ann|physics|gpu|normal|h|CANCELLED by 7|{DAY}T12:02:00|{DAY}T12:06:00|{DAY}T12:16:00|UNLIMITED|4|4|1|1Gn|||
11+1|12|hpc|ann|physics|batch|normal|h|FAILED|{DAY}T12:02:00|{DAY}T12:06:00|{DAY}T12:16:00|Partition_Limit|4|4|1||||
13|13|hpc|cid|bio|batch|normal|never|CANCELLED|{DAY}T12:03:00|None|{DAY}T12:04:00|01:00:00|0|2|1||||
"""


def log_of(path: Path, text: str, zone: str = "UTC") -> Workload:
    """Return the jobs of a file with this text."""
    path.write_text(text)
    return read_log(path, zone=zone)


def columns(log: Workload, *names: str) -> list[list[int]]:
    """Return some columns as lists."""
    return [getattr(log, name).tolist() for name in names]


def fault_of(path: Path, text: str, **options: Any) -> str:
    """Return the sentence about a file with this text, without its name."""
    path.write_text(text)
    with pytest.raises(WorkloadError) as raised:
        read_log(path, **options)
    assert "\n" not in str(raised.value)
    return str(raised.value).removeprefix(str(path))


def test_jobs_become_lines_of_swf(tmp_path: Path) -> None:
    """Times are from the first submission, names are numbers, memory and CPU time are for a processor."""
    log = log_of(tmp_path / "log", LOG)

    assert columns(log, "job", "submit", "wait", "run_time") == [
        [7, 10, 11, 12],
        [0, 60, 120, 120],
        [300, 300, 240, 240],
        [3600, 600, 600, 600],
    ]
    assert columns(log, "allocated", "requested_processors", "requested_time") == [
        [8, 1, 4, 4],
        [8, 1, 4, 4],
        [93600, 600, -1, -1],
    ]
    assert columns(log, "user", "group", "partition", "queue", "executable") == [
        [1, 2, 1, 1],
        [1, 2, 1, 1],
        [1, 1, 2, 1],
        [1, 2, 1, 1],
        [1, 2, 3, 3],
    ]
    assert log.status.tolist() == [1, 0, 5, 0]
    assert columns(log, "cpu_time", "used_memory", "requested_memory") == [
        [3600, -1, -1, -1],
        [1024, -1, -1, -1],
        [2 << 20, 4000 << 10, 1 << 18, -1],
    ]
    assert log.lines.tolist() == [2, 6, 8, 9]


def test_the_header_says_what_the_numbers_mean(tmp_path: Path) -> None:
    """The date of the first submission, the names of users, groups, queues and partitions, and what was left out."""
    log = log_of(tmp_path / "log", LOG, "Europe/Berlin")

    assert log.comments == (
        "; Version: 2.2",
        "; Conversion: by drom, from sacct",
        "; UnixStartTime: 1772362800",
        "; TimeZone: 3600",
        "; TimeZoneString: Europe/Berlin",
        "; Computer: hpc",
        "; Note: left out: 2 jobs that had not started or not ended",
        *("; User: 1 ann", "; User: 2 bob", "; Group: 1 physics", "; Group: 2 bio"),
        *("; Queue: 1 normal", "; Queue: 2 high", "; Partition: 1 batch", "; Partition: 2 gpu"),
    )
    assert str(log.date()) == "2026-03-01 12:00:00+01:00"


def test_the_steps_count_where_the_job_has_no_cpu_time(tmp_path: Path) -> None:
    """That of all steps is added up."""
    text = LOG.replace("|16G|||08:00:00", "|16G|||")

    assert log_of(tmp_path / "log", text).cpu_time[0] == round((10.5 + 7 * 3600 + 59 * 60 + 49) / 8)


def test_array_tasks_without_raw_numbers_get_numbers_of_their_own(tmp_path: Path) -> None:
    """They are above those of all other jobs."""
    lines = [line.split("|") for line in LOG.splitlines()]
    text = "\n".join("|".join([cells[0], *cells[2:]]) for cells in lines)

    assert log_of(tmp_path / "log", text).job.tolist() == [7, 8, 9, 10]


def test_a_requeued_job_is_one_job(tmp_path: Path) -> None:
    """Its last run counts from the first submission on; earlier runs follow with status 2, which cleaning drops."""
    text = (
        "JobIDRaw|Submit|Start|End|State|NCPUS|MaxRSS\n"
        "7|1000|1010|1030|NODE_FAIL|4|\n"
        "7.batch|1010|1010|1030|FAILED|4|8K\n"
        "8|1005|1011|1012|COMPLETED|1|\n"
        "7|1040|1050|1100|COMPLETED|4|\n"
        "7.batch|1050|1050|1100|COMPLETED|4|4K\n"
    )
    log = log_of(tmp_path / "log", text)

    assert columns(log, "job", "submit", "wait", "run_time", "status", "used_memory") == [
        [7, 7, 8],
        [0, 0, 5],
        [50, 10, 6],
        [50, 20, 1],
        [1, 2, 1],
        [1, 2, -1],
    ]


def test_several_logs_may_follow_each_other(tmp_path: Path) -> None:
    """Lines of names are skipped; jobs of other clusters with the same number stay jobs of their own."""
    head = "Cluster|JobID|Submit|Start|End|State|AllocCPUS|"
    text = f"{head}\na|1|100|100|110|COMPLETED|1|\n{head}\nb|1|105|105|110|COMPLETED|1|\n"
    log = log_of(tmp_path / "log", text)

    assert columns(log, "job", "submit") == [[1, 2], [0, 5]]
    assert "; Computer: a b" in log.comments


def test_times_may_have_a_zone_of_their_own(tmp_path: Path) -> None:
    """As SLURM_TIME_FORMAT may ask for."""
    text = (
        "JobID|Submit|Start|End|State|AllocCPUS\n"
        "1|2026-03-01T12:00:00+0130|2026-03-01T10:30:00Z|2026-03-01 10:30:10-00:00|COMPLETED|1\n"
    )
    log = log_of(tmp_path / "log", text, "Asia/Tokyo")

    assert (log.wait[0], log.run_time[0], log.header_number("UnixStartTime")) == (0, 10, 1772361000)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "AllocCPUS|",
            "Nodes|",
            ", line 1: the column AllocCPUS or NCPUS is missing: write the log with sacct -aPD --fo",
        ),
        ("|End|", "|Ende|", ", line 1: the column End is missing: write the log with sacct -aPD"),
        (
            "|7|hpc|ann",
            "|seven|hpc|ann",
            ", line 2, jobidraw: 'seven' is not the number of a job or a step, such as 7, ",
        ),
        ("|md|COMP", "|m|d|COMP", ", line 2: 21 columns where the first line has 20: omit JobName, Comment and Submit"),
        ("2026-03-01T12:05:00|", "noon|", ", line 2, start: 'noon' is not a time such as 2026-03-01T12:00:00, seconds"),
        (
            "2026-03-01T12:05:00|",
            "2026-02-30T12:05:00|",
            ", line 2, start: '2026-02-30T12:05:00' is not a time such as ",
        ),
        ("2026-03-01T12:00:00|", "Unknown|", ", line 2: the job has no time of submission: leave out the line."),
        ("1-02:00:00", "long", ", line 2, timelimit: 'long' is not a duration such as 2-03:05:00."),
        ("|8|8|2|16G", "|many|8|2|16G", ", line 2, alloccpus: 'many' is not a whole number."),
        ("16G", "16X", ", line 2, reqmem: '16X' is not a size such as 4000M."),
        ("2048K", "2048Q", ", line 3, maxrss: '2048Q' is not a size such as 4000M."),
        ("T13:05:00", "T12:04:00", ", line 2: the job ends 60 s before it starts: correct the line, or leave it out."),
        (
            "|8|8|2|16G",
            "|999999999|8|2|16G",
            ", line 2: the allocated processors 999,999,999 is not between -1 and 100,000",
        ),
    ],
)
def test_a_bad_line_is_one_sentence(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    """It names file, line and column."""
    assert fault_of(tmp_path / "log", LOG.replace(old, new)).startswith(sentence)


def test_a_log_without_jobs_that_have_run(tmp_path: Path) -> None:
    """It is refused."""
    text = "\n".join(line for line in LOG.splitlines() if line == HEAD or "PENDING" in line)

    assert (
        fault_of(tmp_path / "log", text)
        == " contains no job that has run: name a log of sacct with jobs that have ended."
    )


def test_names_cannot_forge_lines(tmp_path: Path) -> None:
    """What is not printable in a name does not reach the header."""
    log = log_of(tmp_path / "log", LOG.replace("|ann|", "|a\rn\tn\x1b\u2028|"))

    assert "; User: 1 a?n?n??" in log.comments


@given(st.text("JobIDRawSubmitndte|0123456789_.+[]:-T\n ", max_size=200))
def test_any_text_is_read_or_refused_with_a_sentence(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Nothing else is raised."""
    path = tmp_path_factory.mktemp("any") / "log"
    path.write_text("JobID|Submit|Start|End|State|NCPUS\n" + text)
    with suppress(WorkloadError):
        read_log(path, name="sacct")
