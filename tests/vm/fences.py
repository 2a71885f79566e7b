# SPDX-License-Identifier: Apache-2.0
"""Runs inside a virtual machine of 1 socket x 4 cores: each task has a control group, out of which nobody gets.

Prints one JSON object per look, as `scenario` does, and what the groups are in between.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.vm.scenario import DIRECTORY, DROM, agent, cooperative, end, look, seen, start

if TYPE_CHECKING:
    from collections.abc import Iterator

CGROUP = Path("/sys/fs/cgroup")
LOG = Path("/tmp/agent.log")
HOME = CGROUP / "home"
"""Where programs are started from."""


def group_of(pid: int) -> Path:
    """Return the group a process is in."""
    return CGROUP / Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii").strip().partition("::/")[2]


def tell(name: str, *programs: subprocess.Popen[bytes]) -> None:
    """Print for each program its group, without what differs from run to run, with cpuset and masks; and all sets."""
    mine = []
    for program in programs:
        group = group_of(program.pid)
        cpus = (group / "cpuset.cpus").read_text(encoding="ascii").strip()
        mine.append([group.name.partition("-")[0], cpus, seen(program.pid)])
    groups = CGROUP.rglob("task-*/cpuset.cpus")
    print(
        json.dumps({"look": name, "mine": mine, "all": sorted(g.read_text("ascii").strip() for g in groups)}),
        flush=True,
    )


@contextlib.contextmanager
def doomed_agent(*options: str) -> Iterator[None]:
    """Run an agent for a block, at whose end it is killed."""
    command = [*DROM, "agent", "--runtime-dir", str(DIRECTORY), *options]
    with LOG.open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        while b"event=ready" not in LOG.read_bytes():
            assert process.poll() is None, LOG.read_text(encoding="utf-8")
            time.sleep(0.1)
        try:
            yield
        finally:
            sys.stderr.write(LOG.read_text(encoding="utf-8"))
            process.kill()


@contextlib.contextmanager
def standing_still(*programs: subprocess.Popen[bytes]) -> Iterator[None]:
    """Stop programs for a block: on an emulated machine an agent takes minutes to start beside them."""
    for program in programs:
        program.send_signal(signal.SIGSTOP)
    yield
    for program in programs:
        program.send_signal(signal.SIGCONT)


def main() -> None:
    """Play the scenario."""
    HOME.mkdir()
    with doomed_agent("--enforce", "cpuset"):
        (HOME / "cgroup.procs").write_text("0", encoding="ascii")
        first = start("first")
        look("alone", cooperative("first"))
        tell("fenced", first)
        second = start("second")
        look("together", cooperative("first", "second"))
        tell("apart", first, second)
        for thread in Path(f"/proc/{first.pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {0, 1, 2, 3})
        tell("broken out", first)
    tell("killed", first, second)
    (CGROUP / "cgroup.procs").write_text("0", encoding="ascii")
    with contextlib.ExitStack() as stack:
        with standing_still(first, second):
            stack.enter_context(agent("--enforce", "cpuset"))
        look("adopted", cooperative("first", "second"))
        tell("adopted", first, second)
        end(second)
        look("alone again", cooperative("first"))
        tell("alone again", first)
    tell("stopped", first)
    end(first)
    with doomed_agent("--enforce", "cpuset"):
        (HOME / "cgroup.procs").write_text("0", encoding="ascii")
        third = start("third", "--cpus", "2")
        look("third", cooperative("third"))
        tell("third", third)
    (CGROUP / "cgroup.procs").write_text("0", encoding="ascii")
    with contextlib.ExitStack() as stack:
        with standing_still(third):
            stack.enter_context(agent())
        look("without fences", cooperative("third"))
        tell("without fences", third)
        end(third)


if __name__ == "__main__":
    main()
