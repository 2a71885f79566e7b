# SPDX-License-Identifier: Apache-2.0
"""Savers and CRIU are killed at each stage: a job runs or has one whole image, never both and never none."""

from __future__ import annotations

import contextlib
import os
import random
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from drom.agent.checkpoint import freezer
from drom.agent.checkpoint import saver as saver_module
from drom.agent.checkpoint.containers import Containers
from drom.agent.checkpoint.images import CONTAINER, PROCESSES, RESTORED, WHOLE, CheckpointError, CrashedError
from drom.agent.checkpoint.saver import restored_pid
from drom.agent.checkpoint.tools import within
from drom.agent.system import proc
from drom.agent.system.files import lock_folder

from tests.agent.checkpoint.conftest import WAIT, await_true, criu

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.agent.checkpoint.conftest import Counting, Node

pytestmark = pytest.mark.system

GATE = """#!/bin/sh
if [ "{action}" = "$CRTOOLS_SCRIPT_ACTION" ] && mkdir {folder}/passed 2>/dev/null; then
    {before}
    echo $$ $PPID >{folder}/reached
    read go <{folder}/go
fi
exec {script} "$@"
"""


class Gate:
    """Stops one of the scripts that CRIU is run with, until it is opened."""

    def __init__(self, here: Node, script: str, action: str = "", before: str = "") -> None:
        self._folder = here.folder
        for name in ("reached", "go"):
            os.mkfifo(here.folder / name)
        Path(script).rename(f"{script}.real")
        text = GATE.format(action=action, folder=here.folder, script=f"{script}.real", before=before)
        Path(script).write_text(text, encoding="utf-8")
        Path(script).chmod(0o700)

    def wait(self) -> list[int]:
        """Wait until the script has come to the gate; return its process number and that of its parent."""
        fd = os.open(self._folder / "reached", os.O_RDONLY | os.O_NONBLOCK)
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        assert poller.poll(WAIT * 1000), "no script has come to the gate"
        pids = [int(word) for word in os.read(fd, 100).split()]
        os.close(fd)
        return pids

    def open(self) -> None:
        """Let the script go on."""
        (self._folder / "go").write_text("go\n", encoding="ascii")


def begin(do: Callable[[], object]) -> int:
    """Do something in a process of its own, which is to be killed; return its pid."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            do()
        os._exit(0)
    return child


def kill(*pids: int) -> None:
    """Kill processes, and reap those that are children."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def running(counting: Counting) -> list[int]:
    """Return the processes that execute the counting program, but those that have ended."""
    text = b"\0".join(map(os.fsencode, counting.command))
    found = [pid for pid in proc.numbers("/proc") if (proc.read(f"/proc/{pid}/cmdline") or b"").startswith(text)]
    return [pid for pid in found if (stat := proc.read_stat(pid)) and stat.state not in "ZX"]


def is_settled(here: Node) -> bool:
    """Return whether CRIU works on no image any more."""
    for path in here.store.path.glob("7.*"):
        with contextlib.suppress(FileNotFoundError):
            lock = lock_folder(path)
            if lock is None:
                return False
            os.close(lock)
    return True


def one_job_is_left(here: Node, counting: Counting) -> str:
    """Check that a job runs, or has a whole image, from which it goes on; return the state found."""
    await_true(lambda: is_settled(here), "CRIU does not end")
    for log in sorted(here.store.path.glob("7.*/*.log")):  # of a restore they are removed
        print(log.name, log.read_text("utf-8", "replace")[-2000:], sep="\n")
    later = here.reopen()
    here.store = later.store
    states = [state for _, state in later.states()]
    if states == [WHOLE]:
        await_true(lambda: not running(counting), "the job runs, and has an image")
        for pid in here.children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        later.restore()
    elif states == [RESTORED]:
        later.children.append(restored_pid(later.store.entries()[0]))
    else:
        assert states == []
    assert len(running(counting)) == 1
    counting.advances()
    assert counting.counted_once()
    return states[0] if states else "runs"


def started(here: Node, way: str, counting: Counting) -> int:
    """Start the counting program."""
    pid = here.start(way, counting.command)
    counting.advances()
    return pid


