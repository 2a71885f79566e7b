# SPDX-License-Identifier: Apache-2.0
"""The conversion of a recorded log to jobs that can be simulated: every rule has a name, a choice and a count.

The defaults leave no job out. They are those of the SD-Policy specification (D30: a run time below one second counts as
one second) and of the workload notes (allocated processors if positive, else requested ones).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from drom.workloads.errors import WorkloadError, counted, short

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drom.workloads.workload import Bools, Ints, Workload

_EXAMPLES = 3
_PARTIAL = (2, 3, 4)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: the jobs to which it applies, and the effect of each choice on them, as words of a report."""

    about: str
    choices: dict[str, str]


RULES = {
    "partial": Rule("recording only a part of another job (status 2 to 4)", {"drop": "left out", "keep": "kept"}),
    "duplicates": Rule(
        "with the number of an earlier job", {"refuse": "refused", "drop": "left out", "keep": "kept as other jobs"}
    ),
    "processors": Rule(
        "whose allocated and requested processors differ",
        {"allocated": "allocated taken where positive", "requested": "requested taken where positive"},
    ),
    "no_processors": Rule("without a number of processors", {"one": "kept with 1 processor", "drop": "left out"}),
    "unknown_run_time": Rule(
        "with unknown run time", {"one": "kept as 1 s", "requested": "given their requested time", "drop": "left out"}
    ),
    "zero_run_time": Rule("with run time 0", {"one": "kept as 1 s", "drop": "left out"}),
    "no_request": Rule("without requested time", {"run": "given their run time", "drop": "left out"}),
    "overrun": Rule(
        "with run time above requested time",
        {"cut": "run time cut to the request", "raise": "request raised", "keep": "kept", "drop": "left out"},
    ),
    "larger": Rule("larger than the machine", {"refuse": "refused", "shrink": "given all of it", "drop": "left out"}),
    "order": Rule("submitted before the job above them", {"sort": "sorted by submit time", "refuse": "refused"}),
}
"""In the order they are applied, after the filter on status. The first choice of each is the default."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The choice for each of RULES; `status` lists the statuses that are kept (None: all)."""

    status: tuple[int, ...] | None = None
    partial: str = "drop"
    duplicates: str = "refuse"
    processors: str = "allocated"
    no_processors: str = "one"
    unknown_run_time: str = "one"
    zero_run_time: str = "one"
    no_request: str = "run"
    overrun: str = "cut"
    larger: str = "refuse"
    order: str = "sort"

    def to_json(self) -> dict[str, Any]:
        """Return the choices by rule."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine on which the jobs are to run."""

    nodes: int
    cores: int = 1


@dataclass(frozen=True, slots=True)
class Finding:
    """The effect of a rule: the number of jobs, the first of them by job number, and a sentence."""

    rule: str
    choice: str
    jobs: int
    examples: tuple[int, ...]
    sentence: str

    def to_json(self) -> dict[str, Any]:
        """Return the finding as JSON values, by field."""
        return {name: getattr(self, name) for name in ("rule", "choice", "jobs", "examples", "sentence")}


@dataclass(frozen=True, slots=True)
class CleaningReport:
    """The findings of cleaning; a rule without jobs has no finding."""

    jobs_in: int
    jobs_out: int
    rules: Rules
    findings: tuple[Finding, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "jobs_in": self.jobs_in,
            "jobs_out": self.jobs_out,
            "rules": self.rules.to_json(),
            "findings": [finding.to_json() for finding in self.findings],
        }


def parse_rules(choices: Iterable[str]) -> Rules:
    """Return the default rules with some of them chosen by ``NAME=CHOICE``, such as ``overrun=keep`` or ``status=0,1``.

    Raises WorkloadError for an unknown rule or choice.
    """
    chosen: dict[str, Any] = {}
    for text in choices:
        name, _, choice = text.partition("=")
        if name == "status":
            chosen[name] = None if choice == "all" else _statuses(choice)
            continue
        if name not in RULES:
            msg = f"{short(text)} is not a cleaning rule: write NAME=CHOICE, where NAME is status, {', '.join(RULES)}."
            raise WorkloadError(msg)
        if choice not in RULES[name].choices:
            msg = f"{short(text)}: the rule {name} has the choices {', '.join(RULES[name].choices)}."
            raise WorkloadError(msg)
        chosen[name] = choice
    return Rules(**chosen)


def _statuses(choice: str) -> tuple[int, ...]:
    words = choice.split(",")
    if any(word not in {"-1", "0", "1", "2", "3", "4", "5"} for word in words):
        msg = f"{short('status=' + choice)}: write the statuses to keep, such as status=0,1, or status=all."
        raise WorkloadError(msg)
    return tuple(int(word) for word in words)


def clean(
    workload: Workload, rules: Rules | None = None, machine: Machine | None = None, *, strict: bool = True
) -> tuple[Workload, CleaningReport]:
    """Return jobs that can be simulated, and a report of their changes.

    In the returned jobs `allocated` and `requested_processors` are the job's size, at least 1 and at most the
    machine's cores; `run_time` and `requested_time` are at least 1 s; submit times do not decrease. Without a machine
    no job is too large. Raises WorkloadError if a rule refuses a job, and if no job is left. If not `strict`, jobs that
    a rule refuses are reported as its finding and stay as they are.
    """
    rules = rules or Rules()
    work = _Cleaner(workload, rules, strict=strict)
    work.filter_status()
    work.leave("partial", np.isin(work.log.status, _PARTIAL))
    work.leave("duplicates", repeated(work.log.job))
    work.set_sizes()
    work.set_run_times()
    work.set_requests()
    if machine is not None:
        work.fit(machine)
    work.sort()
    if not len(work.log):
        msg = f"{workload.source or 'the workload'}: no job is left after cleaning: {'; '.join(work.sentences())}."
        raise WorkloadError(msg)
    return work.log, CleaningReport(len(workload), len(work.log), rules, tuple(work.findings))


