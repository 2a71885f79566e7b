# SPDX-License-Identifier: Apache-2.0
"""`drom workload` as scripts see it: files, streams, exit codes."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from drom.workloads.swf import read_swf, write_swf

from tests.support import commands
from tests.support.commands import commands_of, run_lines
from tests.support.job_logs import real_log, same, synthetic
from tests.support.paths import ROOT
from tests.workloads.formats.test_sacct import LOG as SLURM

if TYPE_CHECKING:
    from pathlib import Path


def drom(*arguments: str | Path, code: int = 0) -> tuple[str, str]:
    """Run `drom workload` and return what it says on stdout and stderr."""
    return commands.drom("workload", *arguments, code=code)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a small log."""
    write_swf(synthetic(), tmp_path / "log.swf.gz")
    return tmp_path / "log.swf.gz"


def test_info_for_people(log: Path) -> None:
    """What it is, its numbers, and what cleaning would do."""
    out, _ = drom("info", log)

    lines = out.splitlines()
    assert lines[0] == f"{log}: 200 jobs, 4 comment lines"
    assert "  Computer: a test" in lines
    assert any(re.match(r"machine: 64 processors \(MaxProcs of the log\), load \d+\.\d%$", line) for line in lines)
    assert lines[-2:] == ["Cleaning keeps 200 of 200 jobs:", "  nothing to clean"]


def test_info_as_json(log: Path) -> None:
    """One value with a version; the machine can be given."""
    out, errors = drom("info", log, "--json", "--nodes", "32", "--cores", "4")
    value = json.loads(out)

    assert (value["schema_version"], value["jobs"], value["machine"]["processors"], errors) == (1, 200, 128, "")


def test_info_of_jobs_larger_than_the_machine(log: Path) -> None:
    """What cleaning would do to them, as a simulation does."""
    refused, _ = drom("info", log, "--nodes", "16", "--cores", "2")
    left, _ = drom("info", log, "--nodes", "32", "--rule", "larger=drop")

    assert "Cleaning rejects the log: choose another rule, or correct the log:" in refused.splitlines()
    assert re.search(r"\n  \d+ jobs larger than the machine: refused\n", refused)
    assert re.search(r"Cleaning keeps 1\d\d of 200 jobs:\n  \d+ jobs larger than the machine: left out\n", left)


def test_filter_combines_conditions(log: Path, tmp_path: Path) -> None:
    """The jobs that meet all of them, from 0 on, and a comment that says so."""
    _, errors = drom(
        *("filter", log, "-o", tmp_path / "part.swf", "--where", "processors<=8", "--where", "run_time>100"),
        *("--jobs", "10-150", "--from", "100", "--first", "20", "--shift"),
    )
    part = read_swf(tmp_path / "part.swf")

    assert errors == f"20 jobs written to {tmp_path / 'part.swf'}\n"
    assert part.submit[0] == 0
    assert part.processors.max() <= 8
    assert part.run_time.min() > 100
    assert set(part.job.tolist()) <= set(range(10, 151))
    assert part.comments[-1].endswith("first=20 shift=True: 20 of 200 jobs")


def test_filter_merges_and_scales(log: Path, tmp_path: Path) -> None:
    """Two logs, arrivals twice as close."""
    drom("filter", log, log, "-o", tmp_path / "both.swf", "--scale-arrivals", "0.5")
    both, one = read_swf(tmp_path / "both.swf"), read_swf(log)

    assert len(both) == 400
    assert both.submit.max() - both.submit.min() == pytest.approx((one.submit.max() - one.submit.min()) / 2, abs=1)


def test_filter_cleans_and_tells(log: Path, tmp_path: Path) -> None:
    """What the rules did is said, and what is written is clean."""
    rough = read_swf(log)
    run_time = rough.run_time.copy()
    run_time[:3] = 0
    write_swf(rough.with_columns(run_time=run_time), log)
    _, errors = drom("filter", log, "-o", tmp_path / "c.swf", "--clean", "--rule", "zero_run_time=drop")

    assert errors.splitlines() == ["3 jobs with run time 0: left out", f"197 jobs written to {tmp_path / 'c.swf'}"]


def test_convert_there_and_back(log: Path, tmp_path: Path) -> None:
    """Through a plain log the comments stay."""
    drom("convert", log, tmp_path / "plain.swf")
    drom("convert", log, tmp_path / "table.csv")

    assert same(read_swf(tmp_path / "plain.swf"), synthetic())
    assert (tmp_path / "table.csv").read_text().startswith("job,submit,wait,run_time,allocated,")


def test_convert_from_slurm(tmp_path: Path) -> None:
    """Without a file SWF goes to the standard output; what is left out is said; names may be left out too."""
    (tmp_path / "slurm.txt").write_text(SLURM)
    out, errors = drom("convert", "--from", "sacct", tmp_path / "slurm.txt", "--zone", "Europe/Berlin")
    plain, _ = drom("convert", tmp_path / "slurm.txt", "--anonymise", "--seed", "3")

    assert errors.splitlines() == [
        "left out: 2 jobs that had not started or not ended",
        "4 jobs written to /dev/stdout",
    ]
    assert "; TimeZone: 3600\n" in out
    assert "; User: 1 ann\n" in out
    assert "ann" not in plain
    assert [line.split()[11] for line in out.splitlines() if line[0] != ";"] == ["1", "2", "1", "1"]


