# SPDX-License-Identifier: Apache-2.0
"""`drom top` on a terminal: draws the lines of `drom.agent.cli.top`, and handles keys and the agent's signals.

The picture is drawn again when a grant has changed, ten times a second at most, and every second. An agent on another
node sends no signals here: it is queried every second. curses is part of Python; textual and blessed would be further
packages, and the picture is tested as text.
"""

from __future__ import annotations

import curses
import functools
import locale
import os
import shutil
import sys
import time
from collections import deque
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import zmq
from drom.agent.cli import top
from drom.agent.control import client
from drom.agent.control.remote import RemoteAddress
from drom.agent.errors import ControlError
from drom.agent.observe import node_map
from drom.agent.observe.timeline import DARK, PALETTE
from drom.agent.system.users import user_name

from dromlib import signals

if TYPE_CHECKING:
    from pathlib import Path

REFRESH = 1.0
QUICKEST = 0.1
RATE_OVER = 10.0
"""Seconds over which changes are counted."""
_EIGHT = (curses.COLOR_BLUE, curses.COLOR_YELLOW, curses.COLOR_GREEN, curses.COLOR_RED, curses.COLOR_CYAN)


def once(agent: Path | RemoteAddress) -> str:
    """Return the screen as text of the terminal's width and height; without a terminal, with the whole table.

    Raises ControlError if no agent answers.
    """
    width, height = shutil.get_terminal_size()
    lines = top.frame(_look(agent), top.Choice(), user_name, width, height, whole=not sys.stdout.isatty())[:-1]
    return "\n".join("".join(span.text for span in line).rstrip() for line in lines).rstrip("\n")


def show(agent: Path | RemoteAddress, *, colour: bool) -> None:
    """Show the node until `q`. Raises ControlError if no agent answers, or if the terminal cannot show it."""
    view = _look(agent)
    with suppress(locale.Error):
        locale.setlocale(locale.LC_CTYPE, "")
    try:
        curses.setupterm()
    except curses.error as error:
        name = os.environ.get("TERM", "")
        msg = f"this terminal (TERM={name}) cannot show a live picture: type drom top --once."
        raise ControlError(msg) from error
    curses.wrapper(lambda window: Screen(window, agent, view, colour=colour).run())


def _look(agent: Path | RemoteAddress, before: dict[str, int] | None = None) -> top.View:
    """Return the agent's present state; jobs keep the numbers that they had before."""
    machine, answer = client.order(agent, "topology"), client.order(agent, "ps")
    jobs = dict.fromkeys(task["job"] for task in answer["tasks"])
    node = agent.host if isinstance(agent, RemoteAddress) else os.uname().nodename
    return top.View(f"drom top, {node}", machine, answer, node_map.number(jobs, before or {}))


