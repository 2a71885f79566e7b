# SPDX-License-Identifier: Apache-2.0
"""Fillers of a scheduler on real agents, saved and restored in real containers; the scheduler is a stand-in."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import socket
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.checkpoint.tools import saves_all_users
from drom.agent.execution import fillers
from drom.agent.execution.protocol import (
    CONTAINER,
    PROGRAM,
    Discard,
    Ended,
    Forget,
    Hello,
    Kept,
    NotSaved,
    Offer,
    Offered,
    Refused,
    Resize,
    Resized,
    Save,
    Signal,
    Source,
    Started,
)
from drom.agent.system import proc

from tests.agent.checkpoint.conftest import Counting, await_true, criu
from tests.agent.checkpoint.test_crashes import kill, running
from tests.support.agents import Agent, affinity, launch_agent, wait_until
from tests.support.fake_scheduler import FakeScheduler, start, start_scheduler
from tests.support.file_systems import fill, tiny_tmpfs

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.system
WITHIN = 60.0


class Cluster:
    """A scheduler and nodes of one machine, each with a runtime directory and an image store."""

    def __init__(self, folder: Path, scheduler: FakeScheduler, undo: ExitStack) -> None:
        self._folder = folder
        self._undo = undo
        self.scheduler = scheduler
        self.agents: dict[str, Agent] = {}

    def open(self, node: str, *options: str) -> Hello:
        """Start the agent of a node, and return how it introduces itself."""
        images = ("--images", str(self._store(node)))
        words = ("--scheduler", self.scheduler.address, "--node", node, *images, *options)
        agent = self.agents[node] = launch_agent(self._folder / node, *words)
        self._undo.callback(agent.discard)
        return self.scheduler.hear(Hello, node=node)

    def shrink(self, node: str, size: str = "1m") -> Path:
        """Have a node keep its images on a small file system; return the file that can fill it."""
        self._undo.enter_context(tiny_tmpfs(self._store(node), f"size={size}"))
        (self._store(node) / "tools").mkdir()
        return self._store(node) / "tools" / "full"

    def images(self, node: str) -> list[str]:
        """Return the folders of the images of a node."""
        return sorted(path.name for path in self._store(node).glob("*") if path.name != "tools")

    def _store(self, node: str) -> Path:
        return self._folder / f"{node}.images"

    def keepers(self) -> list[int]:
        """Return the processes that keep fillers of these nodes."""
        marks = {b"DROM_RUNTIME_DIR=" + os.fsencode(self._folder / node) for node in self.agents}
        found = [pid for pid in proc.numbers("/proc") if proc.command(pid) == "drom-filler"]
        return [pid for pid in found if marks & set(proc.environment(pid))]

    def start(self, node: str, command: tuple[str, ...], **more: Any) -> Started:
        """Start a filler in a container, and wait until it runs."""
        wanted = start(7, *command, **({"saving": CONTAINER} | more))
        self.scheduler.say(node, wanted)
        return self.scheduler.hear(Started, job=7, attempt=wanted.attempt)

    def save(self, node: str, generation: int, attempt: int = 1) -> Ended:
        """Save it, and wait until it has ended."""
        self.scheduler.say(node, Save(7, attempt, generation, WITHIN))
        ended = self.scheduler.hear(Ended, job=7, attempt=attempt)
        self.scheduler.say(node, Forget(7, attempt))
        return ended

    def end(self, node: str, attempt: int = 1, job: int = 7) -> Ended:
        """Kill it, and wait until it has ended."""
        self.scheduler.say(node, Signal(job, attempt, signal.SIGKILL))
        ended = self.scheduler.hear(Ended, job=job, attempt=attempt)
        self.scheduler.say(node, Forget(job, attempt))
        return ended

    def offer(self, node: str) -> Source:
        """Have the first image served, and return where it is to be had."""
        self.scheduler.say(node, Offer(7, 1))
        source = self.scheduler.hear(Offered, job=7, generation=1).source
        assert source is not None
        return source


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Return a cluster without nodes, whose agents find CRIU; nothing of them is left, and no container."""
    if not shutil.which("runc"):
        pytest.skip("runc is not installed: make criu")
    monkeypatch.setenv("PATH", f"{Path(criu()).parent}:{os.environ['PATH']}")
    with ExitStack() as undo, start_scheduler(tmp_path) as scheduler:
        made = Cluster(tmp_path, scheduler, undo)
        try:
            yield made
        except BaseException:
            for agent in made.agents.values():
                print(agent.log)
            kill(*made.keepers())
            raise
        for agent in made.agents.values():
            await_true(partial(_is_empty, agent.dir / "steward"), "a job is left")
            agent.stop()


