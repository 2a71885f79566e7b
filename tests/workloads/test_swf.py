# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gzip
import os
import stat
import threading
import zlib
from typing import TYPE_CHECKING

import numpy as np
import pytest
from drom.workloads import swf
from drom.workloads.errors import WorkloadError
from drom.workloads.fields import FIELDS
from drom.workloads.swf import read_chunks, read_swf, write_swf
from drom.workloads.workload import make_workload
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.job_logs import real_log, same, synthetic

if TYPE_CHECKING:
    from pathlib import Path

JOB = "7 10 0 100 4 -1 -1 4 200 -1 1 3 1 -1 1 -1 -1 -1"


def changed(field: int, word: str) -> str:
    """Return the line JOB with another word in a field, counted from 1."""
    words = JOB.split()
    words[field - 1] = word
    return " ".join(words)


def fault_of(path: Path, text: bytes) -> str:
    """Return the sentence about a file with this content, without its name."""
    path.write_bytes(text)
    with pytest.raises(WorkloadError) as raised:
        read_swf(path)
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith(str(path))
    return str(raised.value).removeprefix(str(path))


@pytest.mark.parametrize("name", ["log.swf", "log.swf.gz"])
def test_what_is_written_is_read_again(tmp_path: Path, name: str) -> None:
    """Jobs, comments and their order; line numbers count the comments."""
    log = synthetic(500)
    write_swf(log, tmp_path / name)
    again = read_swf(tmp_path / name)

    assert same(log, again)
    assert again.lines.tolist() == list(range(5, 505))
    assert again.place(2) == f"{tmp_path / name}, line 7: job 3"


def test_the_same_jobs_give_the_same_bytes(tmp_path: Path) -> None:
    """Compressed logs carry no time and no name."""
    write_swf(synthetic(), tmp_path / "a.gz")
    write_swf(synthetic(), tmp_path / "b.gz")

    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def test_compression_is_seen_in_the_bytes_not_in_the_name(tmp_path: Path) -> None:
    """A gzip file without the suffix and a plain one with it are both read."""
    write_swf(synthetic(), tmp_path / "a.swf.gz")
    (tmp_path / "packed").write_bytes((tmp_path / "a.swf.gz").read_bytes())
    (tmp_path / "plain.gz").write_bytes(gzip.decompress((tmp_path / "a.swf.gz").read_bytes()))

    assert same(read_swf(tmp_path / "packed"), read_swf(tmp_path / "plain.gz"))


