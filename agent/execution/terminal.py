# SPDX-License-Identifier: Apache-2.0
"""Runs a job's program on a pseudo-terminal that it connects to its user's terminal, perhaps on another machine.

    python -m drom.agent.execution.terminal FILE COMMAND...

runs in the job, as its user. `drom submit --pty` listens at an address with a pair of CURVE keys made for this job
alone. Both are in FILE, ``HOST:PORT SECRET``, as `Listener.text` of the command wrote them into the job. This process
connects to that address; both sides prove that they have the keys, and everything is encrypted. A message is one frame,
whose first byte is its kind:

    to the user      HELLO; OUTPUT and bytes of the program; EXIT and its exit status, a byte, as the last message
    to the program   WINDOW and the size of the window, the first message too; INPUT and bytes typed; others are ignored

The program starts after the first message of the user. Without one within `PATIENCE` it never does. When the connection
ends, the program gets SIGHUP, as when a terminal is closed, and `drom-step` kills what is left. Neither direction
buffers more than a few messages: a program that prints without end waits for its user's terminal.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import signal
import struct
import sys
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING

import zmq
from drom.agent.control import keys
from drom.agent.control.gate import SEALED

if TYPE_CHECKING:
    from collections.abc import Iterator

HELLO, OUTPUT, EXIT, WINDOW, INPUT = b"h", b"o", b"x", b"w", b"i"
CHUNK = 4096
"""Most bytes of a terminal in a message."""
LONGEST = len(OUTPUT) + CHUNK
WINDOW_SIZE = 8
"""Bytes of the size of a window: four numbers as the kernel has them (struct winsize), in the order of the network."""
WAITING = 8
"""Most messages that wait in each direction."""
PATIENCE = 20.0
"""Seconds for the connection and the first message of the user."""
HANGUP = 5
"""Seconds for a program to end after SIGHUP."""
ALIVE_MS = 10_000
"""Milliseconds without a sign of the other side after which the connection has ended."""
SEND_BUFFER = 1 << 16
"""Bytes of output that wait in the kernel: the user sees them after Ctrl-C, too."""
LAST = 1 << 16
"""Most bytes of output that are sent after the program's end: what it has started may print without end."""
RETRY = 0.2
"""Seconds until a connection that has failed is tried again."""
NO_TERMINAL = os.EX_UNAVAILABLE
"""The exit status if the terminal of the user cannot be reached."""
HUNG_UP = 128 + signal.SIGHUP


