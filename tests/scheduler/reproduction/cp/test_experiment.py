# SPDX-License-Identifier: Apache-2.0
"""`drom reproduce cp` and `drom simulate --policy cp`: what they write, and what they refuse."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from drom.scheduler.cp.platform import SHIPPED
from drom.scheduler.reproduction.cp.completed import NAMES
from drom.scheduler.reproduction.cp.experiment import contests
from drom.scheduler.reproduction.cp.generate import TESTS
from drom.scheduler.reproduction.cp.metrics import Metrics
from drom.scheduler.reproduction.cp.tasks import CP, RULES, SCHEDULERS, Task
from drom.workloads.swf import write_swf
from drom.workloads.workload import make_workload

from tests.support.commands import drom
from tests.support.paths import ROOT
from tests.support.pictures import files_of

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("ortools", reason="OR-tools is not installed")


NAME = NAMES[Metrics]
SMALL = ("reproduce", "cp", "--first", "25", "--seeds", "2", "--json")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the folder of a small reproduction, which no test changes, and what the command printed."""
    folder = tmp_path_factory.mktemp("small")
    return folder, drom(*SMALL, "--out", folder)[0]


def test_reproduce(small: tuple[Path, str]) -> None:
    """The value that is printed, with the paper's numbers, and a picture."""
    folder, text = small
    told = json.loads(text)

    assert {file.name for file in folder.iterdir()} == {"cp.json", *files_of("cp"), NAME}
    assert json.loads((folder / "cp.json").read_text(encoding="utf-8")) == told
    assert [test["paper"]["CP"]["wqt"] for test in told["tests"]] == [119.77, 2441.3]
    for test in told["tests"]:
        assert set(test["schedulers"]) == set(SCHEDULERS)
        assert all(len(row["wqt"]["values"]) == 2 for row in test["schedulers"].values())


def test_stopped(small: tuple[Path, str], tmp_path: Path) -> None:
    """The same command goes on with the simulations that are kept, also where the last line was cut off."""
    shutil.copytree(small[0], tmp_path, dirs_exist_ok=True)
    head, first, *others, last = (tmp_path / NAME).read_text(encoding="utf-8").strip().splitlines()
    changed = json.loads(first)
    changed["metrics"]["wqt"] = 123.5
    (tmp_path / NAME).write_text("\n".join(["", head, json.dumps(changed), *others, last[:40]]), encoding="utf-8")
    told = json.loads(drom(*SMALL, "--out", tmp_path)[0])

    task = changed["task"]
    assert told["tests"][task["test"]]["schedulers"][task["scheduler"]]["wqt"]["values"][task["seed"] - 1] == 123.5
    assert len((tmp_path / NAME).read_text(encoding="utf-8").strip().splitlines()) == 2 + len(others) + 2


def test_kept_lines_that_are_no_simulations(tmp_path: Path) -> None:
    """One sentence, and the file stays as it is."""
    drom(*SMALL, "--test", "1", "--first", "5", "--out", tmp_path)
    whole = (tmp_path / NAME).read_text(encoding="utf-8")
    texts = (whole.splitlines()[-1].replace('"nl": 0', f'"nl": {word}') for word in ("null", '"x"'))
    for line in ("[1, 2]", '{"task": {"test": 0}, "metrics": {}}', *texts):
        (tmp_path / NAME).write_text(f"{whole}\n{line}", encoding="utf-8")
        _, said = drom(*SMALL, "--test", "1", "--first", "5", "--out", tmp_path, code=1)

        assert said == f"drom: {tmp_path / NAME} has lines that are no simulations: name another --out.\n"
        assert (tmp_path / NAME).read_text(encoding="utf-8") == f"{whole}\n{line}"


def test_kept_of_something_else(tmp_path: Path) -> None:
    """Simulations on another machine are not taken."""
    basis = '{"drom": "0", "ortools": "0", "platform": []}'
    (tmp_path / NAME).write_text(f'\n{basis}\n{{"task": {{}}, "metrics": {{}}}}', encoding="utf-8")
    _, said = drom(*SMALL, "--out", tmp_path, code=1)

    assert "is from another version of drom or OR-tools, or another machine: name another --out." in said


def test_a_machine_that_was_refused(tmp_path: Path) -> None:
    """Leaves nothing behind that the same command with a machine put right would be refused for."""
    right = (SHIPPED / "eurora.toml").read_text(encoding="utf-8")
    (tmp_path / "m.toml").write_text(right.replace("cores = 16", "cores = 2"), encoding="utf-8")
    common = (*SMALL, "--test", "1", "--first", "5", "--platform", tmp_path / "m.toml", "--out", tmp_path / "r")
    _, said = drom(*common, code=1)
    (tmp_path / "m.toml").write_text(right, encoding="utf-8")

    assert "which no node of eurora has" in said
    assert len(json.loads(drom(*common)[0])["tests"]) == 1