def test_the_length_of_a_piece_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that span pieces come out whole, with their numbers."""
    write_swf(synthetic(), tmp_path / "log")
    whole = read_swf(tmp_path / "log")
    monkeypatch.setattr(swf, "CHUNK_BYTES", 101)
    pieces = list(read_chunks(tmp_path / "log"))
    again = read_swf(tmp_path / "log")

    assert len(pieces) > 50
    assert same(whole, again)
    assert again.lines.tolist() == whole.lines.tolist()


def test_loose_layout_is_read(tmp_path: Path) -> None:
    """Tabs, carriage returns, blank lines, comments between jobs and a missing last line end."""
    path = tmp_path / "log"
    path.write_bytes(f"\r\n{JOB}\r\n  ; between\n\t{JOB.replace(' ', chr(9))}  \n\n{JOB}".encode())
    log = read_swf(path)

    assert log.lines.tolist() == [2, 4, 6]
    assert log.comments == ("; between",)
    assert log.columns()["requested_time"].tolist() == [200] * 3


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r", b"\r\r\n"])
@pytest.mark.parametrize("chunk", [None, 90, 91, 92])
def test_lines_may_end_as_on_any_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: bytes, chunk: int | None
) -> None:
    """Also where a block of the file ends between a carriage return and a line feed; lines are counted alike."""
    if chunk:
        monkeypatch.setattr(swf, "CHUNK_BYTES", chunk)
    path = tmp_path / "log.swf"
    path.write_bytes(end.join([b"; Version: 2.2", JOB.encode(), b"", JOB.encode(), b"; the end", JOB.encode(), b""]))
    log = read_swf(path)

    assert (len(log), log.comments) == (3, ("; Version: 2.2", "; the end"))
    assert log.lines.tolist() == [2, 4, 6]
    path.write_bytes(end.join([JOB.encode(), b"1 2 x"]))
    with pytest.raises(WorkloadError, match=r"line 2"):
        read_swf(path)


def test_fractions_are_rounded_and_counted(tmp_path: Path) -> None:
    """Halves go up; a fraction of nothing is none; each field has its count."""
    path = tmp_path / "log"
    path.write_text("\n".join([changed(6, "1.49"), changed(6, "1.5"), changed(6, "2.00"), changed(4, "7.9")]))
    log = read_swf(path)

    assert log.cpu_time.tolist() == [1, 2, 2, -1]
    assert log.run_time.tolist() == [100, 100, 100, 8]
    assert log.roundings == (("run_time", 1), ("cpu_time", 2))


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (changed(4, "-7"), ", line 6, field 4 (run time): '-7' is negative: -1 stands for unknown."),
        (changed(2, "-1"), ", line 6, field 2 (submit time): '-1' is negative."),
        (changed(2, "9" * 50), f", line 6, field 2 (submit time): {'9' * 37 + '...'!r} is beyond the largest value, "),
        (changed(5, "100000001"), ", line 6, field 5 (allocated processors): '100000001' is beyond the largest value"),
        (changed(11, "6"), ", line 6, field 11 (status): '6' is beyond the largest value, 5."),
        (changed(8, "2.5"), ", line 6, field 8 (requested processors): '2.5' is not a whole number."),
        (changed(9, "1h"), ", line 6, field 9 (requested time): '1h' is not a number."),
        (changed(9, "nan"), ", line 6, field 9 (requested time): 'nan' is not a number."),
        (changed(9, "1-2"), ", line 6, field 9 (requested time): '1-2' is not a number."),
        (changed(9, ".5"), ", line 6, field 9 (requested time): '.5' is not a number."),
        (changed(9, "1.2.3"), ", line 6, field 9 (requested time): '1.2.3' is not a number."),
        (changed(9, "0x10"), ", line 6, field 9 (requested time): '0x10' is not a number."),
        (JOB + " 5", ", line 6: 19 columns where a job has 18."),
        (JOB[:-3], ", line 6: 17 columns where a job has 18."),
        ("4 5\n" + " ".join(JOB.split()[:16]), ", line 6: 2 columns where a job has 18."),
        (JOB + " ; remark", ", line 6: 20 columns where a job has 18."),
    ],
)
def test_a_faulty_line_is_named(tmp_path: Path, line: str, sentence: str) -> None:
    """File, line, field, the word and what is wrong with it."""
    text = f"; Version: 2.2\n{JOB}\n{JOB}\n\n{JOB}\n{line}\n{JOB}"

    assert fault_of(tmp_path / "log", text.encode()).startswith(sentence)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", " contains no job: a line of the Standard Workload Format has 18 numbers."),
        (b"; Version: 2.2\n\n", " contains no job: a line of the Standard Workload Format has 18 numbers."),
        (b'{"jobs": []}\n', ", line 1, field 1 (job number): '{\"jobs\":' is not a number: is this a workload log?"),
        (b"id,submit\n1,2\n", ", line 1, field 1 (job number): 'id,submit' is not a number: is this a workload log?"),
        (b"\x7fELF\x00\x00\n\xff", ", line 1, field 1 (job number): '\\x7fELF\\x00\\x00' is not a number: "),
        (b"1" * 100_000, ", line 1: longer than 65,536 bytes: this is not a log of jobs."),
        (bytes(300_000), ", line 1: longer than 65,536 bytes: this is not a log of jobs."),
    ],
)
def test_foreign_files_are_refused(tmp_path: Path, content: bytes, sentence: str) -> None:
    """One sentence, whatever the bytes are."""
    assert fault_of(tmp_path / "log", content).startswith(sentence)


def test_a_byte_order_mark_is_no_part_of_the_log(tmp_path: Path) -> None:
    """Editors write one before the first line, be it a job or a comment."""
    for first in ("", "; Version: 2.2\n"):
        (tmp_path / "log").write_text(f"{first}{JOB}\n", encoding="utf-8-sig")
        assert read_swf(tmp_path / "log").comments == tuple(filter(None, [first.strip()]))


def test_a_cut_gzip_file_is_told(tmp_path: Path) -> None:
    """What was read before the end is not taken for the whole; the line is the last one that was whole."""
    write_swf(synthetic(20_000), tmp_path / "log.gz")
    packed = (tmp_path / "log.gz").read_bytes()[:-50_000]
    whole = zlib.decompressobj(31).decompress(packed).count(b"\n")

    sentence = f": the compressed data end early, after line {whole}: fetch the file again."
    assert fault_of(tmp_path / "cut.gz", packed) == sentence


def test_a_damaged_gzip_file_is_told(tmp_path: Path) -> None:
    """Neither a wrong checksum nor a broken stream goes unseen."""
    write_swf(synthetic(), tmp_path / "log.gz")
    packed = bytearray((tmp_path / "log.gz").read_bytes())
    packed[-6] ^= 1
    broken = packed[:10] + b"\xff" * 100

    assert ": the compressed data are damaged after line " in fault_of(tmp_path / "checksum.gz", bytes(packed))
    assert ": the compressed data are damaged after line " in fault_of(tmp_path / "stream.gz", bytes(broken))


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    """The system's own error, with the name in it."""
    with pytest.raises(FileNotFoundError, match="nothing"):
        read_swf(tmp_path / "nothing")


