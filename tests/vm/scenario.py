# SPDX-License-Identifier: Apache-2.0
"""Runs inside a virtual machine of 2 sockets x 4 cores x 2 threads: OpenMP programs share it, masks are compared.

Prints one JSON object per look at the node: for each job what `drom ps` says it holds and the masks that Linux reports
of the threads of its process.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drom.agent.control import client

from dromlib import native

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DIRECTORY = Path(os.environ.get("DROM_RUNTIME_DIR", "/tmp/drom"))
DROM = [sys.executable, "-m", "drom"]
JACOBI = Path(__file__).resolve().parents[2] / "jacobi"
"""The example, which the host has compiled."""
LIMIT = 600.0
"""Seconds until a condition has to hold; an emulated machine is slow."""


def ps() -> dict[str, dict[str, Any]]:
    """Return the tasks by job name."""
    return {task["job"]: task for task in client.order(DIRECTORY, "ps")["tasks"]}


def seen(pid: int) -> list[str]:
    """Return the masks that the threads of a process have, each once, as CPU lists."""
    texts = [path.read_text(encoding="utf-8") for path in Path(f"/proc/{pid}/task").glob("*/status")]
    lines = [line for text in texts for line in text.splitlines()]
    return sorted({line.split()[1] for line in lines if line.startswith("Cpus_allowed_list:")})


def look(name: str, done: Callable[[dict[str, dict[str, Any]]], bool]) -> None:
    """Print the node once `done` holds and nothing is pending."""
    deadline = time.monotonic() + LIMIT
    while True:
        tasks = ps()
        quiet = all(task["applied"] == task["target"] == task["held"] for task in tasks.values())
        # Looked at once: threads that a program starts while it grows may have other masks until the agent has looked,
        # and those that take turns on one CPU are moved apart by a narrower mask for a moment.
        threads = {job: seen(task["pid"]) for job, task in tasks.items()}
        quiet = quiet and all(threads[job] == [task["held"]] for job, task in tasks.items())
        if quiet and done(tasks):
            break
        if time.monotonic() > deadline:
            sys.exit(f"{name} did not come about: {json.dumps(tasks)} {threads}")
        time.sleep(0.2)
    told = ("held", "state", "mode", "owned")
    value = {job: {key: task[key] for key in told} | {"threads": threads[job]} for job, task in tasks.items()}
    print(json.dumps({"look": name, "jobs": value}), flush=True)


def start(job: str, *options: str) -> subprocess.Popen[bytes]:
    """Start Jacobi under the launcher."""
    command = [str(native.run_path()), "--runtime-dir", str(DIRECTORY), "--job", job, *options, "--"]
    return subprocess.Popen([*command, str(JACOBI), "--size", "200", "--seconds", "3600"])


def end(*programs: subprocess.Popen[bytes]) -> None:
    """Kill programs."""
    for program in programs:
        program.kill()
        program.wait()


@contextlib.contextmanager
def agent(*options: str) -> Iterator[None]:
    """Run an agent for a block; it has to stop well."""
    command = [*DROM, "agent", "--runtime-dir", str(DIRECTORY), *options]
    log = Path("/tmp/agent.log")  # a pipe that nobody reads would hold the agent up
    with log.open("wb") as stderr, subprocess.Popen(command, stderr=stderr) as process:
        try:
            while "event=ready" not in log.read_text(encoding="utf-8"):
                assert process.poll() is None
                time.sleep(0.2)
            yield
        except BaseException:
            process.kill()  # or the failure would wait for its end
            sys.stderr.write(log.read_text(encoding="utf-8"))
            raise
        process.terminate()
        assert process.wait() == 0


def cooperative(*jobs: str) -> Callable[[dict[str, dict[str, Any]]], bool]:
    """Return whether exactly these jobs run and all of them attend to grants themselves."""
    return lambda tasks: dict.fromkeys(jobs, "cooperative") == {job: task["mode"] for job, task in tasks.items()}


def main() -> None:
    """Play the scenario."""
    with agent():
        machine = subprocess.run([*DROM, "topology", "--json"], check=True, capture_output=True).stdout
        print(json.dumps({"look": "machine", "topology": json.loads(machine)}), flush=True)
        first = start("jacobi")
        look("alone", cooperative("jacobi"))
        second = start("second")
        look("together", cooperative("jacobi", "second"))
        end(second)
        look("alone again", cooperative("jacobi"))
    print(json.dumps({"look": "stopped", "threads": seen(first.pid)}), flush=True)

    with agent():
        close = start("close", "--cpus", "4", "--distribution", "compact!")
        wide = start("wide", "--cpus", "4", "--distribution", "spread")
        look("layouts", cooperative("close", "wide"))
        client.order(DIRECTORY, "attach", pid=first.pid, job="taken")
        look("attached", lambda tasks: tasks.keys() == {"close", "wide", "taken"})
        client.order(DIRECTORY, "release", job="taken")
        print(json.dumps({"look": "released", "threads": seen(first.pid)}), flush=True)
        end(first, close, wide)
        look("empty", lambda tasks: not tasks)

    with agent("--unit", "thread"):
        odd = start("odd", "--cpus", "3")
        rest = start("rest")
        look("threads", cooperative("odd", "rest"))
        end(odd, rest)


if __name__ == "__main__":
    main()
