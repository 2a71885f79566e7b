# SPDX-License-Identifier: Apache-2.0
"""Which processes of jobs there are on the nodes of a cluster, by what the kernel says of each alone."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.rig import Rig

LABEL = re.compile(rb"([0-9]+)\.([0-9]+)")
LAUNCHES = {"mpirun": "mpirun", "orted": "orted", "ring": "rank"}
"""What a program of this name is of a launch."""


class Found(NamedTuple):
    """A process of an attempt of a job, by our number; `what` is one of those below, or the name of its program.

    program: the shell that runs the job's script; step: the drom-step that keeps the job on a node; command: the one
    that keeps what another node has started there; keeper: one of both; remote: `drom-step remote`; rank: an MPI rank.
    """

    node: str
    pid: int
    what: str
    job: int
    attempt: int


def look(here: Rig) -> list[Found]:
    """Return all processes of jobs on all nodes."""
    spaces = {_space(here.network[name].first): name for name in here.names}
    found: list[Found] = []
    parents = {}
    for pid in sorted(int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()):
        with contextlib.suppress(OSError):
            if name := spaces.get(_space(pid)):
                parents[pid] = int(Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[1])
                found += _of_job(here.folder / name / "run/steward", name, pid)
    # A child of a drom-step that is about to become the program still looks like it, as does that of a job's shell.
    keepers = {one.pid for one in found if one.what in ("step", "command", "keeper")}
    shells = {one.pid for one in found if one.what == "program"}
    copies = {pid for alike in (keepers, shells) for pid in alike if parents[pid] in alike}
    return [one for one in found if one.pid not in copies]


def _space(pid: int) -> Path:
    return Path(f"/proc/{pid}/ns/pid").readlink()


def _of_job(spool: Path, node: str, pid: int) -> Iterator[Found]:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    if words[0] == b"drom-step" and (label := LABEL.fullmatch(words[1])):
        yield Found(node, pid, _keeper(spool / label[0].decode(), pid), int(label[1]), int(label[2]))
        return
    variables = dict(word.partition(b"=")[::2] for word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    job, attempt = variables.get(b"DROM_JOB_ID", b""), variables.get(b"DROM_JOB_ATTEMPT", b"")
    if job and attempt:
        yield Found(node, pid, _program(words, b"/scripts/%s.%s" % (job, attempt)), int(job), int(attempt))


def _keeper(folder: Path, pid: int) -> str:
    """Return of what a drom-step is the keeper, as far as it has said so in the spool."""
    inside = re.findall(r"^NSpid:.*\t([0-9]+)$", Path(f"/proc/{pid}/status").read_text("utf-8"), re.MULTILINE)
    for what, pattern in (("step", "pid"), ("command", "step.*/pid")):
        for path in folder.glob(pattern):
            if path.read_text("utf-8").split("\n")[:1] == inside:
                return what
    return "keeper"


def _program(words: list[bytes], script: bytes) -> str:
    name = Path(words[0].decode()).name
    if words[1:2] and words[1].endswith(script):
        return "program"
    return "remote" if name == "drom-step" and words[1:2] == [b"remote"] else LAUNCHES.get(name, name)
