# SPDX-License-Identifier: Apache-2.0
"""`drom simulate` and `drom compare` as scripts see them: files, streams, exit codes."""

from __future__ import annotations

import base64
import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from unittest.mock import Mock

import numpy as np
import pytest
from drom.agent.system.numba_cache import cache_folder
from drom.scheduler.analysis.comparison import number
from drom.scheduler.analysis.metrics import COUNTS
from drom.scheduler.analysis.results import load_schedule
from drom.scheduler.engine.compiler import _engine_files, _policy_files, announcement, load_policy
from drom.scheduler.errors import SchedulerError
from drom.workloads.swf import read_swf, write_swf

from drom import app
from tests.support.commands import drom
from tests.support.job_logs import synthetic
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a small log."""
    write_swf(synthetic(), tmp_path / "log.swf.gz")
    return tmp_path / "log.swf.gz"


def test_results(log: Path, tmp_path: Path) -> None:
    """A row per job with whole numbers, the schedule as a log, and a summary that says what it is of."""
    drom("simulate", log, "--nodes", "16", "--cores", "4", "--policy", "easy", "--out", tmp_path / "r")
    rows = list(csv.DictReader((tmp_path / "r" / "jobs.csv").read_text(encoding="utf-8").splitlines()))
    told = json.loads((tmp_path / "r" / "summary.json").read_text(encoding="utf-8"))
    schedule = read_swf(tmp_path / "r" / "schedule.swf.gz")

    assert list(rows[0])[:6] == ["job_id", "submit", "start", "end", "nodes", "cores"]
    assert len(rows) == 200
    assert all(int(row["nodes"]) == -(-int(row["cores"]) // 4) for row in rows)
    assert [int(row["wait"]) for row in rows] == schedule.wait.tolist()
    assert told["complete"]
    assert told["classes"] == {"rigid": 0, "moldable": 0, "malleable": 200}
    assert [told["metrics"][key] for key in COUNTS] == [0, 0, 0]
    assert told["jobs"]["ended"] == told["cleaning"]["jobs_out"] == 200
    last = max(int(row["end"]) for row in rows)
    assert told["metrics"]["makespan_s"] == last - int(rows[0]["submit"])
    busy = sum(int(row["nodes"]) * int(row["run_time"]) for row in rows)
    assert told["metrics"]["energy_joule"] == 100 * 16 * told["metrics"]["makespan_s"] + 200 * busy


def test_the_table_as_parquet(log: Path, tmp_path: Path) -> None:
    """The columns of jobs.csv with their values, whole numbers as such."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    drom("simulate", log, "--nodes", "16", "--cores", "4", "--out", tmp_path / "r")
    table = parquet.read_table(tmp_path / "r" / "jobs.parquet")
    rows = list(csv.reader((tmp_path / "r" / "jobs.csv").read_text(encoding="utf-8").splitlines()))

    assert table.column_names == rows[0]
    assert [[str(value) for value in row.values()] for row in table.to_pylist()] == rows[1:]
    assert str(table.schema.field("start").type) == "int64"


