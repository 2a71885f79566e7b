# SPDX-License-Identifier: Apache-2.0
"""The demonstration: two OpenMP programs share this machine under a real agent, reported as it happens.

jacobi has all cores; primes arrives, and jacobi gives half of them up; primes ends, and jacobi grows back. The report
comes from the agent's signals and is compared with `drom ps` and with the threads' own masks.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from drom.agent.cli.console import Console
from drom.agent.observe.timeline import PictureError, TimelineChange, draw_text
from drom.agent.system import os_errors, proc
from drom.agent.testbed.stage import DemoError, Stage, opened
from drom.agent.topology.machine import split_sockets, usable_cores
from drom.agent.topology.synthetic import TopologyError, synthetic_topology
from drom.agent.topology.sysfs import read_topology

from dromlib import native
from dromlib.cpulist import cpus, format_cpulist, parse_cpulist
from dromlib.errors import DromError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from drom.agent.topology.machine import Topology

SCHEMA_VERSION = 1
LEAST_SECONDS = 3.0
QUIET_START = 1.0
"""Seconds of compiling after which the user is told what takes so long."""
COMPILING = "drom: compiling the distribution kernel, once on this machine"


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """A change of a job's CPUs (masks). `time_s` counts from the launch of the first program.

    `outcome`: started (`took_s` after its launch), applied by the program, bound or enforced by the agent (`took_s`
    after the grant), exited (`took_s` after its launch).
    """

    time_s: float
    job: str
    action: str
    old: int
    new: int
    outcome: str
    took_s: float
    why: str = ""

    def to_json(self) -> dict[str, object]:
        """Return a value for ``json.dumps``."""
        exact = {"time_s": round(self.time_s, 6), "took_s": round(self.took_s, 6)}
        return asdict(self) | exact | {"old": format_cpulist(self.old), "new": format_cpulist(self.new)}

    def effect(self) -> str:
        """Return a phrase on how the change came into force."""
        wait = f"{1000 * self.took_s:.{1 if self.took_s < 0.00995 else 0}f} ms"
        return {
            "started": f"runs after {wait}",
            "applied": f"applied in {wait}",
            "exited": f"ran for {self.took_s:.1f} s",
        }.get(self.outcome, f"{self.outcome.upper()} in {wait}")

    def change(self) -> TimelineChange:
        """Return the change in the form that pictures take."""
        in_force = self.took_s if self.outcome in {"applied", "bound", "enforced"} else 0.0
        return TimelineChange(self.time_s, self.job, self.new, self.time_s + in_force, self.action)


@dataclass(frozen=True, slots=True)
class Answer:
    """The output of a program at its end, and whether its result was right."""

    job: str
    text: str
    exit_status: int

    @property
    def right(self) -> bool:
        """Whether the program has checked its answer and found it right."""
        return self.exit_status == 0 and self.text.endswith(" ok")

    def to_json(self) -> dict[str, object]:
        """Return a value for ``json.dumps``."""
        return asdict(self) | {"right": self.right}


def choose_machine(real: Topology) -> tuple[Topology, str | None]:
    """Return the machine to show and the topology words that make an agent show it so; None: the real machine.

    The halves of a one-socket machine stand for sockets if words can describe that without splitting a core. Raises
    `DemoError` if there are fewer than two cores.
    """
    shown = split_sockets(real)
    if shown is None:
        raise DemoError("the demonstration needs two cores, and only one may be used here.")
    if shown is real:
        return real, None
    rows = usable_cores(shown)
    words = f"pack:2 core:{len(rows) // 2} pu:{rows[0][2].bit_count()}"
    with suppress(TopologyError):
        machine = synthetic_topology(words, real.allowed)
        if _cores(machine) == _cores(shown):
            return machine, words
    return real, None


def _cores(machine: Topology) -> list[tuple[int, int]]:
    return [(package, mask) for package, _, mask in usable_cores(machine)]


def introduce(machine: Topology, words: str | None) -> str:
    """Return the first lines: the programs and the machine that they are going to share."""
    sockets: dict[int, int] = {}
    for package, mask in _cores(machine):
        sockets[package] = sockets.get(package, 0) | mask
    parts = ", ".join(f"socket {package}: {format_cpulist(mask)}" for package, mask in sockets.items())
    text = f"Two OpenMP programs share {len(_cores(machine))} cores, by CPU number ({parts}).\n"
    return text + ("There is one real socket here: each half of its cores plays one.\n" if words else "")


# --- the story ---


@dataclass(slots=True)
class Narrator:
    """The changes so far. `tell` is called with each change as soon as it is in force."""

    stage: Stage
    tell: Callable[[ChangeRecord], None]
    begin: float = 0.0
    told: list[ChangeRecord] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    samples: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    _reasons: dict[str, str] = field(default_factory=dict)

    def play(self, seconds: float) -> None:
        """Run both programs; jacobi computes for `seconds`."""
        stage = self.stage
        stage.hear = self.hear
        self.begin = stage.launch("jacobi", "--seconds", f"{seconds:g}").launched
        stage.wait_until(lambda: self._computes("jacobi", seconds / 4), "jacobi to compute", seconds)
        # Below a power of ten the count is known: only on small machines primes has to check it with a sieve.
        stage.launch("primes", "--below", "100000000", "--seconds", f"{seconds / 3:g}")
        stage.wait_until(lambda: self._computes("primes"), "primes to compute", seconds)
        if not self._ended("primes", "jacobi"):
            self._compare()
        stage.wait_until(lambda: self._ended("primes"), "primes to end", seconds)
        stage.wait_until(lambda: self._did("grow") or self._ended("jacobi"), "jacobi to grow back", seconds)
        stage.wait_until(lambda: self._ended("jacobi"), "jacobi to end", seconds)
        stage.wait_until(lambda: all(self._now(name) == 0 for name in stage.programs), "the agent to see both ends")
        self.answers = [Answer(name, *stage.said(name)) for name in stage.programs]
        self.problems += self._judgement()

    def hear(self, event: dict[str, Any]) -> None:
        """Record one signal of the agent."""
        job, kind, at = event["job"], event["event"], event["time"] - self.begin
        if kind == "ended":
            self._end(job, at)
        elif kind == "granted":
            self._reasons[job] = event["reason"]
            if not self._history(job):
                wait = event["time"] - self.stage.programs[job].launched
                self._add(ChangeRecord(at, job, "start", 0, parse_cpulist(event["new"]), "started", wait))
        elif event["action"] != "keep":
            old, new, took = parse_cpulist(event["old"]), parse_cpulist(event["new"]), event["seconds"]
            self._add(ChangeRecord(at - took, job, event["action"], old, new, kind, took))

    def _end(self, job: str, at: float) -> None:
        ran = self.begin + at - self.stage.programs[job].launched
        if self._history(job):
            self._add(ChangeRecord(at, job, "end", self._now(job), 0, "exited", ran))

    def _add(self, told: ChangeRecord) -> None:
        told = replace(told, why=self._why(told))
        self.told.append(told)
        self.tell(told)

    def _why(self, told: ChangeRecord) -> str:
        """Return a phrase on why a change was made."""
        others = [other for other in self.told if other.job != told.job]
        givers = [other.job for other in others if other.action == "shrink" and told.new & other.old & ~other.new]
        gone = [other.job for other in others if other.action == "end"]
        arriving = [name for name in self.stage.programs if name != told.job]
        if told.action == "start":
            return f"on what {givers[-1]} gave up" if givers else "alone: all cores"
        if told.action == "end":
            return "its work is done"
        if told.action == "shrink" and self._reasons.get(told.job) == "share" and arriving:
            return f"{arriving[-1]} arrived"
        if told.action == "grow" and gone:
            return f"{gone[-1]} ended"
        return f"the agent says: {self._reasons.get(told.job)}"

    def _history(self, job: str) -> list[ChangeRecord]:
        return [told for told in self.told if told.job == job]

    def _now(self, job: str) -> int:
        """Return the CPUs a job has according to the recorded changes."""
        return self._history(job)[-1].new if self._history(job) else 0

    def _did(self, action: str) -> bool:
        return any(told.action == action for told in self._history("jacobi"))

    def _ended(self, *names: str) -> bool:
        return any(self.stage.programs[name].ended is not None for name in names)

    def _computes(self, name: str, seconds: float = 0.0) -> bool:
        """Return whether a program has applied its grant, made progress and run for `seconds`; or has ended."""
        if self._ended(name):
            return True
        if not self._history(name) or time.time() - self.begin - self._history(name)[0].time_s < seconds:
            return False
        row = self.stage.tasks().get(name)
        return bool(row and row["progress"] and row["applied"] == row["granted"])

    # --- checks ---

    def _compare(self) -> None:
        """Compare the recorded changes with `drom ps` and with the threads' masks while both run; read the metrics."""
        holders: dict[int, str] = {}
        for job, row in self.stage.tasks().items():
            mine = self._now(job)
            if parse_cpulist(row["applied"]) != mine:
                self.problems.append(f"drom ps says {job} has {row['applied']}, not {format_cpulist(mine)}.")
            for cpu in cpus(parse_cpulist(row["held"])):
                if holders.setdefault(cpu, job) != job:
                    self.problems.append(f"{holders[cpu]} and {job} both hold CPU {cpu}.")
            for mask in proc.thread_masks([self.stage.programs[job].process.pid]).values():
                if mask & ~mine:
                    self.problems.append(f"a thread of {job} may run on {format_cpulist(mask & ~mine)}.")
        wanted = ("drom_job_cpus{", 'drom_reconfigurations_total{action="shrink"')
        self.samples = [line for line in self.stage.scrape() if line.startswith(wanted) and not line.endswith(" 0.0")]

    def _judgement(self) -> list[str]:
        """Return a sentence for each thing that was not as expected."""
        wrong = [answer for answer in self.answers if not answer.right]
        problems = [f"{answer.job} ended with status {answer.exit_status}: {answer.text}." for answer in wrong]
        for action, words in (("shrink", "never shrank"), ("grow", "never grew back")):
            outcomes = {told.outcome for told in self._history("jacobi") if told.action == action}
            if not outcomes:
                problems.append(f"jacobi {words}: on a busy machine give it more --seconds.")
            elif outcomes != {"applied"}:
                problems.append(f"jacobi did not {action} by itself: the agent had to bind it.")
        if not self.samples:
            problems.append("no metrics could be read while both ran.")
        return problems


