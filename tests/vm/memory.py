# SPDX-License-Identifier: Apache-2.0
"""Runs inside a virtual machine with cgroup v2: an agent limits the memory of a scheduler's jobs.

Prints one JSON object for each job: below which group its own is, and how it ended; and what groups are left.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from drom.agent.execution.protocol import Ended, Forget, Hello

from tests.support.fake_scheduler import FakeScheduler, start, start_scheduler
from tests.vm.fences import CGROUP
from tests.vm.scenario import LIMIT, agent

MIB = 1 << 20
HOLDER = CGROUP / "system.slice/drom-tasks.service"
GROUP, SPOOL = Path("/tmp/group"), Path("/tmp/spool")
TAKES_MUCH = f"open('{GROUP}', 'w').write(open('/proc/self/cgroup').read()); bytearray(200 << 20)"


def play(scheduler: FakeScheduler, *options: str) -> None:
    """Run jobs that take 200 MiB under an agent with `options`, and may have 50 MiB, 400 MiB and all."""
    with agent("--scheduler", scheduler.address, "--node", "n1", "--spool", str(SPOOL), *options):
        limits = scheduler.hear(Hello, LIMIT).limits_memory
        for number, memory in enumerate((50, 400, 0), 1):
            scheduler.say("n1", start(number, sys.executable, "-c", TAKES_MUCH, memory=memory * MIB))
            end = scheduler.hear(Ended, LIMIT, job=number)
            scheduler.say("n1", Forget(number, 1))
            below = str(Path(GROUP.read_text(encoding="ascii").strip().partition("::")[2]).parent)
            about = {"limits": limits, "memory": memory, "below": below, "status": end.status, "note": end.note}
            print(json.dumps(about), flush=True)
        while any(SPOOL.iterdir()):
            scheduler.serve(0.1)
    print(json.dumps({"left": [path.name for path in CGROUP.rglob("job-*")]}), flush=True)


def main() -> None:
    """Play the scenario in the root group, with fences, and below the group of a service for tasks."""
    with start_scheduler(Path("/tmp")) as scheduler:
        play(scheduler)
        play(scheduler, "--enforce", "cpuset")
        HOLDER.mkdir(parents=True)
        (HOLDER.parent / "cgroup.subtree_control").write_text("+cpuset +memory", encoding="ascii")
        with subprocess.Popen(["sleep", "infinity"]) as holder:
            (HOLDER / "cgroup.procs").write_text(str(holder.pid), encoding="ascii")
            play(scheduler)
            holder.kill()


if __name__ == "__main__":
    main()