def _is_empty(folder: Path) -> bool:
    return not list(folder.iterdir())


def test_a_node_says_how_it_saves(cluster: Cluster) -> None:
    """It has both ways, no image yet, and a type of CPU."""
    hello = cluster.open("n1")

    assert (hello.saves, hello.images) == ((CONTAINER, PROGRAM), ())
    assert hello.cpu


def test_a_filler_counts_on_where_it_was_saved(cluster: Cluster, counting: Counting) -> None:
    """Saved twice, each number is counted once; the image is removed when the next is whole, or is discarded."""
    cluster.open("n1")
    cluster.start("n1", counting.command)
    counting.advances()
    first = cluster.save("n1", 1)
    cluster.start("n1", counting.command, attempt=2, image=1)
    counting.advances()
    second = cluster.save("n1", 2, attempt=2)

    assert (first.saved, second.saved) == (1, 2)
    assert first.written > 10 << 20
    assert cluster.images("n1") == ["7.2"]
    assert counting.counted_once()
    assert running(counting) == []
    assert cluster.keepers() == []
    cluster.scheduler.say("n1", Discard(7, 2))
    cluster.scheduler.say("n1", Discard(7, 2))
    wait_until(lambda: not cluster.images("n1"), lambda: cluster.images("n1"))


def test_a_filler_runs_on_the_cores_of_its_job(cluster: Cluster, counting: Counting) -> None:
    """Also when a restored one has other cores than before, and once the scheduler has ordered more."""
    cluster.open("n1")
    agent = cluster.agents["n1"]
    cluster.scheduler.say("n1", start(8, "sleep", "inf"))
    wait_until(lambda: agent.tasks().get("drom-8", {}).get("held"), agent.tasks)
    cluster.start("n1", counting.command)
    mine = agent.tasks()["drom-7"]["held"]
    assert affinity(running(counting)[0]) == mine
    cluster.save("n1", 1)
    cluster.end("n1", job=8)
    cluster.start("n1", counting.command, attempt=2, image=1)
    other = agent.tasks()["drom-7"]["held"]
    assert other != mine
    assert affinity(running(counting)[0]) == other
    cluster.scheduler.say("n1", Resize(7, 2, 2, WITHIN))
    cluster.scheduler.hear(Resized, job=7)

    wait_until(lambda: len(affinity(running(counting)[0]).split(",")) == 2, lambda: affinity(running(counting)[0]))
    cluster.end("n1", attempt=2)


def test_a_filler_that_is_killed_goes_on_from_its_last_image(cluster: Cluster, counting: Counting) -> None:
    """The image stays while the restored job runs, and is whole again when that ends without another save."""
    cluster.open("n1")
    cluster.start("n1", counting.command)
    counting.advances()
    cluster.save("n1", 1)
    saved = counting.numbers()
    cluster.start("n1", counting.command, attempt=2, image=1)
    assert cluster.images("n1") == ["7.1.restored"]
    counting.advances()
    ended = cluster.end("n1", attempt=2)

    assert (ended.saved, ended.status, cluster.images("n1")) == (0, -9, ["7.1"])
    lost = len(counting.numbers())
    cluster.start("n1", counting.command, attempt=3, image=1)
    counting.advances()
    assert counting.numbers()[: lost + 1] == [*counting.numbers()[:lost], len(saved) + 1]
    cluster.end("n1", attempt=3)


