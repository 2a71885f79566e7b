# SPDX-License-Identifier: Apache-2.0
"""What each act of a plan does to a stage. A function says whether it has found anything to do it to."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dromlib import layout
from dromlib.layout import MAILBOX
from tests.support import checker

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.chaos.stage import Clock, Stage
    from tests.support.agents import Agent

YEAR = 365 * 86400
STOPPED = 0.7
"""Most seconds for which something is stopped: longer than the grace time."""
HOSTILE = 1.5
"""Seconds for which another user attacks the node."""


class Faults:
    """Carries out acts on a stage. What was stopped or filled is let go after a while, or by `undo` at the latest."""

    def __init__(self, stage: Stage, clock: Clock) -> None:
        self._stage = stage
        self._clock = clock
        self._later: list[tuple[threading.Timer, Callable[[], None]]] = []
        self.does: dict[str, Callable[[random.Random], bool]] = {
            "program killed": self.kill_program,
            "agent killed": self.kill_agent,
            "agent killed in a change": self.kill_agent_in_a_change,
            "agent stopped and started anew": self.restart_agent,
            "program stopped for a while": self.stop_program,
            "agent stopped for a while": self.stop_agent,
            "mask rewritten": self.rewrite_masks,
            "mailbox forged": self.forge_mailbox,
            "mailbox cut or stretched": self.cut_mailbox,
            "file system full": self.fill,
            "wall clock moved": self.move_clock,
            "nonsense at the door": self.knock,
            "hostile user": self.attack,
            "a program comes": self.launch,
            "a program is told to end": self.end_program,
            "an order": self.order,
        }

    def _undo_after(self, seconds: float, undo: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, undo)
        self._later.append((timer, undo))
        timer.start()

    def undo(self) -> None:
        """Let go on what was stopped, and free what was filled."""
        for timer, undo in self._later:
            timer.cancel()
            timer.join()
            undo()
        self._later.clear()

    # --- programs and the agent

    def kill_program(self, chance: random.Random) -> bool:
        """Kill any process of a program, its first one more often than not."""
        victim = self._stage.victim(chance)
        if victim:
            pid = victim.pid if chance.random() < 0.6 else chance.choice(victim.members())
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return victim is not None

    def kill_agent(self, chance: random.Random) -> bool:
        """Kill the agent, whatever it is about."""
        del chance
        self._stage.kill_agent()
        return True

    def kill_agent_in_a_change(self, chance: random.Random) -> bool:
        """Give the agent something to do, and kill it some microseconds to milliseconds later."""
        chance.choice([self.kill_program, self.launch, self.order])(chance)
        time.sleep(10 ** chance.uniform(-5, -2))
        self._stage.kill_agent()
        return True

    def restart_agent(self, chance: random.Random) -> bool:
        """Stop the agent as systemd does and start another one: its programs go on unmanaged."""
        del chance
        agent = self._stage.agent
        if not agent or not self._stage.agent_lives():
            return False
        os.kill(agent.pid, signal.SIGCONT)
        agent.process.terminate()
        agent.process.wait(60)
        self._stage.start_agent(ready=False)
        return True

    def stop_program(self, chance: random.Random) -> bool:
        """Stop all processes of a program for a while."""
        victim = self._stage.victim(chance)
        if victim:
            victim.signal(signal.SIGSTOP)
            self._undo_after(chance.uniform(0, STOPPED), lambda: victim.signal(signal.SIGCONT))
        return victim is not None

    def stop_agent(self, chance: random.Random) -> bool:
        """Stop the agent for a while."""
        agent = self._stage.agent
        if not agent or not self._stage.agent_lives():
            return False
        os.kill(agent.pid, signal.SIGSTOP)
        self._undo_after(chance.uniform(0, STOPPED), lambda: _go_on(agent))
        return True

    # --- what belongs to programs

    def rewrite_masks(self, chance: random.Random) -> bool:
        """Bind some or all threads of a program to any CPUs, as `taskset` or another daemon does."""
        victim = self._stage.victim(chance)
        if not victim or self._stage.node.emulated:
            return False
        victim.excused = True
        cpus, share = chance.choice([{0}, {1}, {0, 1}]), chance.choice([0.3, 1.0])
        for pid in victim.members():
            with contextlib.suppress(OSError):
                for thread in Path(f"/proc/{pid}/task").iterdir():
                    if chance.random() < share:
                        with contextlib.suppress(OSError):
                            os.sched_setaffinity(int(thread.name), cpus)
        return True

    def _mailbox(self, chance: random.Random) -> Path | None:
        """Return the mailbox of a task, whose program is excused from now on."""
        reading = checker.read(self._stage.dir)
        slots = {slot.who[0]: slot for slot in reading.slots if slot.mailbox} if reading else {}
        victims = [program for program in self._stage.programs if program.pid in slots]
        if not victims:
            return None
        victim = chance.choice(victims)
        victim.excused = True
        return self._stage.dir / "mail" / str(slots[victim.pid].mailbox)

    def forge_mailbox(self, chance: random.Random) -> bool:
        """Write into a mailbox what its user could: any acknowledgement, any wish, or anything at all."""
        box = self._mailbox(chance)
        reading = checker.read(self._stage.dir)
        if not box or not reading:
            return False
        epochs = [slot.epoch for slot in reading.slots] or [0]
        epoch = chance.choice([chance.choice(epochs), chance.choice(epochs) + 1, 0, layout.EPOCH_RETIRED])
        lies = {
            "applied": epoch.to_bytes(8, "little"),
            "wanted_max": chance.choice([0, 1, 2, 2**32 - 1]).to_bytes(4, "little"),
            "points": chance.randbytes(4),
        }
        field = chance.choice([*lies, ""])
        with contextlib.suppress(OSError), box.open("r+b", buffering=0) as file:
            if field:
                os.pwrite(file.fileno(), lies[field], MAILBOX.fields[field].offset)
            else:
                os.pwrite(file.fileno(), chance.randbytes(MAILBOX.size), 0)
        return True

    def cut_mailbox(self, chance: random.Random) -> bool:
        """Cut a mailbox short or stretch it. Its program may die of that, and nobody else."""
        box = self._mailbox(chance)
        if box:
            with contextlib.suppress(OSError):
                os.truncate(box, chance.choice([0, 1, 8, MAILBOX.size - 1, 1 << 30]))
        return box is not None

    # --- the world

    def fill(self, chance: random.Random) -> bool:
        """Leave no byte free in the file system of the runtime directory, for a while."""
        file = self._stage.folder / "space" / "ballast"
        if not self._stage.small:
            return False
        with contextlib.suppress(OSError), file.open("wb", buffering=0) as ballast:
            while ballast.write(bytes(4096)):
                pass
        self._undo_after(chance.uniform(0, STOPPED), lambda: file.unlink(missing_ok=True))
        return True

    def move_clock(self, chance: random.Random) -> bool:
        """Set the wall clock of all programs forward or back, by a second or by decades."""
        self._clock.move(chance.choice([0, 1, -1, 3600, -3600, 20 * YEAR, -20 * YEAR]))
        return True

    def knock(self, chance: random.Random) -> bool:
        """Say nonsense at the door, or nothing, and stay or go."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.settimeout(0.1)
        said = chance.randbytes(chance.choice([0, 1, 64, layout.REQUEST.size, 2000]))
        if chance.random() < 0.5:  # as it begins, it may be one
            said = layout.DOOR_MAGIC.to_bytes(4, "little") + layout.PROTOCOL_VERSION.to_bytes(4, "little") + said
        with contextlib.suppress(OSError):
            sock.connect(str(self._stage.dir / "door"))
            sock.send(said)
        self._undo_after(chance.uniform(0, STOPPED), sock.close)
        return True

    def attack(self, chance: random.Random) -> bool:
        """Have another user attack all sockets, files and processes of the node for a while, beside all the rest."""
        if os.geteuid() != 0:
            return False
        user = self._stage.start_hostile_user(chance.getrandbits(32), HOSTILE)
        self._undo_after(HOSTILE, lambda: self._stage.end_hostile_user(user))
        return True

    # --- life

    def launch(self, chance: random.Random) -> bool:
        """Launch a program, as long as there are not too many."""
        self._stage.collect()
        if len(self._stage.programs) < self._stage.node.programs:
            self._stage.launch(chance)
        return True

    def end_program(self, chance: random.Random) -> bool:
        """Tell a program that it may end."""
        victim = self._stage.victim(chance)
        if victim:
            victim.end()
        return victim is not None

    def order(self, chance: random.Random) -> bool:
        """Give an order to any job there is."""
        reading = checker.read(self._stage.dir)
        jobs = [slot.job for slot in reading.slots] if reading else []
        if not jobs:
            return False
        job, cpus = chance.choice(jobs), chance.choice([None, 1, 1, 2])
        if chance.random() < 0.8:
            self._stage.order("resize", job=job, cpus=cpus)
        else:
            self._stage.order("set", job=job, cpus=chance.choice(["0", "1", "0-1"]))
        return True


def _go_on(agent: Agent) -> None:
    """Let an agent go on that was stopped, if nobody has killed it since."""
    if agent.process.poll() is None:
        os.kill(agent.pid, signal.SIGCONT)
