# SPDX-License-Identifier: Apache-2.0
"""A scheduler in this process, to which orders of any user are given, and what they cost."""

from __future__ import annotations

import contextlib
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from drom.agent.execution import protocol as say
from drom.agent.model.caller import Caller
from drom.agent.observe.log import Log
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.live.cluster.settings import Settings
from drom.scheduler.live.cluster.spec import Spec
from drom.scheduler.live.server.server import Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drom.scheduler.engine.compiler import Policy

ROOT, OTHER = Caller(1, 0), Caller(1, 65534)
HELD = Spec(command=("true",), folder="/", hold=True)


@contextlib.contextmanager
def scheduler(
    folder: Path | None = None, settings: Settings | None = None, policy: Policy | None = None
) -> Iterator[Server]:
    """Run a scheduler of one node of four cores, whose queue is in a folder."""
    with TemporaryDirectory(dir="/tmp") as scratch:
        about = replace(settings or Settings(), silence=1e9)
        server = Server(folder or Path(scratch), policy or load_policy("fcfs"), about, Log(quiet=True))
        hello = say.Hello(say.PROTOCOL, "1", "n1", "n1", "b", 4, 1, 0, {}, (), False, 0.0, ())
        server.cluster.agents.hello(hello, time.time())
        try:
            yield server
        finally:
            server.close()


def submit(server: Server, count: int = 1, caller: Caller = ROOT, **about: Any) -> list[int]:
    """Submit jobs that are held; return their numbers."""
    values = replace(HELD, **about).to_json()
    found: list[int] = server._answer({"order": "submit", "jobs": [values], "count": count}, caller)["jobs"]
    return found


class Cost:
    """What a block has cost: the `peak` of the memory that it took, in bytes."""

    peak = 0


@contextlib.contextmanager
def cost() -> Iterator[Cost]:
    """Measure the memory of a block, which makes it slow."""
    found = Cost()
    tracemalloc.start()
    begin, _ = tracemalloc.get_traced_memory()
    try:
        yield found
        found.peak = tracemalloc.get_traced_memory()[1] - begin
    finally:
        tracemalloc.stop()
