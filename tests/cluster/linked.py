# SPDX-License-Identifier: Apache-2.0
"""Schedulers with home partitions, the members of their etcd, and agents, on machines of namespaces with links to cut.

Each scheduler shares its machine with a member. Agents and the user at a desk reach schedulers by TCP, with CURVE keys.
"""

from __future__ import annotations

import signal
import subprocess
import time
from contextlib import ExitStack, contextmanager
from itertools import permutations
from typing import TYPE_CHECKING

from drom.agent.control import keys
from drom.agent.ipc import cpu_locks
from drom.agent.system import python_command
from drom.agent.testbed.agent_process import clean_environment
from drom.scheduler.testbed import etcd
from drom.scheduler.testbed.cluster import PORT
from drom.scheduler.testbed.namespaces import Network, Process

from tests.support.agents import SECONDS, wait_until
from tests.support.etcd import LEASE
from tests.support.schedulers import Orders

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SWITCH = "switch"
HOMES = ("p1", "p2", "p3")
SCHEDULERS, NODES = ("s1", "s2", "s3"), ("n1", "n2", "n3")
DESK, USERS = "desk", 9467
"""The machine of a user, and the port at which schedulers listen to users."""
NOBODY = "02:00:00:00:00:00"
"""The address of no network card."""
KINDS = ("isolate", "link", "one way", "node", "kill")
"""Faults: the links of a scheduler's machine, those between two machines, one direction, the links of a node."""


class Linked(Orders):
    """Three schedulers, three members and three agents below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._queues_of = {name: folder / name / "queue" for name in SCHEDULERS}
        super().__init__(folder / "work", list(self._queues_of.values()), HOMES)
        self._root = folder
        self.network = Network(folder, [SWITCH, *SCHEDULERS, *NODES, DESK])
        self._running: dict[str, Process] = {}

    @contextmanager
    def up(self) -> Iterator[Linked]:
        """Run all of them for a block."""
        with ExitStack() as stack:
            self.folder.mkdir()
            for name in (*SCHEDULERS, *NODES):
                (self._root / name / "claims").mkdir(parents=True)
            self._make_keys()
            stack.callback(self._reap)
            stack.enter_context(self.network)
            for name in SCHEDULERS:
                self._start_member(name)
            logs = [f"etcd-{name}" for name in SCHEDULERS]
            wait_until(lambda: all("serving client traffic" in self._log(name) for name in logs), self.show)
            for name in SCHEDULERS:
                self.start_scheduler(name)
            for name, home in zip(NODES, HOMES, strict=True):
                self._start_agent(name, home)
            wait_until(lambda: self.states() == ["up"] * len(NODES), self.show)
            yield self

    def _reap(self) -> None:
        """Wait for what ran on machines that have ended."""
        for process in self._running.values():
            process.end(signal.SIGKILL)

    def _make_keys(self) -> None:
        made = {name: keys.make(self._keys_of(name)) for name in (*SCHEDULERS, *NODES, DESK)}
        for name in SCHEDULERS:
            for client in (*NODES, DESK):
                keys.trust(made[name], made[client].folder / keys.PUBLIC, "root" if client == DESK else client)
                keys.trust(made[client], made[name].folder / keys.PUBLIC, name)

    def _keys_of(self, name: str) -> Path:
        return self._root / "keys" / name

    def _start_member(self, name: str) -> None:
        peers = {one: f"http://{self.network[one].address}:2380" for one in SCHEDULERS}
        client, options = f"http://{self.network[name].address}:2379", etcd.peer_options(name, peers)
        words = etcd.command(name, self._root / name / "etcd", client, options)
        self._running[f"etcd-{name}"] = self._run(name, f"etcd-{name}", words)

    def start_scheduler(self, name: str) -> None:
        """Start a scheduler, or another one after it was killed, and wait until it knows the cluster."""
        members = ",".join(f"{self.network[one].address}:2379" for one in SCHEDULERS)
        words = ["scheduler", "--state", str(self._queues_of[name]), "--policy", "fcfs", "--lease", str(LEASE)]
        words += ["--store", f"etcd://{members}/test", "--home-partition", HOMES[SCHEDULERS.index(name)]]
        words += ["--keys", str(self._keys_of(name)), "--agents", f"{self.network[name].address}:{PORT}"]
        words += ["--users", f"{self.network[name].address}:{USERS}", "--silence", "1000", "--kill-wait", "1"]
        ready = self._log(name).count("event=ready")
        self._running[name] = self._run(name, name, python_command.drom(*words))
        wait_until(lambda: self._log(name).count("event=ready") > ready, self.show)

    def _start_agent(self, name: str, home: str) -> None:
        words = ["agent", "--runtime-dir", str(self._root / name / "run"), "--node", name, "--home-partition", home]
        words += ["--scheduler", ",".join(f"tcp://{one}:{PORT}" for one in SCHEDULERS)]
        words += ["--remote-keys", str(self._keys_of(name)), "--emulate", "pack:1 core:4 pu:1"]
        self._running[name] = self._run(name, name, python_command.drom(*words))

    def at_desk(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a `drom` command on the machine of a user who names all schedulers by their addresses."""
        queue = ",".join(f"{name}:{USERS}" for name in SCHEDULERS)
        about = {"DROM_QUEUE": queue, "DROM_REMOTE_KEYS": str(self._keys_of(DESK)), "NUMBA_DISABLE_JIT": "1"}
        command = self.network[DESK].within(*python_command.drom(*words))
        return subprocess.run(
            command, env=clean_environment() | about, capture_output=True, text=True, timeout=SECONDS, check=False
        )

    def _run(self, machine: str, name: str, words: Sequence[str]) -> Process:
        claims = {cpu_locks.VARIABLE: str(self._root / machine / "claims")}
        environment = clean_environment() | {"NUMBA_DISABLE_JIT": "1"} | claims
        return Process(self.network[machine], words, self._root / f"{name}.log", environment)

    def _log(self, name: str) -> str:
        log = self._root / f"{name}.log"
        return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""

    def show(self) -> str:
        """Return the logs of schedulers and agents."""
        return "\n".join(self._log(name) for name in (*SCHEDULERS, *NODES))

    def cut(self, one: str, other: str) -> None:
        """Lose all that a machine sends to another one, without an error."""
        address = self.network[other].address
        self.network[one].do("ip", "neigh", "replace", address, "lladdr", NOBODY, "dev", "eth0", "nud", "permanent")

    def mend(self, one: str, other: str) -> None:
        """Let a machine reach another one again."""
        self.network[one].do("ip", "neigh", "delete", self.network[other].address, "dev", "eth0")

    def hurt(self, chance: random.Random, kind: str) -> None:
        """Carry out one of KINDS, and undo it after up to two leases."""
        pause = chance.uniform(0, 2 * LEASE)
        name = chance.choice(NODES if kind == "node" else SCHEDULERS)
        one, other = chance.choice([*permutations((*SCHEDULERS, "n1"), 2)])
        if kind in ("isolate", "node"):
            self.network.disconnect(name)
            time.sleep(pause)
            self.network.connect(name)
        elif kind == "kill":
            self._running[name].end(signal.SIGKILL)
            time.sleep(pause)
            self.start_scheduler(name)
        else:
            pairs = [(one, other), (other, one)][: 1 + (kind == "link")]
            for pair in pairs:
                self.cut(*pair)
            time.sleep(pause)
            for pair in pairs:
                self.mend(*pair)