class PseudoTerminal:
    """A program that waits on a pseudo-terminal until `go`; `fd` is the side of its user, `pidfd` the program."""

    def __init__(self, command: list[str]) -> None:
        self.fd, self._side = os.openpty()  # the other side stays open: it is reached as long as the program lives
        ready, self._go = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _become(command, self._side, ready, self._go)
        os.close(ready)
        os.set_blocking(self.fd, False)
        self.pidfd = os.pidfd_open(self.pid)

    def go(self) -> None:
        """Start the program."""
        with contextlib.suppress(BrokenPipeError):  # it was killed
            os.write(self._go, b"\n")

    def resize(self, size: bytes) -> None:
        """Set the size of the window; the program gets SIGWINCH."""
        if len(size) == WINDOW_SIZE:
            fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("4H", *struct.unpack("!4H", size)))

    def read(self) -> bytes:
        """Return bytes that the program has printed, at most `CHUNK`; empty if there are none."""
        try:
            return os.read(self.fd, CHUNK)
        except OSError:
            return b""

    def write(self, data: bytes) -> bytes:
        """Write bytes for the program; return those that it cannot take yet."""
        try:
            return data[os.write(self.fd, data) :]
        except BlockingIOError:
            return data

    def hang_up(self) -> None:
        """Close the terminal, which sends SIGHUP to the program, and wait for its end for `HANGUP` seconds."""
        os.close(self._go)
        os.close(self._side)
        os.close(self.fd)
        poller = zmq.Poller()
        poller.register(self.pidfd, zmq.POLLIN)
        poller.poll(1000 * HANGUP)

    def status(self) -> int:
        """Return the exit status of the program, which has ended, as a shell reports it."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return code if code >= 0 else 128 - code


def _become(command: list[str], side: int, ready: int, go: int) -> None:
    """Become a program on the terminal `side`, once a byte has come through the pipe `ready`; never return."""
    try:
        os.close(go)
        os.setsid()
        fcntl.ioctl(side, termios.TIOCSCTTY, 0)
        for fd in (0, 1, 2):
            os.dup2(side, fd)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP):  # Python ignores the first two, nohup the last
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if os.read(ready, 1):
            os.execv(command[0], command)  # noqa: S606 - a user's own command
    finally:
        os._exit(127)


class Relay:
    """Passes bytes between a program and its user. The user's command listens at `address`, with the key `secret`."""

    def __init__(self, program: PseudoTerminal, address: str, secret: bytes) -> None:
        self._program = program
        self._address, self._keys = address, keys.one_time(secret)
        self._output = self._input = b""
        """A message for the user that has not been sent, and bytes that the program has not taken: nothing more is read
        from one side before the other has taken them."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket, self._ends = self._connect()

    def _connect(self) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        """Return a socket that connects to the user, and one with an event when that has failed or ended."""
        sock = self._context.socket(zmq.DEALER)
        for option, value in (
            (zmq.IPV6, 1),
            (zmq.LINGER, ALIVE_MS),
            (zmq.RECONNECT_IVL, -1),
            (zmq.MAXMSGSIZE, LONGEST + SEALED),
            (zmq.SNDHWM, WAITING),
            (zmq.RCVHWM, WAITING),
            (zmq.SNDBUF, SEND_BUFFER),
            (zmq.HEARTBEAT_IVL, ALIVE_MS),
        ):
            sock.setsockopt(option, value)
        keys.guard_client(sock, self._keys, "")
        ends = sock.get_monitor_socket(_ENDED)
        sock.connect(f"tcp://{self._address}")
        sock.send(HELLO)
        return sock, ends

    def run(self, patience: float) -> int:
        """Start the program when its user is there, and return its exit status, or why it has none: see above."""
        if not self._await_user(time.monotonic() + patience):
            return self._gone(NO_TERMINAL)
        self._program.go()
        poller = zmq.Poller()
        poller.register(self._ends, zmq.POLLIN)
        poller.register(self._program.pidfd, zmq.POLLIN)
        while True:
            ready = self._pass_on(poller)
            if self._ends in ready:
                return self._gone()
            if self._program.pidfd in ready:
                return self._end(self._program.status())

    def _await_user(self, until: float) -> bool:
        """Return whether the user is there before the time `until`, and the program has not been killed."""
        while (left := until - time.monotonic()) > 0:
            poller = zmq.Poller()
            for what in (self._socket, self._ends, self._program.pidfd):
                poller.register(what, zmq.POLLIN)
            ready = dict(poller.poll(int(1000 * left)))
            if self._program.pidfd in ready:
                return False
            if self._socket in ready:
                return True
            if self._ends in ready:
                self._socket.close(linger=0)
                self._ends.close(linger=0)
                time.sleep(RETRY)
                self._socket, self._ends = self._connect()
        return False

    def _pass_on(self, poller: zmq.Poller) -> dict[object, int]:
        """Wait until something can be passed on or another event is there, and pass it on; return what was ready."""
        program = self._program
        poller.register(self._socket, (0 if self._input else zmq.POLLIN) | (zmq.POLLOUT if self._output else 0))
        poller.register(program.fd, (0 if self._output else zmq.POLLIN) | (zmq.POLLOUT if self._input else 0))
        ready: dict[object, int] = dict(poller.poll())
        if self._output and ready.get(self._socket, 0) & zmq.POLLOUT:
            self._socket.send(self._output)
            self._output = b""
        elif not self._output and (data := program.read()):
            self._output = OUTPUT + data
        if self._input:
            self._input = program.write(self._input)
        elif ready.get(self._socket, 0) & zmq.POLLIN:
            self._receive()
        return ready

    def _receive(self) -> None:
        """Carry out a message of the user."""
        message = self._socket.recv()
        kind, data = message[:1], message[1:]
        if kind == WINDOW:
            self._program.resize(data)
        elif kind == INPUT:
            self._input = self._program.write(data)

    def _end(self, status: int) -> int:
        """Send the last output of the program, which has ended, and its status; return that."""
        poller = zmq.Poller()
        poller.register(self._ends, zmq.POLLIN)
        poller.register(self._socket, zmq.POLLOUT)
        for message in (self._output, *self._last_output(), EXIT + bytes([status])):
            if self._ends in dict(poller.poll()):
                return self._gone()
            if message:
                self._socket.send(message)
        return status

    def _last_output(self) -> Iterator[bytes]:
        """Yield messages with the output of the program that has not been read yet, at most `LAST` bytes."""
        found = (self._program.read() for _ in range(LAST // CHUNK))
        return (OUTPUT + data for data in itertools.takewhile(bool, found))

    def _gone(self, status: int = HUNG_UP) -> int:
        """Discard the messages that were not sent, because the user has disconnected; return `status`."""
        self._socket.setsockopt(zmq.LINGER, 0)
        return status

    def close(self) -> None:
        """Close the connection once the last message has been sent."""
        self._context.destroy()


def main() -> int:
    """Run a command for a user, and return the exit status. Arguments: a file with address and key, the command."""
    path, *command = sys.argv[1:]
    address, secret = Path(path).read_text(encoding="ascii").split(" ")
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # those for the job are for its program
    program = PseudoTerminal(command)
    relay = Relay(program, address, secret.encode())
    status = relay.run(PATIENCE)
    program.hang_up()
    relay.close()
    return status


_ENDED = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_ENDED |= zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH

if __name__ == "__main__":
    sys.exit(main())