# --- output ---


class StartNotice:
    """Shows on stderr why the first start takes long: a counter on a terminal, one line elsewhere."""

    def __init__(self) -> None:
        self._shown = -1

    def __call__(self, seconds: float) -> None:
        """Show the seconds so far."""
        if seconds < QUIET_START or int(seconds) == self._shown:
            return
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{COMPILING} ... {int(seconds)} s")
        elif self._shown < 0:
            sys.stderr.write(f"{COMPILING} ...\n")
        sys.stderr.flush()
        self._shown = int(seconds)

    def done(self) -> None:
        """End the line."""
        if self._shown >= 0 and sys.stderr.isatty():
            sys.stderr.write("\n")


def run(out: Path, seconds: float, *, as_json: bool) -> int:
    """Run the demonstration; write the picture below `out`. Return the exit status: 0 if all was as expected."""
    try:
        return _run(out, seconds, as_json=as_json)
    except (DromError, FileNotFoundError) as error:
        lost = os_errors.lacks_current_folder(error)
        sys.stderr.write(f"drom: {os_errors.NO_CURRENT_FOLDER if lost else error}\n")
        return 1


def _run(out: Path, seconds: float, *, as_json: bool) -> int:
    if not LEAST_SECONDS <= seconds <= 3600:
        raise DemoError(f"--seconds {seconds:g} is not between {LEAST_SECONDS:g} and 3600: 12 shows it well.")
    machine, words = choose_machine(read_topology())
    native.run_path(), native.example_path("jacobi"), native.example_path("primes")  # missing ones raise
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DemoError(f"cannot write to {out}: {os.strerror(error.errno or 0)}: choose another --out.") from error
    paper = ChangesConsole(silent=as_json)
    paper.write(introduce(machine, words))
    with opened() as stage:
        patient = StartNotice()
        try:
            stage.start_agent(words, patient)
        finally:
            patient.done()
        paper.head_changes(machine)
        story = Narrator(stage, paper.change)
        story.play(seconds)
        story.problems += stage.stop_agent()
    value = _summary(story, machine, f"http://127.0.0.1:{stage.port}/metrics")
    _report(value, story, paper, out / "demo.png")
    if as_json:
        sys.stdout.write(json.dumps(value) + "\n")
    for problem in story.problems:
        sys.stderr.write(f"drom: {problem}\n")
    return 1 if story.problems else 0