def test_a_filler_ends_as_its_program(cluster: Cluster, tmp_path: Path) -> None:
    """Its exit status, output, errors, input, folder, umask, limits and variables are those of any other job."""
    words = "cat; pwd; umask; ulimit -n; echo $DROM_JOB_NAME $DROM_NODE $MINE; id -u; echo bad >&2; exit 3"
    (tmp_path / "in").write_text("asked\n", encoding="utf-8")
    about: dict[str, Any] = {"cwd": str(tmp_path), "input": "in", "umask": 0o27, "env": {"MINE": "x", "PATH": "/bin"}}
    cluster.open("n1")
    found = []
    for job, saving in ((7, CONTAINER), (8, "")):
        about |= {"output": "%j.out", "error": f"{job}.err"}
        cluster.scheduler.say("n1", start(job, "sh", "-c", words, saving=saving, **about))
        assert cluster.scheduler.hear(Ended, job=job).status == 3
        cluster.scheduler.say("n1", Forget(job, 1))
        found.append([(tmp_path / f"{job}.{name}").read_text(encoding="utf-8") for name in ("out", "err")])

    assert found[0] == found[1]
    assert found[0][1] == "bad\n"
    assert found[0][0].splitlines()[:3] == ["asked", str(tmp_path), "0027"]


def test_a_filler_that_needs_more_than_its_memory_says_so(cluster: Cluster, tmp_path: Path) -> None:
    """Also after it was restored, and the memory of what keeps and saves it does not count."""
    if not cluster.open("n1").limits_memory:
        pytest.skip("memory cannot be limited here")
    go = tmp_path / "go"
    waits = f"while [ ! -e {go} ]; do sleep 0.01; done; tail /dev/zero"
    about: dict[str, Any] = {"memory": 16 << 20, "output": "/dev/null"}
    cluster.start("n1", ("sh", "-c", waits), **about)
    cluster.save("n1", 1)
    cluster.start("n1", ("sh", "-c", waits), attempt=2, image=1, **about)
    go.touch()
    ended = cluster.scheduler.hear(Ended, job=7, attempt=2)
    cluster.scheduler.say("n1", Forget(7, 2))

    assert (ended.status, ended.over_memory) == (128 + signal.SIGKILL, True)
    assert ended.note == "it needed more than its 16 MiB of memory: ask for more with --mem."


def test_a_script_is_saved(cluster: Cluster, tmp_path: Path) -> None:
    """A shell reads its script on from where it was, although the file of the first attempt is gone."""
    script = "#!/bin/sh\nfor n in $(seq 100000); do echo $n; sleep 0.005; done\n" + "# more\n" * 2000
    counting = Counting(("/bin/sh", "/drom-script"), tmp_path / "numbers")
    more: dict[str, Any] = {"script": script, "output": str(counting.file)}
    cluster.open("n1")
    cluster.start("n1", (), **more)
    counting.advances()
    cluster.save("n1", 1)
    cluster.start("n1", (), attempt=2, image=1, **more)
    counting.advances()
    cluster.end("n1", attempt=2)

    assert counting.counted_once()


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"argv": ["nosuch"]}, "cannot run 'nosuch': No such file or directory: check its path and mode on n1."),
        ({"argv": ["/etc/passwd"]}, "cannot run '/etc/passwd': Permission denied: check its path and mode on n1."),
        ({"cwd": "/nosuch"}, "cannot change to /nosuch: No such file or directory: submit from one that tester may"),
        ({"output": "/nosuch/%j"}, "cannot open /nosuch/7 for the output of the job: No such file or directory"),
        ({"input": "/nosuch"}, "cannot open /nosuch for the input of the job: No such file or directory"),
        pytest.param(
            {"uid": 54321},
            "no user has number 54321 on n1: use a user that all nodes know.",
            marks=pytest.mark.skipif(not saves_all_users(), reason="CRIU saves root's jobs alone here"),
        ),
    ],
)
def test_a_filler_that_cannot_start_is_refused(cluster: Cluster, wanted: dict[str, Any], reason: str) -> None:
    """One sentence says what is wrong with the job, as for any other."""
    cluster.open("n1")
    cluster.scheduler.say("n1", start(7, saving=CONTAINER, **({"argv": ["true"]} | wanted)))
    refused = cluster.scheduler.hear(Refused, job=7)
    cluster.scheduler.say("n1", Forget(7, 1))

    assert (refused.fault, refused.reason[: len(reason)]) == ("job", reason)


