# SPDX-License-Identifier: Apache-2.0
"""A user who is not root, on a machine of the cluster that runs no jobs: all over TCP, with the user's own key."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.control import keys
from drom.agent.system import python_command
from drom.scheduler.testbed.cluster import HEAD, build_ring
from drom.scheduler.testbed.namespaces import NETWORK, Network

from tests.cluster.rig import Rig, rig
from tests.support.agents import SECONDS, environment, wait_until
from tests.support.terminals import has, terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

DESK = "desk"
NAME, UID, GID = "drom-ada", 64901, 64902
USERS = 9467


class DeskRig(Rig):
    """A cluster with one more machine, where a user who is known on all machines has a key and gives orders."""

    def __init__(self, folder: Path, *options: str, **more: Any) -> None:
        super().__init__(folder, "--users", f"{NETWORK}.1:{USERS}", *options, **more)
        self.network = Network(folder, [HEAD, *self.names, DESK])
        self.home = folder / "home"

    def make_user(self) -> None:
        """Have the user on all machines, in files of their own, with a home, and with keys that the scheduler knows."""
        self.home.mkdir()
        own = keys.make(self.home / ".config/drom/keys")
        keys.trust(own, self.keys_of(HEAD) / keys.PUBLIC, HEAD)
        keys.trust(keys.load(self.keys_of(HEAD)), own.folder / keys.PUBLIC, NAME)
        for path in (self.home, *self.home.rglob("*")):
            os.chown(path, UID, GID)
        known = self.folder / "passwd"
        user = f"{NAME}:x:{UID}:{GID}::{self.home}:/bin/sh\n"
        known.write_text(Path("/etc/passwd").read_text(encoding="utf-8") + user, encoding="utf-8")
        for machine in self.network.machines.values():
            machine.do("mount", "--bind", str(known), "/etc/passwd")

    def as_user(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a `drom` command of the user at the desk, in the user's home."""
        return subprocess.run(
            self.command_of_user(*words), capture_output=True, text=True, timeout=SECONDS, check=False
        )

    def command_of_user(self, *words: str) -> list[str]:
        """Return the command line of a `drom` command of the user at the desk, in the user's home."""
        # The one right beyond a user's is to read where Python and drom are installed, which may be root's home.
        right = ("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search")
        user = ("setpriv", "--reuid", str(UID), "--regid", str(GID), "--clear-groups", *right)
        about = (f"PATH={os.environ['PATH']}", f"HOME={self.home}", f"TMPDIR={self.home}")
        command = [*user, "env", "-i", "--chdir", str(self.home), *about, *python_command.drom(*words)]
        return self.network[DESK].within(*command)

    def open_python(self) -> None:
        """Let users of the nodes run this Python, which may be in root's home."""
        python = Path(sys.base_prefix)
        closed = next((path for path in reversed(python.parents) if not path.stat().st_mode & 0o001), None)
        for name in self.names if closed else ():
            aside = self.folder / f"python-{name}"
            aside.mkdir()
            do = self.network[name].do
            do("mount", "-o", "bind,ro", str(python), str(aside))
            do("mount", "-t", "tmpfs", "-o", "mode=755", "none", str(closed))
            do("mkdir", "-p", str(python))
            do("mount", "-o", "bind,ro", str(aside), str(python))


@pytest.fixture
def here() -> Iterator[DeskRig]:
    """Return a cluster of two nodes below a folder that everybody may enter, with a user."""
    with tempfile.TemporaryDirectory(prefix="drom-users-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        with rig(Path(folder) / "c", nodes=2, kind=DeskRig) as started:
            assert isinstance(started, DeskRig)
            started.make_user()
            yield started


def ids_of(here: Rig, name: str, pid: int) -> list[str]:
    """Return the four user and the four group numbers of a process of a node, as the kernel says."""
    said = here.network[name].do("cat", f"/proc/{pid}/status")
    return [number for line in re.findall(r"^[UG]id:\t(.+)$", said, re.MULTILINE) for number in line.split()]


def test_a_user_runs_ranks_on_all_nodes_and_rules_nobody_else(here: DeskRig) -> None:
    """A job submitted from another machine runs as its user on each node, and what it writes is the user's."""
    of_root = here.endless("of-root", nodes=2, time=3600)
    here.await_lines("of-root", 1)
    where, ring = ("--scheduler", f"{HEAD}:{USERS}"), build_ring(here.folder)
    script = f"id -u > $(hostname); exec {ring} 4000"
    asked = here.as_user(
        "submit", *where, "--nodes", "2", "--tasks-per-node", "1", "--time", "10", "--", "sh", "-c", script
    )

    assert (asked.stdout, asked.stderr) == (f"Submitted job {of_root + 1}\n", "")
    number = of_root + 1
    ranks = here.await_steps(number, 2)
    assert {name for name, _ in ranks} == {"n1", "n2"}
    assert all(ids_of(here, *rank) == [str(UID)] * 4 + [str(GID)] * 4 for rank in ranks)
    for name in ("n1", "n2", f"drom-{number}.out"):
        about = (here.home / name).stat()
        assert (about.st_uid, about.st_gid) == (UID, GID)
    assert {(here.home / name).read_text(encoding="utf-8") for name in ("n1", "n2")} == {f"{UID}\n"}
    assert here.job(number)["user"] == NAME

    refused = here.as_user("cancel", str(of_root), *where)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == f"drom: job {of_root} belongs to root: only they and root may change it.\n"
    assert here.job(of_root)["state"] == "running"
    assert here.as_user("cancel", str(number), *where).returncode == 0
    assert here.await_state(number, "cancelled")["reason"] == f"cancelled by {NAME}"
    wait_until(
        lambda: not any(here.network[name].do("sh", "-c", f"ps -u {UID} -o pid= || true") for name in here.names),
        lambda: here.said(HEAD),
    )
    assert here.job(of_root)["state"] == "running"


def test_a_user_has_a_terminal_on_another_machine(here: DeskRig) -> None:
    """The program runs as the user, on a node that connects to the user's machine, and ends with the terminal."""
    here.open_python()
    words = (
        "--scheduler",
        f"{HEAD}:{USERS}",
        "--nodes",
        "2",
        "--",
        "sh",
        "-c",
        "echo $(id -u) of $DROM_NODELIST; exec sh",
    )
    with terminal(here.command_of_user("submit", "--pty", *words), environment()) as there:
        there.await_screen(has(f"^{UID} of n1,n2$"))
        there.type("stty size; echo a$((1 + 1))b\n")
        there.await_screen(has("^24 80$", "^a2b$"))
        (file,) = (here.folder / "n1/run/scripts").glob("*.terminal")
        assert (file.stat().st_uid, file.stat().st_mode & 0o007) == (0, 0)
    number = here.ask("queue", all=True)["jobs"][-1]["job"]
    here.await_state(number, "failed", "cancelled")
    wait_until(
        lambda: not any(here.network[name].do("sh", "-c", f"ps -u {UID} -o pid= || true") for name in here.names),
        lambda: here.said(HEAD),
    )
