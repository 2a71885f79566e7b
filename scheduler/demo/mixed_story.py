# SPDX-License-Identifier: Apache-2.0
"""What happens to jobs on unlike nodes as sentences, and checks that nothing is given twice. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drom.agent.execution.devices import GPU
from drom.agent.execution.protocol import CONTAINER
from drom.agent.text import counted, in_words
from drom.scheduler.demo.story import AT_ONCE, ENDS, take_new
from drom.scheduler.live.cli.tables import label
from drom.scheduler.live.cluster.jobs import CANCELLED, COMPLETED
from drom.scheduler.live.cluster.units import in_sentence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from drom.scheduler.live.cluster.spec import Spec

Row = dict[str, Any]
"""A job, or an entry of its history, in an answer of the scheduler."""
PROGRAM = "#!/bin/sh\necho ${CUDA_VISIBLE_DEVICES-none}\nexec sleep $1\n"
"""The script of each job: it prints the GPUs that it sees, and sleeps for the seconds in its argument."""
COUNTED = 200
COUNTER = f"""#!/bin/sh
n=0
[ -z "$DROM_RESTART" ] || read n <count
trap 'echo $n >count; exit 85' USR1
while [ $n -lt {COUNTED} ]; do n=$((n + 1)); echo $n; sleep 0.05; done
"""
"""The script of a filler, which counts; it can also save itself."""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a node; memory in bytes."""

    cores: int
    memory: int
    gpus: int = 0

    @property
    def words(self) -> str:
        """What it has, in words."""
        gpus = f", {counted(self.gpus, 'GPU')}" if self.gpus else ""
        return f"{counted(self.cores, 'core')}, {in_words(self.memory)}{gpus}"


@dataclass(slots=True)
class Narrator:
    """Converts what is new in a history to lines, with times from `begin`; `asked` has what was submitted, by job."""

    begin: float
    asked: dict[int, Spec] = field(default_factory=dict)
    _heard: Counter[int] = field(default_factory=Counter)

    def hear(self, history: Mapping[str, Any]) -> list[str]:
        """Return the lines for the entries that are new, in the order of time."""
        jobs = {job["job"]: job for job in history["jobs"]}
        new = take_new(history["entries"], self._heard)
        lines = [(entry["at"], self._sentence(entry, jobs[entry["job"]])) for entry in new]
        return [self.line(at, text) for at, text in lines if text]

    def line(self, at: float, text: str) -> str:
        """Return the line of an event at a time (unix seconds)."""
        return f"{at - self.begin:6.1f} s  {text}"

    def _sentence(self, entry: Row, job: Row) -> str:
        name, what, detail = name_of(job), entry["what"], entry["detail"]
        if what == "submitted" and job["job"] in self.asked:  # the first job of an array
            return f"{name} {in_words_of(self.asked[job['job']])}"
        if what == "started":
            waited = entry["at"] - job["submitted"]
            return f"{name} starts {'at once' if waited < AT_ONCE else f'after {waited:.1f} s'} on {places(job)}"
        if what == "updated":
            return f"{name} is changed: {detail['changed']}"
        if what in ENDS:
            took = f" after {entry['at'] - job['started']:.1f} s" if job["started"] else ""
            return f"{name} {ENDS[what]}{took}"
        if what == "saved":
            size = f", in an image of {in_words(detail['bytes'])}" if detail["bytes"] else ""
            return f"{name} was saved on {detail['node']} in {detail['seconds']:.1f} s{size}"
        return f"{name} waits again: {detail['reason']}" if what == "requeued" else ""


def name_of(job: Row) -> str:
    """Return the name and number of a job."""
    return f"{job['name']} (job {label(job)})"


def in_words_of(spec: Spec) -> str:
    """Return what a job asks for, as the rest of a sentence."""
    if spec.array:
        indices, _, most = spec.array.partition("%")
        return f"is the first of the array {indices}, of which {most} may run at once: {in_sentence(spec)} each"
    if spec.ranks:
        return f"asks for {counted(spec.ranks, 'task')} on any nodes, {in_sentence(spec)} each"
    return f"asks for {in_sentence(spec)}"


