# SPDX-License-Identifier: Apache-2.0
"""The acts of the demonstration on unlike nodes: what users do there, and what must come of it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from drom.agent.control import client as control
from drom.agent.errors import ControlError
from drom.agent.execution.devices import GPU
from drom.agent.execution.protocol import CONTAINER, PROGRAM
from drom.scheduler.demo import mixed_story as story
from drom.scheduler.demo.story import double
from drom.scheduler.live.cluster.jobs import FINAL, PENDING, RUNNING, STARTING
from drom.scheduler.live.cluster.spec import Spec
from drom.scheduler.testbed.local import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from drom.scheduler.demo.mixed_story import Size
    from drom.scheduler.testbed.local import Client

LOOK = 0.2
"""Seconds between two checks of the cluster."""
GIB = 1 << 30


class Stage:
    """The cluster as acts see it: they submit jobs, look at what happens, and add to `problems` what is wrong.

    `folder` has the scheduler's state in `queue`, with a folder for each of its `nodes`, and jobs run in `work`. `pace`
    is the factor by which jobs take longer than their seconds. Lines about what happens go to `tell`.
    """

    def __init__(
        self, client: Client, folder: Path, nodes: Mapping[str, Size], tell: Callable[[str], None], pace: float
    ) -> None:
        self._client, self._nodes, self._tell, self._pace = client, nodes, tell, pace
        self._home, self._work = folder / "queue", folder / "work"
        self._story = story.Narrator(time.time())
        self._cancelled: set[int] = set()
        self.history: dict[str, Any] = {"jobs": [], "entries": []}
        self.problems: list[str] = []
        self.looks = 0
        """The number of checks, on all nodes, of the tasks that hold each core."""

    # --- what users do ---

    def submit(self, name: str, seconds: float, **asked: Any) -> int:  # noqa: ANN401 - of any field
        """Submit a job that takes some seconds and return its number; of an array that of its first job."""
        about = {"name": name, "script": story.PROGRAM, "time": 300, "output": "%j.out", **asked}
        number = self._client.submit(self._work, f"{seconds * self._pace:g}", **about)
        self._story.asked[number] = Spec(**about)
        return number

    def update(self, number: int, **changes: Any) -> None:  # noqa: ANN401 - of any field
        """Change what a waiting job asks for."""
        self._client.ask("update", job=number, changes=changes)
        self._story.asked[number] = replace(self._story.asked[number], **changes)

    def cancel(self, number: int) -> None:
        """End a job, or take it out of the queue."""
        self._cancelled.add(number)
        self._client.ask("cancel", job=number)

    def tell_why(self, number: int) -> None:
        """Print why a job waits, if it does."""
        self._look()
        job = self.jobs[number]
        if job["state"] == PENDING:
            self._tell(self._story.line(time.time(), f"{story.name_of(job)} waits: {job['reason']}"))

    @property
    def way_of_saving(self) -> str:
        """How these nodes save fillers: in containers if they can, else by the program's own checkpoint."""
        return CONTAINER if all(CONTAINER in node["saves"] for node in self._client.ask("nodes")["nodes"]) else PROGRAM

    # --- what comes of it ---

    @property
    def jobs(self) -> dict[int, story.Row]:
        """The jobs at the last look, by number."""
        return {job["job"]: job for job in self.history["jobs"]}

    def expect(self, claim: object, otherwise: str) -> None:
        """Note that a claim does not hold."""
        if not claim:
            self.problems.append(otherwise)

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Look until a condition holds. Raises ControlError if it does not in time."""
        deadline = time.monotonic() + PATIENCE
        self._look()
        while not condition():
            if time.monotonic() > deadline:
                msg = f"{what} did not happen within {PATIENCE:g} s: is this machine very busy?"
                raise ControlError(msg)
            time.sleep(LOOK)
            self._look()

    def until_running(self, *numbers: int) -> None:
        """Look until these jobs have started."""
        self.until(lambda: all(self.jobs[number]["started"] for number in numbers), "the start of jobs")

    def until_over(self, *numbers: int) -> None:
        """Look until these jobs are over, or all."""
        self.until(
            lambda: all(self.jobs[number]["state"] in FINAL for number in numbers or self.jobs), "the end of jobs"
        )

    def clear(self) -> None:
        """End all jobs, as after a failure."""
        self._client.ask("cancel", states=[PENDING, STARTING, RUNNING])
        self.until_over()

    def judge(self) -> None:
        """Check the jobs, which are all over, and tell what those with GPUs printed.

        Raises ControlError if programs of jobs are left on nodes.
        """
        self.until(lambda: not any(map(self._tasks, self._nodes)), "the end of all programs")
        asked = self._story.asked
        self.problems += story.overcommitted(self.history["jobs"], asked, self._nodes)
        for number, job in self.jobs.items():
            output = self._work / f"{number}.out"
            text = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
            spec = asked[job["array"] or number]
            if spec.resources:
                self._tell(f"  {story.name_of(job)} on {', '.join(job['shares'])}: CUDA_VISIBLE_DEVICES={text.strip()}")
            cancelled = number in self._cancelled
            self.problems += story.judge(job, spec, self._nodes, cancelled=cancelled, output=text)

    def _look(self) -> None:
        """Report new events, and check that no core is held by two tasks."""
        self.history = self._client.ask("history", last=1000)
        for line in self._story.hear(self.history):
            self._tell(line)
        for name in self._nodes:
            if complaint := double(self._tasks(name)):
                self.problems.append(f"{name}: {complaint}")
        self.looks += 1

    def _tasks(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of `drom ps` on a node."""
        rows: list[dict[str, Any]] = control.order(self._home / name, "ps")["tasks"]
        return rows