def repeated(numbers: Ints) -> Bools:
    """Return the mask of the numbers that are those of an earlier job."""
    again = np.ones(len(numbers), dtype=np.bool_)
    again[np.unique(numbers, return_index=True)[1]] = False
    return again


class _Cleaner:
    """The log during the application of the rules, and their findings."""

    def __init__(self, log: Workload, rules: Rules, *, strict: bool) -> None:
        self.log = log
        self.rules = rules
        self.strict = strict
        self.findings: list[Finding] = []

    def sentences(self) -> list[str]:
        return [finding.sentence for finding in self.findings]

    def find(self, name: str, which: Bools) -> str:
        """Record the jobs to which a rule applies and return the choice; refuse the jobs if that is the choice."""
        choice = getattr(self.rules, name)
        jobs = int(which.sum())
        if jobs:
            rule = RULES[name]
            self._note(name, choice, which, f"{counted(jobs, 'job')} {rule.about}: {rule.choices[choice]}")
            if choice == "refuse" and self.strict:
                first = int(which.argmax())
                others = " or ".join(f"{name}={other}" for other in rule.choices if other != "refuse")
                which_are = f"{counted(jobs, 'job')} {rule.about}"
                advice = f"choose {others}, or correct the log"
                msg = f"{self.log.place(first)}: the rule {name} refuses {which_are}: {advice}."
                raise WorkloadError(msg)
        return str(choice)

    def _note(self, name: str, choice: str, which: Bools, sentence: str) -> None:
        examples = tuple(self.log.job[which][:_EXAMPLES].tolist())
        self.findings.append(Finding(name, choice, int(which.sum()), examples, sentence))

    def leave(self, name: str, which: Bools) -> Bools:
        """Apply a rule that can only leave jobs out; return the mask `which` for the jobs that remain."""
        if self.find(name, which) == "drop":
            self.log = self.log.take(~which)
            return which[~which]
        return which

    def filter_status(self) -> None:
        if self.rules.status is not None:
            other = ~np.isin(self.log.status, self.rules.status)
            if other.any():
                kept = ", ".join(map(str, self.rules.status))
                sentence = f"{counted(int(other.sum()), 'job')} with another status than {kept}: left out"
                self._note("status", kept, other, sentence)
            self.log = self.log.take(~other)

    def set_sizes(self) -> None:
        allocated, requested = self.log.allocated, self.log.requested_processors
        choice = self.find("processors", (allocated > 0) & (requested > 0) & (allocated != requested))
        first, second = (allocated, requested) if choice == "allocated" else (requested, allocated)
        other = (first <= 0) & (second > 0)
        if other.any():
            name = "requested" if choice == "allocated" else "allocated"
            about = f"{counted(int(other.sum()), 'job')} without {choice} processors"
            self._note("processors", choice, other, f"{about}: {name} taken")
        size = np.where(first > 0, first, second)
        self._resize(size)
        none = self.leave("no_processors", size <= 0)
        self._resize(np.where(none, 1, self.log.allocated))

    def _resize(self, size: Ints) -> None:
        self.log = self.log.with_columns(allocated=size, requested_processors=size.copy())

    def set_run_times(self) -> None:
        unknown = self.leave("unknown_run_time", self.log.run_time < 0)
        if self.rules.unknown_run_time == "requested":
            asked = np.maximum(self.log.requested_time, 1)
            self.log = self.log.with_columns(run_time=np.where(unknown, asked, self.log.run_time))
        elif unknown.any():
            self.log = self.log.with_columns(run_time=np.where(unknown, 1, self.log.run_time))
        zero = self.leave("zero_run_time", self.log.run_time == 0)
        self.log = self.log.with_columns(run_time=np.where(zero, 1, self.log.run_time))

    def set_requests(self) -> None:
        missing = self.leave("no_request", self.log.requested_time <= 0)
        self.log = self.log.with_columns(
            requested_time=np.where(missing, self.log.run_time, self.log.requested_time),
        )
        over = self.leave("overrun", self.log.run_time > self.log.requested_time)
        if self.rules.overrun == "cut":
            self.log = self.log.with_columns(run_time=np.where(over, self.log.requested_time, self.log.run_time))
        elif self.rules.overrun == "raise":
            self.log = self.log.with_columns(requested_time=np.where(over, self.log.run_time, self.log.requested_time))

    def fit(self, machine: Machine) -> None:
        total = machine.nodes * machine.cores
        self.leave("larger", self.log.allocated > total)
        if self.rules.larger == "shrink":
            self._resize(np.minimum(self.log.allocated, total))

    def sort(self) -> None:
        early = np.zeros(len(self.log), dtype=np.bool_)
        early[1:] = np.diff(self.log.submit) < 0
        self.find("order", early)
        if early.any():
            self.log = self.log.take(np.argsort(self.log.submit, kind="stable"))
