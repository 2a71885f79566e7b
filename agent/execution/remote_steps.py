# SPDX-License-Identifier: Apache-2.0
"""Processes of a job on its other nodes, for its own launcher, without ssh: hooks here, steps there, relay in between.

The node of a hook requests a step from the node that the hook names, again and again until it receives the result:
a lost message, and agents and schedulers that die, only delay it. The body of a message is one of ::

    {"step": NUMBER, "command": TEXT, "folder": PATH}      to the other node
    {"end": NUMBER}                                        to it, after the launcher has gone, until the step is over
    {"over": NUMBER, "answer": TEXT}                       back: a status, or "1 SENTENCE"
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from drom.agent.errors import Refused
from drom.agent.execution.mpi_hosts import node_of
from drom.agent.execution.protocol import Post
from drom.agent.execution.step_requests import NUMBER, Request, StepRequestServer
from drom.agent.execution.steps import Step, Steps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from drom.agent.execution.launch import LaunchSite
    from drom.agent.execution.supervisor import Attempt
    from drom.agent.system.loop import Loop
    from drom.agent.system.proc import Stat

REPEAT = 2.0
"""Seconds after which the step of a waiting hook is requested again."""


class RemoteSteps:
    """Handles hooks and steps of the `attempts` at `place`; `send` passes a message for another node to the scheduler.

    `share` returns how many hooks a user may have at a time, `scan` the stat of every process.
    """

    def __init__(
        self,
        loop: Loop,
        place: LaunchSite,
        boot: str,
        attempts: Mapping[tuple[int, int], Attempt],
        send: Callable[[Post], None],
        *,
        share: Callable[[int], int],
        scan: Callable[[], dict[int, Stat]],
    ) -> None:
        self.steps = Steps(loop, place, boot, self._tell)
        self._loop = loop
        self._place = place
        self._attempts = attempts
        self._send = send
        self._share = share
        self._scan = scan
        self._step_requests: StepRequestServer | None = None
        self._left: dict[str, Request] = {}
        """Requests whose launcher has disconnected, by number, and whose end is not yet known."""
        self._again = 0.0

    def open(self) -> None:
        """Open the socket for launchers."""
        self._step_requests = StepRequestServer(self._place.runtime_dir / "steps", self._loop, self, self._share)

    def close(self) -> None:
        """Close the socket for launchers; steps continue."""
        if self._step_requests:
            self._step_requests.close()
        self.steps.close()

    def run(self, now: float) -> None:
        """Repeat requests that have had no answer."""
        self.steps.look()
        if not self._step_requests:
            return
        self._step_requests.tend(now)
        if self._asks and now >= self._again:
            self._again = now + REPEAT
            for request in self._step_requests.waiting:
                self._ask(request)
            for request in list(self._left.values()):
                self.hung_up(request)

    def next_due(self) -> float | None:
        """Return when `run` has something to do, in seconds of CLOCK_MONOTONIC; None if never."""
        return self._again if self._asks else None

    @property
    def _asks(self) -> bool:
        """Whether an answer of another node is outstanding."""
        return bool(self._left or (self._step_requests and self._step_requests.waiting))

    # --- hooks --------------------------------------------------------------------------------------------------------

    def asked(self, request: Request) -> None:
        """Handle the request of a launcher."""
        attempt = self._attempts.get((request.job, request.attempt))
        if attempt is None or not attempt.lives or request.uid != attempt.start.uid:
            self._answer(request.number, f"1 no job {request.job} of yours runs on {self._place.node}.")
        elif node_of(request.host, attempt.nodes) not in (self._place.node, *attempt.nodes):
            self._answer(request.number, f"1 {request.host} is not a node of job {request.job}.")
        else:
            self._ask(request)

    def hung_up(self, request: Request) -> None:
        """End the step of a launcher that has disconnected, if its job is alive here."""
        attempt = self._attempts.get((request.job, request.attempt))
        self._left.pop(request.number, None)
        if attempt and attempt.lives:
            self._left[request.number] = request
            self._deliver(attempt, node_of(request.host, attempt.nodes), {"end": request.number})

    def _ask(self, request: Request) -> None:
        attempt = self._attempts.get((request.job, request.attempt))
        if attempt:
            wanted = {"step": request.number, "command": request.command, "folder": request.folder}
            self._deliver(attempt, node_of(request.host, attempt.nodes), wanted)

    def _answer(self, number: str, text: str) -> None:
        self._left.pop(number, None)
        if self._step_requests:
            self._step_requests.answer(number, text)

    # --- messages between the nodes of a job --------------------------------------------------------------------------

    def _deliver(self, attempt: Attempt, to: str, body: dict[str, Any]) -> None:
        if to == self._place.node:
            self.take(attempt, to, body)
        else:
            self._send(Post(*attempt.key, self._place.node, to, body))

    def take(self, attempt: Attempt, sender: str, body: dict[str, Any]) -> None:
        """Handle a message of another node of a job; malformed ones are dropped."""
        text = {name: value for name, value in body.items() if isinstance(value, str)}
        number = text.get("step") or text.get("end") or text.get("over") or ""
        if not NUMBER.fullmatch(number):
            return
        if "step" in text:
            self._begin(attempt, sender, text)
        elif "end" in text:
            if not self.steps.end(attempt, number, self._scan()):
                self._deliver(attempt, sender, {"over": number})
        else:
            self._answer(number, text.get("answer", "1 the answer cannot be read."))

    def lost(self, body: dict[str, Any]) -> None:
        """Answer the request in `body`, which could not be delivered to another node of its job."""
        if isinstance(number := body.get("step") or body.get("end"), str):
            self._answer(number, "1 the job is no longer on this node.")

    def _begin(self, attempt: Attempt, sender: str, text: dict[str, str]) -> None:
        answer = "1 the job no longer runs there."
        if attempt.state in ("starting", "running"):
            try:
                self.steps.begin(attempt, text["step"], sender, text.get("command", ""), text.get("folder", "/"))
            except OSError as error:
                answer = f"1 {self._place.node} cannot start it: {os.strerror(error.errno or 0)}."
            except Refused as refusal:
                answer = f"1 {refusal}"
            else:
                return
        self._deliver(attempt, sender, {"over": text["step"], "answer": answer})

    def _tell(self, step: Step, answer: str) -> None:
        for node in step.asked_by:
            self._deliver(step.job, node, {"over": step.number, "answer": answer})
