# SPDX-License-Identifier: Apache-2.0
"""The design of an experiment: the values in its file, the factors among them, and the runs that these make."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from drom.agent.config.sources import entries, load_toml, read_text, toml, unknown_key
from drom.scheduler.analysis.metrics import COUNTS, FIGURES
from drom.scheduler.cli.setup import Setup, choices_of
from drom.scheduler.comparison.candidates import DEFAULT, candidates, usual
from drom.scheduler.errors import SchedulerError
from drom.scheduler.predictors.knowledge import USER
from drom.workloads.errors import counted
from drom.workloads.making import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

MOST_RUNS = 100_000
_TEXT, _WHOLE, _NUMBER, _TABLE = (str,), (int,), (int, float), (dict,)
KEYS: dict[str, tuple[type, ...]] = {
    "title": _TEXT,
    "seeds": (int, list),
    "compare": _TEXT,
    "baseline": (*_TEXT, *_NUMBER),
    "warm_up": _NUMBER,
    "cool_down": _NUMBER,
    "metrics": (list,),
}
"""The keys of an experiment outside its tables, with the types of their values."""
TABLES: dict[str, dict[str, tuple[type, ...]]] = {
    "workload": {
        "log": _TEXT,
        "model": _TEXT,
        "jobs": _WHOLE,
        "load": _NUMBER,
        "kind": _TEXT,
        "fit": _TEXT,
        "largest": _WHOLE,
        "estimates": _TEXT,
        "mix": (bool,),
        "accuracy": _NUMBER,
    },
    "simulation": {
        "policy": _TEXT,
        "nodes": _WHOLE,
        "cores": _WHOLE,
        "event_rule": _TEXT,
        "runtime_model": _TEXT,
        "partition": _TABLE,
        "classes": _TABLE,
        "adaptive": _TABLE,
        "evolving": (*_TEXT, *_NUMBER),
        "contracts": (*_TABLE, *_TEXT),
        "failures": _TABLE,
        "sleep": _TABLE,
        "speed": _TABLE,
        "rule": _TABLE,
    },
}
"""The keys of the tables, with the types of their values; a list of values makes a factor of a key."""
PARAMETERS = "parameters"
"""The table of parameters of the policies, whose keys are theirs."""
METRICS = FIGURES | COUNTS
"""The metrics with their names in reports."""
RESERVED = ("seed", "metric")
"""Names of columns that no factor may have."""
_SEVERAL = ("partition", "adaptive", "contracts", "failures", "sleep", "speed", "rule")
"""Keys of options that the command takes several times."""
_DRAWN = ("classes", "adaptive", "evolving", "contracts", "failures")
"""Keys by which runs of a log differ from seed to seed."""
_USUAL = ("mean_bounded_slowdown", "mean_wait_s", "utilisation")
_NAMES = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    dict: "a table",
    list: "a list",
    bool: "true or false",
}


class Factor(NamedTuple):
    """A key with several levels: its path, such as ``workload.load``, and its values."""

    path: str
    levels: tuple[Any, ...]

    @property
    def name(self) -> str:
        """The name of its column."""
        return self.path.rpartition(".")[2]

    @property
    def labels(self) -> list[str]:
        """The names of its levels."""
        return [label(level) for level in self.levels]


def label(level: Any) -> str:  # noqa: ANN401 - a value of TOML
    """Return a level as text."""
    if isinstance(level, dict):
        return ",".join(choices_of(level))
    return str(level).lower() if isinstance(level, bool) else str(level)


class Options(dict[str, Any]):
    """A level that is a table of options; it does not change, so that dictionaries can have it as a key."""

    def __hash__(self) -> int:  # type: ignore[override] # other dictionaries have none
        return hash(frozenset(self))


class Case(NamedTuple):
    """A run: jobs of a recipe or, without one, of a log; a machine with options; a policy; the jobs that count."""

    recipe: Recipe | None
    log: str
    setup: Setup
    policy: str
    choices: tuple[str, ...]
    warm_up: float
    cool_down: float


@dataclass(frozen=True, slots=True)
class Design:
    """An experiment. `values` has the keys of its tables that have one value, by path.

    The levels of the factor `compare` are compared with that of the label `baseline`; without factors both are empty.
    """

    title: str
    seeds: tuple[int, ...]
    factors: tuple[Factor, ...]
    values: Mapping[str, Any]
    compare: str
    baseline: str
    metrics: tuple[str, ...]
    warm_up: float
    cool_down: float

    @property
    def cells(self) -> list[tuple[Any, ...]]:
        """The combinations of levels, in the order of the file."""
        return list(product(*(factor.levels for factor in self.factors)))

    def labels(self, cell: Sequence[Any]) -> dict[str, str]:
        """Return the labels of the levels of a cell, by the names of the factors."""
        return {factor.name: label(level) for factor, level in zip(self.factors, cell, strict=True)}

    def name(self, cell: Sequence[Any]) -> str:
        """Return the levels of a cell for a sentence."""
        return ", ".join(f"{name} {text}" for name, text in self.labels(cell).items()) or "the only cell"

    def chosen(self, cell: Sequence[Any]) -> dict[str, Any]:
        """Return the value of each key in a cell, by path."""
        return {**self.values, **{factor.path: level for factor, level in zip(self.factors, cell, strict=True)}}

    def case(self, chosen: Mapping[str, Any], seed: int) -> Case:
        """Return the run of these values with a seed, which draws the jobs of a model too.

        Raises SchedulerError for a policy that does not exist.
        """
        tables: dict[str, dict[str, Any]] = defaultdict(dict)
        for path, value in chosen.items():
            table, _, key = path.partition(".")
            tables[table][key] = value
        work, options = tables["workload"], tables["simulation"]
        policy = _policy(options.pop("policy"))
        lists = {key: choices_of(options.get(key)) for key in _SEVERAL}
        classes, evolving = ",".join(choices_of(options.get("classes"))) or None, str(options.get("evolving", ""))
        texts = {"classes": classes, "evolving": evolving, "predict": policy.get("--predict", [USER])[0]}
        setup = Setup(**options | lists | texts, seed=seed)
        log = work.pop("log", "")
        recipe = None if log else Recipe(**work, nodes=setup.nodes, cores=setup.cores, seed=seed)
        choices = (*policy.get("--set", ()), *choices_of(tables[PARAMETERS]))
        return Case(recipe, log, setup, policy["--policy"][0], choices, self.warm_up, self.cool_down)


def _policy(name: str) -> dict[str, list[str]]:
    """Return the options of a policy as `drom compare-policies` takes it, by flag."""
    (candidate,) = candidates(name, contracts=True)
    if "--fill" in candidate.options:
        msg = f"{name}: gaps are not filled in experiments: omit +fill."
        raise SchedulerError(msg)
    found: dict[str, list[str]] = defaultdict(list)
    for flag, value in zip(candidate.options[::2], candidate.options[1::2], strict=True):
        found[flag].append(value)
    return found


class Source(NamedTuple):
    """An experiment as it was given: its values, its text, and the place of each key for sentences."""

    values: Mapping[str, Any]
    text: str
    where: Callable[[str], str]


def read_source(path: Path) -> Source:
    """Return the experiment in a file. Raises ConfigError for a file that cannot be read, or is not TOML."""
    text = read_text(path)
    values = load_toml(path, text)
    lines = {entry.path: f"{path}:{entry.line}" for entry in entries(text)}
    return Source(values, text, lambda key: f"{lines.get(key, path)}: {key}")


def parse(source: Source) -> Design:
    """Return the design of an experiment. Raises SchedulerError with the place of a fault."""
    return _Parser(source.where).design(source.values)


class _Parser:
    """The parser of an experiment, with the places for its sentences."""

    def __init__(self, where: Callable[[str], str]) -> None:
        self._where = where

    def fail(self, path: str, fault: str) -> NoReturn:
        msg = f"{self._where(path)}: {fault}"
        raise SchedulerError(msg)

    def design(self, values: Mapping[str, Any]) -> Design:
        known = [*KEYS, *TABLES, PARAMETERS]
        for key, value in values.items():
            if key not in known:
                self.fail(key, unknown_key(key, known, "docs/experiments.md"))
            self.check(key, value, KEYS.get(key, _TABLE))
        found = {path: levels for table in (*TABLES, PARAMETERS) for path, levels in self.table(table, values)}
        factors = tuple(Factor(path, levels) for path, levels in found.items() if len(levels) > 1)
        single = {path: levels[0] for path, levels in found.items() if len(levels) == 1}
        self.check_keys(found, factors)
        seeds = self.seeds(values, found)
        compare, baseline = self.comparison(values, factors)
        design = Design(
            str(values.get("title", "Experiment")),
            seeds,
            factors,
            single,
            compare,
            baseline,
            self.metrics(values.get("metrics", list(_USUAL))),
            *self.trimming(values),
        )
        if (runs := len(seeds) * len(design.cells)) > MOST_RUNS:
            self.fail(
                "seeds", f"the experiment has {counted(runs, 'run')}, and {MOST_RUNS:,} are the most: leave out levels."
            )
        return design

    def check(self, path: str, value: object, types: tuple[type, ...]) -> None:
        if type(value) not in types:
            expected = " or ".join(dict.fromkeys(_NAMES[one] for one in types))
            self.fail(path, f"{toml(value)[:40]} is not {expected}.")

    def table(self, table: str, values: Mapping[str, Any]) -> list[tuple[str, tuple[Any, ...]]]:
        """Return the levels of the keys of a table, by path."""
        found = []
        keys = TABLES.get(table)
        for key, value in values.get(table, {}).items():
            path = f"{table}.{key}"
            if keys is not None and key not in keys:
                self.fail(path, unknown_key(key, list(keys), "docs/experiments.md"))
            levels = tuple(value) if isinstance(value, list) else (value,)
            if not levels:
                self.fail(path, "the list is empty: write at least one level.")
            for level in levels:
                self.check(path, level, (*_TEXT, *_NUMBER) if keys is None else keys[key])
            if path == "simulation.policy":
                levels = self.policies(levels)
            twice = next((level for at, level in enumerate(levels) if level in levels[:at]), None)
            if twice is not None:
                self.fail(path, f"{toml(twice)[:40]} is given twice: write each level once.")
            found.append((path, tuple(Options(one) if isinstance(one, dict) else one for one in levels)))
        return found

    def policies(self, levels: Sequence[str]) -> tuple[str, ...]:
        """Return the names of policies, with those that `default` stands for."""
        path = "simulation.policy"
        for level in levels:
            try:
                several = level != DEFAULT and len(candidates(level, contracts=True)) > 1
            except SchedulerError as error:
                self.fail(path, str(error).removeprefix("--policies: "))
            if several:
                self.fail(path, f"{toml(level)} names several policies: write a list with a text for each.")
        return tuple(name for level in levels for name in (usual(contracts=False) if level == DEFAULT else (level,)))

    def check_keys(self, found: Mapping[str, Any], factors: Sequence[Factor]) -> None:
        """Raise an error for keys that are missing, exclude each other, or have the same name."""
        for path in ("simulation.nodes", "simulation.policy"):
            if path not in found:
                self.fail(path, "the experiment needs it: add it.")
        if ("workload.log" in found) == ("workload.model" in found):
            self.fail("workload", "the experiment needs either log, the path of a log, or model, such as lublin.")
        for path in found:
            if "workload.log" in found and path.startswith("workload.") and path != "workload.log":
                self.fail(path, "this is for a model: omit it with log.")
        names = [*RESERVED, *(factor.name for factor in factors)]
        for at, factor in enumerate(factors, len(RESERVED)):
            if factor.name in names[:at]:
                self.fail(factor.path, f"there is another column {factor.name}: write one value here.")

    def seeds(self, values: Mapping[str, Any], found: Mapping[str, Sequence[Any]]) -> tuple[int, ...]:
        is_log = "workload.log" in found
        given = values.get("seeds", 1 if is_log else 10)
        seeds = tuple(given) if isinstance(given, list) else tuple(range(1, given + 1)) if given <= MOST_RUNS else ()
        if not seeds or any(type(seed) is not int or seed < 0 for seed in seeds) or len(set(seeds)) < len(seeds):
            self.fail("seeds", f"{toml(given)[:40]} is not a number of seeds, or a list of different ones from 0 on.")
        if is_log and len(seeds) > 1 and not {f"simulation.{key}" for key in _DRAWN} & found.keys():
            drawn = ", ".join(_DRAWN)
            self.fail("seeds", f"the jobs of a log are the same for each seed: write seeds = 1, or one of {drawn}.")
        return seeds

    def comparison(self, values: Mapping[str, Any], factors: Sequence[Factor]) -> tuple[str, str]:
        """Return the name of the factor that is compared, and the label of the level that others are compared with."""
        by_name = {factor.name: factor for factor in factors}
        usual_one = "policy" if "policy" in by_name else next(iter(by_name), "")
        name = values.get("compare", usual_one)
        for key in ("compare", "baseline"):
            if key in values and not by_name:
                self.fail(key, "no key has several levels: write a list of them, or omit this.")
        if by_name and name not in by_name:
            self.fail("compare", f"{toml(name)[:40]} has not several levels: choose {', '.join(by_name)}.")
        labels = by_name[name].labels if by_name else [""]
        baseline = label(values.get("baseline", labels[0]))
        if baseline not in labels:
            self.fail("baseline", f"{toml(baseline)[:40]} is no level of {name}: choose {', '.join(labels)}.")
        return name, baseline

    def metrics(self, names: Sequence[Any]) -> tuple[str, ...]:
        for name in names:
            if type(name) is not str or name not in METRICS:
                self.fail("metrics", f"{toml(name)[:40]} is no metric: choose {', '.join(METRICS)}.")
        if not names or len(set(names)) < len(names):
            self.fail("metrics", "write at least one metric, and each once.")
        return tuple(names)

    def trimming(self, values: Mapping[str, Any]) -> tuple[float, float]:
        warm_up, cool_down = (float(values.get(key, 0.1)) for key in ("warm_up", "cool_down"))
        for key, value in (("warm_up", warm_up), ("cool_down", cool_down)):
            if not (value >= 0 and warm_up + cool_down < 1):
                self.fail(key, f"{value:g} is not a fraction of the jobs: both are at least 0, and together below 1.")
        return warm_up, cool_down