def test_a_pipe_is_read(tmp_path: Path) -> None:
    """A log may come from another program."""
    write_swf(synthetic(), tmp_path / "log.gz")
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(
        target=lambda: (tmp_path / "pipe").write_bytes((tmp_path / "log.gz").read_bytes()), daemon=True
    )
    writer.start()
    log = read_swf(tmp_path / "pipe", progress=lambda _: None)
    writer.join()

    assert same(log, synthetic())


def test_progress_counts_the_bytes_of_the_file(tmp_path: Path) -> None:
    """The last call has the size of the compressed file."""
    write_swf(synthetic(), tmp_path / "log.gz")
    seen: list[int] = []
    read_swf(tmp_path / "log.gz", seen.append)

    assert seen[-1] == (tmp_path / "log.gz").stat().st_size


def test_comments_without_a_semicolon_get_one(tmp_path: Path) -> None:
    """A comment line stays a comment; odd bytes in it are kept."""
    log = make_workload({"submit": np.array([0])}, comments=("Computer: x", "; caf\udce9"))
    write_swf(log, tmp_path / "log")

    assert (tmp_path / "log").read_bytes().splitlines()[:2] == [b"; Computer: x", b"; caf\xe9"]
    assert read_swf(tmp_path / "log").comments == ("; Computer: x", "; caf\udce9")


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    """Nothing half-written takes the place of a log, and nothing is left beside it."""
    path = tmp_path / "log"
    path.write_text("old")
    bad = make_workload({"submit": np.array([0])}, comments=("; \ud800",))
    with pytest.raises(UnicodeEncodeError):
        write_swf(bad, path)

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_told() -> None:
    """The error of the system comes through."""
    with pytest.raises(OSError, match="No space left"):
        write_swf(synthetic(20_000), "/dev/full")


def test_permissions_are_those_of_the_file_that_is_replaced(tmp_path: Path) -> None:
    """A private log stays private."""
    path = tmp_path / "log"
    path.touch(mode=0o600)
    write_swf(synthetic(3), path)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_give_jobs_or_a_sentence(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """No other failure, whatever a file holds."""
    path = tmp_path_factory.mktemp("any") / "log"
    path.write_bytes(content)
    with pytest.raises(WorkloadError):
        read_swf(path)


WORDS = st.one_of(
    st.integers(-3, 10**19).map(str),
    st.floats(0, 1e6).map(lambda x: f"{x:.3f}"),
    st.text("0123456789.-", min_size=1, max_size=6),
)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 18), WORDS)
def test_the_fast_and_the_careful_reader_agree(tmp_path_factory: pytest.TempPathFactory, field: int, word: str) -> None:
    """A word is either read as the number it is, or named as faulty."""
    path = tmp_path_factory.mktemp("word") / "log"
    path.write_text(f"{JOB}\n{changed(field, word)}\n")
    fault = swf._fault(word, FIELDS[field - 1])
    if fault:
        with pytest.raises(WorkloadError, match=rf"line 2, field {field} "):
            read_swf(path)
    else:
        read = list(read_swf(path).columns().values())[field - 1][1]
        assert abs(float(word) - read) <= 0.5


@pytest.mark.parametrize(
    ("name", "jobs", "comments"),
    [
        ("CEA-Curie-2011-primary", 198_509, 0),
        ("RICC-2010-2", 447_794, 0),
        ("RICC-2010-sept-10000", 10_000, 0),
        ("KTH-SP2-1996-2.1-cln", 28_476, 24),
        ("CTC-SP2-1996-3.1-cln", 77_222, 29),
        ("SDSC-BLUE-2000-4.2-cln", 243_306, 56),
        ("HPC2N-2002-2.2-cln", 202_871, 31),
        ("KTH-SP2-pyss-easy", 28_481, 10),
        ("NASA-iPSC-1993-3-truncated", 228, 28),
    ],
)
def test_real_logs_are_read_whole(name: str, jobs: int, comments: int) -> None:
    """Every job and every comment of the archive's files is there."""
    log = read_swf(real_log(f"{name}.swf.gz"))

    assert (len(log), len(log.comments)) == (jobs, comments)


@given(columns=st.lists(st.lists(st.integers(-1, 1), min_size=5, max_size=5), min_size=1, max_size=4))
def test_lines_have_every_value(columns: list[list[int]]) -> None:
    """Also of columns whose values are all the same, and beside texts with signs that patterns know."""
    texts = ["%s", "a", "%", "b%d", ""]
    rows = zip(*columns, texts, strict=True)
    found = swf.lines_of([*(np.array(column) for column in columns), np.array(texts, np.object_)], ",")

    assert "".join(found) == "".join(",".join(map(str, row)) + "\n" for row in rows)


def test_lines_of_columns_that_are_all_the_same() -> None:
    """Each row is there."""
    assert "".join(swf.lines_of([np.full(3, 7), np.full(3, -1)], " ")) == "7 -1\n" * 3
