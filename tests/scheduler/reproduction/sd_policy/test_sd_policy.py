# SPDX-License-Identifier: Apache-2.0
"""`drom reproduce sd-policy`: rows from summaries, logs found or made, and the command as people see it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from drom.scheduler.analysis.results import load, load_schedule
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.errors import SchedulerError
from drom.scheduler.policies import sd
from drom.scheduler.reproduction.sd_policy import outcome, paper, settings
from drom.scheduler.reproduction.sd_policy.classes import Classes, class_rows, day_rows
from drom.scheduler.reproduction.sd_policy.logs import source_of
from drom.scheduler.reproduction.sd_policy.paper import Given
from drom.scheduler.reproduction.sd_policy.tables import CHANGE, Row, figures_1_to_3, lines, table_1, workload_5
from drom.scheduler.simulator.batch import run_all
from drom.workloads.files import json_text
from drom.workloads.making import Recipe
from drom.workloads.swf import read_swf, write_swf

from tests.support.agents import START_SECONDS, wait_until
from tests.support.commands import commands_of, drom, run_lines
from tests.support.job_logs import synthetic
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """Reproduce workloads 4 and 5 once without a log; return the folder, what was told, and what is on stderr."""
    folder = tmp_path_factory.mktemp("sample")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DROM_WORKLOADS", raising=False)
        told, said = drom("reproduce", "sd-policy", "--workload", "4", "--workload", "5", "--out", folder, "--json")
    return folder, json.loads(told), said


def test_rows_are_those_of_the_summaries(sample: tuple[Path, dict[str, Any], str]) -> None:
    """What is printed for static backfilling, for each change and for Figures 7 and 8 comes from summary.json."""
    folder, told, _ = sample
    rows = {(row["place"], row["what"]): row for row in told["workloads"][0]["rows"]}
    names = [setting.name for setting in settings.SETTINGS]
    runs = {name: load(folder / "workload-4" / name)["metrics"] for name in names}
    slow = {name: run["mean_slowdown"] for name, run in runs.items()}

    static = rows["Table 1", "static: slowdown"]
    assert (static["paper"], static["here"]) == (3666.5, slow["static"])
    assert static["deviation"] == pytest.approx(100 * (slow["static"] / 3666.5 - 1))
    slowdowns = sorted(value for name, value in slow.items() if name not in {"static", "dynavgsd-worst"})
    assert rows["Figure 3", "MAXSD 10: place among all settings"]["here"] == 1 + slowdowns.index(slow["maxsd-10"])
    best = rows["Figure 3", "MAXSD 10: slowdown"]
    assert best["here"] == pytest.approx(100 * (slow["maxsd-10"] / slow["static"] - 1))
    assert best["deviation"] == pytest.approx(best["here"] + 70.4)
    worst = rows["Figure 8", "DynAVGSD, worst case to ideal: slowdown"]
    assert worst["here"] == pytest.approx(100 * (slow["dynavgsd-worst"] / slow["dynavgsd"] - 1))
    assert rows["Figure 7", "MAXSD 10: malleable starts"]["here"] == runs["maxsd-10"]["malleable_starts"] > 0
    assert rows["Figure 1", "MAXSD 50: makespan"]["paper"] is None
    assert told["complete"]
    assert told["workloads"][0]["stands_in"]


def test_every_setting_is_its_own(sample: tuple[Path, dict[str, Any], str]) -> None:
    """The folders of results name policy, cut-off and runtime model of their setting."""
    folder, _, _ = sample
    told = {s.name: load(folder / "workload-4" / s.name) for s in settings.SETTINGS}
    cutoffs = {name: one["parameters"].get("max_slowdown") for name, one in told.items()}
    models = {name for name, one in told.items() if one["machine"]["runtime_model"] == "worst"}

    assert [one["policy"] for one in told.values()] == ["slurm", *["sd"] * 6]
    assert len({str(cutoff) for cutoff in cutoffs.values()}) == 6
    assert models == {"static", "dynavgsd-worst"}


def test_pictures_and_report(sample: tuple[Path, dict[str, Any], str]) -> None:
    """Figures 1 to 8 as PNG, all of them and the rows on one page; the JSON file is what was printed."""
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    folder, told, said = sample
    page = (folder / "report.html").read_text(encoding="utf-8")
    pictures = sorted(file.name for file in folder.glob("*.png"))

    names = ("figure-1", "figure-2", "figure-3", "figure-7", "figure-8", "figures-4-to-6")
    assert pictures == [f"{name}.png" for name in names]
    assert page.count("data:image/png;base64,") == page.count("<figcaption>") == len(names)
    assert "drom reproduce sd-policy" in page.rpartition("<footer>")[2]
    assert all((folder / f"{name}.{kind}").is_file() for name in names for kind in ("svg", "csv"))
    assert page.count("<td>not given</td>") == sum(row["paper"] is None for row in told["workloads"][0]["rows"])
    assert json.loads((folder / "reproduction.json").read_text(encoding="utf-8")) == told
    assert not said


def test_figures_4_to_7_count_classes_and_days(sample: tuple[Path, dict[str, Any], str]) -> None:
    """A schedule beside itself has no class and no day that is worse, and no ratio above 1."""
    static = load_schedule(sample[0] / "workload-4" / "static")
    slower = static._replace(table=static.table | {"end": static.table["end"] + 5})
    mine, others = Classes.of(static), Classes.from_json(json.loads(json_text(Classes.of(slower).to_json())))
    rows = {row.what.split(",")[0]: row.here for row in [*class_rows(mine, mine), *day_rows(mine, mine)]}
    worse = {row.what.split(",")[0]: row.here for row in class_rows(mine, others)}

    assert rows["largest ratio up to 512 nodes and 4 h"] == 1
    assert [rows[f"classes with {what}"] for what in ("more slowdown", "longer run times", "longer waits")] == [0] * 3
    assert rows["jobs of 513-1"] == 0
    classes = {
        (int(np.ceil(np.log2(n))), int(np.searchsorted([60, 600, 3600, 14400, 43200, 86400], t)))
        for n, t in zip(static.table["nodes"], static.table["full_speed_run_time"], strict=True)
    }
    assert worse["classes with more slowdown"] == len(classes)


def test_deviation() -> None:
    """Percent of numbers, points of changes, what is beyond a bound; none where a number is missing."""
    rows = [
        Row("T", "number", "s", Given(200), 150),
        Row("T", "change", CHANGE, Given(-70), -20),
        Row("T", "within", CHANGE, Given(1.5, bound=True), -1),
        Row("T", "beyond", CHANGE, Given(1.5, bound=True), -4),
        Row("T", "silent", CHANGE, None, 3),
        Row("T", "missing", "s", Given(3), None),
    ]

    assert [row.deviation() for row in rows] == [-25, 50, 0, 2.5, None, None]
    assert [line.split()[2:] for line in lines(rows)[1:]] == [
        ["200", "s", "150", "s", "-25.0", "%"],
        ["-70.0", "%", "-20.0", "%", "+50.0", "points"],
        ["below", "1.5", "%", "-1.0", "%", "+0.0", "points"],
        ["below", "1.5", "%", "-4.0", "%", "+2.5", "points"],
        ["not", "given", "+3.0", "%", "-"],
        ["3", "s", "not", "run", "-"],
    ]


def test_numbers_of_the_paper() -> None:
    """Tables 1 and 2 as printed; nothing is given for what only the figures show."""
    static = [[row.paper.value for row in table_1(number, {}) if row.paper] for number in (1, 4)]
    shares = [row.paper.value for row in workload_5(1, {}) if row.place == "Table 2" and row.paper]
    given = [row.what for row in figures_1_to_3(4, {}) if row.paper is not None]

    assert static == [[122_152, 3339.5, 899_888], [29_858.5, 3666.5, 21_615_111]]
    assert shares == [30.5, 30.8, 35.5, 2.6, 0.6]
    assert given[:3] == ["MAXSD 10: makespan", "MAXSD 10: response", "MAXSD 10: slowdown"]
    assert given[3:] == ["best setting: slowdown", "MAXSD 10: place among all settings"]
    assert paper.MODELS[3][paper.RESPONSE] == Given(1.5, bound=True)


def test_the_page() -> None:
    """Every parameter that docs/reproduction.md names is one, and every option of its commands."""
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    told, _ = drom("reproduce", "sd-policy", "--help")
    options = {word for line in re.findall(r"^drom reproduce .*", page, re.MULTILINE) for word in line.split()[3::2]}

    choices = set(re.findall(r"`([a-z_]+)=([a-z\d.]+|[A-Z]+)`", page))
    assert len(choices) > 15
    for name, value in choices:
        load_policy("sd", [] if value.isupper() else [f"{name}={value}"])
        assert name in sd.OPTIONS
    assert options
    assert all(option in told for option in options)


def test_the_simulations_of_the_page(tmp_path: Path) -> None:
    """Its commands for workload 4 run as they stand, on a small log of that name."""
    lines = [line for line in commands_of("docs/reproduction.md") if line.startswith(("drom simulate", "drom compare"))]
    write_swf(synthetic(), tmp_path / "CEA-Curie-2011-primary.swf.gz")

    told = run_lines(lines, tmp_path)

    assert len(lines) == 3
    assert "200 jobs of CEA-Curie-2011-primary.swf.gz on 5,040 nodes under sd in " in told
    assert "FIGURE" in told


def test_the_log_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By name in the folder of the environment; of a log with other jobs, those of the workload are taken."""
    real = settings.Real(("mine.swf.gz",), 150, "job <= 150", "a log", Recipe())
    experiment = settings.Experiment(3, "a test", 64, 1, real)
    write_swf(synthetic(), tmp_path / "mine.swf.gz")
    monkeypatch.setenv("DROM_WORKLOADS", str(tmp_path))
    (tmp_path / "scratch").mkdir()
    part = source_of(experiment, None, tmp_path / "scratch", 1)
    whole = experiment._replace(jobs=real._replace(jobs=200, condition="job >= 0"))

    assert read_swf(part.log).job.tolist() == list(range(1, 151))
    assert not part.stands_in
    assert source_of(whole, None, tmp_path / "scratch", 1).log == tmp_path / "mine.swf.gz"


