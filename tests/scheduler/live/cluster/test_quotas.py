# SPDX-License-Identifier: Apache-2.0
"""What one user may take up of a scheduler, and that root can mend what they did on a full disk."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.errors import ControlError
from drom.agent.execution import protocol as say
from drom.agent.model.caller import Caller
from drom.agent.observe.log import Log
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.live.cluster.jobs import Entry, User
from drom.scheduler.live.cluster.node_lists import parse_nodes
from drom.scheduler.live.cluster.quotas import AT_ONCE, ROW, Orders
from drom.scheduler.live.cluster.settings import Settings
from drom.scheduler.live.cluster.spec import KEPT, Spec, name_of, size_of, without_environment
from drom.scheduler.live.server.server import Server
from drom.scheduler.live.server.store import MOST_KEPT, Store, UnwritableError

from tests.scheduler.live.server.test_store import ANN, job
from tests.support.clusters import Cluster, cluster
from tests.support.file_systems import fill, tiny_tmpfs
from tests.support.other_users import NOBODY, as_user

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

pytestmark = pytest.mark.timeout(600)

ROOT, OTHER = Caller(os.getpid(), 0), Caller(os.getpid(), NOBODY)
JOB = Spec(command=("true",), folder="/")


def hello(name: str, jobs: tuple[say.Known, ...] = ()) -> say.Hello:
    """Return what the agent of a node says first."""
    return say.Hello(say.PROTOCOL, "1", name, name, "b", 4, 1, 0, {}, (), False, 0.0, jobs)


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Return what makes a scheduler of one node of four cores, with such settings."""
    with TemporaryDirectory(dir="/tmp") as folder:
        made: list[Server] = []

        def make(settings: Settings, *jobs: say.Known) -> Server:
            settings = replace(settings, silence=1e9)
            found = Server(Path(folder), load_policy("fcfs"), settings, Log(quiet=True))
            made.append(found)
            found.cluster.agents.hello(hello("n1", jobs), time.time())
            return found

        yield make
        for server in made:
            server.close()


def submit(server: Server, caller: Caller, count: int = 1, **about: Any) -> list[int]:
    """Submit jobs; return their numbers."""
    spec = replace(JOB, **about).to_json()
    numbers: list[int] = server._answer({"order": "submit", "jobs": [spec], "count": count}, caller)["jobs"]
    return numbers


def first_refusal(give: Callable[[Any], object], orders: Iterable[Any]) -> str:
    """Give orders until one is refused, and return the sentence; empty if none was."""
    for order in orders:
        try:
            give(order)
        except ControlError as error:  # noqa: PERF203 - the first is told
            return str(error)
    return ""


def test_a_user_has_only_so_many_unfinished_jobs(serve: Callable[..., Server]) -> None:
    """The bound holds after a restart too, jobs that are over do not count, and root has none."""
    settings = Settings(max_jobs=5)
    server = serve(settings)
    first, *_ = submit(server, OTHER, 5, hold=True)
    refused = (
        r"^user nobody has 5 unfinished jobs, and with 1 more there would be over 5, which a user may have here: wait "
        r"until some have ended, or cancel some\.$"
    )
    with pytest.raises(ControlError, match=refused):
        submit(server, OTHER, hold=True)
    submit(server, ROOT, 6, hold=True)
    server.close()
    server = serve(settings)
    with pytest.raises(ControlError, match=refused):
        submit(server, OTHER, hold=True)
    server._answer({"order": "cancel", "job": first}, OTHER)
    submit(server, OTHER, hold=True)


def test_a_user_has_only_so_many_bytes_in_the_queue(serve: Callable[..., Server]) -> None:
    """Jobs that were submitted together have their script and variables once."""
    large = {"A": "x" * 400_000}
    size = size_of(replace(JOB, environment=large, hold=True, time=Settings().default_time))
    server = serve(Settings(max_bytes=size + 1000 * ROW))
    (*_, last) = submit(server, OTHER, 1000, environment=large, hold=True)
    with pytest.raises(ControlError, match=r"^1\.359 MiB are kept for the jobs of user nobody, and with 1\.4"):
        submit(server, OTHER, hold=True)
    assert server.cluster.holdings.of(User(NOBODY, NOBODY, "nobody")) == (1000, size + 1000 * ROW)
    for number in range(last - 999, last + 1):
        server._answer({"order": "cancel", "job": number}, OTHER)
    assert server.cluster.holdings.of(User(NOBODY, NOBODY, "nobody")) == (0, 0)


