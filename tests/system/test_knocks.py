# SPDX-License-Identifier: Apache-2.0
"""Launchers that knock more than once and do not read what they are told: real agents, in emulation."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from dromlib import layout
from tests.support.agents import Agent, Program, Programs, start_agent, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.system

KNOCKER = """
import socket, sys

def knock():
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    door.connect(sys.argv[1])
    door.settimeout(60)
    return door

def launch(door):
    door.send(bytes.fromhex(sys.argv[2]))

def deaf(door):
    door.shutdown(socket.SHUT_RD)

def granted(door):
    while int.from_bytes(door.recv(9999)[STATUS], "little") != GRANTED:
        pass

"""


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    """Return the agent of two emulated cores."""
    with start_agent(tmp_path, "--emulate", "core:2") as running:
        yield running


def knocker(start: Programs, agent: Agent, *steps: str) -> Program:
    """Start a program that knocks as a launcher of job `rude`, says `done` after these steps, and lives on."""
    data = bytearray(layout.REQUEST.size)
    about = {"magic": layout.DOOR_MAGIC, "protocol": layout.PROTOCOL_VERSION}
    layout.REQUEST.write(data, **about, kind=layout.ENUMS["KNOCK"].index("launch"), job="rude", local_size=1)
    status = layout.REPLY.fields["status"]
    where = f"STATUS, GRANTED = slice({status.offset}, {status.offset + status.size}), "
    where += f"{layout.ENUMS['STATUS'].index('granted')}\n"
    code = where + KNOCKER + "\n".join([*steps, "print('done', flush=True)", "sys.stdin.read()"])
    return start.start(sys.executable, "-c", code, agent.dir / "door", data.hex())


def occupy(start: Programs, agent: Agent) -> Program:
    """Start a program that keeps all cores."""
    guest = start.start(*agent.run("--job", "guest", "--class", "rigid", "--cpus", "2", "--", "sleep", "1000"))
    agent.await_tasks(guest="0-1")
    return guest


TWO_LAUNCHES = ("one, two = knock(), knock()", "launch(one)", "launch(two)")


def await_visits(rude: Program, agent: Agent) -> None:
    """Wait until the agent has heard both of two launches."""
    rude.await_out("done")
    agent.await_log("event=arrived job=rude")
    for _ in range(3):  # an order is answered after what was there before, a turn later at most
        assert agent.tasks().keys() == {"guest", "rude"}


def test_who_waits_twice_and_reads_neither_answer_is_gone(agent: Agent, start: Programs) -> None:
    """Its task is over once, the agent lives, and others get the cores."""
    guest = occupy(start, agent)
    rude = knocker(start, agent, *TWO_LAUNCHES, "deaf(one)", "deaf(two)")
    await_visits(rude, agent)
    guest.kill()

    agent.await_log("event=task_ended job=rude.* reason=left")
    wait_until(lambda: agent.tasks() == {}, agent.tasks)
    occupy(start, agent)
    start.kill()


def test_who_reads_one_of_two_answers_has_started(agent: Agent, start: Programs) -> None:
    """Its task stays, whichever answer it did not read."""
    guest = occupy(start, agent)
    rude = knocker(start, agent, *TWO_LAUNCHES, "deaf(one)", "print('asked', flush=True)", "granted(two)")
    rude.await_out("asked")
    agent.await_log("event=arrived job=rude")
    guest.kill()

    rude.await_out("done")
    agent.await_tasks(rude="0-1")
    rude.kill()


def test_a_running_task_is_not_ended_by_a_knock(agent: Agent, start: Programs) -> None:
    """Its first process keeps its CPUs, although it does not read the answer to a second launch."""
    steps = ("one, two = knock(), knock()", "launch(one)", "granted(one)", "deaf(two)", "launch(two)")
    rude = knocker(start, agent, *steps, "select = __import__('select').select", "select([two], [], [], 60)")
    rude.await_out("done")

    agent.await_tasks(rude="0-1")
    assert "event=task_ended" not in agent.log
    rude.kill()