def places(job: Row) -> str:
    """Return the cores and GPUs that a job has, in words."""
    return ", ".join(
        f"{node} ({counted(cores, 'core')}{_gpus(job['devices'].get(node, {}).get(GPU, ()))})"
        for node, cores in job["shares"].items()
    )


def _gpus(ids: Sequence[int]) -> str:
    return f", GPU{'s' if len(ids) > 1 else ''} {' and '.join(map(str, ids))}" if ids else ""


# --- checks ---


def overcommitted(jobs: Sequence[Row], asked: Mapping[int, Spec], nodes: Mapping[str, Size]) -> list[str]:
    """Return sentences on nodes with more cores or memory in use than they have, or a GPU of two jobs, at any time."""
    found = dict[str, None]()
    for now in [job["started"] for job in jobs if job["started"] is not None]:
        here = [job for job in jobs if job["started"] is not None and job["started"] <= now < (job["ended"] or now + 1)]
        for name, size in nodes.items():
            found |= dict.fromkeys(_over(name, size, [job for job in here if name in job["shares"]], asked))
    return list(found)


def _over(name: str, size: Size, jobs: Sequence[Row], asked: Mapping[int, Spec]) -> Iterator[str]:
    cores = sum(job["shares"][name] for job in jobs)
    memory = sum(asked[job["array"] or job["job"]].memory for job in jobs)
    gpus = Counter(gpu for job in jobs for gpu in job["devices"].get(name, {}).get(GPU, ()))
    who = ", ".join(map(name_of, jobs))
    if cores > size.cores:
        yield f"{name} has {counted(size.cores, 'core')}, and {cores} were in use by {who}."
    if memory > size.memory:
        yield f"{name} has {in_words(size.memory)} of memory, and {in_words(memory)} were in use by {who}."
    for gpu, count in gpus.items():
        if count > 1 or gpu >= size.gpus:
            yield f"GPU {gpu} of {name} was given to {count} jobs of {who}, and there are {size.gpus}."


def at_most(jobs: Sequence[Row], most: int) -> bool:
    """Return whether at most so many of the jobs ran at any time."""
    spans = [(job["started"], job["ended"]) for job in jobs if job["started"] is not None]
    return all(sum(begin <= now < end for begin, end in spans) <= most for now, _ in spans)


def judge(job: Row, spec: Spec, nodes: Mapping[str, Size], *, cancelled: bool, output: str) -> list[str]:
    """Return sentences on the errors of a job that is over, which printed `output`."""
    name, found = name_of(job), []
    if spec.saving:
        return _judge_filler(job, output)
    if job["state"] != (CANCELLED if cancelled else COMPLETED):
        found.append(f"{name} is {job['state']}: {job['reason'] or 'no reason given'}.")
    if job["attempt"] != 1:
        found.append(f"{name} was started {job['attempt']} times.")
    first = next(iter(job["shares"]), "")
    ids = job["devices"].get(first, {}).get(GPU, [])
    if len(ids) != spec.resources.get(GPU, 0):
        found.append(f"{name} asked for gpu={spec.resources.get(GPU, 0)} and was given {len(ids)}.")
    seen = ",".join(map(str, ids)) or ("-1" if first and nodes[first].gpus else "none")
    if output != f"{seen}\n":
        found.append(f"{name} was to see the GPUs {seen} of {first} and printed {output!r}.")
    return found


def _judge_filler(job: Row, output: str) -> list[str]:
    """Return sentences on the errors of a filler that counted; one that saves itself may count a number twice."""
    counted_once = output.split() == [str(number) for number in range(1, COUNTED + 1)]
    counted_all = {str(number) for number in range(1, COUNTED + 1)} == set(output.split())
    found = [] if job["state"] == COMPLETED else [f"{name_of(job)} is {job['state']}: {job['reason']}."]
    if not (counted_once if job["saving"] == CONTAINER else counted_all):
        found.append(f"{name_of(job)} was to count to {COUNTED}, and lost or repeated numbers.")
    return found