@pytest.mark.skipif(saves_all_users(), reason="CRIU can save jobs of all users here")
def test_a_filler_that_could_not_be_saved_is_refused(cluster: Cluster) -> None:
    """Without a capability CRIU saves root's jobs alone."""
    cluster.open("n1")
    cluster.scheduler.say("n1", start(7, "true", saving=CONTAINER, uid=65534, gid=65534))

    reason = "n1 can save only root's fillers in containers: use --checkpoint program."
    assert cluster.scheduler.hear(Refused, job=7) == Refused(7, 1, "job", reason)


@pytest.mark.skipif(not saves_all_users(), reason="CRIU saves root's jobs alone here")
def test_a_filler_of_another_user_counts_on_as_that_user(cluster: Cluster) -> None:
    """Also after a restore; root alone can read its image."""
    with TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o777)
        counting = Counting(("sh", "-c", "n=0; while n=$((n + 1)); do echo $n; sleep 0.01; done"), Path(folder, "out"))
        about: dict[str, Any] = {"uid": 65534, "gid": 65534, "cwd": folder, "output": "out"}
        cluster.open("n1")
        cluster.start("n1", counting.command, **about)
        counting.advances()
        cluster.save("n1", 1)
        above = cluster._store("n1").stat()
        assert (above.st_uid, above.st_mode & 0o077) == (0, 0)
        cluster.start("n1", counting.command, attempt=2, image=1, **about)
        counting.advances()
        (pid,) = running(counting)
        assert set(proc.users(pid) or ()) == {65534}
        cluster.end("n1", attempt=2)

        assert counting.counted_once()
        assert counting.file.stat().st_uid == 65534


def test_an_image_that_is_not_there_is_refused(cluster: Cluster) -> None:
    """The scheduler learns that it is the image's fault."""
    cluster.open("n1")
    cluster.scheduler.say("n1", start(7, "true", saving=CONTAINER, image=3))

    assert cluster.scheduler.hear(Refused, job=7) == Refused(7, 1, "image", "n1 has no image 3 of job 7.")


def test_signals_reach_the_program_alone(cluster: Cluster) -> None:
    """SIGTERM ends a program as it ends other jobs, and what keeps it reports how."""
    cluster.open("n1")
    cluster.start(
        "n1", ("sh", "-c", "trap 'echo got it; exit 5' TERM; while :; do sleep 0.01; done"), output="/dev/null"
    )
    cluster.scheduler.say("n1", Signal(7, 1, signal.SIGTERM))
    trapped = cluster.scheduler.hear(Ended, job=7, attempt=1)
    cluster.scheduler.say("n1", Forget(7, 1))
    cluster.start("n1", ("sleep", "inf"), attempt=2)
    cluster.scheduler.say("n1", Signal(7, 2, signal.SIGTERM))
    plain = cluster.scheduler.hear(Ended, job=7, attempt=2)
    cluster.scheduler.say("n1", Forget(7, 2))

    assert (trapped.status, plain.status) == (5, 128 + signal.SIGTERM)


