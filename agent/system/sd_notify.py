# SPDX-License-Identifier: Apache-2.0
"""Notifications to a service manager such as systemd: ready, reloading, stopping, and that the loop still runs.

The protocol is that of sd_notify(3): datagrams of ``KEY=value`` lines to the AF_UNIX socket in ``$NOTIFY_SOCKET``,
whose first character ``@`` stands for the NUL of an abstract name. Without the variable nothing is sent. The package
sdnotify is unmaintained, and systemd-python needs the headers of libsystemd.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import MutableMapping

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class ServiceManager:
    """The manager that `environ` names, if any. Its variables are removed, so that no child notifies in our name.

    `period` is the manager's watchdog interval, the most seconds between two notifications; None: no watchdog.
    """

    def __init__(self, environ: MutableMapping[str, str], pid: int) -> None:
        address, usec, watched = (environ.pop(name, "") for name in VARIABLES)
        self._address = "\0" + address[1:] if address.startswith("@") else address
        ours = self._address and usec.isdecimal() and watched in ("", str(pid))
        self.period = int(usec) / 2e6 if ours else None
        self._next = 0.0
        self._status = ""

    def ready(self) -> None:
        """Notify that the agent serves, at first or again after `reloading`."""
        self._send("READY=1")

    def reloading(self) -> None:
        """Notify that the configuration is being read; a call of `ready` must follow."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Notify that the agent is about to end."""
        self._send("STOPPING=1")

    def heartbeat(self, now: float, status: str) -> None:
        """Record a turn of the loop: notify the watchdog if that is due, and send the status if it has changed."""
        lines = []
        if self.period is not None and now >= self._next:
            self._next = now + self.period / 2
            lines.append("WATCHDOG=1")
        if status != self._status:
            self._status = status
            lines.append(f"STATUS={status}")
        if lines:
            self._send(*lines)

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock, suppress(OSError):
            # The agent continues even if its manager does not read.
            sock.setblocking(False)
            sock.sendto("\n".join(lines).encode(), self._address)
