# SPDX-License-Identifier: Apache-2.0
"""A scheduler that is not there yet for users and agents: it compiles its policy, or another scheduler leads."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NoReturn

from drom.agent.errors import ElsewhereError, NotYetError
from drom.scheduler.live.cluster.driver import prepare
from drom.scheduler.live.server.etcd import StoreError

if TYPE_CHECKING:
    from drom.agent.model.caller import Caller
    from drom.agent.observe.log import Log
    from drom.scheduler.engine.compiler import Policy
    from drom.scheduler.live.server.shared_rows import SharedRows


class Waiting(ABC):
    """Something to wait for: until it `is_over` no order is accepted. `fd` is readable when that may have changed."""

    fd: int

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Whether the scheduler may go on."""

    @property
    @abstractmethod
    def refusal(self) -> NotYetError:
        """The answer to orders."""

    @property
    @abstractmethod
    def status(self) -> str:
        """What the service manager shows."""

    def refuse(self, _order: dict[str, object], _caller: Caller) -> NoReturn:
        """Raise NotYetError: no order is accepted yet."""
        raise self.refusal


class Starting(Waiting):
    """Compiles a policy in a thread, which may take minutes; `fd` is readable once it has ended."""

    def __init__(self, policy: Policy) -> None:
        self._is_over = False
        self._policy = policy
        self._error: BaseException | None = None
        self.fd, self._write = os.pipe2(os.O_CLOEXEC)
        threading.Thread(target=self._compile, daemon=True).start()

    @property
    def is_over(self) -> bool:
        """Whether the thread has ended."""
        return self._is_over

    @property
    def refusal(self) -> NotYetError:
        """The answer to orders."""
        return NotYetError("the scheduler is starting and compiles its policy: try again in a minute.")

    @property
    def status(self) -> str:
        """What the service manager shows."""
        return "compiling the policy"

    def _compile(self) -> None:
        try:
            prepare(self._policy)
        except BaseException as error:  # noqa: BLE001 - raised by `finish`, in the thread that serves
            self._error = error
        self._is_over = True
        os.close(self._write)

    def finish(self) -> None:
        """Finish after the thread has ended. Raises its exception: SchedulerError for a policy that is wrong."""
        os.close(self.fd)
        if self._error:
            raise self._error


class Standby(Waiting):
    """Follows the scheduler that leads, and takes over from it."""

    def __init__(self, rows: SharedRows, log: Log) -> None:
        self._rows, self._log = rows, log
        self._told = self._leader = ""
        self.fd = rows.fd

    @property
    def is_over(self) -> bool:
        """Whether this scheduler leads now. A store that fails is logged once."""
        why = ""
        try:
            leads = self._rows.advance()
        except StoreError as error:
            leads, why = False, f"no scheduler can take over: {error}."
        if why and not self._told:
            self._log("queue_stuck", reason=why)
        elif self._told and not why:
            self._log("queue_unstuck")
        self._told = why
        if self._rows.leader not in ("", self._leader):
            self._leader = self._rows.leader
            self._log("standing_by", leader=self._leader)
        return leads

    @property
    def refusal(self) -> NotYetError:
        """The answer to orders."""
        if not self._rows.leader:
            return NotYetError("no scheduler leads at present: try again in a moment.")
        return ElsewhereError(f"this scheduler stands by for the one on {self._rows.leader}: ask that one.")

    @property
    def status(self) -> str:
        """What the service manager shows."""
        return f"standing by for {self._rows.leader or 'another scheduler'}"
