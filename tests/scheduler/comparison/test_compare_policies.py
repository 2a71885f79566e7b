# SPDX-License-Identifier: Apache-2.0
"""`drom compare-policies`: its rows, what fails or is interrupted, and what is refused."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from drom.scheduler.comparison.candidates import candidates, usual, with_parameters
from drom.scheduler.comparison.table import COLUMNS, UNITS, Result, lines
from drom.scheduler.engine.compiler import BASELINES
from drom.scheduler.errors import SchedulerError
from drom.workloads.swf import write_swf

from tests.support.agents import START_SECONDS, wait_until
from tests.support.commands import drom
from tests.support.job_logs import synthetic
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

MACHINE = ("--nodes", "16", "--cores", "4")
CONTENDERS = [*usual(contracts=False)]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a small log."""
    write_swf(synthetic(), tmp_path / "log.swf.gz")
    return tmp_path / "log.swf.gz"


def policy(path: Path, body: str) -> Path:
    """Write a policy with this body of its function."""
    path.write_text(f"def decide(state, event, options, actions):\n    {body}\n", encoding="utf-8")
    return path


def test_all_policies(log: Path, tmp_path: Path) -> None:
    """A row for each, with the figures of `drom simulate`, on the same number of cores; a page with all of them."""
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    told, said = drom("compare-policies", log, *MACHINE, "--out", tmp_path / "r", "--html", tmp_path / "r.html")
    drom("simulate", log, *MACHINE, "--policy", "sd", "--out", tmp_path / "sd")
    summaries = {name: json.loads((tmp_path / "r" / name / "summary.json").read_text()) for name in CONTENDERS}
    alone = json.loads((tmp_path / "sd" / "summary.json").read_text())
    kept = json.loads((tmp_path / "r" / "policies.json").read_text())
    page = (tmp_path / "r.html").read_text(encoding="utf-8")

    rows = [line.split() for line in told.splitlines()[1 : 1 + len(CONTENDERS)]]
    assert [row[0] for row in rows] == CONTENDERS == [one["policy"] for one in kept["policies"]]
    assert said == f"report written to {tmp_path}/r.html\n"
    assert kept["complete"]
    assert summaries["sd"]["metrics"] == alone["metrics"]
    assert alone["metrics"]["reconfigurations"] > 0 == summaries["easy"]["metrics"]["reconfigurations"]
    assert {one["machine"]["nodes"] * one["machine"]["cores"] for one in summaries.values()} == {64}
    for one in kept["policies"]:
        metrics = summaries[one["policy"]]["metrics"]
        assert all(one["figures"][c.key] == metrics[c.key] for c in COLUMNS if c.key in metrics)
        assert one["figures"]["microseconds_per_call"] > 0
        assert one["premise"] is None or f"{one['policy']}: {one['premise']}." in told
    assert "equipartition: all cores are one pool" in page
    assert page.count("data:image/png;base64,") > len(CONTENDERS)


def test_energy_is_of_nodes_also_in_a_pool(log: Path, tmp_path: Path) -> None:
    """An idle node takes as much whether its cores are a pool or not, also that of a policy of the user's."""
    own = tmp_path / "own.py"
    own.write_text(
        "from drom.scheduler.interface import NEVER, allot\n\nPOOL = True\n\n"
        "def decide(state, event, options, actions):\n"
        "    free = state.free\n    for job in state.queue:\n        if state.jobs.nodes[job] <= free:\n"
        "            allot(actions, job, state.jobs.nodes[job])\n            free -= state.jobs.nodes[job]\n"
        "    return NEVER\n",
        encoding="utf-8",
    )
    drom("compare-policies", log, *MACHINE, "--policies", f"fcfs,firstfit,{own}", "--out", tmp_path)
    names = ("fcfs", "firstfit", "own")
    summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in names]

    assert [one["power_model"]["idle_watt"] * one["machine"]["nodes"] for one in summaries] == [1600] * 3
    assert summaries[1]["metrics"]["energy_joule"] == summaries[2]["metrics"]["energy_joule"]


def test_parameters_of_all_policies_that_have_them() -> None:
    """Those in brackets come after; others run as they are; a note says who runs with what."""
    chosen = with_parameters(candidates("easy,slurm,sd(depth=9)"), ["depth=50", "mates=1"])

    assert [one.name for one in chosen] == ["easy", "slurm", "sd(depth=9)"]
    assert [one.options[2:] for one in chosen] == [
        (),
        ("--set", "depth=50"),
        ("--set", "depth=50", "--set", "mates=1", "--set", "depth=9"),
    ]
    assert chosen[0].premise == ""
    assert chosen[2].premise.endswith(", with depth=50, mates=1")


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        ("dept=50", "--set 'dept=50': none of these policies has a parameter 'dept': name another."),
        ("depth=x", "'depth=x': the parameter depth of policy slurm is a number: write depth=100."),
    ],
)
def test_parameters_that_cannot_be(choice: str, sentence: str) -> None:
    """One sentence."""
    with pytest.raises(SchedulerError) as raised:
        with_parameters(candidates("easy,slurm"), [choice])

    assert str(raised.value) == sentence