def test_contests() -> None:
    """Wins, ties and losses are counted seed by seed, and the difference has an interval."""
    mine, theirs = (1.0, 2.0, 3.0), (2.0, 2.0, 1.0)
    found = {
        Task(test, seed, name): Metrics((mine if name == CP else theirs)[seed], 0, 0, 0.0)
        for test in range(len(TESTS))
        for seed in range(3)
        for name in SCHEDULERS
    }
    first, *_, last = contests(found)

    assert (first.test, first.metric, first.rule) == ("test 1", "wqt", RULES[0])
    assert (first.wins, first.ties, first.losses) == (1, 1, 1)
    assert first.difference == pytest.approx((1 / 3, 4.3027 * (7 / 3) ** 0.5 / 3**0.5))
    assert first.change == pytest.approx(0.2)
    assert (last.metric, last.change) == ("tr", None)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a log whose short job should go before its long one, on two nodes."""
    columns = {"submit": [0, 1, 2], "run_time": [10, 50, 5], "requested_time": [20, 60, 6], "allocated": [2, 2, 2]}
    work = make_workload({name: np.array(column) for name, column in columns.items()})
    write_swf(work, tmp_path / "small.swf")
    return tmp_path / "small.swf"


def test_simulate(log: Path, tmp_path: Path) -> None:
    """The outputs of every policy; the short job starts first, and --until and --resume lead to the same."""
    drom("simulate", log, "--nodes", "2", "--policy", "cp", "--out", tmp_path / "whole")
    drom("simulate", log, "--nodes", "2", "--policy", "cp", "--until", "11", "--save", tmp_path / "saved")
    drom(
        "simulate", log, "--nodes", "2", "--policy", "cp", "--resume", tmp_path / "saved", "--out", tmp_path / "resumed"
    )
    rows = (tmp_path / "whole" / "jobs.csv").read_text(encoding="utf-8")

    assert [line.split(",")[2] for line in rows.splitlines()] == ["start", "0", "15", "10"]
    assert (tmp_path / "resumed" / "jobs.csv").read_text(encoding="utf-8") == rows
    assert json.loads((tmp_path / "whole" / "summary.json").read_text(encoding="utf-8"))["policy"] == "cp"


def test_interrupts_are_heard_after_a_plan(log: Path) -> None:
    """OR-tools would have SIGINT end the process from its first solution on."""
    code = (
        "import os, signal, sys\n"
        "from drom.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept KeyboardInterrupt:\n    print('heard')\n"
    )
    words = ("simulate", str(log), "--nodes", "2", "--policy", "cp")
    ended = subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stdout.splitlines()[-1:]) == (0, ["heard"]), ended.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--event-rule", "pyss"), "The policy cp plans for the instant rule and the whole machine: omit the option."),
        (
            ("--predict", "recent"),
            "--predict recent is for policies that plan with run times: choose easy, conservative, slurm or sd.",
        ),
        (("--set", "window=1.5"), "policy cp: window is a whole number from 0 to 100."),
        (("--set", "work=0"), "policy cp: work is a number above 0, up to 1000."),
        (("--set", "most=-1"), "policy cp: most is a whole number of at least 0."),
    ],
)
def test_refused(log: Path, options: tuple[str, ...], sentence: str) -> None:
    """What the policy cannot do is said in a sentence."""
    _, said = drom("simulate", log, "--nodes", "2", "--policy", "cp", *options, code=1)

    assert said.strip().splitlines()[-1] == f"drom: {sentence}"


@pytest.mark.parametrize(
    ("word", "other", "sentence"),
    [
        (
            "gpu = 2",
            "fpga = 2",
            "drom: my.toml, group gpu: there is no resource 'fpga': choose cores, memory, gpu, mic",
        ),
        ("nodes = 1\n", "nodes = 0\n", "drom: my.toml, group login: nodes is '0': write a whole number from 1"),
        ("mic = 2", "", "a unit asks for 16 cores, 16 memory, 1 mic, which no node of eurora has: ask for less."),
        ('"debug"', '"quick"', "are for a queue 'debug', which eurora does not have: add it."),
    ],
)
def test_platforms_that_cannot_be(tmp_path: Path, word: str, other: str, sentence: str) -> None:
    """One sentence that names the place, whether the file is wrong or the jobs do not fit."""
    text = (SHIPPED / "eurora.toml").read_text(encoding="utf-8").replace(word, other)
    (tmp_path / "my.toml").write_text(text, encoding="utf-8")
    _, said = drom(
        *("reproduce", "cp", "--first", "8", "--seeds", "2", "--platform", tmp_path / "my.toml"),
        code=1,
    )

    assert sentence in said.splitlines()[-1]


def test_one_seed() -> None:
    """One seed has no interval."""
    _, said = drom("reproduce", "cp", "--seeds", "1", code=2)

    assert "--seeds" in said


def test_without_or_tools() -> None:
    """One sentence says what to install."""
    code = "import sys; sys.modules['ortools'] = None; from drom.app import run_app; run_app()"
    command = [sys.executable, "-c", code, "reproduce", "cp"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr == "drom: Constraint programming needs OR-tools: run pip install 'drom[cp]'.\n"