def test_a_simulation_reads_logs_of_other_systems(tmp_path: Path) -> None:
    """They are recognised by their content."""
    (tmp_path / "slurm.txt").write_text(SLURM)
    out, _ = commands.drom("simulate", tmp_path / "slurm.txt", "--nodes", "8", "--policy", "fcfs")

    assert out.startswith("4 jobs of ")


def test_make_and_plot(tmp_path: Path) -> None:
    """A model's jobs, and a picture of them."""
    drom("make", "cirne-like", "--jobs", "50", "--nodes", "16", "--largest", "8", "-o", tmp_path / "m.swf.gz", "--mix")
    drom("plot", tmp_path / "m.swf.gz", "-o", tmp_path / "m.png")

    assert read_swf(tmp_path / "m.swf.gz").processors.max() <= 8
    assert (tmp_path / "m.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["info", "nothing.swf"], "drom: nothing.swf: No such file or directory: check its name."),
        (["info", "README.md"], "drom: README.md, line 1, field 1 (job number): '#' is not a number: is this a wor"),
        (["info", "."], "drom: .: Is a directory: name a file."),
        (["info", "LOG", "--rule", "x"], "drom: 'x' is not a cleaning rule: write NAME=CHOICE, where NAME is status, "),
        (["filter", "LOG", "-o", "O", "--where", "size>1"], "drom: The condition 'size>1' asks for 'size', which no j"),
        (["filter", "LOG", "-o", "O", "--where", "job<0"], "drom: No job of LOG is left: nothing is written."),
        (["filter", "LOG", "-o", "O", "--clean", "--nodes", "2"], "drom: LOG, line 6: job 2: the rule larger refuses "),
        (["make", "downey", "-o", "O"], "drom: There is no model 'downey' with 'model' estimates: choose a model of "),
        (
            ["convert", "LOG", "O", "--from", "lsf"],
            "drom: There is no format 'lsf' to read: choose swf, csv, sacct, pbs",
        ),
        (["convert", "LOG", "O", "--to", "pbs"], "drom: There is no format 'pbs' to write: choose swf, csv, batsim, "),
        (["convert", "LOG", "/dev/full"], "drom: the system refuses what drom needs (No space left on device): "),
        (["convert", "LOG", "/nonexistent/x.swf"], "drom: /nonexistent/"),
        (["plot", "LOG", "-o", "x.bmp"], "drom: 'x.bmp' is not a picture: end the name in .png or .svg."),
    ],
)
def test_failures_are_one_sentence(log: Path, tmp_path: Path, arguments: list[str], sentence: str) -> None:
    """Exit 1, nothing on stdout, nothing written."""
    names = {"LOG": str(log), "O": str(tmp_path / "out.swf")}
    out, errors = drom(*(names.get(word, word) for word in arguments), code=1)

    assert out == ""
    assert errors.count("\n") == 1
    assert re.sub(r"line \d+: job \d+", "line 6: job 2", errors.replace(str(log), "LOG")).startswith(sentence)
    assert not (tmp_path / "out.swf").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        *(["filter", "LOG"], ["make"], ["filter", "LOG", "-o", "O", "--rule", "overrun=keep"]),
        *(["filter", "LOG", "-o", "O", *more] for more in (["--nodes", "64"], ["--cores", "2"])),
        *(["info", "LOG", "--cores", "2"], ["plot", "LOG", "-o", "O", "--cores", "2"]),
    ],
)
def test_wrong_use(log: Path, tmp_path: Path, arguments: list[str]) -> None:
    """Exit 2."""
    names = {"LOG": str(log), "O": str(tmp_path / "out.png")}
    drom(*(names.get(word, word) for word in arguments), code=2)


def test_the_command_line_loads_without_numpy() -> None:
    """Only a command that needs it imports it."""
    code = (
        "import sys; from drom.app import command_line; command_line(); "
        "print([m for m in ('numpy', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def test_on_a_terminal_a_short_read_is_silent(log: Path) -> None:
    """Progress is for what takes long."""
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "drom", "workload", "info", str(log)]
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=terminal, check=True)
    os.write(terminal, b"end\n")

    assert os.read(controller, 1000) == b"end\r\n"
    os.close(terminal)
    os.close(controller)


def test_the_commands_of_the_guide_work(tmp_path: Path) -> None:
    """Its shell blocks run one after the other in an empty folder."""
    lines = commands_of("docs/workloads.md")
    run_lines(lines, tmp_path)

    assert len(lines) >= 3


@pytest.mark.parametrize(
    "name",
    [
        *("CEA-Curie-2011-primary", "RICC-2010-2", "RICC-2010-sept-10000", "KTH-SP2-1996-2.1-cln", "KTH-SP2-pyss-easy"),
        *("CTC-SP2-1996-3.1-cln", "SDSC-BLUE-2000-4.2-cln", "HPC2N-2002-2.2-cln", "NASA-iPSC-1993-3-truncated"),
    ],
)
def test_info_of_real_logs(name: str) -> None:
    """Every log of the archive that we have can be inspected, and keeps all its jobs."""
    out, errors = drom("info", real_log(f"{name}.swf.gz"), "--json")
    report = json.loads(out)["cleaning"]

    assert errors == ""
    assert report["jobs_out"] == report["jobs_in"]