@pytest.mark.parametrize("killed", ["saver", "all"])
def test_a_save_is_killed_before_the_dump(here: Node, way: str, counting: Counting, killed: str) -> None:
    """CRIU, which has just been started, carries on without its saver; without CRIU the job goes on."""
    image = here.image(started(here, way, counting), way=way)
    gate = Gate(here, here.tools.criu)
    saver = begin(lambda: here.saver.save(image))
    criu, _ = gate.wait()
    kill(saver, *([criu] if killed == "all" else []))
    if killed == "saver":
        gate.open()

    assert one_job_is_left(here, counting) == (WHOLE if killed == "saver" else "runs")


def test_a_container_is_frozen_before_criu_starts(here: Node, counting: Counting) -> None:
    """CRIU would look only each 100 ms whether it is."""
    if not here.tools.runc:
        pytest.skip("runc is not installed: make criu")
    image = here.image(started(here, CONTAINER, counting), way=CONTAINER)
    gate = Gate(here, here.tools.criu)
    saver = begin(lambda: here.saver.save(image))
    gate.wait()
    (group,) = freezer.groups(Containers(here.tools).name(7))
    await_true(group.is_frozen, "the container is not frozen")
    gate.open()
    os.waitpid(saver, 0)

    assert one_job_is_left(here, counting) == WHOLE


@pytest.mark.parametrize("killed", ["saver", "all"])
def test_a_save_is_killed_between_dump_and_rename(here: Node, way: str, counting: Counting, killed: str) -> None:
    """The processes stand until the image is whole: killed before, CRIU leaves them running."""
    image = here.image(started(here, way, counting), way=way)
    gate = Gate(here, here.tools.commit, "post-dump")
    saver = begin(lambda: here.saver.save(image))
    script, criu = gate.wait()
    kill(saver, *([criu, script] if killed == "all" else []))
    if killed == "saver":
        gate.open()

    assert one_job_is_left(here, counting) == (WHOLE if killed == "saver" else "runs")


def test_a_job_whose_criu_is_killed_is_killed(here: Node, way: str, counting: Counting) -> None:
    """Its processes may have CRIU's code in them, or be frozen: the saver says that the job has to begin again."""
    image = here.image(started(here, way, counting), way=way)
    gate = Gate(here, here.tools.commit, "post-dump")

    def save() -> None:
        try:
            here.saver.save(image)
        except CrashedError as error:
            (here.folder / "why").write_text(str(error), encoding="utf-8")

    saver = begin(save)
    script, criu = gate.wait()
    if way == CONTAINER:
        frozen = Path("/sys/fs/cgroup/freezer", Containers(here.tools).name(7), "freezer.state")
        if frozen.exists():  # as at a moment of each save
            frozen.write_text("FROZEN", "ascii")
    kill(criu, script)
    os.waitpid(saver, 0)

    assert (here.folder / "why").read_text("utf-8").startswith("job 7 was not saved and has ended: ")
    assert here.states() == []
    assert running(counting) == []


def test_a_job_that_is_killed_while_it_is_saved_leaves_no_image(here: Node, way: str, counting: Counting) -> None:
    """What its processes had open would be missing in the image, which could never be restored."""
    image = here.image(started(here, way, counting), way=way)
    gate = Gate(here, here.tools.commit, "post-dump")
    saver = begin(lambda: here.saver.save(image))
    gate.wait()
    for pid in running(counting):
        os.kill(pid, signal.SIGKILL)  # and CRIU, which traces it, reaps it
    await_true(lambda: not running(counting), "the job runs")
    gate.open()
    os.waitpid(saver, 0)

    await_true(lambda: is_settled(here), "CRIU does not end")
    assert here.reopen().states() == []


def test_a_killed_criu_leaves_a_stopped_child(here: Node, counting: Counting) -> None:
    """CRIU has such children while it tries what the kernel can do; runc would wait for one until the limit."""
    if not here.tools.runc:
        pytest.skip("runc is not installed: make criu")
    image = here.image(started(here, CONTAINER, counting), way=CONTAINER)
    script = Path(here.tools.criu)
    real = script.rename(f"{script}.real")
    stops = f'{real} "$@" & until [ "$(readlink /proc/$!/exe)" = "{criu()}" ]; do :; done; kill -STOP $!; kill -KILL $$'
    script.write_text(f'#!/bin/sh\n[ "$2" = 3 ] || exec {real} "$@"\n{stops}\n', "utf-8")
    script.chmod(0o700)

    with pytest.raises(CheckpointError) as caught:
        here.saver.save(image, within(WAIT))

    assert "its time for that was over" not in str(caught.value)