def test_the_table_as_parquet_needs_no_pandas(log: Path, tmp_path: Path) -> None:
    """Pyarrow would import pandas to convert arrays, which takes longer than the simulation."""
    pytest.importorskip("pyarrow", reason="needs pyarrow")
    code = (
        "import sys; from drom.app import run_app\ntry: run_app()\nexcept SystemExit as end: print(end.code)\n"
        "print({'pyarrow', 'pandas'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code, "simulate", str(log), "--nodes", "64", "--out", str(tmp_path / "r")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-2:] == ["0", "{'pyarrow'}"]


def test_without_pyarrow(log: Path, tmp_path: Path) -> None:
    """All but the Parquet file is written, and a sentence says how to have it; an older one does not stay."""
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "jobs.parquet").touch()
    code = "import sys; sys.modules['pyarrow'] = None; from drom.app import run_app; run_app()"
    command = [sys.executable, "-c", code, "simulate", str(log), "--nodes", "64", "--out", str(tmp_path / "r")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.stderr == "note: jobs.parquet is not written: run pip install 'drom[parquet]'.\n"
    assert {file.name for file in (tmp_path / "r").iterdir()} == {"jobs.csv", "schedule.swf.gz", "summary.json"}


def test_pictures(log: Path, tmp_path: Path) -> None:
    """Four of them, beside the tables, of the kind that was asked for; the chart of the time that was."""
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    options = ("--nodes", "64", "--out", tmp_path, "--plots", "svg", "--gantt", "600-4200")
    drom("simulate", log, *options)
    pictures = {name: (tmp_path / f"{name}.svg").read_text() for name in ("gantt", "load", "days", "heatmaps")}

    assert all("<svg" in picture for picture in pictures.values())
    assert "easy: 64 nodes, from second 600 to 4,200 of the log" in pictures["gantt"]
    assert "Mean slowdown; below: jobs" in pictures["heatmaps"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--plots", "bmp", "--out", "r"), "--plots bmp: choose png, svg, pdf"),
        (("--plots", "png"), "--plots needs --out, the folder for the pictures"),
        (("--gantt", "9-3"), "--gantt takes two seconds of the log, the earlier first: write for example 86400-172800"),
        (("--gantt", "3-9"), "--gantt needs --plots: it sets the part of the log in the Gantt chart"),
    ],
)
def test_wrong_usage(log: Path, arguments: tuple[str, ...], sentence: str) -> None:
    """Exit code 2 before anything is simulated."""
    out, errors = drom("simulate", log, "--nodes", "64", *arguments, code=2)

    assert (out, errors) == ("", f"drom: Invalid value: {sentence}: see `drom simulate --help`.\n")


def test_stopped_and_resumed(log: Path, tmp_path: Path) -> None:
    """The same jobs.csv as in one go; what stops early is marked as partial."""
    common = ("simulate", log, "--nodes", "64", "--policy", "conservative")
    drom(*common, "--out", tmp_path / "whole")
    out, _ = drom(*common, "--until", "9000", "--save", tmp_path / "saved", "--out", tmp_path / "part")
    drom(*common, "--resume", tmp_path / "saved", "--out", tmp_path / "resumed")
    part = json.loads((tmp_path / "part" / "summary.json").read_text(encoding="utf-8"))

    assert "partial (until 9000 s)" in out
    assert (part["complete"], part["stopped"]) == (False, "until 9000 s")
    assert (
        "; Note: a partial schedule: -1 for what has not happened"
        in read_swf(tmp_path / "part/schedule.swf.gz").comments
    )
    assert (tmp_path / "whole/jobs.csv").read_bytes() == (tmp_path / "resumed/jobs.csv").read_bytes()
    _, errors = drom("simulate", log, "--nodes", "64", "--policy", "easy", "--resume", tmp_path / "saved", code=1)
    assert "was saved with policy conservative, not easy" in errors
    _, errors = drom(*common, "--classes", "malleable=0.5", "--resume", tmp_path / "saved", code=1)
    assert "was saved with job classes" in errors


def test_partitions(tmp_path: Path) -> None:
    """Jobs of a partition are on its nodes only; a partition without jobs is told."""
    jobs = synthetic()
    write_swf(jobs.with_columns(partition=1 + jobs.job % 2), tmp_path / "log.swf")
    options = ("--policy", "sd", "--set", "reservations=nodes", "--partition", "1=0-63", "--partition", "3=64-70")
    machine = ("--nodes", "80", "--cores", "4")
    _, told = drom("simulate", tmp_path / "log.swf", *machine, *options, "--out", tmp_path / "r")
    rows = list(csv.DictReader((tmp_path / "r" / "jobs.csv").read_text(encoding="utf-8").splitlines()))
    last = [int(re.findall(r"\d+", row["node_list"])[-1]) for row in rows if int(row["job_id"]) % 2 == 0]

    assert "note: no job of this log is in partition 3." in told
    assert len(last) == 100
    assert max(last) < 64


