# SPDX-License-Identifier: Apache-2.0
"""Start the daemon of `drom slurm`, or show what it would do."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

from drom.agent.cli import output
from drom.agent.observe.log import Log
from drom.agent.system.sd_notify import ServiceManager
from drom.agent.text import counted, duration, table
from drom.scheduler.engine.compiler import announcement, load_policy
from drom.scheduler.live.cluster.settings import LIVE
from drom.scheduler.slurm.daemon import Daemon
from drom.scheduler.slurm.dry_run import Forecast, forecast
from drom.scheduler.slurm.engine import Engine
from drom.scheduler.slurm.helper import HelperReader
from drom.scheduler.slurm.history import History
from drom.scheduler.slurm.reader import Reader
from drom.scheduler.slurm.store import Store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from drom.scheduler.engine.compiler import Policy

SCHEMA_VERSION = 1
INTERVAL, HELPED_INTERVAL = 0.25, 0.1
"""The least seconds between two looks at Slurm, without and with a helper, for which a look costs little."""


def run(
    partition: str,
    policy: str,
    choices: Sequence[str],
    state: Path,
    *,
    interval: float | None = None,
    helper: Path | None = None,
) -> None:
    """Run the daemon until SIGTERM or SIGINT. Raises SlurmError and SchedulerError if it cannot start."""
    log = Log()
    manager = ServiceManager(os.environ, os.getpid())
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    found = _load(policy, choices)
    store, history = Store(state.absolute()), History(state.absolute())
    if words := announcement(found):
        log("compiling", text=words)  # the gate is open until the policy can decide
    engine = Engine(found, partition, store.load())
    interval = interval or (HELPED_INTERVAL if helper else INTERVAL)
    with closing(_reader(helper, log)) as reader:
        daemon = Daemon(reader, engine, store, history, log, interval=interval)
        log("ready", partition=partition, policy=found.name, pid=os.getpid())
        manager.ready()
        daemon.run(stop)
    log("stopped")


def _reader(helper: Path | None, log: Log) -> Reader:
    if helper is None:
        return Reader(os.environ)
    return HelperReader(os.environ, helper, lambda sentence: log("slurm_failed", reason=sentence))


def show_forecast(partition: str, policy: str, choices: Sequence[str], *, as_json: bool) -> None:
    """Print which waiting jobs the daemon would start now. Raises SlurmError and SchedulerError."""
    reader = Reader(os.environ)
    jobs, nodes = reader.jobs(), reader.nodes()
    now = time.time()
    found = forecast(_load(policy, choices), partition, jobs.records, nodes.records, now)
    if as_json:
        rows = [start._asdict() for start in found.starts]
        output.emit({"schema_version": SCHEMA_VERSION, "waiting": found.waiting, "starts": rows})
        return
    for line in _lines(found, now):
        output.say(line)


def _lines(found: Forecast, now: float) -> list[str]:
    """Return the forecast as a table, and its gain in a sentence."""
    if not found.starts:
        return [f"None of {counted(found.waiting, 'waiting job')} would start now."]
    rows = [
        [
            start.job,
            start.user,
            ",".join(start.nodes) or "where Slurm likes",
            ",".join(start.mates) or "-",
            "-" if start.expected is None else f"in {duration(max(0.0, start.expected - now))}",
        ]
        for start in found.starts
    ]
    guests = sum(bool(start.mates) for start in found.starts)
    gains = [start.expected - now for start in found.starts if start.expected is not None and start.expected > now]
    gain = (
        f" Slurm expects {len(gains)} of them to start {duration(sum(gains) / len(gains))} later on average."
        if gains
        else ""
    )
    beside = f", {guests} of them beside running jobs" if guests else ""
    return [
        *table(["JOB", "USER", "NODES", "BESIDE", "SLURM EXPECTS"], rows),
        f"{len(rows)} of {counted(found.waiting, 'waiting job')} would start now{beside}.{gain}",
    ]


def _load(policy: str, choices: Sequence[str]) -> Policy:
    return load_policy(policy, [*LIVE.get(policy, ()), *choices])