def test_one_that_fails(log: Path, tmp_path: Path) -> None:
    """Is told with its sentence; the others are kept."""
    idle = policy(tmp_path / "idle.py", "return 1 << 62")
    told, said = drom("compare-policies", log, *MACHINE, "--policies", f"fcfs,{idle}", "--json", code=1)
    fcfs, other = json.loads(told)["policies"]

    assert not said
    assert fcfs["figures"]["makespan_s"] > 0
    assert other["policy"] == "idle"
    assert other["figures"] is None
    assert other["fault"] == "Policy idle leaves 200 jobs waiting forever, the first is 1."


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(log: Path, tmp_path: Path, how: signal.Signals) -> None:
    """Ctrl-C, and SIGTERM, keep who has ended, and say who has not."""
    begun = tmp_path / "begun"
    endless = policy(
        tmp_path / "endless.py", f"from pathlib import Path; Path({str(begun)!r}).touch(); return state.now + 1"
    )
    names = f"fcfs,{endless},easy"
    command = [
        sys.executable,
        "-m",
        "drom",
        "compare-policies",
        str(log),
        *MACHINE,
        "--policies",
        names,
        "--jobs",
        "1",
    ]
    process = subprocess.Popen(
        [*command, "--jobs", "1", "--out", str(tmp_path / "r")],
        cwd=ROOT,
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(begun.exists, process.poll, START_SECONDS)
        process.send_signal(how)
        told, said = process.communicate(timeout=120)
    finally:
        process.kill()
    kept = json.loads((tmp_path / "r" / "policies.json").read_text())

    assert (process.returncode, said) == (130, "drom: interrupted: the results of the completed policies are kept.\n")
    assert [line.split()[0] for line in told.splitlines()] == ["POLICY", "fcfs", *UNITS.split()[:1], "endless", "easy"]
    assert told.splitlines()[3:] == ["endless has no figures: interrupted.", "easy has no figures: interrupted."]
    assert [bool(one["figures"]) for one in kept["policies"]] == [True, False, False]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--policies", "best"], "--policies: 'best' is none: choose of fcfs, easy,"),
        (["--policies", "payoff"], "--policies: payoff needs contracts: add --contracts FILE, or for example"),
        (["--policies", "easy,default"], "--policies names 'easy' twice: name each policy once."),
        (["--policies", "easy,easy"], "--policies names 'easy' twice: name each policy once."),
        (["--policies", "sd(max_slowdown=5"], "--policies: 'sd(max_slowdown=5' is none: choose of fcfs, easy,"),
        (["--policies", "sd(depht=5)"], "'depht=5': the policy sd has no parameter 'depht': it has interval, depth,"),
        (["--policies", "sd(depth=x)"], "'depth=x': the parameter depth of policy sd is a number: write depth=100."),
        (["--policies", "slurm()"], "'': the policy slurm has no parameter '': it has interval, depth,"),
        (["--policies", "easy(depth=5)"], "'depth=5': the policy easy has no parameter 'depth': it has none."),
        (["--policies", "f1(backfill=0.5)"], "policy f1: backfill is a whole number from 0, or all."),
        (["--policies", "f1(backfill=0),f1( backfill=0)"], "--policies names 'f1(backfill=0)' twice: name each"),
        (["--policies", "none.py(x=1)"], "There is no policy file none.py: name a file of Python"),
        (["--policies", "none.py"], "There is no policy file none.py: name a file of Python"),
        (["--rule", "larger"], "larger"),
        (
            ["--html", "/nowhere/x.html"],
            "The report /nowhere/x.html cannot be written: No such file or directory",
        ),
        (["--html", "/"], "The report / cannot be written: Is a directory: name another place with --html."),
        (["--nodes", "2500001"], "firstfit takes all 10,000,004 cores for one pool, which has at most 10,000,000:"),
        (["--nodes", "4"], "larger than the machine"),
        (["--out", "/dev/full/x"], "cannot hold results: Not a directory: name another folder with --out."),
    ],
)
def test_bad_input(log: Path, options: list[str], sentence: str) -> None:
    """One sentence, also where all fail for the same reason."""
    told, said = drom("compare-policies", log, *MACHINE, "--policies", "fcfs,firstfit", *options, code=1)

    assert not told
    assert sentence in said
    assert said.count("\n") == 1