def test_a_filler_that_cannot_be_saved_goes_on(cluster: Cluster, counting: Counting) -> None:
    """The reason is one sentence; the same order is answered again, and not carried out again; a later one is."""
    cluster.open("n1", "--image-quota", "1M")
    cluster.start("n1", counting.command)
    counting.advances()
    cluster.scheduler.say("n1", Save(7, 1, 1, WITHIN))
    refused = cluster.scheduler.hear(NotSaved, job=7)
    cluster.scheduler.say("n1", Save(7, 1, 1, WITHIN))
    again = cluster.scheduler.hear(NotSaved, job=7)
    cluster.scheduler.say("n1", Save(7, 1, 2, WITHIN))
    later = cluster.scheduler.hear(NotSaved, job=7)
    counting.advances()

    assert refused.reason.endswith("the image store may hold 1 MiB: raise its quota.")
    assert (again, later) == (refused, refused)
    assert cluster.images("n1") == []
    assert counting.counted_once()
    cluster.end("n1")


def test_a_save_that_takes_too_long_is_given_up(cluster: Cluster, counter: str, tmp_path: Path) -> None:
    """The job goes on undamaged, and can be saved with more time."""
    cluster.open("n1")
    counting = Counting((counter, str(tmp_path / "numbers"), "300"), tmp_path / "numbers")
    cluster.start("n1", counting.command)
    counting.advances()
    cluster.scheduler.say("n1", Save(7, 1, 1, 0.03))
    refused = cluster.scheduler.hear(NotSaved, job=7)
    counting.advances()

    assert refused.reason == "its time for that was over."
    assert cluster.images("n1") == []
    assert cluster.save("n1", 2).saved == 2
    assert counting.counted_once()


@pytest.mark.parametrize("leaving", [0, 16 << 10])
def test_a_full_disk_refuses_a_start_for_now(
    cluster: Cluster, counting: Counting, tmp_path: Path, leaving: int
) -> None:
    """The job has not failed, and the node has no defect: once there is room, the job starts there."""
    full = cluster.shrink("n1")
    cluster.open("n1")
    fill(full, leaving=leaving)
    cluster.scheduler.say("n1", start(7, *counting.command, saving=CONTAINER))
    refused = cluster.scheduler.hear(Refused, job=7)
    cluster.scheduler.say("n1", Forget(7, 1))

    where = f"n1 cannot start a container in {tmp_path / 'n1.images'}"
    assert (refused.fault, refused.reason) == ("room", f"{where}: No space left on device.")
    assert counting.numbers() == []
    full.unlink()
    cluster.start("n1", counting.command, attempt=2)
    counting.advances()
    cluster.end("n1", 2)


def test_a_full_disk_refuses_a_restore_for_now(cluster: Cluster, counting: Counting) -> None:
    """The image stays, and the filler goes on from it once there is room."""
    full = cluster.shrink("n1", "16m")
    cluster.open("n1")
    cluster.start("n1", counting.command)
    counting.advances()
    cluster.save("n1", 1)
    fill(full)
    cluster.scheduler.say("n1", start(7, *counting.command, attempt=2, image=1, saving=CONTAINER))
    refused = cluster.scheduler.hear(Refused, job=7)
    cluster.scheduler.say("n1", Forget(7, 2))

    assert (refused.fault, cluster.images("n1")) == ("room", ["7.1"])
    assert refused.reason.startswith("job 7 was not restored, its image stays: ")
    full.unlink()
    cluster.start("n1", counting.command, attempt=3, image=1)
    counting.advances()
    assert counting.counted_once()
    cluster.end("n1", 3)