def _summary(story: Narrator, machine: Topology, url: str) -> dict[str, Any]:
    """Return the value that ``--json`` shows, without the pictures."""
    return {
        "schema_version": SCHEMA_VERSION,
        "ok": not story.problems,
        "problems": story.problems,
        "cores": [{"socket": package, "cpus": format_cpulist(mask)} for package, mask in _cores(machine)],
        "changes": [told.to_json() for told in story.told],
        "answers": [answer.to_json() for answer in story.answers],
        "metrics": {"url": url, "samples": story.samples},
    }


def _report(value: dict[str, Any], story: Narrator, paper: Console, png: Path) -> None:
    """Print the results, and add the pictures to `value`."""
    paper.heading("What they computed")
    for answer in story.answers:
        paper.write(f"  {answer.text}\n")
    changes = [told.change() for told in story.told]
    cores = [(row["socket"], parse_cpulist(row["cpus"])) for row in value["cores"]]
    end_s = max(change.time_s for change in changes)
    text = draw_text(changes, cores, end_s, width=paper.width, colour=paper.colour)
    paper.heading("Who held which CPU")
    paper.write(text)
    value["picture"] = {"text": text, **_draw(png, changes, cores, end_s)}
    paper.write(f"As a picture: {png}\n" if value["picture"]["png"] else f"{value['picture']['png_missing']}\n")
    paper.heading(f"Metrics, read at {value['metrics']['url']} while both ran")
    for sample in story.samples:
        paper.write(f"  {sample}\n")
    if not story.problems:
        verdict = "Both answers are right. jacobi shrank and grew by itself. Nothing is left behind."
        paper.write("\n" + paper.ink(verdict, "1;32") + "\n")