class Screen:
    """A window, the data it shows, and the user's choices."""

    def __init__(self, window: curses.window, agent: Path | RemoteAddress, view: top.View, *, colour: bool) -> None:
        self._window = window
        self._agent = agent
        self._view = view
        self._choice = top.Choice()
        self._changes: deque[float] = deque()
        self._user = functools.cache(user_name)
        if curses.has_colors():
            curses.use_default_colors()  # else all is white on black
        self._pens = _make_pens() if colour and curses.has_colors() else 0
        window.nodelay(True)
        with suppress(curses.error):  # a terminal may not be able to hide its cursor
            curses.curs_set(0)

    def run(self) -> None:
        """Draw, wait for a key, a signal or a second, and query the agent again, until the user quits."""
        with ExitStack() as stack:
            poller = zmq.Poller()
            poller.register(sys.stdin.fileno(), zmq.POLLIN)
            sock = None
            if not isinstance(self._agent, RemoteAddress):
                sock = stack.enter_context(signals.subscribe(stack.enter_context(zmq.Context()), self._agent))
                poller.register(sock, zmq.POLLIN)
            looked = time.monotonic()
            due = looked + REFRESH
            while True:
                self._draw()
                poller.poll(max(round((due - time.monotonic()) * 1000), 0))
                if self._obey_keys():
                    return
                if sock and self._count(sock):
                    due = min(due, looked + QUICKEST)
                if time.monotonic() >= due:
                    self._look_again()
                    looked = time.monotonic()
                    due = looked + REFRESH

    def _count(self, sock: zmq.Socket[bytes]) -> bool:
        """Count grants that have changed; return whether anything was signalled."""
        found = False
        with suppress(zmq.Again):
            while True:
                if signals.event(sock.recv(zmq.NOBLOCK))["event"] == "granted":
                    self._changes.append(time.monotonic())
                found = True
        while self._changes and self._changes[0] < time.monotonic() - RATE_OVER:
            self._changes.popleft()
        return found

    def _look_again(self) -> None:
        try:
            view = _look(self._agent, self._view.numbers)
        except ControlError as error:
            self._view = self._view._replace(trouble=f"The last known state: {error}")
            return
        counted = not isinstance(self._agent, RemoteAddress)
        self._view = view._replace(rate=len(self._changes) / RATE_OVER if counted else None)
        if self._choice.sentences is not None:
            self._explain()

    def _obey_keys(self) -> bool:
        """Handle the pressed keys; return whether to quit."""
        while (key := self._window.getch()) != curses.ERR:
            if key in {ord("q"), ord("Q")}:
                return True
            self._obey(key)
        return False

    def _obey(self, key: int) -> None:
        tasks = top.in_order(self._view.answer["tasks"], self._choice.sort, self._user)
        if key in {curses.KEY_UP, ord("k"), curses.KEY_DOWN, ord("j")}:
            step = -1 if key in {curses.KEY_UP, ord("k")} else 1
            self._choice = self._choice.moved(tasks, step)
            if self._choice.sentences is not None:
                self._explain()
        elif key == curses.KEY_RESIZE:
            self._window.clear()  # the remains of the old picture on the terminal are not known
        elif key == ord("s"):
            self._choice = self._choice.sorted_otherwise()
        elif key in {curses.KEY_ENTER, ord("\n"), ord("\r")}:
            if self._choice.sentences is not None:
                self._choice = replace(self._choice, sentences=None)
            else:
                self._choice = self._choice.moved(tasks, 0)
                self._explain()

    def _explain(self) -> None:
        """Store the agent's explanation of the chosen task's job."""
        job = next((task["job"] for task in self._view.answer["tasks"] if task["pid"] == self._choice.pid), None)
        said: tuple[str, ...] = ("It has ended: choose another task.",)
        if job is not None:
            try:
                answer: dict[str, Any] = client.order(self._agent, "explain", job=job)
                said = tuple(sentence["text"] for sentence in answer["sentences"])
            except ControlError as error:
                said = (str(error),)
        self._choice = replace(self._choice, sentences=said)

    def _draw(self) -> None:
        height, width = self._window.getmaxyx()
        self._window.erase()
        for y, line in enumerate(top.frame(self._view, self._choice, self._user, width - 1, height)):
            x = 0
            for span in line:
                with suppress(curses.error):  # a window that has just become smaller
                    self._window.addstr(y, x, span.text, self._style(span))
                x += len(span.text)
        self._window.refresh()

    def _style(self, span: top.Span) -> int:
        style = curses.A_REVERSE if span.reverse else curses.A_NORMAL
        if span.job is None or not self._pens:
            return style
        small = span.text.islower()
        return style | curses.color_pair(1 + span.job % self._pens + (self._pens if small else 0))


def _make_pens() -> int:
    """Make colour pairs for letters on a job's colour, then for lower-case ones in it; return how many of each."""
    rich = curses.COLORS >= 256
    colours = [(number, 231 if code in DARK else 16) for code, number in PALETTE] if rich else []
    colours = colours or [(number, curses.COLOR_BLACK) for number in _EIGHT]
    for pen, (paper, ink) in enumerate(colours, 1):
        curses.init_pair(pen, ink, paper)
        curses.init_pair(pen + len(colours), paper, -1)
    return len(colours)