@pytest.mark.parametrize(
    ("size", "why"), [("1m", "the disk of the image store is full"), ("9m", "the image store may hold 1 MiB")]
)
def test_an_image_without_room_on_a_node_is_refused(cluster: Cluster, counting: Counting, size: str, why: str) -> None:
    """Because of a quota or a full disk there: it is sound, stays where it is, and can go elsewhere."""
    cluster.shrink("n2", size)
    source = moved(cluster, counting, "--image-quota", "1M")
    cluster.scheduler.say("n2", start(7, *counting.command, attempt=2, image=1, saving=CONTAINER, source=source))
    refused = cluster.scheduler.hear(Refused, job=7)
    cluster.scheduler.say("n2", Forget(7, 2))

    assert (refused.fault, cluster.images("n1"), cluster.images("n2")) == ("room", ["7.1"], [])
    assert why in refused.reason
    cluster.start("n1", counting.command, attempt=3, image=1)
    counting.advances()
    assert counting.counted_once()
    cluster.end("n1", 3)


def test_an_agent_that_is_killed_finds_its_fillers_again(cluster: Cluster, counting: Counting) -> None:
    """The job goes on meanwhile; a save that an agent was told is carried out, and reported by the next one."""
    cluster.open("n1")
    cluster.start("n1", counting.command)
    counting.advances()
    cluster.agents["n1"].kill()
    counting.advances()
    hello = cluster.open("n1")
    assert [(one.job, one.state) for one in hello.jobs] == [(7, "running")]
    cluster.scheduler.say("n1", Save(7, 1, 1, WITHIN))
    folder = cluster.agents["n1"].dir / "steward" / "7.1"
    wait_until((folder / "save").exists, lambda: "no order")
    cluster.agents["n1"].kill()
    wait_until((folder / "status").exists, lambda: list(folder.iterdir()))
    hello = cluster.open("n1")

    assert hello.images == (Kept(7, 1),)
    assert cluster.scheduler.hear(Ended, job=7).saved == 1
    cluster.scheduler.say("n1", Forget(7, 1))
    assert cluster.keepers() == []


def test_a_filler_whose_keeper_is_killed_has_its_last_image(cluster: Cluster, counting: Counting) -> None:
    """No process of the job is left, and the image from which it was restored is whole again."""
    cluster.open("n1")
    cluster.start("n1", counting.command)
    counting.advances()
    cluster.save("n1", 1)
    cluster.start("n1", counting.command, attempt=2, image=1)
    kill(*cluster.keepers())
    ended = cluster.scheduler.hear(Ended, job=7, attempt=2)
    cluster.scheduler.say("n1", Forget(7, 2))

    assert (ended.saved, ended.status) == (0, -9)
    assert running(counting) == []
    assert cluster.images("n1") == ["7.1"]


def test_a_filler_whose_keeper_is_killed_while_it_is_frozen_ends(cluster: Cluster, counting: Counting) -> None:
    """A CRIU that was at work has left it frozen."""
    cluster.open("n1")
    cluster.start("n1", counting.command)
    counting.advances()
    groups = Path(f"/proc/{running(counting)[0]}/cgroup").read_text(encoding="ascii").splitlines()
    state = Path(
        "/sys/fs/cgroup/freezer", next(one for one in groups if "/drom-" in one).rpartition("/")[2], "freezer.state"
    )
    if state.exists():  # version 2 has no processes that a signal does not end
        state.write_text("FROZEN", encoding="ascii")
    cluster.scheduler.say("n1", Save(7, 1, 1, WITHIN))
    await_true((cluster.agents["n1"].dir / "steward" / "7.1" / "save").exists, "no order")
    kill(*cluster.keepers())

    ended = cluster.scheduler.hear(Ended, job=7)
    cluster.scheduler.say("n1", Forget(7, 1))

    assert ended.status == -9