@pytest.mark.parametrize("switch", ["mix=1", "mates=3"])
def test_switches_without_a_row_in_the_table(log: Path, tmp_path: Path, switch: str) -> None:
    """All jobs end, some as guests."""
    machine = ("--nodes", "16", "--cores", "4")
    drom("simulate", log, *machine, "--policy", "sd", "--set", switch, "--out", tmp_path / "r")
    told = json.loads((tmp_path / "r" / "summary.json").read_text(encoding="utf-8"))

    assert told["complete"]
    assert told["metrics"]["malleable_starts"] > 0


def test_the_first_run_says_that_it_compiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is compiled and that it is kept, before it takes long; nothing once it is there."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    policy = load_policy("fcfs")
    before = announcement(policy)
    for name, files in (("engine", _engine_files()), ("policy", _policy_files(policy.decide, policy.file))):
        folder = cache_folder(name, files)
        assert folder is not None
        (folder / "code.nbc").touch()

    assert before == ("compiling the simulator and the policy fcfs, which may take a minute: the result is cached.")
    assert announcement(policy) == ""


def test_a_log_that_is_not_there() -> None:
    """File and reason."""
    said = drom("simulate", "none.swf", "--nodes", "4", code=1)[1]
    assert said == "drom: none.swf: No such file or directory: check its name.\n"


def test_fractions_are_told(tmp_path: Path) -> None:
    """Seconds are whole: what reading rounds is counted on stderr and in the summary."""
    (tmp_path / "log.swf").write_text("1 0.4 -1 9.6 1 -1 -1 1 20 -1 1 1 1 1 1 -1 -1 -1\n", encoding="ascii")
    out, told = drom("simulate", tmp_path / "log.swf", "--nodes", "1", "--json", compiled=False)

    assert "note: 1 fraction of run_time rounded to whole numbers.\n" in told
    assert json.loads(out)["cleaning"]["rounded"] == {"submit": 1, "run_time": 1}


def test_a_policy_in_a_file(log: Path, tmp_path: Path) -> None:
    """A researcher's own, with a parameter, as machine code."""
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from drom.scheduler.interface import NEVER, start\n\nOPTIONS = {'most': 64}\n\n"
        "def decide(state, event, options, actions):\n    free = state.free\n    for job in state.queue:\n"
        "        if state.jobs.nodes[job] <= min(free, options[0]):\n            start(actions, job)\n"
        "            free -= state.jobs.nodes[job]\n    return NEVER\n",
        encoding="utf-8",
    )
    told = json.loads(drom("simulate", log, "--nodes", "64", "--policy", mine, "--json")[0])
    _, errors = drom("simulate", log, "--nodes", "64", "--policy", mine, "--set", "most=32", code=1)

    assert (told["policy"], told["parameters"], told["compiled"]) == ("mine", {"most": 64}, True)
    assert errors.startswith("drom: Policy mine leaves ")


def test_a_policy_that_imports_from_scheduler(log: Path, tmp_path: Path) -> None:
    """A policy file with the former name of the interface works as with the new one, and is told the new one."""
    results = []
    for name, module in (("now", "drom.scheduler.interface"), ("before", "scheduler.interface")):
        mine = tmp_path / f"{name}.py"
        mine.write_text(
            f"from {module} import NEVER, start\n\n\n"
            "def decide(state, event, options, actions):\n    free = state.free\n    for job in state.queue:\n"
            "        if state.jobs.nodes[job] > free:\n            return NEVER\n        start(actions, job)\n"
            "        free -= state.jobs.nodes[job]\n    return NEVER\n",
            encoding="utf-8",
        )
        out, errors = drom("simulate", log, "--nodes", "64", "--policy", mine, "--json")
        results.append((json.loads(out)["metrics"], f"{mine} imports from scheduler, which will be removed" in errors))

    assert results[0][0] == results[1][0]
    assert [told for _, told in results] == [False, True]
    assert "scheduler" not in sys.modules


def test_explained(log: Path) -> None:
    """Sentences with the times of the table."""
    out, _ = drom("simulate", log, "--nodes", "64", "--explain", "150", compiled=False)

    assert "Job 150 asks for " in out
    assert ". It was submitted at " in out


