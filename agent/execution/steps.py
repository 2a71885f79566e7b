# SPDX-License-Identifier: Apache-2.0
"""Commands that a job's launcher on another node has started here: a drom-step for each, inside the job.

Each has a number of its own, and begins once however often it is requested; its result is known until the job's
attempt ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from drom.agent.errors import Refused
from drom.agent.execution import launch, spool
from drom.agent.execution.spool import STEP, Folder
from drom.agent.execution.step_requests import NUMBER
from drom.agent.execution.supervisor import Attempt, StepSupervisor, send_signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from drom.agent.execution.launch import LaunchSite
    from drom.agent.execution.protocol import Start
    from drom.agent.system.loop import Loop
    from drom.agent.system.proc import Stat

MOST = 4096
"""Maximum number of commands of an attempt on a node: the spool has a folder of each until the attempt ends."""


@dataclass(slots=True, eq=False)
class Step:
    """A command as an attempt of its own, and the number it has in the `job`'s launcher."""

    job: Attempt
    number: str
    attempt: Attempt
    asked_by: set[str] = field(default_factory=set)
    """The nodes to which the result is sent."""


class Steps:
    """The steps on this node; `tell` is called with each that is over, and its status or why there is none."""

    def __init__(self, loop: Loop, place: LaunchSite, boot: str, tell: Callable[[Step, str], None]) -> None:
        self._place = place
        self._supervisor = StepSupervisor(loop, place, boot, self)
        self._tell = tell
        self._steps: dict[Attempt, dict[str, Step]] = {}

    def begin(self, job: Attempt, number: str, asked_by: str, command: str, folder: str) -> None:
        """Start a command for the node `asked_by`, unless it has begun already; report the result if it is over.

        Raises OSError if it cannot be started, and `Refused` if the job has had too many commands.
        """
        known = self._steps.setdefault(job, {})
        if number not in known:
            if len(known) >= MOST:
                about = f"job {job.start.job} has had {MOST} commands on {self._place.node}"
                msg = f"{about}, and may have no more: use fewer launches, or several jobs."
                raise Refused(msg)
            start = _start(job, ("/bin/sh", "-c", command), folder)
            step = self._add(job, number, Attempt(start, self._folder(job, number), 0, group=job.group))
            try:
                self._supervisor.begin(step.attempt, replace(start, env={}, argv=start.argv[:1]))
            except OSError:
                del known[number]
                raise
        step = known[number]
        step.asked_by.add(asked_by)
        if not step.attempt.lives:
            self._over(step)

    def end(self, job: Attempt, number: str, stats: dict[int, Stat]) -> bool:
        """Kill a step, which is reported once it is over; return whether there is such a step that is not over."""
        step = self._steps.get(job, {}).get(number)
        if not step or not step.attempt.lives:
            return False
        send_signal(9, self._supervisor.processes_of([step.attempt], stats), stats)
        return True

    def take_up(self, job: Attempt) -> None:
        """Record the steps of a job that an earlier agent began."""
        for path in job.folder.path.glob(STEP + "*"):
            folder, number = Folder(path), path.name.removeprefix(STEP)
            if folder.exists() and NUMBER.fullmatch(number):
                self._look(self._add(job, number, Attempt(_start(job, ("/bin/sh",), "/"), folder, 0)))

    def look(self) -> None:
        """Check again the steps that were about to begin when an earlier agent died."""
        for steps in self._steps.values():
            for step in [one for one in steps.values() if one.attempt.state == "starting" and one.attempt.pidfd < 0]:
                self._look(step)

    def attempts(self, job: Attempt) -> list[Attempt]:
        """Return the steps of a job, as attempts."""
        return [step.attempt for step in self._steps.get(job, {}).values()]

    def any_live(self, job: Attempt) -> bool:
        """Return whether a step of a job is not over."""
        return any(step.attempt.lives for step in self._steps.get(job, {}).values())

    def forget(self, job: Attempt) -> None:
        """Stop watching the steps of a job."""
        for step in self._steps.pop(job, {}).values():
            self._supervisor.forget(step.attempt)

    def close(self) -> None:
        """Stop watching all steps."""
        for job in list(self._steps):
            self.forget(job)

    def program_started(self, attempt: Attempt) -> None:
        """Record that a command runs."""
        attempt.state = "running"

    def step_exited(self, attempt: Attempt) -> None:
        """Record that a command is over, and report it."""
        attempt.state = "ended"
        for step in [one for steps in self._steps.values() for one in steps.values() if one.attempt is attempt]:
            self._over(step)

    def _add(self, job: Attempt, number: str, attempt: Attempt) -> Step:
        step = Step(job, number, attempt)
        self._steps.setdefault(job, {})[number] = step
        return step

    def _look(self, step: Step) -> None:
        state = self._supervisor.look(step.attempt)
        if state in (spool.OVER, spool.LOST):
            step.attempt.status = step.attempt.folder.status()
            self.step_exited(step.attempt)
        elif state == spool.NEVER:
            step.attempt.folder.remove()
            del self._steps[step.job][step.number]

    def _over(self, step: Step) -> None:
        status = step.attempt.status or spool.Status()
        refused = launch.why_refused(status, step.attempt.start, self._place)[1] if status.refused else ""
        self._tell(step, f"1 {refused}" if refused else str(status.status))

    def _folder(self, job: Attempt, number: str) -> Folder:
        return Folder(job.folder.path / (STEP + number))


def _start(job: Attempt, argv: tuple[str, ...], folder: str) -> Start:
    """Return the start of a command of a job: as a task for a script, which is a task on its own node, too.

    The same holds for a program on a terminal.
    """
    mode = "run" if job.start.script or job.start.terminal else "launch"
    alone = replace(job.start, script="", terminal="", input=None, output=None, error=None)
    return replace(alone, mode=mode, argv=argv, cwd=folder, memory=0)  # the group of the job limits it