def test_a_user_changes_only_so_much_a_second(serve: Callable[..., Server]) -> None:
    """All that they may have at once, then at a rate; who only asks is not counted, and root is not."""
    server = serve(Settings(max_orders=1))
    (number,) = submit(server, OTHER, hold=True)
    orders = ({"order": "hold", "job": number, "held": turn % 2 == 1} for turn in range(AT_ONCE + 600))
    refused = first_refusal(lambda order: server._answer(order, OTHER), orders)  # one more for each second it takes
    assert refused.startswith("user nobody gives orders faster than the 1 a second that a user may give here: wait ")
    server._answer({"order": "job", "job": number}, OTHER)
    server._answer({"order": "cancel", "job": number}, ROOT)
    bucket = Orders(2)
    assert first_refusal(lambda _: bucket.take(ANN, 1.0), range(2 * AT_ONCE)) == ""
    assert first_refusal(lambda at: bucket.take(ANN, at), (1.5, 2.0)) == ""
    assert first_refusal(lambda at: bucket.take(ANN, at), (2.0,))


def test_orders_are_counted_of_few_users() -> None:
    """However many there are on a machine: who has given none for long is not kept."""
    orders = Orders(1)
    for uid in range(5000):
        orders.take(User(uid, uid, str(uid)), float(uid))
    assert len(orders._left) < 2000


def test_a_history_does_not_grow_by_holding_and_releasing(serve: Callable[..., Server]) -> None:
    """The newest of these entries are kept, and all others."""
    server = serve(Settings())
    (number,) = submit(server, OTHER, hold=True)
    for held in [False, True] * 100:
        server._answer({"order": "hold", "job": number, "held": held}, OTHER)
    history = server._answer({"order": "job", "job": number}, OTHER)["history"]
    assert [entry["what"] for entry in history] == ["submitted", *["released", "held"] * 10]


@pytest.mark.parametrize(("kinds", "most"), MOST_KEPT)
def test_of_each_kind_of_entry_only_the_newest_are_kept(tmp_path: Path, kinds: tuple[str, ...], most: int) -> None:
    """Of one job; those of others stay."""
    with closing(Store(tmp_path)) as store:
        store.write([job(1), job(2)], [], [Entry(2, 0.0, kinds[0], {}), Entry(1, 0.0, "submitted", {})])
        for begin in range(0, most + 100, 100):
            many = [Entry(1, float(n), kinds[n % len(kinds)], {}) for n in range(begin, begin + 100)]
            store.write([job(1)], [], many)
        found = store.history()
    assert (found[0].job, found[1].what, len(found)) == (2, "submitted", most + 2)
    assert [entry.at for entry in found[2:]] == [float(n) for n in range(len(many) + begin - most, begin + 100)]


def test_a_user_keeps_only_so_many_jobs_that_are_over(serve: Callable[..., Server]) -> None:
    """The oldest go, some at a time, but for those for which others wait; jobs of others stay."""
    server = serve(Settings(keep_jobs=20))
    (kept,) = submit(server, ROOT, hold=True)
    server._answer({"order": "cancel", "job": kept}, ROOT)
    numbers = submit(server, OTHER, 30, hold=True)
    submit(server, OTHER, hold=True, after=(("afterany", numbers[0]),))
    for number in numbers:
        server._answer({"order": "cancel", "job": number}, OTHER)
    server.stored._tidy_again = 0.0
    server.turn()
    left = [one.number for one in server._store.newest(100) if one.is_final]
    assert left == [kept, numbers[0], *numbers[13:]][::-1]
    server.turn()
    assert [one.number for one in server._store.newest(100) if one.is_final] == left


