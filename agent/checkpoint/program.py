# SPDX-License-Identifier: Apache-2.0
"""A program's own checkpoint: a signal asks for it, and the program ends with an agreed exit status.

The program writes its state to files of its own before it ends. It is started again as the first time, with the
variable `RESTART`, and reads them. HTCondor has the same agreement, with the same status.
"""

from __future__ import annotations

import os
import select
import signal

from drom.agent.system import proc

SIGNAL = signal.SIGUSR1
STATUS = 85
"""The exit status of a program that has saved its state."""
RESTART = "DROM_RESTART"
"""Variable that is 1 for a program that is started again."""
SAVED, ENDED, RUNS = "saved", "ended", "runs"
"""What became of a program that was asked: it saved its state, ended otherwise, or goes on."""


def ask(pid: int, start_time: int, grace: float) -> bool:
    """Ask a program for a checkpoint, and wait up to `grace` seconds for its end. Return whether it has ended."""
    pidfd = proc.open_pidfd(pid, start_time)
    if pidfd is None:
        return True
    try:
        signal.pidfd_send_signal(pidfd, SIGNAL)
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        return bool(poller.poll(grace * 1000))
    except ProcessLookupError:
        return True
    finally:
        os.close(pidfd)


def outcome(status: int | None) -> str:
    """Return what became of a program that was asked, by its exit status (None: it has not ended)."""
    if status is None:
        return RUNS
    return SAVED if status == STATUS else ENDED
