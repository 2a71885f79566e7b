# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import numpy as np
import pytest
from drom.workloads.errors import WorkloadError
from drom.workloads.fields import NAMES
from drom.workloads.logs import read_log, write_log

from tests.support.job_logs import same, synthetic

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz", "log.swf", "log.swf.gz", "log"])
def test_the_name_decides_the_form(tmp_path: Path, name: str) -> None:
    """Whatever it is, the jobs come back; a table has no comments."""
    write_log(synthetic(), tmp_path / name)
    again = read_log(tmp_path / name)

    assert len(again.comments) == (0 if "csv" in name else 4)
    assert all(np.array_equal(getattr(again, field), getattr(synthetic(), field)) for field in NAMES)


def test_columns_by_name(tmp_path: Path) -> None:
    """In any order; what is missing is unknown, jobs are numbered."""
    path = tmp_path / "log.csv"
    path.write_text("run_time, submit\r\n5,0\r\n\r\n-1,7\r\n")
    log = read_log(path)

    assert (log.job.tolist(), log.submit.tolist(), log.run_time.tolist()) == ([1, 2], [0, 7], [5, -1])
    assert set(log.user.tolist()) == {-1}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", ", line 1: each field must occur once, and submit among them: the fields are job, "),
        ("submit,submit\n1,2\n", ", line 1: each field must occur once, "),
        ("submit,length\n1,2\n", ", line 1: 'length' is not a field: the fields are job, submit, "),
        ("submit\n", " contains no job: it has only a line of names."),
        ("submit,wait\n1,2\n3\n", ", line 3: 1 column where the first line has 2."),
        ("submit,wait\n1,soon\n", ", line 2, wait: 'soon' is not a whole number."),
        ("submit,wait\n1,2.5\n", ", line 2, wait: '2.5' is not a whole number."),
        ("submit,wait\n-1,2\n", ", line 2, submit: '-1' is not between 0 and 10,000,000,000."),
        ("submit\n" + "9" * 30, ", line 2, submit: '999999999999999999999999999999' is not a whole number."),
        ("submit\n\udcff\n", " cannot be read as a table: "),
    ],
)
def test_wrong_tables(tmp_path: Path, text: str, sentence: str) -> None:
    """One sentence with file, line and field."""
    path = tmp_path / "log.csv"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(WorkloadError) as raised:
        read_log(path)

    assert str(raised.value).startswith(f"{path}{sentence}")


def test_a_table_that_claims_to_be_compressed(tmp_path: Path) -> None:
    """One sentence."""
    path = tmp_path / "log.csv.gz"
    path.write_text("submit\n1\n")
    with pytest.raises(WorkloadError, match="cannot be read as a table: Not a gzipped file"):
        read_log(path)


def test_a_damaged_table(tmp_path: Path) -> None:
    """One sentence."""
    path = tmp_path / "log.csv.gz"
    packed = bytearray(gzip.compress(b"submit\n1\n"))
    packed[10] = 0xFF
    path.write_bytes(packed)
    with pytest.raises(WorkloadError, match="cannot be read as a table: Error -3 while decompressing data"):
        read_log(path)


@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz"])
def test_a_table_of_a_spreadsheet(tmp_path: Path, name: str) -> None:
    """What Excel calls CSV UTF-8 begins with a byte order mark."""
    text = "submit,run_time\r\n7,5\r\n".encode("utf-8-sig")
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)

    assert read_log(tmp_path / name).submit.tolist() == [7]


def test_a_round_trip_through_a_table_loses_only_comments(tmp_path: Path) -> None:
    """Also when a log is converted there and back."""
    write_log(synthetic(), tmp_path / "a.csv")
    write_log(read_log(tmp_path / "a.csv").with_comments(*synthetic().comments), tmp_path / "b.swf")

    assert same(read_log(tmp_path / "b.swf"), synthetic())
