# SPDX-License-Identifier: Apache-2.0
"""The start of a scheduler until its policy is compiled, which may take minutes; no order is accepted before."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, NoReturn

from drom.agent.errors import NotYetError
from drom.scheduler.live.cluster.driver import prepare

if TYPE_CHECKING:
    from drom.agent.model.caller import Caller
    from drom.scheduler.engine.compiler import Policy
    from drom.scheduler.live.server.agent_server import Peer

STARTING = "the scheduler is starting and compiles its policy: try again in a minute."
STARTING_STATUS = "compiling the policy"


class Starting:
    """Compiles a policy in a thread. `fd` is readable, and `is_over` true, once the thread has ended.

    `peers` are the connections of agents that were told to wait.
    """

    def __init__(self, policy: Policy) -> None:
        self.is_over = False
        self.peers: set[Peer] = set()
        self._policy = policy
        self._error: BaseException | None = None
        self.fd, self._write = os.pipe2(os.O_CLOEXEC)
        threading.Thread(target=self._compile, daemon=True).start()

    def _compile(self) -> None:
        try:
            prepare(self._policy)
        except BaseException as error:  # noqa: BLE001 - raised by `finish`, in the thread that serves
            self._error = error
        self.is_over = True
        os.close(self._write)

    def finish(self) -> None:
        """Finish after the thread has ended. Raises its exception: SchedulerError for a policy that is wrong."""
        os.close(self.fd)
        if self._error:
            raise self._error

    def refuse(self, _order: dict[str, object], _caller: Caller) -> NoReturn:
        """Raise NotYetError: no order is accepted yet."""
        raise NotYetError(STARTING)
