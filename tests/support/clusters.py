# SPDX-License-Identifier: Apache-2.0
"""Real clusters for tests: a scheduler, an agent per node with emulated cores, and real jobs; all gone at the end."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drom.agent.control import client
from drom.agent.control.remote import RemoteAddress
from drom.agent.errors import RefusedError
from drom.scheduler.live.cluster.paging import all_pages
from drom.scheduler.live.cluster.spec import SERVICE
from prometheus_client.parser import text_string_to_metric_families

from tests.support.agents import SECONDS, SERVES_METRICS, Agent, environment, launch_agent, wait_until
from tests.support.commands import run_forked
from tests.support.forks import Fork

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FREELY = ("--set", "max_slowdown=infinite")
CORES = "pack:1 core:4 pu:1"
UNCOMPILED = {"NUMBA_DISABLE_JIT": "1"}
"""The policy runs as plain Python, which gives the same answers and starts at once."""


def samples(text: str, name: str) -> Iterator[tuple[dict[str, str], float]]:
    """Yield labels and value of each sample of a metric."""
    for family in text_string_to_metric_families(text):
        yield from ((one.labels, one.value) for one in family.samples if one.name == name)


class Cluster:
    """A scheduler with its state in a folder, and agents by name of node."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.state = folder, folder / "state"
        self._home = folder
        self.options = options
        self.agents: dict[str, Agent] = {}
        self.agent_options: tuple[str, ...] = ("--emulate", CORES, *SERVES_METRICS)
        self._log = folder / "scheduler.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """What schedulers have logged."""
        return self._log.read_text(encoding="utf-8")

    @property
    def restarts(self) -> int:
        """How often a scheduler was started again."""
        return self.log.count("event=ready") - 1

    @property
    def metrics_port(self) -> int:
        """Where the scheduler serves its metrics."""
        return int(re.findall(r"event=metrics .*port=(\d+)", self.log)[-1])

    def metrics(self) -> str:
        """Return one scrape of the scheduler."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=SECONDS) as answer:
            text: str = answer.read().decode()
            return text

    @property
    def address(self) -> str:
        """Where agents find the scheduler."""
        return f"ipc://{self.state}/agents"

    def start(self, until: str = "ready", *, forked: bool = True, **extra: str) -> None:
        """Start a scheduler, with more variables, and wait until it is ready, or for another event.

        `forked`: as a fork of this process.
        """
        words = [
            "scheduler",
            "--state",
            str(self.state),
            "--silence",
            "1000",
            "--kill-wait",
            "1",
            *SERVES_METRICS,
            *self.options,
        ]
        ready = self._log.exists() and self.log.count(f"event={until}")
        with self._log.open("ab") as log:
            command, popen = (["drom"], Fork) if forked else ([sys.executable, "-m", "drom"], subprocess.Popen)
            self._process = popen([*command, *words], stderr=log, env=environment(**UNCOMPILED, **extra))
        wait_until(lambda: self.log.count(f"event={until}") > ready or not self.runs, lambda: self.log)
        assert self.runs, self.log

    def join(self, name: str) -> Agent:
        """Start the agent of a node, or another one after it was killed; return it."""
        home = self._home / name
        home.mkdir(exist_ok=True)
        words = ("--scheduler", self.address, "--node", name, *self.agent_options)
        self.agents[name] = launch_agent(home / "run", *words)
        return self.agents[name]

    @property
    def children(self) -> list[int]:
        """The processes that the scheduler has started."""
        assert self._process
        found = Path(f"/proc/{self._process.pid}/task").glob("*/children")
        return [int(child) for children in found for child in children.read_text(encoding="utf-8").split()]

    @property
    def runs(self) -> bool:
        """Whether the scheduler runs."""
        return self._process is not None and self._process.poll() is None

    def begin(self) -> None:
        """Have a new folder for what is submitted, and all nodes up, also after a test that has begun it anew."""
        wait_until(lambda: all(node["state"] == "up" for node in self.ask("nodes")["nodes"]), lambda: self.log)
        self.folder = self._home / f"work{len(list(self._home.glob('work*')))}"
        self.folder.mkdir()

    def clear(self) -> None:
        """End all jobs, and wait until nothing of them is left."""
        for job in all_pages(self.ask, "queue")["jobs"]:
            with contextlib.suppress(RefusedError):  # it may have ended since
                self.ask("cancel", job=job["job"])
        wait_until(lambda: not self.ask("queue")["jobs"], lambda: self.ask("queue"))
        wait_until(lambda: not any(agent.tasks() for agent in self.agents.values()), lambda: self.log)

    def send(self, number: int) -> None:
        """Send the scheduler a signal."""
        assert self._process
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the scheduler as a crash would."""
        self.end(signal.SIGKILL)

    def end(self, number: int = signal.SIGTERM) -> int:
        """End the scheduler by a signal; return its exit code."""
        assert self._process
        self._process.send_signal(number)
        code = self._process.wait(SECONDS)
        assert "Traceback" not in self.log, self.log
        return code

    def ask(self, name: str, **fields: Any) -> Any:
        """Give the scheduler an order. Raises ControlError."""
        return client.order(self.state, name, server=SERVICE, **fields)

    def cli(self, *words: str | Path, **extra: str) -> subprocess.CompletedProcess[str]:
        """Run a `drom` command against this scheduler, in the folder of the cluster."""
        about = environment(DROM_QUEUE=str(self.state), **UNCOMPILED, **extra)
        return run_forked(*map(str, words), env=about, folder=self.folder)

    def remote(self, keys: Path) -> RemoteAddress:
        """Return the scheduler as users of other nodes find it who have these keys."""
        return RemoteAddress(f"127.0.0.1:{re.findall(r'event=ready .*users=([0-9]+)', self.log)[-1]}", keys)

    def submit(self, *words: str | Path) -> int:
        """Submit a job with `drom submit`; return its number."""
        done = self.cli("submit", *words)
        assert done.returncode == 0, done.stderr
        return int(done.stdout.split()[-1])

    def job(self, number: int) -> dict[str, Any]:
        """Return all about a job."""
        value: dict[str, Any] = self.ask("job", job=number)
        return value

    def await_state(self, number: int, *states: str) -> dict[str, Any]:
        """Wait until a job is in one of these states."""
        return wait_until(
            lambda: value if (value := self.job(number))["state"] in states else None,
            lambda: f"{self.job(number)}\n{self.log}",
        )

    def await_held(self, number: int, cores: int) -> None:
        """Wait until the program of a job holds so many cores, as its agent says."""

        def held() -> list[int]:
            tasks = [agent.tasks().get(f"drom-{number}") for agent in self.agents.values()]
            return [_count(task["held"]) for task in tasks if task]

        wait_until(lambda: held() == [cores], lambda: f"{held()}\n{self.log}")


def _count(cpus: str) -> int:
    ends = [part.split("-") for part in cpus.split(",")]
    return sum(int(one[-1]) - int(one[0]) + 1 for one in ends)


@contextlib.contextmanager
def cluster(folder: Path, *options: str, nodes: int = 2, names: Sequence[str] = ()) -> Iterator[Cluster]:
    """Run a cluster, under SD-Policy unless the options say another: nodes are so many, or have these names."""
    here = Cluster(folder, *(() if "--policy" in options else FREELY), *options)
    names = names or [f"n{number}" for number in range(1, nodes + 1)]
    try:
        here.start()
        for name in names:
            here.join(name)
        up = ["up"] * len(names)
        wait_until(lambda: [node["state"] for node in here.ask("nodes")["nodes"]] == up, lambda: here.log)
        yield here
        here.clear()
        for agent in here.agents.values():
            agent.stop()
        assert here.end() == 0
    except BaseException:
        print(here.log, *(agent.log for agent in here.agents.values()))
        raise
    finally:
        for agent in here.agents.values():
            agent.discard()
            agent.kill_jobs()
        if here.runs:
            here.end(signal.SIGKILL)
