# SPDX-License-Identifier: Apache-2.0
"""`drom submit --pty`: a user's terminal and a program of a job, on a real cluster."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sqlite3
import sys
from typing import TYPE_CHECKING

import psutil
import pytest
import zmq
from drom.agent.control import keys

from tests.support.agents import SECONDS, environment, lives, wait_until
from tests.support.clusters import UNCOMPILED, cluster
from tests.support.terminals import has, terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.clusters import Cluster
    from tests.support.terminals import Terminal

pytestmark = pytest.mark.system

SHELL = ("sh", "-c", "PS1='here> ' exec sh")
PROMPT = has("^here>$")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a cluster of two nodes with four cores each."""
    with cluster(tmp_path_factory.mktemp("interactive")) as started:
        yield started


@pytest.fixture
def here(running: Cluster) -> Iterator[Cluster]:
    """Return it without a job."""
    running.begin()
    yield running
    running.clear()


@contextlib.contextmanager
def submit(here: Cluster, *words: str) -> Iterator[Terminal]:
    """Run `drom submit --pty` on a terminal."""
    command = [sys.executable, "-m", "drom", "submit", "--pty", *words]
    with terminal(command, environment(DROM_QUEUE=str(here.state), **UNCOMPILED), columns=100) as there:
        yield there


def newest(here: Cluster, there: Terminal) -> int:
    """Return the number of the job that was submitted last, on a terminal, once it waits or runs."""
    jobs = wait_until(lambda: here.ask("queue")["jobs"], lambda: (there.lines, here.log))
    return int(jobs[-1]["job"])


def await_pid(there: Terminal) -> int:
    """Return the pid of the shell on a terminal."""
    there.type("echo pid=$$.\n")
    screen = there.await_screen(has(r"^pid=\d+\.$"))
    return int(re.findall(r"^pid=(\d+)\.$", "\n".join(screen), re.MULTILINE)[-1])


def test_a_shell_is_on_the_terminal_of_its_user(here: Cluster) -> None:
    """The shell has a terminal of the same size, and gets Ctrl-C; its exit status is that of the command."""
    with submit(here, "--", *SHELL) as there:
        before = there.modes
        there.await_screen(PROMPT)
        number = newest(here, there)
        there.type("stty size; echo $TERM $DROM_JOB_ID $DROM_NODE\n")
        there.await_screen(has("^24 100$", rf"^linux {number} n1$"))
        there.resize(90, 20)
        there.type("stty size\n")
        there.await_screen(has("^20 90$"))
        program = f"sleep 1000.{os.getpid()}"  # other tests sleep, too
        there.type(f"{program}\n")
        wait_until(lambda: any(program in " ".join(p.cmdline()) for p in _processes()), lambda: there.lines)
        there.type("\x03echo status $?\n")
        there.await_screen(has("status 130$"))
        assert there.modes != before

        there.type("exit 7\n")

        assert there.process.wait(SECONDS) == 7
        assert there.modes == before
    value = here.await_state(number, "failed")
    assert (value["status"], [entry["what"] for entry in value["history"]]) == (
        7,
        ["submitted", "placed", "started", "failed"],
    )
    wait_until(lambda: not list(here.agents["n1"].dir.glob("scripts/*")), lambda: here.log)


def _processes() -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.cmdline()
            yield process


def test_a_job_that_waits_is_withdrawn_by_ctrl_c(here: Cluster) -> None:
    """The command says that it waits, and leaves nothing in the queue."""
    with submit(here, "--hold", "--", *SHELL) as there:
        before = there.modes
        number = newest(here, there)
        there.await_screen(has(f"^drom: job {number} waits: Ctrl-C to withdraw it$"))

        there.type("\x03")

        assert there.process.wait(SECONDS) == 130
        assert there.modes == before
    assert here.job(number)["state"] == "cancelled"


@pytest.mark.parametrize("end", ["SIGTERM", "SIGHUP", "SIGKILL", "the window is closed"])
def test_a_job_ends_with_its_terminal(here: Cluster, end: str) -> None:
    """However the command ends, its program is gone soon, and the modes of the terminal are those of before."""
    with submit(here, "--", *SHELL) as there:
        before = there.modes
        there.await_screen(PROMPT)
        number, pid = newest(here, there), await_pid(there)

        if end.startswith("SIG"):
            there.process.send_signal(signal.Signals[end])
        else:
            there.hang_up()

        code = there.process.wait(SECONDS)
        if end in ("SIGTERM", "SIGHUP"):
            assert (code, there.modes) == (128 + signal.Signals[end], before)
    states = ("failed",) if end == "SIGKILL" else ("cancelled",)
    here.await_state(number, *states)
    assert not lives(pid)


def test_a_job_that_waits_ends_with_its_terminal(here: Cluster) -> None:
    """A command that is killed cannot withdraw it: its program never starts."""
    with submit(here, "--hold", "--", "touch", str(here.folder / "made")) as there:
        number = newest(here, there)
        there.process.kill()
    here.ask("hold", job=number, held=False)

    value = here.await_state(number, "failed")

    assert value["status"] == os.EX_UNAVAILABLE
    assert not (here.folder / "made").exists()


def test_why_a_job_was_ended_is_shown(here: Cluster) -> None:
    """Its limit, or the order of its user; the terminal is as before."""
    with submit(
        here, "--time", "12s", "--", "sh", "-c", "trap '' TERM HUP; echo ready; while :; do sleep 1; done"
    ) as there:
        before = there.modes
        there.await_screen(has("^ready"))
        there.await_screen(has(r"^drom: job \d+: its limit of 12 s was over"))
        assert there.process.wait(SECONDS) == 128 + signal.SIGKILL
        assert there.modes == before
    with submit(here, "--", *SHELL) as there:
        there.await_screen(PROMPT)
        here.ask("cancel", job=newest(here, there))
        there.await_screen(has(r"^drom: job \d+: cancelled by "))
        assert there.process.wait(SECONDS) > 128