def test_the_page() -> None:
    """Names every contender, with a table as the command prints it."""
    page = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
    rows = [line.split() for line in page[page.index("POLICY") :].splitlines()[: 1 + len(CONTENDERS)]]
    advised = re.findall(r"^\| `([a-z0-9+]+)` \|", page, re.MULTILINE)

    heads = [column.head for column in COLUMNS if column.key != "paid"]
    assert rows[0] == ["POLICY", *" ".join(heads).split()]
    assert [row[0] for row in rows[1:]] == CONTENDERS
    assert advised == [*usual(contracts=True), "cp", *BASELINES]
    assert page.count(f"\n{UNITS}\n") == page.count("\nPOLICY")
    for one in candidates("default"):
        assert not one.premise or f"{one.name}: {one.premise}.\n" in page


def test_on_a_narrow_terminal() -> None:
    """Columns that have no room follow below, each part with the names; what nobody has is left out."""
    figures = {column.key: 12345.0 for column in COLUMNS} | {"paid": None, "fairness_by_user": None}
    results = [Result(one, figures) for one in candidates("fcfs,conservative+fill")]
    wide, narrow = lines(results), lines(results, 80)

    assert len(wide) == 3
    assert max(map(len, wide)) > 80 >= max(map(len, narrow))
    assert [line.split()[0] for line in narrow] == ["POLICY", "fcfs", "conservative+fill"] * 2
    assert "".join(narrow[i][len("conservative+fill") :] for i in (0, 3)) == wide[0][len("conservative+fill") :]
    assert "BY USER" not in wide[0]
    assert len(lines(results, 10)) == 3 * (len(COLUMNS) - 2)


def test_premises_that_do_not_hold() -> None:
    """One core cannot be shared; who does not plan has no use for predictions."""
    sd, recent = candidates("sd,fcfs+recent", cores=1)

    assert sd.premise == "as slurm, because nodes of one core cannot be shared: set --cores"
    assert recent.premise.endswith("by the predictor recent, which it does not use")


def test_a_list_of_contenders() -> None:
    """In its order; a file is known by its name, and blanks do not count."""
    assert [one.name for one in candidates("sd, my/own.py,fcfs")] == ["sd", "own", "fcfs"]
    assert [one.name for one in candidates("default,cp")] == [*CONTENDERS, "cp"]


def test_parameters_in_brackets() -> None:
    """Parameters of a contender are in its name, and reach its run as `--set`; commas in brackets end no name."""
    sd, saf, filled = candidates("sd(max_slowdown=1e+1, depth=50),saf,conservative(depth=4)+fill")

    assert sd.name == "sd(max_slowdown=1e+1,depth=50)"
    assert sd.options == ("--policy", "sd", "--set", "max_slowdown=1e+1", "--set", "depth=50")
    assert saf.options == ("--policy", "saf")
    assert filled.name == "conservative(depth=4)+fill"
    assert filled.options[:4] == ("--policy", "conservative", "--set", "depth=4")


def test_parameters_change_the_schedule(log: Path) -> None:
    """A contender with parameters has its own figures."""
    told, _ = drom("compare-policies", log, *MACHINE, "--policies", "fcfs,easy,conservative(depth=1)", "--json")
    figures = {one["policy"]: one["figures"]["mean_response_s"] for one in json.loads(told)["policies"]}

    assert figures["conservative(depth=1)"] == figures["fcfs"] != figures["easy"]


def test_additions() -> None:
    """Gaps of nodes are filled by policy B, those of a pool by A; the premises are joined."""
    sd, pool, learned = candidates("sd+fill,equipartition+fill,easy+learned")

    assert sd.options == ("--policy", "sd", "--fill", "--fill-set", "policy=B")
    assert pool.options == ("--policy", "equipartition", "--fill", "--fill-set", "policy=A")
    assert sd.premise.startswith("as slurm, and all jobs are malleable")
    assert "beside others, and containers run in its gaps until a regular job comes" in sd.premise
    assert learned.premise == "run times by the predictor learned"


def test_pay_off(log: Path) -> None:
    """With contracts payoff takes part, and all have a column of what jobs paid."""
    told, _ = drom(
        *("compare-policies", log, *MACHINE, "--policies", "easy,conservative+fill,payoff"),
        *("--contracts", "tight=2", "--json"),
    )
    figures = {one["policy"]: one["figures"] for one in json.loads(told)["policies"]}

    assert all(0 < one["paid"] <= 1 for one in figures.values())
    assert figures["payoff"]["paid"] > figures["easy"]["paid"]
    assert figures["conservative+fill"]["filled"] > 0
    assert figures["easy"]["filled"] is None