@pytest.mark.skipif(not shutil.which("nft"), reason="nft is not installed, which lists rules for packets")
def test_a_killed_criu_leaves_no_rules_for_packets(here: Node, way: str, counting: Counting) -> None:
    """It makes none: left on the node they would slow down its network, and each later save."""

    def rules() -> str:
        return subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout

    before = rules()
    image = here.image(started(here, way, counting), way=way)
    gate = Gate(here, here.tools.commit, "post-dump")
    saver = begin(lambda: here.saver.save(image))
    script, criu = gate.wait()
    during = rules()
    kill(criu, script)
    os.waitpid(saver, 0)

    assert before == during == rules()


def test_criu_is_killed_between_rename_and_the_end_of_the_job(here: Node, way: str, counting: Counting) -> None:
    """A job that goes on has no image, though that was whole already."""
    image = here.image(started(here, way, counting), way=way)
    gate = Gate(here, here.tools.commit, "post-dump", f"{here.tools.commit}.real")
    saver = begin(lambda: here.saver.save(image))
    script, criu = gate.wait()
    assert (here.store.path / "7.1").exists()
    kill(saver, criu, script)

    assert one_job_is_left(here, counting) == "runs"


def test_a_save_is_killed_after_the_job(here: Node, way: str, counting: Counting) -> None:
    """A saver that dies once the processes are gone leaves the image."""
    image = here.image(started(here, way, counting), way=way)

    def save() -> None:
        here.saver.save(image)
        (here.folder / "saved").touch()
        signal.pause()

    saver = begin(save)
    await_true((here.folder / "saved").exists, "the job is not saved")
    kill(saver)

    assert one_job_is_left(here, counting) == WHOLE


@pytest.mark.parametrize("killed", ["saver", "all"])
def test_a_restore_is_killed_before_it_begins(here: Node, way: str, counting: Counting, killed: str) -> None:
    """Without its saver CRIU restores the job; without CRIU the image is given back."""
    image = here.image(started(here, way, counting), way=way)
    here.saver.save(image)
    os.waitpid(image.pid, 0)
    gate = Gate(here, here.tools.criu)
    saver = begin(lambda: here.saver.restore(7, 1))
    criu, _ = gate.wait()
    kill(saver, *([criu] if killed == "all" else []))
    if killed == "saver":
        gate.open()

    assert one_job_is_left(here, counting) == (RESTORED if killed == "saver" else WHOLE)


@pytest.mark.parametrize("stage", ["pre-restore", "setup-namespaces", "post-restore", "pre-resume", "post-resume"])
@pytest.mark.parametrize("killed", ["saver", "all"])
def test_a_restore_is_killed_halfway(here: Node, way: str, counting: Counting, stage: str, killed: str) -> None:
    """What CRIU had begun to restore is killed, and the image given back, unless the job was resumed."""
    if way == PROCESSES and stage == "setup-namespaces":
        pytest.skip("plain processes have no namespaces of their own")
    image = here.image(started(here, way, counting), way=way)
    here.saver.save(image)
    os.waitpid(image.pid, 0)
    gate = Gate(here, here.tools.commit, stage, f"{here.tools.commit}.real" if stage == "pre-resume" else "")
    saver = begin(lambda: here.saver.restore(7, 1))
    script, criu = gate.wait()
    kill(saver, *([criu, script] if killed == "all" else []))
    if killed == "saver":
        gate.open()
    else:  # runc waits for the processes of CRIU that are left
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(saver_module, "RESTORE_SECONDS", 0.0)
            here.saver.recover()

    resumed = killed == "saver" or stage in {"pre-resume", "post-resume"}
    assert one_job_is_left(here, counting) == (RESTORED if resumed else WHOLE)


@pytest.mark.parametrize("seed", range(8))
def test_a_saver_is_killed_at_any_moment(here: Node, way: str, counting: Counting, seed: int) -> None:
    """Whatever a saver does when it is killed, one job is left."""
    chance = random.Random(seed)
    pid = started(here, way, counting)
    image = here.image(pid, way=way)
    if seed % 2:
        here.saver.save(image)
        os.waitpid(pid, 0)
    saver = begin(lambda: here.saver.restore(7, 1) if seed % 2 else here.saver.save(image))
    time.sleep(chance.uniform(0, 0.2))  # the moment is what this test is about
    kill(saver)

    one_job_is_left(here, counting)
