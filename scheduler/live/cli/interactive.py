# SPDX-License-Identifier: Apache-2.0
"""The terminal of `drom submit --pty`: it waits for the job's program, and is connected to that (see `Listener`).

`drom.agent.execution.terminal` is the other side, and describes the messages.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import struct
import termios
import tty
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer
import zmq
from drom.agent.control import keys
from drom.agent.control.gate import RemoteEndpoint
from drom.agent.control.remote import RemoteAddress
from drom.agent.errors import ControlError, RefusedError
from drom.agent.execution import terminal
from drom.agent.system.unix_signals import SignalPipe
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cli.wait import await_end, exit_status
from drom.scheduler.live.cluster.jobs import FAILED, PENDING
from drom.scheduler.live.cluster.spec import from_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from drom.scheduler.live.cluster.spec import Spec

INPUT, OUTPUT = 0, 1
ASK_EVERY = 1.0
"""Seconds between two questions to the scheduler, and between two checks of the connection."""
BUSY = 0.05
"""Seconds after which bytes that the other side could not take are sent again."""
ENDING = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end the command; its job is then cancelled. In raw mode the terminal sends none of them for a key."""


class Listener:
    """Listens for the program of a job; the first that connects and has the key of `text` is it.

    `text` names the address and the key: the job has it in its record, which no user sees.
    """

    def __init__(self, where: Path | RemoteAddress) -> None:
        own = keys.one_time()
        self._endpoint = RemoteEndpoint("*:0", own, longest=terminal.LONGEST, option="--pty")
        self._endpoint.sock.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._line = b""
        self.address = f"{_our_address(where)}:{self._endpoint.port}"
        self.text = f"{self.address} {own.secret.decode()}"

    def wait(self, seconds: float, *fds: int) -> dict[object, int]:
        """Wait until there is something to receive or a descriptor is readable; return the descriptors that are."""
        while self._endpoint.run():
            pass
        poller = zmq.Poller()
        for what in (self._endpoint.sock, self._endpoint.fd, *fds):
            poller.register(what, zmq.POLLIN)
        return dict(poller.poll(int(1000 * seconds)))

    def receive(self) -> bytes | None:
        """Return the next message of the program, an empty one for that of a stranger, None while there is none."""
        heard = self._endpoint.read()
        if heard is None:
            return None
        self._line = self._line or heard.line
        return (heard.message or b"") if heard.line == self._line else b""

    def hears(self) -> bool:
        """Wait for the program, but not long; return whether it has connected."""
        self.wait(ASK_EVERY)
        return self.receive() == terminal.HELLO

    def send(self, message: bytes) -> bool:
        """Send a message to the program; return False if it takes none now. Raises ZMQError if it is gone."""
        try:
            self._endpoint.sock.send_multipart([self._line, message], zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        """End the connection, and listen no longer."""
        self._endpoint.close()


def _our_address(where: Path | RemoteAddress) -> str:
    """Return the address at which nodes reach this machine: that towards a scheduler elsewhere, or its name."""
    if isinstance(where, RemoteAddress):
        with suppress(OSError):
            family, _, _, _, address = socket.getaddrinfo(where.host, 1, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(address)  # sends nothing
                found: str = probe.getsockname()[0]
                return f"[{found}]" if ":" in found else found
    try:
        socket.getaddrinfo(name := socket.gethostname(), None)
    except OSError:
        return "127.0.0.1"
    return name


def run(spec: Spec, where: Path | RemoteAddress, ask: Callable[..., Any]) -> int:
    """Submit a job, connect its program to this terminal, and return its exit status. `ask` asks the scheduler.

    The job is cancelled if this process ends first.
    """
    if not (os.isatty(INPUT) and os.isatty(OUTPUT)):
        raise SchedulerError("--pty needs a terminal for input and output: without one use drom submit --wait.")
    for end in ENDING:
        signal.signal(end, _leave)
    listener = Listener(where)
    try:
        whole = replace(
            spec,
            terminal=listener.text,
            output=os.devnull,
            requeue=False,
            environment={"TERM": os.environ.get("TERM", "dumb")} | spec.environment,
        )
        answer = ask("submit", jobs=[from_json(whole.to_json()).to_json()])
        for text in answer["warnings"]:
            typer.echo(f"drom: warning: {text}", err=True)
        with _cancelled_on_failure(answer["jobs"][0], ask) as number:
            return _attach(number, listener, lambda one: ask("job", job=one))
    finally:
        listener.close()


def _leave(number: int, _: object) -> None:
    raise SystemExit(128 + number)


@contextmanager
def _cancelled_on_failure(number: int, ask: Callable[..., Any]) -> Iterator[int]:
    """Cancel a job if the block is left by an exception, as by a signal. Raises ControlError if that fails."""
    try:
        yield number
    except BaseException:
        with suppress(RefusedError):  # it is over
            ask("cancel", job=number)
        raise


def _attach(number: int, listener: Listener, ask: Callable[[int], dict[str, Any]]) -> int:
    """Wait for the program of a job, pass bytes between it and this terminal, and return its exit status."""
    status = None
    job = _await_program(number, listener, ask)
    if not job:
        status = _pass_on(listener)
        if status is not None and status <= 128:  # others may be due to a signal of the scheduler
            return status
        job = await_end(number, ask)
        typer.echo(err=True)  # the cursor is anywhere in its line
    elif job["status"] == terminal.NO_TERMINAL:
        about = f"the node of job {number} could not connect to this terminal at {listener.address}"
        raise SchedulerError(f"{about}: let nodes connect to this machine, at any port.")
    if status is None or job["state"] != FAILED:
        typer.echo(f"drom: job {number}: {job['reason']}", err=True)
    return exit_status(job) if status is None else status


def _await_program(number: int, listener: Listener, ask: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    """Wait for the program of a job; return the job's description if it is over before, otherwise an empty one."""
    if listener.hears():
        return {}
    with suppress(ControlError):  # `await_end` reports it
        if ask(number)["state"] == PENDING:
            typer.echo(f"drom: job {number} waits: Ctrl-C to withdraw it", err=True)
    return await_end(number, ask, listener.hears)


def _pass_on(listener: Listener) -> int | None:
    """Pass bytes between this terminal and a program; return its exit status, None if the connection ends before."""
    sizes = SignalPipe({signal.SIGWINCH: lambda: None})
    unsent, lost = terminal.WINDOW + _window(), False
    with closing(sizes), _raw():
        while True:
            ready = listener.wait(BUSY if unsent else ASK_EVERY, *([] if unsent else [sizes.fd, INPUT]))
            if sizes.fd in ready:
                sizes.dispatch()
                unsent = terminal.WINDOW + _window()
            elif INPUT in ready:
                unsent = terminal.INPUT + _typed()
            message = listener.receive()
            if message is None and lost:
                return None
            if message is None or unsent:
                try:
                    unsent = b"" if listener.send(unsent) else unsent
                except zmq.ZMQError:
                    lost = True
            kind, data = (message or b"")[:1], (message or b"")[1:]
            if kind == terminal.OUTPUT:
                _show(data)
            elif kind == terminal.EXIT and data:
                return data[0]


def _typed() -> bytes:
    """Return what was typed. Raises OSError or SystemExit if the terminal is gone."""
    data = os.read(INPUT, terminal.CHUNK)
    if not data:
        raise SystemExit(terminal.HUNG_UP)
    return data


def _show(data: bytes) -> None:
    """Write bytes to the terminal, however long that takes: meanwhile the program is slowed down."""
    while data:
        select.select([], [OUTPUT], [])
        data = data[os.write(OUTPUT, data) :]


def _window() -> bytes:
    """Return the size of the terminal's window as messages have it."""
    size = fcntl.ioctl(INPUT, termios.TIOCGWINSZ, bytes(terminal.WINDOW_SIZE))
    return struct.pack("!4H", *struct.unpack("4H", size))


@contextmanager
def _raw() -> Iterator[None]:
    """Set the terminal to raw mode within the block: every key goes to the program."""
    before = termios.tcgetattr(INPUT)
    try:
        tty.setraw(INPUT)
        yield
    finally:
        with suppress(termios.error):  # it is gone
            termios.tcsetattr(INPUT, termios.TCSANOW, before)