def test_compared(log: Path, tmp_path: Path) -> None:
    """Ratios to the first folder."""
    for policy in ("fcfs", "easy"):
        drom("simulate", log, "--nodes", "64", "--policy", policy, "--out", tmp_path / policy, compiled=False)
    told = json.loads(drom("compare", tmp_path / "fcfs", tmp_path / "easy", "--json", compiled=False)[0])
    table, _ = drom("compare", tmp_path / "fcfs", tmp_path / "easy", compiled=False)

    assert [row["ratios"][0] for row in told["figures"]] == [1.0] * 10 + [None] * 3
    assert next(row["ratios"][1] for row in told["figures"] if row["figure"] == "mean_wait_s") < 1
    assert table.splitlines()[0].split() == ["FIGURE", "OF", "THE", "FIRST", "fcfs", "easy"]


def test_losses_are_read_as_gains_are(log: Path) -> None:
    """A large number below 0 is written out, as one above 0 is."""
    told, _ = drom("simulate", log, "--nodes", "64", "--policy", "fcfs", "--contracts", "penalty=1000", compiled=False)

    assert re.search(r"^contracts: payoff +-[\d,]+$", told, re.MULTILINE)
    assert [number(value) for value in (-32880.4, -1.5, 0.25, 32880.4)] == ["-32,880", "-1.5", "0.25", "32,880"]


def test_a_report(log: Path, tmp_path: Path) -> None:
    """One file with every picture in it; what it does not compare like with like it says."""
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    drom("simulate", log, "--nodes", "64", "--out", tmp_path / "a" / "run", compiled=False)
    drom("simulate", log, "--nodes", "65", "--until", "9000", "--out", tmp_path / "b" / "run", compiled=False)
    folders = (tmp_path / "a" / "run", tmp_path / "b" / "run")
    _, errors = drom("compare", *folders, "--html", tmp_path / "report.html", compiled=False)
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))

    assert errors.splitlines() == [
        f"note: {folders[1]} has other jobs or another machine than {folders[0]}.",
        f"note: {folders[1]} is partial (until 9000 s).",
        f"report written to {tmp_path}/report.html",
    ]
    assert len(page.pictures) == 6
    assert all(base64.b64decode(picture)[:4] == b"\x89PNG" for picture in page.pictures)
    assert page.elsewhere == []
    assert page.open == []
    assert page.rows[0] == ["", *map(str, folders)]
    assert page.rows[1][0] == "makespan"
    assert page.rows[16][:2] == ["jobs that ended", "200 of 200"]