def test_a_script_has_a_terminal(here: Cluster) -> None:
    """Its #DROM lines count, it finds its arguments, and it reads what is typed."""
    script = here.folder / "ask.sh"
    lines = ("#!/bin/sh", "#DROM --job-name ask", 'printf "%s? " $1', "read answer", "echo $DROM_JOB_NAME: $answer.")
    script.write_text("\n".join([*lines, ""]), encoding="utf-8")
    with submit(here, str(script), "name") as there:
        there.await_screen(has(r"^name\?"))
        there.type("ada\n")
        there.await_screen(has(r"^ask: ada\.$"))
        assert there.process.wait(SECONDS) == 0


def test_a_program_whose_terminal_is_killed_is_over(here: Cluster) -> None:
    """The process of the job that has the terminal is one of the job's: without it nothing of the job goes on."""
    with submit(here, "--", *SHELL) as there:
        before = there.modes
        there.await_screen(PROMPT)
        pid = await_pid(there)

        psutil.Process(psutil.Process(pid).ppid()).kill()

        there.await_screen(has(r"^drom: job \d+: it was ended by SIGKILL$"))
        assert there.process.wait(SECONDS) == 128 + signal.SIGKILL
        assert there.modes == before
    assert not lives(pid)


def test_a_terminal_outlives_scheduler_and_agent(here: Cluster) -> None:
    """Keys and output pass while both are dead, and so does the exit status."""
    with submit(here, "--", *SHELL) as there:
        there.await_screen(PROMPT)
        number = newest(here, there)
        here.kill()
        here.agents["n1"].kill()

        there.type("echo a$((1 + 1))b\n")
        there.await_screen(has("^a2b$"))
        there.type("exit 3\n")

        assert there.process.wait(SECONDS) == 3
    here.start()
    here.join("n1")
    assert here.await_state(number, "failed")["status"] == 3


def test_a_program_of_many_nodes_runs_once(here: Cluster) -> None:
    """The terminal is connected to one program, on the first node; the job has all of its nodes."""
    with submit(
        here,
        "--nodes",
        "2",
        "--",
        "sh",
        "-c",
        "echo on $DROM_NODE of $DROM_NODELIST; cat $OMPI_MCA_orte_default_hostfile; read x",
    ) as there:
        there.await_screen(has("^on n1 of n1,n2$", "^n1 slots=1$", "^n2 slots=1$"))
        there.type("\n")
        assert there.process.wait(SECONDS) == 0


def listening(there: Terminal) -> int:
    """Return the port at which a command waits for its program."""

    def found() -> list[int]:
        every = psutil.Process(there.process.pid).net_connections("tcp")
        return [one.laddr.port for one in every if one.status == psutil.CONN_LISTEN]

    return wait_until(found, lambda: there.lines)[0]


def test_strangers_at_the_port_change_nothing(here: Cluster) -> None:
    """The program connects in spite of those who are silent, send garbage or half a handshake, or have another key."""
    with submit(here, "--hold", "--", *SHELL) as there, contextlib.ExitStack() as stack:
        number, port = newest(here, there), listening(there)
        halves = (
            b"",
            b"GET / HTTP/1.0\r\n\r\n",
            b"\xff\0\0\0\0\0\0\0\x01\x7f\3\0CURVE".ljust(64, b"\0"),
            b"x" * 100_000,
        )
        for text in halves * 100:
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            with contextlib.suppress(OSError):
                stranger.sendall(text)
        context = stack.enter_context(zmq.Context())
        sock = stack.enter_context(context.socket(zmq.DEALER))
        sock.setsockopt(zmq.LINGER, 0)
        keys.guard_client(sock, keys.one_time(), "")
        refused = sock.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_DISCONNECTED)
        stack.callback(refused.close)
        sock.connect(f"tcp://127.0.0.1:{port}")
        sock.send(b"oI am the program")

        here.ask("hold", job=number, held=False)

        screen = there.await_screen(PROMPT)
        assert not has("I am the program")(screen)
        there.type("exit 5\n")
        assert there.process.wait(SECONDS) == 5


def test_nobody_sees_the_key_of_a_terminal(here: Cluster) -> None:
    """No answer, log, command line or environment has it, and it is gone when the job is over."""
    with submit(here, "--", *SHELL) as there:
        there.await_screen(PROMPT)
        number = newest(here, there)
        (file,) = here.agents["n1"].dir.glob("scripts/*.terminal")
        secret = file.read_text(encoding="ascii").split()[1]
        assert (len(secret), file.stat().st_mode & 0o777) == (40, 0o400)
        shown = [json.dumps(here.job(number)), json.dumps(here.ask("queue")), here.cli("job", str(number)).stdout]
        shown += [here.log, here.agents["n1"].log]
        for process in _processes():
            with contextlib.suppress(psutil.Error):
                shown += [*process.cmdline(), *process.environ().values()]
        assert not any(secret in text for text in shown)
        there.type("exit\n")
        there.process.wait(SECONDS)
    here.await_state(number, "completed")
    wait_until(lambda: not list(here.agents["n1"].dir.glob("scripts/*")), lambda: here.log)
    with contextlib.closing(sqlite3.connect(here.state / "queue.sqlite")) as db:
        assert not any(secret in text for (text,) in db.execute("SELECT value FROM specs"))