def test_models_say_what_they_are(tmp_path: Path) -> None:
    """Workloads 1 and 2 have the same jobs but for the requests; another seed gives others."""
    exact = replace(settings.CIRNE, jobs=50, estimates="exact")
    recipes = {1: replace(settings.CIRNE, jobs=50), 2: exact}
    small = {number: settings.EXPERIMENTS[number]._replace(jobs=recipe) for number, recipe in recipes.items()}
    logs = {n: read_swf(source_of(e, None, tmp_path, 1).log) for n, e in small.items()}
    other = source_of(small[1], None, tmp_path, 2)

    assert logs[1].run_time.tolist() == logs[2].run_time.tolist() == logs[2].requested_time.tolist()
    assert logs[1].requested_time.tolist() != logs[2].requested_time.tolist()
    assert logs[1].allocated.max() <= 6144
    assert read_swf(other.log).run_time.tolist() != logs[1].run_time.tolist()
    assert other.note.startswith("The jobs are of a Cirne-like model fitted anew (ctc, seed 2), not of the model")


@pytest.mark.parametrize(
    ("options", "sentence", "code"),
    [
        (["--workload", "6"], "--workload must be 1, 2, 3, 4 or 5", 2),
        (["--log", "x.swf"], "--log names the log of one workload: add --workload 3 or --workload 4", 2),
        (["--workload", "4", "--log", "/none.swf"], "/none.swf", 1),
        (["--workload", "3", "--log", "LOG"], "is not the log of this workload: 0 of its jobs have job >= 415000", 1),
        (["--workload", "3", "--out", "/dev/full/x"], "/dev/full/x/workload-3/static cannot hold results", 1),
    ],
)
def test_bad_input(options: list[str], sentence: str, code: int, tmp_path: Path) -> None:
    """One sentence that says what to do."""
    write_swf(synthetic(), tmp_path / "log.swf")
    told, said = drom(
        "reproduce", "sd-policy", *[w.replace("LOG", str(tmp_path / "log.swf")) for w in options], code=code
    )

    assert not told
    assert sentence in said
    assert said.count("\n") == 1


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # pytest-xdist has threads, commands do not
def test_a_simulation_that_fails_stops_all(tmp_path: Path) -> None:
    """Its sentence is told, and those that are still to come are not begun."""
    write_swf(synthetic(), tmp_path / "log.swf")
    source = source_of(settings.EXPERIMENTS[1]._replace(jobs=Recipe(jobs=20, nodes=64)), None, tmp_path, 1)
    bad = [run._replace(nodes=1) for run in outcome.runs_of(1, source, tmp_path)]

    with pytest.raises(SchedulerError, match=r"workload-1\.swf\.gz, .*: the rule larger refuses .* larger than"):
        run_all(bad, 1, lambda _: None)
    assert not (tmp_path / "workload-1" / "dynavgsd-worst").exists()


def test_interrupted(tmp_path: Path) -> None:
    """Ctrl-C ends the simulations; what is not whole counts as not run, and is marked."""
    command = [sys.executable, "-m", "drom", "reproduce", "sd-policy", "--workload", "1", "--jobs", "1"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path), "--json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until((tmp_path / "workload-1" / "static" / "summary.json").exists, process.poll, START_SECONDS)
        process.send_signal(signal.SIGINT)
        told, said = process.communicate(timeout=120)
    finally:
        process.kill()

    assert process.returncode == 130
    assert said.splitlines()[-1] == "drom: interrupted: the results are partial, and marked so."
    result = json.loads(told)
    assert not result["complete"]
    assert "static" in result["workloads"][0]["runs"]
    assert any(row["here"] is None for row in result["workloads"][0]["rows"])
    assert "Partial: " in result["workloads"][0]["notes"][-1]