def test_little_is_kept_of_a_job_that_is_over() -> None:
    """However long its command and its paths are; its name stays, and a usual job as a whole."""
    usual = Spec(command=("make", "-j", "4"), folder="/home/ann", output="x.out", name="")
    assert without_environment(usual) == usual
    long = "x" * 4000
    for spec in (
        Spec(command=("/bin/echo", *["word"] * 1000), folder=f"/{long}", output=long, input=long, error=long),
        Spec(command=(f"/bin/{long}",), name="", folder="/"),
        Spec(command=("true",), name="n" * 1024, folder="/"),
        Spec(command=("true",), folder="/", nodelist=parse_nodes("n[1-4096]"), exclude=parse_nodes("m[1-4096]")),
    ):
        left = without_environment(spec)
        assert size_of(left) < 8 * KEPT
        assert name_of(left) == name_of(spec)


def test_a_locked_queue_is_told_as_such(tmp_path: Path) -> None:
    """Not as a full disk: nothing is deleted for it, and nobody waits long."""
    with (
        closing(Store(tmp_path)) as store,
        closing(sqlite3.connect(tmp_path / "queue.sqlite", isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UnwritableError, match=r"cannot be written: another program, such as a backup, has "):
            store.write([job(1)], [], [])
        other.execute("ROLLBACK")
        store.write([job(1)], [], [])
        assert store.living()[0].user == ANN


def a_full_disk(here: Cluster) -> None:
    """Have another user submit what they may, then fill the disk of the queue to the last byte."""
    large = ({"A": f"{number} {'x' * 400_000}"} for number in range(200))
    many = (replace(JOB, environment=about, hold=True).to_json() for about in large)
    said = as_user(lambda: first_refusal(lambda values: here.ask("submit", jobs=[values]), many))
    assert "are kept for the jobs of user nobody, and with 39" in said
    fill(here.folder / "filler")


@pytest.fixture
def tiny() -> Iterator[Path]:
    """Return a small file system in which all users may look."""
    with TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        with tiny_tmpfs(Path(folder) / "tiny", "size=48m") as made:
            yield made


def test_root_cancels_on_a_full_disk(tiny: Path) -> None:
    """After a user has filled what they may, and somebody the disk; so the scheduler is started again, and goes on."""
    with cluster(tiny, "--max-bytes", "8M", nodes=1) as here:
        a_full_disk(here)
        waiting = [job["job"] for job in here.ask("queue")["jobs"]]
        assert len(waiting) == 20
        for spec, count in ((replace(JOB, environment={"A": "x" * 400_000}), 1), (JOB, 100)):
            named = (replace(spec, name=f"job{number}", hold=True).to_json() for number in range(1000))
            many = [{"jobs": [values], "count": count} for values in named]
            refused = first_refusal(lambda fields: here.ask("submit", **fields), many)
            assert refused.startswith("the queue cannot be written now, so nothing was changed: database or disk is ")
        waiting = [job["job"] for job in here.ask("queue")["jobs"]]
        refused = as_user(lambda: first_refusal(lambda number: here.ask("cancel", job=number), waiting[:1]))
        assert refused.endswith("free space on its disk.")
        here.ask("cancel", job=waiting[0])
        here.ask("drain", node="n1", reason="full")
        here.ask("hold", job=waiting[1], held=False)
        for ending in (signal.SIGKILL, signal.SIGTERM):
            here.end(ending)
            fill(tiny / f"more{ending}")
            here.start()
            assert [job["job"] for job in here.ask("queue")["jobs"]] == waiting[1:]
            here.ask("cancel", job=waiting.pop(1))
            assert here.ask("job", job=waiting[0])["state"] == "cancelled"
        for filler in (tiny / "filler", *tiny.glob("more*")):
            filler.unlink()
        here.ask("drain", node="n1", reason="")
        here.await_state(here.submit("--", "true"), "completed")


def test_a_user_runs_only_so_many_jobs_at_once(serve: Callable[..., Server]) -> None:
    """The others wait outside in the order of the queue, and start when one has ended; root's are not counted."""
    server = serve(Settings(max_running=1))
    server.cluster.agents.hello(hello("n2"), time.time())
    first, second = submit(server, OTHER, 2)
    (better,) = submit(server, ROOT, priority=1, hold=True)
    server.turn()
    assert [server.cluster.jobs[number].state for number in (first, second)] == ["starting", "pending"]
    told = server._answer({"order": "job", "job": second}, OTHER)
    assert told["explanation"] == ["It waits: user nobody may run 1 job at once here, and has as many."]
    server.cluster.agents.on_message("n1", say.Started(first, 1, 7, time.time()), time.time())
    server._answer({"order": "hold", "job": second, "held": True}, OTHER)
    server._answer({"order": "hold", "job": second, "held": False}, OTHER)
    server.turn()
    assert server.cluster.jobs[second].state == "pending"
    server.cluster.agents.on_message("n1", say.Ended(first, 1, 0, time.time(), 0.0, 0), time.time())
    server.turn()
    assert [server.cluster.jobs[number].state for number in (first, second)] == ["completed", "starting"]
    server._answer({"order": "hold", "job": better, "held": False}, ROOT)
    server.turn()
    assert server.cluster.jobs[better].state == "starting"


def test_a_user_without_a_running_job_is_told_which_of_his_jobs_goes_first(serve: Callable[..., Server]) -> None:
    """A job that only waits for nodes is not counted among those that run."""
    server = serve(Settings(max_running=1))
    server.cluster.agents.hello(hello("n2"), time.time())
    (other,) = submit(server, ROOT)
    server.turn()
    first, second = *submit(server, OTHER, nodes=2), *submit(server, OTHER)
    server.turn()
    assert [server.cluster.jobs[number].state for number in (other, first, second)] == ["starting", *["pending"] * 2]
    told = server._answer({"order": "job", "job": second}, OTHER)
    assert told["explanation"] == [
        f"It waits: user nobody may run 1 job at once here, and job {first} of the same user goes first."
    ]


def test_users_have_equal_shares(serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where that is asked for: who has used less goes first, which `drom job` tells, and the next scheduler knows."""
    settings = Settings(half_life=7 * 86400.0)
    server, now = serve(settings), time.time()
    monkeypatch.setattr(server.stored, "clock", lambda: now)
    running, *mine = submit(server, ROOT, 4, time=3600)
    server.turn()
    server.cluster.agents.on_message("n1", say.Started(running, 1, 7, now), now)
    (other,) = submit(server, OTHER, time=3600)
    server.turn()
    controller = server.cluster.controller
    assert controller is not None
    assert controller.waiting == [mine[0], other, *mine[1:]]  # nobody has used anything yet
    now += 1800.0
    server.turn()
    assert controller.waiting == [other, *mine]
    said = server._answer({"order": "job", "job": mine[0]}, ROOT)["explanation"]
    assert said[2] == "User root has used 2 of the 2 core-hours that count now, and 1 job of other users goes first."
    submit(server, OTHER, hold=True)
    server.close()

    server = serve(settings, say.Known(running, 1, "running", 4))
    monkeypatch.setattr(server.stored, "clock", lambda: now)
    server.turn()
    assert server.cluster.usage is not None
    assert server.cluster.usage.of(0) == pytest.approx(7200, rel=0.01)
    assert server.cluster.controller is not None
    assert server.cluster.controller.waiting == [other, *mine]


def test_without_shares_jobs_go_by_arrival(serve: Callable[..., Server]) -> None:
    """As before, and nothing is said of shares."""
    server = serve(Settings())
    numbers = [*submit(server, ROOT, 3, time=60), *submit(server, OTHER, time=60)]
    server.turn()
    assert server.cluster.controller is not None
    assert server.cluster.controller.waiting == numbers[1:]
    assert not [
        text for text in server._answer({"order": "job", "job": numbers[-1]}, OTHER)["explanation"] if "used" in text
    ]


def test_a_locked_queue_is_told_to_users(serve: Callable[..., Server]) -> None:
    """They are refused within a moment, and taken once the other program has ended."""
    server = serve(Settings())
    server.turn()
    with closing(sqlite3.connect(server._folder / "queue.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        begin = time.monotonic()
        with pytest.raises(
            ControlError, match=r"nothing was changed: another program, such as a backup, has locked it: "
        ):
            submit(server, ROOT, hold=True)
        assert time.monotonic() - begin < 2
        other.execute("ROLLBACK")
    server.stored.stuck = 0.0
    assert submit(server, ROOT, hold=True)