# --- the acts ---


def any_size(stage: Stage) -> None:
    """Start jobs of many sizes: with much memory, with GPUs, and with tasks that may be on any nodes."""
    genome = stage.submit("genome", 24, threads=4, memory=200 * GIB)
    ocean = stage.submit("ocean", 20, ranks=14)
    one = stage.submit("train", 14, threads=1, resources={GPU: 1})
    two = stage.submit("train", 18, threads=1, resources={GPU: 2})
    stage.until_running(genome, ocean, one, two)
    stage.expect([*stage.jobs[genome]["shares"]] == ["fat"], "genome is not on fat, the only node with its memory.")
    stage.expect(len(stage.jobs[ocean]["shares"]) > 1, "the 14 tasks of ocean are on one node, and none has 14 cores.")


def array(stage: Stage) -> None:
    """Start an array of six jobs, of which three may run at once."""
    sweep = stage.submit("sweep", 3, threads=1, array="0-5%3")
    stage.until_over(*range(sweep, sweep + 6))
    ran = [stage.jobs[number] for number in range(sweep, sweep + 6)]
    stage.expect(story.at_most(ran, 3), "more than three jobs of the array sweep ran at once.")


def gpus(stage: Stage) -> None:
    """Start jobs for which GPUs are short, although cores are free."""
    first, second, _ = (stage.submit("infer", 6, threads=1, resources={GPU: 1}) for _ in range(3))
    stage.until_running(first)
    stage.tell_why(second)


def change(stage: Stage) -> None:
    """Change a job that waits for a whole node, so that it need not."""
    stuck = stage.submit("stuck", 2000, threads=8, memory=100 * GIB)
    stage.until_running(stuck)
    model = stage.submit("model", 8, threads=12)
    stage.tell_why(model)
    stage.update(model, threads=4)
    stage.until_running(model)
    stage.expect(sum(stage.jobs[model]["shares"].values()) == 4, "model was changed to 4 cores, and has others.")


def cancel(stage: Stage) -> None:
    """Cancel a job that another one waits for."""
    stuck, model = (number for number, job in stage.jobs.items() if job["name"] in ("stuck", "model"))
    report = stage.submit("report", 6, threads=10, memory=200 * GIB)
    stage.tell_why(report)
    stage.until_over(model)
    stage.cancel(stuck)
    stage.until_running(report)
    begun, ended = stage.jobs[report]["started"], stage.jobs[stuck]["ended"]
    stage.expect(ended is not None and begun >= ended, "report has started beside stuck, and no node is so large.")


def fillers(stage: Stage) -> None:
    """Run a filler in a gap until a job needs the node. It continues on another node from where it was saved."""
    stage.until_over()
    way = stage.way_of_saving
    count = stage.submit("count", 0, threads=1, time=0, script=story.COUNTER, saving=way, nodelist=("old1", "old2"))
    stage.until_running(count)
    (first,) = stage.jobs[count]["shares"]
    for node in ("old1", "old2") if first == "old1" else ("old2", "old1"):
        urgent = stage.submit("urgent", 5, threads=2, nodelist=(node,))
        stage.until_running(urgent)
    stage.until_over()
    saves = [entry for entry in stage.history["entries"] if (entry["job"], entry["what"]) == (count, "saved")]
    stage.expect(saves, "count was never saved, although its node was needed.")


ACTS: dict[str, Callable[[Stage], None]] = {
    "Jobs of any size": any_size,
    "An array": array,
    "GPUs are counted": gpus,
    "A waiting job is changed": change,
    "A running job is cancelled": cancel,
    "A filler gives way": fillers,
}
"""The acts in their order, by title; jobs of an act may run on in the next ones."""
