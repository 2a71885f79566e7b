# SPDX-License-Identifier: Apache-2.0
"""Logs in all formats: how they are recognised, and the bounds within which they are read."""

from __future__ import annotations

import gzip
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from drom.workloads import logs
from drom.workloads.errors import WorkloadError
from drom.workloads.logs import read_log, write_log

from tests.support.job_logs import same, synthetic
from tests.workloads.formats import test_batsim, test_evalys, test_history, test_pbs, test_sacct, test_slurm_json

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES = {
    "sacct": test_sacct.LOG,
    "slurm-json": test_slurm_json.text_of(test_slurm_json.job(7)),
    "pbs": test_pbs.TORQUE,
    "batsim": test_batsim.text_of(test_batsim.JOB),
    "evalys": test_evalys.TABLE,
    "history": test_history.text_of(test_history.JOB),
}


def fault_of(path: Path, **options: Any) -> str:
    """Return the sentence about a log."""
    with pytest.raises(WorkloadError) as raised:
        read_log(path, **options)
    return str(raised.value)


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("packed", [False, True])
def test_the_content_says_what_a_log_is(tmp_path: Path, name: str, packed: bool) -> None:
    """Whatever its name is, plain or gzip, with a byte order mark or without."""
    text = SAMPLES[name].encode()
    (tmp_path / "log").write_bytes(gzip.compress(text) if packed else text)
    (tmp_path / "marked.csv").write_bytes(
        text if name.endswith(("json", "batsim", "history")) else b"\xef\xbb\xbf" + text
    )
    told = read_log(tmp_path / "log", name=name)

    assert same(read_log(tmp_path / "log"), told)
    assert same(read_log(tmp_path / "marked.csv"), told)


def test_a_folder_of_results_is_its_schedule(tmp_path: Path) -> None:
    """As `drom simulate --out` writes it; other folders are refused by the system."""
    write_log(synthetic(), tmp_path / "schedule.swf.gz")

    assert same(read_log(tmp_path), synthetic())
    (tmp_path / "schedule.swf.gz").unlink()
    with pytest.raises(IsADirectoryError):
        read_log(tmp_path)


def test_a_stream_is_read_in_the_format_that_is_named(tmp_path: Path) -> None:
    """A pipe cannot be looked at before it is read."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(test_sacct.LOG,))
    writer.start()
    log = read_log(pipe, name="sacct")
    writer.join()

    assert len(log) == 4


def test_bounds_of_lines_and_of_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is larger is refused before it is read whole."""
    monkeypatch.setattr(logs, "LONGEST_LINE", 300)
    monkeypatch.setattr(logs, "LARGEST_JSON", 100)
    path = tmp_path / "log"
    path.write_text(test_sacct.LOG + "x" * 301)
    assert fault_of(path) == f"{path}, line 11: longer than 300 bytes: this is not a log of jobs."

    path.write_text(SAMPLES["batsim"])
    assert fault_of(path) == f"{path}: more than 100 bytes of JSON: convert it in parts, or use sacct -P."


def test_the_number_of_runs_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is that of the largest synthetic workload."""
    monkeypatch.setattr("drom.workloads.formats.runs.MOST_JOBS", 3)
    (tmp_path / "log").write_text(test_sacct.LOG)

    assert fault_of(tmp_path / "log") == f"{tmp_path / 'log'} has more than 3 runs of jobs: convert it in parts."


def test_damaged_data(tmp_path: Path) -> None:
    """It is one sentence, also if only the end is missing."""
    path = tmp_path / "log"
    path.write_bytes(gzip.compress(test_sacct.LOG.encode())[:-20])
    told = {fault_of(path, name=name) for name in ("sacct", "batsim")}

    assert told == {f"{path}: the compressed data are damaged or end early: fetch the file again."}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"name": "lsf"},
            "There is no format 'lsf' to read: choose swf, csv, sacct, pbs, evalys, slurm-json, batsim, hi",
        ),
        ({"zone": "Mars/Base"}, "There is no time zone 'Mars/Base' here: write one such as Europe/Berlin; "),
        ({"zone": "../../etc/passwd"}, "There is no time zone '../../etc/passwd' here: "),
        ({"zone": "Europe"}, "There is no time zone 'Europe' here: "),
    ],
)
def test_formats_and_zones_that_are_not_there(tmp_path: Path, options: dict[str, str], sentence: str) -> None:
    """The sentence says what there is."""
    (tmp_path / "log").write_text(test_sacct.LOG)

    assert fault_of(tmp_path / "log", **options).startswith(sentence)


def test_a_format_that_is_not_written(tmp_path: Path) -> None:
    """The sentence says which ones are."""
    with pytest.raises(WorkloadError, match="There is no format 'pbs' to write: choose swf, csv, batsim, evalys"):
        write_log(synthetic(), tmp_path / "log", "pbs")
