# SPDX-License-Identifier: Apache-2.0
"""The Python interface: equal to the commands, with workloads and policies from everywhere, and its sentences."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from drom.scheduler.cli import progress
from drom.scheduler.errors import SchedulerError
from drom.workloads.errors import WorkloadError
from drom.workloads.swf import read_swf, write_swf

import drom
from tests.support import commands
from tests.support.job_logs import synthetic

pd: Any = pytest.importorskip("pandas", reason="needs pandas")

FIRST_FIT = """
from drom.scheduler.interface import NEVER, compilable, start

MOST = 64

@compilable
def fits(jobs, job, free):
    return jobs.nodes[job] <= min(free, MOST)

def decide(state, event, options, actions):
    free = state.free
    for job in state.queue:
        if fits(state.jobs, job, free):
            start(actions, job)
            free -= state.jobs.nodes[job]
    return NEVER
"""
CLASS = """
class Patient:
    OPTIONS = {"patience": 5}
    WORDS = {"patience": {"little": 1}}
    decide = decide

    @staticmethod
    def check(options):
        return "" if options["patience"] > 0 else "patience is above 0."
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a small log of a machine of 64 processors."""
    write_swf(synthetic(), tmp_path / "log.swf.gz")
    return tmp_path / "log.swf.gz"


def cell(source: str) -> dict[str, Any]:
    """Return what a cell of a notebook defines: its functions have no file."""
    names: dict[str, Any] = {}
    exec(source, names)
    return names


def told(folder: Path) -> dict[str, Any]:
    """Return a summary without what differs from run to run."""
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return {name: value for name, value in summary.items() if name not in {"seconds", "peak_memory_bytes"}}


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        (["--policy", "easy"], {}),
        (["--policy", "conservative", "--predict", "recent"], {"policy": "conservative", "predict": "recent"}),
        (
            ["--policy", "sd", "--cores", "4", "--max-slowdown", "infinite", "--classes", "malleable=0.5"],
            {"policy": "sd", "cores": 4, "max_slowdown": "infinite", "classes": {"malleable": 0.5}},
        ),
        (
            ["--policy", "equipartition", "--adaptive", "minimum=0.25", "--evolving", "0.3", "--seed", "7"],
            {"policy": "equipartition", "adaptive": {"minimum": 0.25}, "evolving": 0.3, "seed": 7},
        ),
        (["--policy", "payoff", "--contracts", "tight=2"], {"policy": "payoff", "contracts": {"tight": 2}}),
        (
            ["--policy", "slurm", "--set", "reservations=nodes", "--set", "contiguous=1", "--partition", "1=0-63"],
            {"policy": "slurm", "reservations": "nodes", "contiguous": True, "partition": {1: "0-63"}},
        ),
        (["--event-rule", "pyss", "--rule", "overrun=raise"], {"event_rule": "pyss", "rule": {"overrun": "raise"}}),
    ],
)
def test_a_simulation_saves_what_the_command_writes(
    log: Path, tmp_path: Path, options: list[str], arguments: dict[str, Any]
) -> None:
    """Jobs, schedule and summary are the same, for several policies and options."""
    commands.drom("simulate", log, "--nodes", "64", *options, "--out", tmp_path / "command")
    result = drom.simulate(log, nodes=64, **arguments)
    result.save(tmp_path / "python")

    names = sorted(file.name for file in (tmp_path / "command").iterdir())
    assert names == sorted(file.name for file in (tmp_path / "python").iterdir())
    for name in set(names) - {"summary.json"}:
        assert (tmp_path / "python" / name).read_bytes() == (tmp_path / "command" / name).read_bytes()
    assert told(tmp_path / "python") == told(tmp_path / "command")
    text = result.jobs.to_csv(index=False)
    assert text == (tmp_path / "command" / "jobs.csv").read_text(encoding="utf-8")


def test_a_data_frame_gives_the_schedule_of_its_log(log: Path) -> None:
    """A log and the data frame of its jobs have the same schedule, also with floats and missing values."""
    frame = drom.workload(log)
    sparse = frame[["requested_time", "submit", "run_time", "requested_processors"]].astype(float)
    sparse.loc[3, "requested_time"] = math.nan
    frame.loc[3, "requested_time"] = -1

    one, two, three = (drom.simulate(jobs, nodes=64, policy="conservative") for jobs in (log, frame, sparse))

    assert frame.columns.tolist() == list(read_swf(log).columns())
    assert one.jobs.drop(3).equals(drom.simulate(drom.workload(log), nodes=64, policy="conservative").jobs.drop(3))
    assert two.jobs.equals(three.jobs)
    assert repr(two).startswith("200 jobs of the data frame on 64 nodes under conservative in ")


def test_a_model_gives_what_the_command_makes(tmp_path: Path) -> None:
    """`drom.workload` draws the jobs of `drom workload make`."""
    commands.drom("workload", "make", "lublin", "--jobs", "50", "--load", "0.7", "--out", tmp_path / "log.swf")

    assert drom.workload("lublin", jobs=50, load=0.7).equals(drom.workload(tmp_path / "log.swf"))


def test_a_result_shows_its_load(log: Path) -> None:
    """The mean of the series is the utilisation, and the queue times the span the waits of all jobs."""
    result = drom.simulate(log, nodes=64)
    series = result.series(50)
    span = result.metrics["makespan_s"]

    assert span is not None
    assert series.columns.tolist() == ["utilisation", "queue", "power"]
    assert len(series) == 50
    assert series.utilisation.mean() == pytest.approx(result.metrics["utilisation"])
    assert series.queue.mean() * span == pytest.approx(result.jobs.wait.sum())
    assert series.power.mean() * span == pytest.approx(result.metrics["energy_joule"])


@pytest.mark.parametrize(
    ("watts", "sentence"),
    [
        ({"idle_watts": -1}, "idle_watts is a number of at least 0, not -1."),
        ({"off_watts": float("nan")}, "off_watts is a number of at least 0, not nan."),
        ({"peak_watts": 50}, "peak_watts is below idle_watts."),
    ],
)
def test_watts_that_cannot_be(log: Path, watts: dict[str, Any], sentence: str) -> None:
    """Python checks them as the command does."""
    with pytest.raises(SchedulerError) as raised:
        drom.simulate(log, nodes=64, **watts)
    assert str(raised.value) == sentence


def test_a_result_is_compared_with_another(log: Path) -> None:
    """Each metric has a row with both values and their ratio; a comparison of unlike machines warns."""
    easy, fcfs = (drom.simulate(log, nodes=64, policy=name) for name in ("easy", "fcfs"))
    wait = easy.compare(fcfs).loc["mean_wait_s"]

    assert wait.to_dict() == {
        "this": easy.metrics["mean_wait_s"],
        "other": fcfs.metrics["mean_wait_s"],
        "ratio": pytest.approx(wait.other / wait.this),
    }
    with pytest.warns(UserWarning, match=r"^the other has other jobs or another machine than the first\.$"):
        easy.compare(drom.simulate(log, nodes=65))


def test_a_chart_shows_the_window_that_is_given(log: Path) -> None:
    """The axis ends where the window does; an empty one, and that of a pool, is refused."""
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    result = drom.simulate(log, nodes=64)
    first = int(result.jobs.submit.min())
    figure = result.gantt(end=first + 500)

    assert figure.axes[0].get_xlim() == (0, 500)
    with pytest.raises(SchedulerError, match=r"from 9 to 5 s shows nothing: give the earlier first\.$"):
        result.gantt(9, 5)
    with pytest.raises(SchedulerError, match=r"^There is no Gantt chart: equipartition says how many"):
        drom.simulate(log, nodes=64, policy="equipartition").gantt()


class TestPolicies:
    """Policies that a user writes."""

    def test_a_function_decides_as_its_file_does(self, log: Path, tmp_path: Path) -> None:
        """The same source in a file and in a cell gives the same schedule."""
        (tmp_path / "mine.py").write_text(FIRST_FIT, encoding="utf-8")
        names = cell(FIRST_FIT)

        from_file = drom.simulate(log, nodes=64, policy=tmp_path / "mine.py")
        from_cell = drom.simulate(log, nodes=64, policy=names["decide"])

        assert from_cell.jobs.equals(from_file.jobs)
        assert (from_file.summary["policy"], from_cell.summary["policy"]) == ("mine", "decide")

    def test_a_changed_cell_is_compiled_again(self, log: Path) -> None:
        """A function decides by the values and functions that it refers to now, not by those of an earlier call."""
        names = cell(FIRST_FIT)
        first = drom.simulate(log, nodes=64, policy=names["decide"])
        fits = "@compilable\ndef fits(jobs, job, free):\n    return jobs.nodes[job] <= min(free, MOST)"
        exec(f"{fits} and free == 64", names)
        alone = drom.simulate(log, nodes=64, policy=names["decide"])
        exec(f"{fits}\nMOST = 63", names)

        assert alone.jobs.start.sum() > first.jobs.start.sum()
        with pytest.raises(SchedulerError, match="Policy decide leaves"):
            drom.simulate(log, nodes=64, policy=names["decide"])

    def test_a_class_has_parameters(self, log: Path) -> None:
        """A class stands for a file: with its options, words and check."""
        patient = cell(FIRST_FIT + CLASS)["Patient"]

        assert drom.simulate(log, nodes=64, policy=patient, patience="little").summary["parameters"] == {
            "patience": "little"
        }
        with pytest.raises(SchedulerError, match=r"^policy Patient: patience is above 0\.$"):
            drom.simulate(log, nodes=64, policy=patient, patience=0)
        with pytest.raises(SchedulerError, match="the policy Patient has no parameter 'depth': it has patience"):
            drom.simulate(log, nodes=64, policy=patient, depth=1)

    @pytest.mark.parametrize(
        "line",
        [
            "state.jobs.submit[0] = 1",
            "state.nodes.resident[0, 1] += 1",
            "state.queue.sort()",
            "state.queue[:] += 1",
            "np.add(state.queue, 1, state.queue)",
            "state.now = 1",
        ],
    )
    def test_a_policy_that_changes_the_state_is_refused(self, log: Path, line: str) -> None:
        """The state is read-only for policies of users, also within what they call."""
        head = "import numpy as np\nfrom drom.scheduler.interface import compilable\n"
        helper = f"@compilable\ndef change(state):\n    {line}\n"
        names = cell(f"{head}{helper}def decide(state, event, options, actions):\n    change(state)\n    return 0\n")

        with pytest.raises(SchedulerError, match="it changes the state, which policies only read: change a copy"):
            drom.simulate(log, nodes=64, policy=names["decide"])

    @pytest.mark.parametrize(
        ("policy", "sentence"),
        [
            ("eazy", "'eazy' is not a policy: choose fcfs, "),
            (Path("none.py"), "There is no policy file none.py: name a file of Python"),
            (3, "'3' is not a policy: give a name, a file that ends in .py, a function decide(state, event, "),
            (len, "'<built-in function len>' is not a policy"),
            (lambda state: state, "is not a policy"),
            (SimpleNamespace(decide=3), "is not a policy"),
        ],
    )
    def test_other_things_are_no_policies(self, log: Path, policy: Any, sentence: str) -> None:
        """A sentence says what a policy is."""
        with pytest.raises(SchedulerError) as failure:
            drom.simulate(log, nodes=64, policy=policy)

        assert sentence in str(failure.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"submit": None}, "the data frame: each field must occur once, and submit among them: the fields are job, "),
        ({"run_time": None}, "the data frame has no column run_time: it needs submit and run_time, in seconds, and "),
        ({"allocated": None}, "the data frame has no column allocated or requested_processors: it needs submit and "),
        ({"size": [1, 2]}, "the data frame: 'size' is not a field: the fields are job, submit, wait, "),
        ({"run_time": [1.5, 2]}, "the data frame, row 0, run_time: '1.5' is not a whole number between -1 and "),
        ({"submit": [0, -1]}, "the data frame, row 1, submit: '-1' is not a whole number between 0 and 10,000,000,000"),
        ({"run_time": [5, math.inf]}, "the data frame, row 1, run_time: 'inf' is not a whole number between"),
        ({"run_time": ["5", "6"]}, "the data frame, column run_time: "),
        ({"run_time": pd.to_timedelta([5, 6], unit="s")}, "the data frame, column run_time: timedelta64["),
        ({"allocated": [1, 9]}, "the data frame: job 2: the rule larger refuses 1 job larger than the machine: choose"),
        ({"job": [4, 4]}, "the data frame: job 4: the rule duplicates refuses 1 job with the number of an earlier"),
    ],
)
def test_a_frame_that_cannot_be(changes: dict[str, Any], sentence: str) -> None:
    """A sentence names the column, and the row if there is one."""
    columns = {"submit": [0, 5], "run_time": [9, 9], "allocated": [1, 2]} | changes
    frame = pd.DataFrame({name: column for name, column in columns.items() if column is not None})

    with pytest.raises(WorkloadError) as failure:
        drom.simulate(frame, nodes=8)

    assert str(failure.value).startswith(sentence)


def test_times_are_seconds() -> None:
    """A column of another type of times names the remedy."""
    frame = pd.DataFrame({"submit": pd.to_datetime(["2026-01-01"]), "run_time": [9], "allocated": [1]})

    with pytest.raises(WorkloadError, match=r"column submit: datetime64.* type of numbers: convert it to seconds\.$"):
        drom.simulate(frame, nodes=8)


def test_a_frame_without_jobs() -> None:
    """An empty workload is refused."""
    frame = pd.DataFrame({"submit": [], "run_time": [], "allocated": []})

    with pytest.raises(WorkloadError, match=r"^the data frame contains no job: it has no rows\.$"):
        drom.simulate(frame, nodes=8)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"nodes": 0}, "nodes is a number from 1 to 10,000,000, not 0."),
        ({"cores": 10**7}, "cores is a number from 1 to 1,000,000, not 10,000,000."),
        ({"core": 2}, "'core=2': the policy easy has no parameter 'core': it has none."),
        ({"policy": "payoff"}, "--policy payoff needs contracts: add --contracts FILE, or for example"),
        ({"adaptive": {"minimum": 1}}, "--adaptive is for policies that allot processors, and for those"),
        ({"event_rule": "late"}, "'late' is not a known event rule: choose instant, pyss, cqsim."),
        ({"predict": "oracle"}, "'oracle' is not a prediction: choose user, recent, learned."),
        ({"rule": {"larger": "eat"}}, "'larger=eat': the rule larger has the choices refuse, shrink, drop."),
        ({"workload": None}, "'None' is not a workload: give a data frame, or the path of a log."),
        ({"workload": "none.swf"}, "There is no log 'none.swf': name a file, or a model of lublin, "),
    ],
)
def test_options_that_cannot_be(log: Path, arguments: dict[str, Any], sentence: str) -> None:
    """The sentences are those of the command."""
    everything: dict[str, Any] = {"workload": log, "nodes": 64} | arguments

    with pytest.raises((SchedulerError, WorkloadError)) as failure:
        drom.simulate(**everything)

    assert str(failure.value).startswith(sentence)


@pytest.mark.parametrize(
    ("source", "parameters", "sentence"),
    [
        ("lublin", {"job": 5}, "There is no parameter 'job': choose from jobs, nodes, cores, seed, load, "),
        ("lubin", {"jobs": 5}, "There is no model 'lubin': choose from lublin, cirne-like, lomonosov."),
        ("lublin", {"jobs": 0}, "jobs of a workload is a number from 1 to 10,000,000, not 0."),
        ("lublin", {"seed": -1}, "seed of a workload is a number from 0 to "),
        ("lubin", {}, "There is no log 'lubin': name a file, or a model of lublin, cirne-like, lomonosov."),
    ],
)
def test_workloads_that_cannot_be(source: str, parameters: dict[str, Any], sentence: str) -> None:
    """A sentence says what there is."""
    with pytest.raises(WorkloadError) as failure:
        drom.workload(source, **parameters)

    assert str(failure.value).startswith(sentence)


def test_intervals_are_bounded(log: Path) -> None:
    """A series has at most a million rows."""
    with pytest.raises(SchedulerError, match=r"^intervals is a number from 1 to 1,000,000, not 0\.$"):
        drom.simulate(log, nodes=64).series(0)


def test_without_pandas(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulations run and have metrics; a sentence says what tables need."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    result = drom.simulate(log, nodes=64)

    assert result.metrics["makespan_s"]
    with pytest.raises(WorkloadError, match=r"^Data frames need pandas: run pip install 'drom\[notebooks\]'\.$"):
        _ = result.jobs


def test_progress_is_shown_on_a_terminal_only(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing is written elsewhere."""
    drom.simulate(log, nodes=64)

    assert progress.progress_stream() is sys.stderr
    assert capfd.readouterr() == ("", "")


def test_the_interface_is_all_that_is_shown() -> None:
    """`dir` has the interface, and importing it loads neither numpy nor the simulator."""
    code = "import sys, drom; print(dir(drom), {'numpy', 'numba', 'typer', 'dromlib'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ, capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout == ("['Experiment', 'Result', '__version__', 'experiment', 'simulate', 'workload'] set()\n")
    with pytest.raises(AttributeError, match="has no attribute 'simulator'"):
        _ = drom.simulator
