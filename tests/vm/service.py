# SPDX-License-Identifier: Apache-2.0
"""Runs inside a virtual machine of 1 socket x 4 cores that has systemd: fences of an agent that is its service.

The units are those of contrib/ as they are, in a systemd of its own. Prints JSON as `fences` does, and what systemd
says of the service in between.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.support import private_systemd
from tests.vm.fences import CGROUP, standing_still, tell
from tests.vm.scenario import LIMIT, cooperative, end, look, start

NAME = "drom-agent.service"
HOLDER = "drom-tasks.service"
UNITS = Path("/tmp/units")
LOG = Path("/tmp/agent.log")
DROM = Path("/opt/drom/bin/drom")
SLOW = f"""[Service]
Environment=NUMBA_DISABLE_JIT=1 DROM_ENFORCE=cpuset PYTHONDONTWRITEBYTECODE=1
StandardError=append:{LOG}
WatchdogSec={LIMIT:g}
TimeoutSec={LIMIT:g}
"""
"""What an emulated machine needs, and the log where it can be read."""


def install() -> None:
    """Put the unit and the command in their places."""
    (UNITS / f"{NAME}.d").mkdir(parents=True)
    for unit in (NAME, HOLDER):
        (UNITS / unit).write_text((Path.cwd() / unit).read_text(encoding="utf-8"), encoding="utf-8")
    (UNITS / f"{NAME}.d/slow.conf").write_text(SLOW, encoding="utf-8")
    DROM.parent.mkdir(parents=True)
    DROM.write_text(f'#!/bin/sh\nPYTHONPATH={Path.cwd()} exec {sys.executable} -m drom "$@"\n', encoding="utf-8")
    DROM.chmod(0o755)


def systemctl(*words: str) -> str:
    """Run systemctl; return what it prints."""
    done = subprocess.run(["systemctl", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"systemctl {' '.join(words)}: {done.stderr}\n{LOG.read_text(encoding='utf-8')}")
    return done.stdout.strip()


def main_pid() -> int:
    """Return the pid of the service's process."""
    return int(systemctl("show", "-P", "MainPID", NAME))


def replaced(old: int) -> None:
    """Wait until another agent serves."""
    deadline = time.monotonic() + LIMIT
    while main_pid() in (0, old) or systemctl("show", "-P", "ActiveState", NAME) != "active":
        if time.monotonic() > deadline:
            said = systemctl("show", "-p", "ActiveState,SubState,Result,ExecMainStatus,NRestarts", NAME)
            sys.exit(f"{said}\n{LOG.read_text(encoding='utf-8')}")
        time.sleep(0.2)


def groups() -> list[str]:
    """Return the control groups of tasks, without what differs from run to run."""
    base = CGROUP / "system.slice" / HOLDER
    return sorted(path.name.partition("-")[0] for path in base.iterdir() if path.is_dir()) if base.exists() else []


def say(name: str) -> None:
    """Print how the service is."""
    state = systemctl("show", "-P", "ActiveState", NAME)
    print(json.dumps({"service": name, "state": state, "groups": groups()}), flush=True)


def inside() -> None:
    """Play the scenario, in the namespaces of systemd."""
    systemctl("start", HOLDER, NAME)
    say("started")
    first = start("first")
    look("at first", cooperative("first"))
    second = start("second")
    look("together", cooperative("first", "second"))
    tell("fenced", first, second)
    say("fenced")
    systemctl("reload", NAME)
    say("reloaded")
    old = main_pid()
    with standing_still(first, second):
        systemctl("restart", NAME)
        replaced(old)
    look("restarted", cooperative("first", "second"))
    tell("restarted", first, second)
    old = main_pid()
    with standing_still(first, second):
        os.kill(old, signal.SIGKILL)
        replaced(old)
    look("killed", cooperative("first", "second"))
    tell("killed", first, second)
    end(second)
    look("alone", cooperative("first"))
    tell("alone", first)
    systemctl("stop", NAME)
    tell("stopped", first)
    say("stopped")
    end(first)


def main() -> None:
    """Start a systemd, and the scenario beside its services."""
    if not private_systemd.SYSTEMD.exists():
        print(json.dumps({"service": "none"}))
        return
    install()
    with private_systemd.systemd(Path("/tmp"), UNITS) as systemd:
        home = next(CGROUP.glob("drom-test-*")) / "home"
        home.mkdir()
        # In a group below systemd's: with nsdelegate nobody moves processes into a namespace from outside.
        words = ["sh", "-c", 'echo 0 >"$0/cgroup.procs" && exec "$@"', str(home)]
        me = [sys.executable, "-m", "tests.vm.service", "inside"]
        there = {"DROM_RUNTIME_DIR": "/run/drom", "PYTHONPATH": str(Path.cwd())}  # nsenter starts in /
        done = subprocess.run([*words, *systemd.inside(*me)], check=False, env=os.environ | there)
    sys.exit(done.returncode)


if __name__ == "__main__":
    inside() if "inside" in sys.argv else main()
