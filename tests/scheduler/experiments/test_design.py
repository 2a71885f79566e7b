# SPDX-License-Identifier: Apache-2.0
"""The file of an experiment: factors and runs, and a sentence with the place of each fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from drom.agent.config.sources import ConfigError
from drom.scheduler.comparison.candidates import usual
from drom.scheduler.errors import SchedulerError
from drom.scheduler.experiments.design import Design, Factor, parse, read_source
from drom.scheduler.experiments.running import check
from drom.workloads.making import Recipe

if TYPE_CHECKING:
    from pathlib import Path

SMALL = """\
seeds = 2
[workload]
model = "lublin"
jobs = 50
load = [0.7, 0.9]
[simulation]
nodes = 64
policy = ["fcfs", "easy"]
"""


def design_of(path: Path, text: str) -> Design:
    """Return the design in a file with this text, of which each level can be set up."""
    path.write_text(text)
    source = read_source(path)
    design = parse(source)
    check(design, source.where)
    return design


def test_lists_are_factors(tmp_path: Path) -> None:
    """Each combination is a cell; a run has the jobs of its seed, on the machine that is simulated."""
    design = design_of(tmp_path / "e.toml", SMALL)
    case = design.case(design.chosen(design.cells[3]), 2)

    assert design.factors == (Factor("workload.load", (0.7, 0.9)), Factor("simulation.policy", ("fcfs", "easy")))
    assert design.cells == [(0.7, "fcfs"), (0.7, "easy"), (0.9, "fcfs"), (0.9, "easy")]
    assert (design.seeds, design.compare, design.baseline) == ((1, 2), "policy", "fcfs")
    assert design.labels(design.cells[3]) == {"load": "0.9", "policy": "easy"}
    assert case.recipe == Recipe("lublin", 50, 64, 1, 2, 0.9)
    assert (case.policy, case.setup.seed, case.setup.nodes) == ("easy", 2, 64)


def test_all_options_of_a_simulation_and_parameters_of_policies(tmp_path: Path) -> None:
    """Tables are options with names; a policy has parameters and a predictor as for compare-policies."""
    text = SMALL.replace('policy = ["fcfs", "easy"]', 'policy = ["sd(mates=1)", "sd+recent"]')
    text += (
        "cores = 2\nclasses = [{malleable = 0.5}, {malleable = 1}]\ncontracts = {tight = 3}\n[parameters]\ndepth = 50\n"
    )
    (tmp_path / "e.toml").write_text(f'compare = "classes"\nbaseline = "malleable=1"\n{text}')
    design = parse(read_source(tmp_path / "e.toml"))
    first, last = (design.case(design.chosen(design.cells[at]), 1) for at in (0, -1))

    assert (design.compare, design.baseline, len(design.cells)) == ("classes", "malleable=1", 8)
    assert (first.policy, first.choices, last.choices) == ("sd", ("mates=1", "depth=50"), ("depth=50",))
    assert (first.setup.classes, last.setup.classes) == ("malleable=0.5", "malleable=1")
    assert (first.setup.predict, last.setup.predict, last.setup.contracts) == ("user", "recent", ["tight=3"])


def test_default_stands_for_the_usual_policies(tmp_path: Path) -> None:
    """As for compare-policies."""
    text = SMALL.replace('["fcfs", "easy"]', '["default", "saf"]')
    (tmp_path / "e.toml").write_text(text)

    assert parse(read_source(tmp_path / "e.toml")).factors[1].levels == (*usual(contracts=False), "saf")


def test_an_experiment_without_factors(tmp_path: Path) -> None:
    """It is one cell, which is compared with nothing."""
    text = SMALL.replace("[0.7, 0.9]", "0.7").replace('["fcfs", "easy"]', '"fcfs"')
    design = design_of(tmp_path / "e.toml", text)

    assert (design.cells, design.compare, design.baseline) == ([()], "", "")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("load =", "laod =", ":5: workload.laod: there is no option laod: did you mean load?"),
        ("seeds", "seed", ":1: seed: there is no option seed: did you mean seeds?"),
        ("[simulation]", "[simulations]", ": simulations: there is no option simulations: did you mean simulation?"),
        ("seeds = 2", "seeds = 0", ":1: seeds: 0 is not a number of seeds, or a list of different ones from 0 on."),
        ("seeds = 2", "seeds = [1, 1]", ":1: seeds: [1, 1] is not a number of seeds, or a list of different ones from"),
        ("seeds = 2", "seeds = 99_999", ":1: seeds: the experiment has 399,996 runs, and 100,000 are the most: leave "),
        ("seeds = 2", 'seeds = "x"', ':1: seeds: "x" is not a whole number or a list.'),
        ("seeds = 2", "warm_up = 0.95", ":1: warm_up: 0.95 is not a fraction of the jobs: both are at least 0, and to"),
        ("seeds = 2", "cool_down = -0.1", ":1: cool_down: -0.1 is not a fraction of the jobs"),
        ("seeds = 2", 'metrics = ["speed"]', ':1: metrics: "speed" is no metric: choose makespan_s, mean_response_s, '),
        ("seeds = 2", "seeds = [[1]]", ":1: seeds: [[1]] is not a number of seeds, or a list of different ones from 0"),
        ("seeds = 2", "metrics = [[1]]", ":1: metrics: [1] is no metric: choose makespan_s, mean_response_s, "),
        ("seeds = 2", "metrics = []", ":1: metrics: write at least one metric, and each once."),
        ("seeds = 2", 'compare = "jobs"', ':1: compare: "jobs" has not several levels: choose load, policy.'),
        ("seeds = 2", 'baseline = "sd"', ':1: baseline: "sd" is no level of policy: choose fcfs, easy.'),
        ("jobs = 50", "jobs = 5.5", ":4: workload.jobs: 5.5 is not a whole number."),
        ("jobs = 50", "jobs = []", ":4: workload.jobs: the list is empty: write at least one level."),
        ("jobs = 50", "jobs = true", ":4: workload.jobs: true is not a whole number."),
        ("jobs = 50", "fit = 'kth'", ":4: workload.fit: fit is for the model cirne-like: omit it with lublin."),
        (
            "jobs = 50",
            "log = 'x.swf'",
            ": workload: the experiment needs either log, the path of a log, or model, such",
        ),
        ("[0.7, 0.9]", "[0.7, 0.7]", ":5: workload.load: 0.7 is given twice: write each level once."),
        (
            "[0.7, 0.9]",
            "[0.7, -1.0]",
            ":5: workload.load: Lublin's model needs at least 1 job and 1 node, a positive l",
        ),
        ("nodes = 64", "", ": simulation.nodes: the experiment needs it: add it."),
        (
            "nodes = 64",
            "nodes = 0",
            ":7: simulation.nodes: nodes of a workload is a number from 1 to 1,000,000, not 0.",
        ),
        (
            "nodes = 64",
            "nodes = 64\nrule = {x = 1}",
            ":8: simulation.rule: 'x=1' is not a cleaning rule: write NAME=CHO",
        ),
        (
            "nodes = 64",
            "nodes = 64\nadaptive = {minimum = 0.5}",
            ":8: simulation.adaptive: --adaptive is for policies ",
        ),
        ('"easy"]', '"esay"]', ":8: simulation.policy: 'esay' is none: choose of fcfs, easy, conservative, "),
        (
            '"easy"]',
            '"easy+fill"]',
            ":8: simulation.policy: easy+fill: gaps are not filled in experiments: omit +fill.",
        ),
        (
            '"easy"]',
            '"sd(depth=x)"]',
            ":8: simulation.policy: 'depth=x': the parameter depth of policy sd is a number: ",
        ),
        (
            '"easy"]',
            '"easy,saf"]',
            ':8: simulation.policy: "easy,saf" names several policies: write a list with a text',
        ),
        (
            '"easy"]',
            '"easy"]\n[parameters]\ndepth = 5',
            ":10: parameters.depth: 'depth=5': the policy fcfs has no param",
        ),
        (
            '"easy"]',
            '"easy"]\n[parameters]\nseed = [1, 2]',
            ":10: parameters.seed: there is another column seed: write",
        ),
        ('"easy"]', '"easy"', ":8: this is not TOML"),
        (
            'model = "lublin"\njobs = 50\nload = [0.7, 0.9]',
            "log = 'x'",
            ":1: seeds: the jobs of a log are the same for ",
        ),
        (
            'seeds = 2\n[workload]\nmodel = "lublin"\njobs = 50\nload = [0.7, 0.9]',
            "[workload]\nlog = 'x'\nload = 1",
            ":3:",
        ),
        (
            'seeds = 2\n[workload]\nmodel = "lublin"\njobs = 50\nload = [0.7, 0.9]',
            "[workload]\nlog = 'x'",
            ":2: workload.log",
        ),
    ],
)
def test_a_fault_is_one_sentence_with_its_line(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    """Typos, other types, levels that cannot be set up, alone or with others."""
    path = tmp_path / "e.toml"
    with pytest.raises((SchedulerError, ConfigError)) as raised:
        design_of(path, SMALL.replace(old, new))

    assert str(raised.value).startswith(f"{path}{sentence}")
    assert "\n" not in str(raised.value)