def _draw(
    path: Path, changes: list[TimelineChange], cores: list[tuple[int, int]], end_s: float
) -> dict[str, str | None]:
    """Draw the PNG; return where it is, or why there is none."""
    from drom.agent.demo.timeline_png import draw_png

    try:
        draw_png(path, changes, cores, end_s, title=f"Two programs share {len(cores)} cores")
    except PictureError as error:
        return {"png": None, "png_missing": str(error)}
    except OSError as error:
        return {"png": None, "png_missing": f"Cannot write {path}: {os.strerror(error.errno or 0)}."}
    return {"png": str(path), "png_missing": None}


class ChangesConsole(Console):
    """Output that lists changes of grants as well."""

    def __init__(self, *, silent: bool) -> None:
        super().__init__(silent=silent)
        self._list_width = 1

    def head_changes(self, machine: Topology) -> None:
        """Write the heading over the changes."""
        self._list_width = min(len(format_cpulist(machine.allowed)), 12)
        self.heading(f"    time  who     {'CPUs':^{2 * self._list_width + 4}}  change  in force          why")

    def change(self, told: ChangeRecord) -> None:
        """Write the line of a change."""
        wide = self._list_width
        moved = f"{format_cpulist(told.old) or '-':>{wide}} -> {format_cpulist(told.new) or '-':<{wide}}"
        line = f"{told.time_s:6.1f} s  {told.job:<6}  {moved}  {self.ink(f'{told.action:<6}', '1')}  "
        self.write(f"{line}{told.effect():<17} {self.ink(f'({told.why})', '2')}\n")