@pytest.mark.parametrize("ends", ["exit 1", "kill -9 $$"])
def test_a_start_that_fails_while_a_save_is_ordered_is_no_end(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """The job has not run, and is started again; it is the node's fault unless runc was killed."""
    begun, goes_on = tmp_path / "begun", tmp_path / "goes_on"
    runc = tmp_path / "bin" / "runc"
    runc.parent.mkdir()
    waits = f"touch {begun}; until [ -e {goes_on} ]; do sleep 0.01; done; {ends}"
    runc.write_text(f'#!/bin/sh\ncase "$*" in *" run "*) {waits};; esac\nexec {shutil.which("runc")} "$@"\n', "ascii")
    runc.chmod(0o755)
    monkeypatch.setenv("PATH", f"{runc.parent}:{os.environ['PATH']}")
    cluster.open("n1")
    cluster.scheduler.say("n1", start(7, "true", saving=CONTAINER))
    await_true(begun.exists, "runc was not called")
    cluster.scheduler.say("n1", Save(7, 1, 1, WITHIN))
    await_true((cluster.agents["n1"].dir / "steward" / "7.1" / "save").exists, "no order")
    goes_on.touch()
    if ends == "exit 1":
        assert cluster.scheduler.hear(Refused, job=7).fault == "node"
    else:
        ended = cluster.scheduler.hear(Ended, job=7)
        assert ended.note == "runc was killed while it started the job."
    cluster.scheduler.say("n1", Forget(7, 1))


def test_a_save_ends_a_restore(cluster: Cluster, counting: Counting) -> None:
    """A job that is not restored yet is saved at once: its image stays as it is."""
    cluster.open("n1")
    cluster.start("n1", counting.command)
    counting.advances()
    cluster.save("n1", 1)
    cluster.scheduler.say("n1", start(7, *counting.command, attempt=2, image=1, saving=CONTAINER))
    ended = cluster.save("n1", 2, attempt=2)

    assert ended.saved in {1, 2}
    assert running(counting) == []
    assert cluster.images("n1") == [f"7.{ended.saved}"]
    assert counting.counted_once()


def test_two_agents_have_the_same_job(cluster: Cluster, counting: Counting, tmp_path: Path) -> None:
    """Two nodes of one machine keep a job of the same number apart."""
    other = Counting((counting.command[0], str(tmp_path / "others"), "10"), tmp_path / "others")
    for node, program in (("n1", counting), ("n2", other)):
        cluster.open(node)
        cluster.start(node, program.command)
        program.advances()
    cluster.save("n1", 1)
    other.advances()
    cluster.end("n2")

    assert (cluster.images("n1"), cluster.images("n2")) == (["7.1"], [])


def moved(cluster: Cluster, counting: Counting, *options: str) -> Source:
    """Start the agents of two nodes, save a filler on the first one, and return where its image can be fetched.

    The agent of the second node has the `options`.
    """
    cluster.open("n1")
    cluster.open("n2", *options)
    cluster.start("n1", counting.command)
    counting.advances()
    cluster.save("n1", 1)
    return cluster.offer("n1")


def test_a_filler_goes_on_on_another_node(cluster: Cluster, counting: Counting) -> None:
    """The image travels once, and stays on the first node until it is discarded there."""
    source = moved(cluster, counting)
    cluster.start("n2", counting.command, attempt=2, image=1, source=source)
    counting.advances()

    assert (cluster.images("n1"), cluster.images("n2")) == (["7.1"], ["7.1.restored"])
    assert counting.counted_once()
    cluster.scheduler.say("n1", Discard(7, 1))
    await_true(lambda: not cluster.images("n1"), "the image stays")
    assert cluster.save("n2", 2, attempt=2).saved == 2
    assert cluster.images("n2") == ["7.2"]


def test_an_image_is_offered_again(cluster: Cluster, counting: Counting) -> None:
    """A later offer replaces an earlier one, whose port is closed; a start on the same node needs none."""
    first = moved(cluster, counting)
    second = cluster.offer("n1")

    assert first.port != second.port or first.key != second.key
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((first.host, first.port)).close()
    cluster.start("n1", counting.command, attempt=2, image=1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((second.host, second.port)).close()
    cluster.scheduler.say("n1", Offer(7, 1))
    assert "was restored, moved or removed" in cluster.scheduler.hear(Offered, source=None).reason
    cluster.scheduler.say("n1", Offer(7, 2))
    assert cluster.scheduler.hear(Offered, source=None, generation=2).reason.startswith("job 7 has no image 2 here")
    cluster.end("n1", attempt=2)


def test_an_offer_waits_while_others_are_served(
    cluster: Cluster, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of processes that serve images is bounded, and no job is refused for it."""
    monkeypatch.setattr(fillers, "MOST_OFFERS", 1)
    moved(cluster, counting)
    cluster.scheduler.say("n1", Offer(8, 1))
    cluster.scheduler.say("n1", Offer(9, 1))
    cluster.scheduler.say("n1", Discard(8, 1))
    cluster.offer("n1")

    assert [one for one in cluster.scheduler.heard if isinstance(one, Offered)] == []
    cluster.scheduler.say("n1", Discard(7, 1))
    assert cluster.scheduler.hear(Offered).job == 9


def test_an_image_that_cannot_be_fetched_is_refused(cluster: Cluster, counting: Counting) -> None:
    """The image stays where it is, and can be fetched with the right key."""
    source = moved(cluster, counting)
    wrong = dataclasses.replace(source, key="short")
    cluster.scheduler.say("n2", start(7, "true", attempt=2, image=1, saving=CONTAINER, source=wrong))
    refused = cluster.scheduler.hear(Refused, job=7)
    cluster.scheduler.say("n2", Forget(7, 2))

    assert refused.fault == "image"
    assert cluster.images("n2") == []
    cluster.start("n2", counting.command, attempt=3, image=1, source=source)
    cluster.end("n2", attempt=3)
    assert cluster.images("n2") == ["7.1"]


def test_strangers_at_the_port_delay_nothing(cluster: Cluster, counting: Counting) -> None:
    """Connections without a word, with nonsense, or half a greeting are bounded; the right node gets the image."""
    source = moved(cluster, counting)
    with ExitStack() as stack:
        for number in range(300):
            stranger = stack.enter_context(socket.create_connection((source.host, source.port)))
            with suppress(OSError):
                stranger.sendall([b"", b"GET / HTTP/1.0\r\n\r\n", b"\xff" + bytes(8) + b"\x7f\x03"][number % 3])
        cluster.start("n2", counting.command, attempt=2, image=1, source=source)
    counting.advances()

    assert counting.counted_once()
    cluster.end("n2", attempt=2)


def test_a_program_saves_itself(cluster: Cluster, tmp_path: Path) -> None:
    """SIGUSR1 reaches the program alone; status 85 means saved, and the next attempt is told to go on."""
    words = "trap 'exit 85' USR1; echo $DROM_RESTART >>out; while :; do sleep 0.01; done"
    about: dict[str, Any] = {"saving": PROGRAM, "cwd": str(tmp_path)}
    cluster.open("n1")
    cluster.start("n1", ("sh", "-c", words), **about)
    wait_until((tmp_path / "out").exists, lambda: "it does not begin")
    ended = cluster.save("n1", 1)
    cluster.start("n1", ("sh", "-c", words), attempt=2, image=1, **about)
    wait_until(lambda: (tmp_path / "out").read_text() == "\n1\n", (tmp_path / "out").read_text)

    assert (ended.saved, ended.status) == (1, 85)
    cluster.end("n1", attempt=2)


def test_a_program_that_does_not_save_itself_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    """After its time it is reported; one that ends with another status has ended."""
    words = "trap 'echo asked >>out' USR1; touch ready; while :; do sleep 0.01; done"
    cluster.open("n1")
    cluster.start("n1", ("sh", "-c", words), saving=PROGRAM, cwd=str(tmp_path))
    wait_until((tmp_path / "ready").exists, lambda: "it does not begin")
    for _ in range(2):
        cluster.scheduler.say("n1", Save(7, 1, 1, 0.2))
        assert cluster.scheduler.hear(NotSaved, job=7).reason.startswith("its program has not ended in time")

    assert (tmp_path / "out").read_text() == "asked\n"
    assert cluster.end("n1").saved == 0