class Page(HTMLParser):
    """What is in an HTML file: rows of tables, pictures, what lies elsewhere, and elements that were not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.pictures: list[str] = []
        self.elsewhere: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Open an element."""
        if tag not in {"meta", "img", "br"}:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")
        links = [value or "" for name, value in attrs if name in {"src", "href"}]
        self.pictures += [link.partition("base64,")[2] for link in links if link.startswith("data:")]
        self.elsewhere += [link for link in links if not link.startswith("data:")]

    def handle_endtag(self, tag: str) -> None:
        """Close the element that was opened last."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Keep the text of cells."""
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def test_a_report_that_cannot_be_written(log: Path, tmp_path: Path) -> None:
    """The table comes nevertheless."""
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    drom("simulate", log, "--nodes", "64", "--out", tmp_path / "r", compiled=False)
    out, errors = drom("compare", tmp_path / "r", "--html", tmp_path / "none" / "r.html", code=1)

    assert out.startswith("FIGURE")
    assert errors.startswith(f"drom: The report {tmp_path}/none/r.html cannot be written: No such file or directory")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--nodes", "8"), "larger than the machine"),
        (("--nodes", "64", "--policy", "nope"), "'nope' is not a policy: choose fcfs, easy, conservative, slurm,"),
        (("--nodes", "64", "--policy", "none.py"), "There is no policy file none.py"),
        (("--nodes", "64", "--event-rule", "x"), "'x' is not a known event rule: choose instant, pyss, cqsim."),
        (("--nodes", "64", "--runtime-model", "x"), "'x' is not a known runtime model: choose ideal, worst."),
        (("--nodes", "64", "--out", "README.md"), "README.md cannot hold results: File exists: name another folder"),
        (("--nodes", "64", "--resume", "README.md"), "README.md is not a saved simulation of this version"),
        (("--nodes", "64", "--partition", "2=0-7"), "The policy easy counts nodes: partitions need slurm or sd with"),
        (("--nodes", "64", "--set", "a=1"), "'a=1': the policy easy has no parameter 'a': it has none."),
        (("--nodes", "64", "--save", "s.gz"), "saved to s.gz: its format is not gzip: name another file with --save."),
        (
            ("--nodes", "64", "--policy", "equipartition", "--event-rule", "pyss"),
            "Under the pyss rule no policy is called for a job that does not fit, and equipartition shrinks jobs for",
        ),
        (
            ("--nodes", "64", "--cores", "4", "--policy", "sd", "--set", "guests=1000000"),
            "A node of 4 cores has no room for 1,000,000 guests: set fewer guests, or more --cores.",
        ),
    ],
)
def test_one_sentence_for_what_is_wrong(log: Path, arguments: tuple[str, ...], sentence: str) -> None:
    """With exit code 1 and no traceback."""
    out, errors = drom("simulate", log, *arguments, code=1)

    assert sentence in errors
    assert (out, errors.count("\n")) == ("", 1)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--explain", "777"), "There is no job 777 among those simulated"),
        (("--save", "none/saved"), "The simulation cannot be saved to none/saved: No such file or directory"),
    ],
)
def test_what_cannot_be_said_or_kept_is_known_before(
    log: Path, tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    """Not after hours: the policy, which would end the simulation at once, is not called."""
    bad = tmp_path / "bad.py"
    bad.write_text("def decide(state, event, options, actions):\n    return state.now - 1\n", encoding="utf-8")
    _, errors = drom("simulate", log, "--nodes", "64", "--policy", bad, *arguments, code=1)

    assert sentence in errors


@pytest.mark.parametrize("name", ["cp", "payoff", "fcfs"])
def test_a_file_with_the_name_of_a_policy_of_drom(log: Path, tmp_path: Path, name: str) -> None:
    """Is the user's own, and nothing is supposed of it."""
    mine = tmp_path / f"{name}.py"
    mine.write_text((ROOT / "scheduler" / "policies" / "easy.py").read_text(encoding="utf-8"), encoding="utf-8")
    words = ("simulate", log, "--nodes", "64", "--policy", mine, "--predict", "recent", "--json")
    out, errors = drom(*words, compiled=False)
    told = json.loads(out)

    assert errors == ""
    assert (told["policy"], told["complete"], told["predictions"]["by"]) == (name, True, "recent")


@pytest.mark.parametrize(
    ("options", "note"),
    [
        (
            ("--policy", "easy", "--classes", "malleable=0.5"),
            "easy gives all jobs what they request: --classes has no effect",
        ),
        (
            ("--policy", "slurm", "--runtime-model", "ideal"),
            "under slurm no jobs share a node: --runtime-model has no effect",
        ),
        (("--policy", "f1", "--runtime-model", "ideal"), "under f1 no jobs share a node"),
        (("--policy", "equipartition", "--runtime-model", "ideal"), "under equipartition no jobs share a node"),
        (("--policy", "sd", "--cores", "2", "--event-rule", "pyss"), "under the pyss rule sd is not called for a job"),
        (("--policy", "sd", "--cores", "2", "--classes", "malleable=0.5", "--runtime-model", "ideal"), ""),
        (("--policy", "equipartition", "--classes", "malleable=0.5"), ""),
    ],
)
def test_options_that_change_nothing(log: Path, options: tuple[str, ...], note: str) -> None:
    """Are named, with why; others are not."""
    _, errors = drom("simulate", log, "--nodes", "64", *options, compiled=False)

    assert errors.startswith(f"note: {note}" if note else "")
    assert errors.count("\n") == bool(note)


def test_without_enough_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence, whatever the command."""
    monkeypatch.setattr(app, "command_line", Mock(side_effect=MemoryError))

    with pytest.raises(SystemExit, match=r"^drom: There is not enough memory for this request: request less"):
        app.run_app()


def test_pictures_of_another_run(log: Path, tmp_path: Path) -> None:
    """Do not stay beside results that they do not show; other files do."""
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    (tmp_path / "own.png").touch()
    drom("simulate", log, "--nodes", "64", "--plots", "svg", "--out", tmp_path, compiled=False)
    drawn = {file.name for file in tmp_path.glob("*.svg")}
    drom("simulate", log, "--nodes", "64", "--policy", "fcfs", "--out", tmp_path, compiled=False)

    assert drawn == {"gantt.svg", "load.svg", "days.svg", "heatmaps.svg"}
    assert not list(tmp_path.glob("*.svg"))
    assert (tmp_path / "own.png").exists()


def test_what_is_no_policy(log: Path, tmp_path: Path) -> None:
    """A file without the function, one that cannot be loaded, one that numba cannot compile, one that raises."""
    decide = "from drom.scheduler.interface import start\ndef decide(state, event, options, actions):\n    "
    texts = {
        "decide = 3": "does not contain a policy: write in it a function decide(state, event, options, actions), "
        "or score(state, job, options).",
        "def score(job): return 1": "does not contain a policy: write in it a function decide(",
        "def score(state, job, options): return 'x'": "numba cannot compile the policy",
        "import nothing_such": "cannot be loaded: ModuleNotFoundError: No module named 'nothing_such'.",
        decide + "return print": "bad.py, line 3: No conversion from Function",
        decide + "import os\n    return 9": "bad.py, line 3: Use of unsupported opcode (IMPORT_NAME)",
        decide + "start(actions)\n    return 9": "bad.py, line 3: TypingError: Cannot bind",
        decide + "return state.queue[99]": "s: IndexError: index is out of bounds: set NUMBA_DISABLE_JIT=1 to see",
        decide + "raise ValueError('never')": "s: ValueError: never: set NUMBA_DISABLE_JIT=1 to see the line.",
    }
    for text, sentence in texts.items():  # Python keeps a module compiled that has its size and second: no two do
        (tmp_path / "bad.py").write_text(text, encoding="utf-8")
        _, errors = drom("simulate", log, "--nodes", "64", "--policy", tmp_path / "bad.py", code=1)
        assert sentence in errors
        assert errors.count("\n") == 1


def test_an_error_in_plain_python(log: Path, tmp_path: Path) -> None:
    """Is a sentence too, with its line."""
    bad = tmp_path / "bad.py"
    bad.write_text("def decide(a, b, c, d):\n    return a.queue[99]", encoding="utf-8")
    command = [sys.executable, "-m", "drom", "simulate", str(log), "--nodes", "64", "--policy", str(bad)]
    plain = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(command, cwd=ROOT, env=plain, capture_output=True, text=True, check=False)

    assert re.fullmatch(rf"drom: Policy bad, at \d+ s: IndexError: .* \({bad}, line 2\)\.\n", done.stderr), done.stderr


def test_a_full_disk(log: Path, tmp_path: Path) -> None:
    """What could not be written whole is not there, and nothing says that it is complete."""
    limited = f"ulimit -f 1; trap '' XFSZ; exec {sys.executable} -m drom simulate {log} --nodes 64 --out {tmp_path}/r"
    # Compiled code would be cached, in files that are larger than the limit too.
    plain = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(["bash", "-c", limited], cwd=ROOT, env=plain, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr.startswith(f"drom: The results cannot be written to {tmp_path}/r: File too large: ")
    assert list((tmp_path / "r").iterdir()) == []


def test_a_folder_without_results(tmp_path: Path) -> None:
    """Named in the sentence; likewise those of another version, and a table that somebody has changed."""
    _, errors = drom("compare", tmp_path, code=1)
    (tmp_path / "summary.json").write_text('{"schema_version": 1}', encoding="utf-8")
    _, others = drom("compare", tmp_path, code=1)

    assert errors == f"drom: {tmp_path} holds no results: name a folder that drom simulate --out has written.\n"
    assert others == (
        f"drom: {tmp_path} holds results of another version of drom: simulate again with --out {tmp_path}.\n"
    )


@pytest.mark.parametrize("change", ["end,nodes", "0,", "ended", "\n"])
def test_a_table_that_was_changed(log: Path, tmp_path: Path, change: str) -> None:
    """Is refused with a sentence, whatever is missing of it."""
    drom("simulate", log, "--nodes", "64", "--out", tmp_path, compiled=False)
    table = tmp_path / "jobs.csv"
    table.write_text(table.read_text(encoding="utf-8").replace(change, "", 1), encoding="utf-8")

    with pytest.raises(SchedulerError, match=r"jobs\.csv is not in the format of drom simulate: simulate again"):
        load_schedule(tmp_path)


def test_interrupted(log: Path, tmp_path: Path) -> None:
    """Ctrl-C leaves partial results that say so."""
    ended = interrupted(log, tmp_path, "begun.touch()\n    return state.now + 1")
    told = json.loads((tmp_path / "r" / "summary.json").read_text(encoding="utf-8"))

    assert ended == (130, "drom: interrupted: the results are partial, and marked so.\n")
    assert (told["complete"], told["stopped"]) == (False, "interrupted")


def test_interrupted_under_a_slow_policy(log: Path, tmp_path: Path) -> None:
    """Ctrl-C is checked after each long call, not after thousands of calls."""
    code, errors = interrupted(log, tmp_path, "begun.touch()\n    time.sleep(0.5)\n    return state.now + 1")

    assert (code, errors) == (130, "drom: interrupted: the results are partial, and marked so.\n")


def test_interrupted_twice(log: Path, tmp_path: Path) -> None:
    """The second Ctrl-C ends a call that never ends, without results."""
    code, errors = interrupted(log, tmp_path, "begun.touch()\n    while True:\n        pass", times=2)

    assert (code, errors) == (130, "drom: interrupted twice: nothing is written.\n")
    assert list((tmp_path / "r").iterdir()) == []


def test_interrupted_beside_a_whole_result(log: Path, tmp_path: Path) -> None:
    """When what would be without filling is simulated, the results are whole but for what that would say."""
    first = (
        "if event.kinds == 1 and state.now == state.jobs.submit[0]:\n"
        "        (begun if again.exists() else again).touch()\n"
        "    if begun.exists():\n        time.sleep(0.5)\n"
        "    if len(state.queue) and state.jobs.nodes[state.queue[0]] <= state.free:\n"
        "        start(actions, state.queue[0])\n        return state.now\n    return NEVER"
    )
    few = read_swf(log).take(np.arange(20))
    write_swf(few, log)
    code, errors = interrupted(log, tmp_path, first, "--fill", "--fill-set", "policy=B")
    told = json.loads((tmp_path / "r" / "summary.json").read_text(encoding="utf-8"))

    assert (code, told["complete"], told["jobs"]["ended"]) == (130, True, 20)
    assert errors == "drom: interrupted: the results lack the delays of jobs compared with a run without filling.\n"
    assert (told["filling"]["later_jobs"], told["filling"]["gain"] > 0) == (None, True)


def interrupted(log: Path, tmp_path: Path, body: str, *options: str, times: int = 1) -> tuple[int, str]:
    """Interrupt a simulation in plain Python, once its policy has touched `begun`; return exit code and stderr."""
    mine, begun = tmp_path / "mine.py", tmp_path / "begun"
    mine.write_text(
        "import time\nfrom pathlib import Path\n\nfrom drom.scheduler.interface import NEVER, start\n\n"
        f"begun, again = Path({str(begun)!r}), Path({str(tmp_path / 'again')!r})\n\n"
        f"def decide(state, event, options, actions):\n    {body}\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "drom", "simulate", str(log), "--nodes", "64", "--policy", str(mine), *options]
    with subprocess.Popen(
        [*command, "--out", str(tmp_path / "r")],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
    ) as program:
        try:
            wait_for(begun)
            for _ in range(times):
                program.send_signal(signal.SIGINT)
                time.sleep(0.2)  # two that come at once are one
            return program.wait(30), program.communicate()[1]
        finally:
            program.kill()


def wait_for(path: Path) -> None:
    """Wait until a file is there."""
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} has not come"
        time.sleep(0.01)
