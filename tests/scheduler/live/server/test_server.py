# SPDX-License-Identifier: Apache-2.0
"""The scheduler's loop, turned by hand, and what it tells of itself."""

from __future__ import annotations

import json
import math
import os
import re
import sqlite3
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent import errors
from drom.agent.control import client
from drom.agent.execution import protocol as say
from drom.agent.model import caller
from drom.agent.observe import guarded
from drom.agent.observe.log import Log
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.live.cluster import admission, paging
from drom.scheduler.live.cluster.jobs import Entry
from drom.scheduler.live.cluster.paging import all_pages
from drom.scheduler.live.cluster.settings import Settings
from drom.scheduler.live.cluster.spec import LARGEST, SERVICE, Spec
from drom.scheduler.live.server.agent_server import Peer
from drom.scheduler.live.server.etcd import SilentError, StoreError
from drom.scheduler.live.server.metrics import ClusterCollector
from drom.scheduler.live.server.server import LONGEST_SLEEP, Server
from drom.scheduler.live.server.store import Store, UnwritableError
from prometheus_client import CollectorRegistry, generate_latest

from tests.support.prometheus import tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from drom.scheduler.live.cluster.cluster import Cluster

pytestmark = pytest.mark.timeout(600)
"""The policy takes a while to compile, once."""


@pytest.fixture
def server() -> Iterator[Server]:
    """Return a scheduler of one node."""
    with TemporaryDirectory(dir="/tmp") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("drom.scheduler.live.server.stored_cluster.RETRY", 0.0)
        with closing(Server(Path(folder), load_policy("fcfs"), Settings(), Log(quiet=True))) as found:
            found.cluster.agents.hello(
                say.Hello(say.PROTOCOL, "1", "n1", "n1", "b", 4, 1, 0, {}, (), False, 0.0, ()), 1.0
            )
            yield found


def scrape(server: Server) -> str:
    """Return what Prometheus gets."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ClusterCollector(lambda: server.clusters, server.counts, server.lock))
    return generate_latest(registry).decode()


def test_a_queue_that_cannot_be_written_is_told(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it can be again: nothing new begins meanwhile, and whoever watches should know."""

    def full(*_: object) -> None:
        raise UnwritableError(Path("queue.sqlite"), sqlite3.OperationalError("database or disk is full"))

    with monkeypatch.context() as changed:
        changed.setattr(server._store, "write", full)
        server.turn()
        assert "\ndrom_scheduler_stuck 1.0\n" in scrape(server)

    server.turn()
    assert "\ndrom_scheduler_stuck 0.0\n" in scrape(server)
    assert [node.name for node in server._store.nodes()] == ["n1"]


def test_a_queue_is_stuck_until_something_was_written(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where nothing is to be written but what tries it: the log says once that it is, and once that it was."""
    me = caller.Caller(os.getpid(), os.getuid())
    number = submit(server, os.getuid())["jobs"][0]
    server._log = server.stored._log = Log()
    server._store._db.execute("PRAGMA query_only=1")
    with pytest.raises(errors.ControlError, match=r"^the queue cannot be written now, "):
        server._answer({"order": "cancel", "job": number}, me)
    assert not server.stored.flush()
    assert not server.stored.flush()
    server._store._db.execute("PRAGMA query_only=0")
    assert server.stored.flush()

    said = [line.split()[2] for line in capsys.readouterr().err.splitlines()]
    assert said == ["event=queue_stuck", "event=queue_unstuck"]


def test_what_is_not_written_down_is_not_done(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk is full nobody hears that a job was cancelled, held or released, or a node drained."""
    monkeypatch.setattr("drom.scheduler.live.server.stored_cluster.RETRY", 60.0)
    me = caller.Caller(os.getpid(), os.getuid())
    job = server._answer({"order": "submit", "jobs": [Spec(command=("true",), folder="/", hold=True).to_json()]}, me)
    number = job["jobs"][0]
    orders = [
        {"order": "cancel", "job": number},
        {"order": "hold", "job": number, "held": False},
        {"order": "drain", "node": "n1", "reason": "dust"},
    ]
    server._store._db.execute("PRAGMA query_only=1")
    for order in orders:
        with pytest.raises(errors.ControlError, match=r"^the queue cannot be written now, so nothing was changed: "):
            server._answer(order, me)
    assert (server.cluster.jobs[number].state, server.cluster.jobs[number].held) == ("pending", True)
    assert not server.cluster.nodes["n1"].drained
    server._store._db.execute("PRAGMA query_only=0")
    monkeypatch.setattr(server.stored, "stuck", 0.0)

    assert server._answer(orders[0], me)["state"] == "cancelled"
    assert server._store.job(number).state == "cancelled"  # type: ignore[union-attr] # before anybody is answered


def test_what_another_scheduler_may_do_is_not_refused_for_good(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """An order that a shared store has surely not got can go to another scheduler; one that it may have got cannot."""
    me = caller.Caller(os.getpid(), os.getuid())
    number = submit(server, os.getuid())["jobs"][0]
    server.turn()
    cut_off: list[StoreError] = [StoreError("the lease ended")]
    monkeypatch.setattr("drom.scheduler.live.server.stored_cluster.RETRY", 60.0)

    def fail() -> None:
        raise cut_off[0]

    monkeypatch.setattr(server._store._medium, "store", fail)
    again = r"^the queue cannot be written now, so nothing was changed: the lease ended\.$"
    with pytest.raises(errors.NotYetError, match=again):
        submit(server, os.getuid())
    with pytest.raises(errors.NotYetError, match=again):  # which does not try it
        submit(server, os.getuid())
    with pytest.raises(errors.NotYetError, match=again):
        server._answer({"order": "cancel", "job": number}, me)

    cut_off[0] = SilentError("it is silent")
    monkeypatch.setattr(server.stored, "stuck", 0.0)
    with pytest.raises(errors.ControlError, match=r"in case that this was stored without an answer: it is s") as told:
        submit(server, os.getuid())
    assert not isinstance(told.value, errors.NotYetError)
    with pytest.raises(errors.NotYetError, match=r"so nothing was changed: it is silent\.$"):
        server._answer({"order": "cancel", "job": number}, me)


def test_a_scheduler_that_may_have_been_replaced_says_so(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """An order for one that is certain to lead is refused for now; any other question is answered by what it has."""
    me = caller.Caller(os.getpid(), os.getuid())

    def fail() -> None:
        raise StoreError("the lease ended")

    assert server.answer({"order": "queue", "certain": True}, me)["jobs"] == []
    monkeypatch.setattr(server._store._medium, "check", fail)
    with pytest.raises(errors.NotYetError, match=r"^another scheduler may lead by now: the lease ended\.$"):
        server.answer({"order": "queue", "certain": True}, me)
    assert server.answer({"order": "queue"}, me)["jobs"] == []


def test_a_queue_that_cannot_be_read_is_told_to_who_asks(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And once in the log. All else goes on; who waits for a job that may have ended waits on."""
    me = caller.Caller(os.getpid(), os.getuid())
    waits = submit(server, os.getuid())["jobs"][0]
    submit(server, os.getuid(), after=(("afterok", waits),))
    monkeypatch.setattr(server.stored, "_log", Log())
    server._store._db.execute("ALTER TABLE entries RENAME TO lost")
    for order in ({"order": "job", "job": waits}, {"order": "history"}, {"order": "history"}):
        with pytest.raises(errors.ControlError, match=r"cannot be read: no such table: entries: repair it or its "):
            server._answer(order, me)
    server.turn()
    assert len(server._answer({"order": "queue"}, me)["jobs"]) == 2
    server._store._db.execute("ALTER TABLE jobs RENAME TO gone")
    assert server.stored._past(waits) == "pending"

    said = [line.partition("read: ")[2] for line in capsys.readouterr().err.splitlines() if "cannot be read" in line]
    assert [text[:24] for text in said] == ["no such table: entries: ", "no such table: jobs: rep"]


AHEAD = (
    "the last thing in the queue happened 366 days from now by this machine's clock, and times continue from there: "
    "set the clock if it is wrong; otherwise let the jobs end and start with another queue (--state)."
)


@pytest.mark.parametrize(("ahead", "said"), [(0.0, ""), (366 * 86400.0, AHEAD)])
def test_a_queue_of_another_time_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ahead: float, said: str
) -> None:
    """Once, when a scheduler begins: times never fall, and are as far ahead after each restart."""
    store = Store(tmp_path)
    store.write([], [], [Entry(1, time.time() + ahead, "submitted", {})])
    store.close()
    Server(tmp_path, load_policy("fcfs"), Settings(), Log()).close()

    line = capsys.readouterr().err
    assert line.partition(" ")[2] == (f'level=warning event=clock_ahead reason="{said}"\n' if said else "")


FAULT = (
    "this is a fault of drom (OverflowError), and nothing was changed: report it, with the line event=fault of the "
    "scheduler's log."
)


def test_a_fault_of_ours_ends_no_scheduler(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The user hears of it, the log has where it was, and nothing of the submission stays, however far it had come."""
    server._log = server.stored._log = Log()
    monkeypatch.setattr(server.guard, "_log", server._log)
    kept = submit(server, os.getuid())["jobs"]
    take_in, many = server.cluster._take_in, {"order": "submit", "count": 3, "jobs": [ASKED.to_json()] * 2}

    def overflow(*arguments: Any) -> Any:
        """Take jobs in up to the fifth of this request."""
        if len(server.cluster.jobs) == 5:
            raise OverflowError("as large")
        return take_in(*arguments)

    me = caller.Caller(os.getpid(), os.getuid())
    with monkeypatch.context() as changed:
        changed.setattr(server.cluster, "_take_in", overflow)
        with pytest.raises(errors.ControlError) as told:
            server._answer(many, me)
    assert str(told.value) == FAULT
    assert list(server.cluster.jobs) == kept
    assert not server.cluster.outbox.has_changes
    assert re.search(
        r" level=err event=fault part=order error=\"OverflowError: as large\" at=\"scheduler/live/.*\" order=submit\n",
        capsys.readouterr().err,
    )

    assert server._answer(many, me)["jobs"] == list(range(2, 8))
    server.turn()
    assert [job.number for job in server._store.living()] == list(range(1, 8))


def test_a_fault_shows_its_traceback_to_who_wants_it(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With DROM_DEBUG in the environment of the scheduler."""
    monkeypatch.setattr(server._store, "history", lambda *_: int(math.inf))
    submit(server, os.getuid())
    for debug, shown in (("", False), ("1", True)):
        monkeypatch.setenv("DROM_DEBUG", debug)
        with pytest.raises(errors.ControlError, match=r"^this is a fault of drom \(OverflowError\), and "):
            server._answer({"order": "job", "job": 1}, caller.Caller(os.getpid(), os.getuid()))
        assert ("Traceback (most recent call last):" in capsys.readouterr().err) is shown


ASKED = Spec(command=("true",), folder="/", hold=True)
OTHER = 4242


def submit(server: Server, uid: int, **more: Any) -> Any:
    """Submit a job as this user."""
    spec = Spec(command=("true",), folder="/", hold=True, **more)
    return server._answer({"order": "submit", "jobs": [spec.to_json()]}, caller.Caller(os.getpid(), uid))


@pytest.mark.skipif(os.geteuid() != 0, reason="it takes a scheduler of root's")
def test_nobody_puts_jobs_before_those_of_others_but_who_rules(server: Server) -> None:
    """Anybody may let others pass."""
    with pytest.raises(errors.ControlError) as refused:
        submit(server, OTHER, priority=1)
    assert str(refused.value) == (
        "only root and the scheduler's own user may put jobs before those of others: give a --priority of 0 or less."
    )

    submit(server, OTHER, priority=-1)
    submit(server, 0, priority=1)
    assert [job.priority for job in server.cluster.jobs.values()] == [-1, 1]


def test_a_scheduler_that_is_not_roots_takes_jobs_of_its_user_alone(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agents could start no others, not even root's."""
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    for uid in (0, OTHER + 1):
        with pytest.raises(
            errors.ControlError, match=r"^this scheduler runs as user 4242 and accepts no jobs of \w+: use "
        ):
            submit(server, uid)
    submit(server, OTHER, priority=1)

    assert [job.user.uid for job in server.cluster.jobs.values()] == [OTHER]


def test_a_node_is_forgotten_on_disk(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whom may drain it, once it is down."""
    me, order = caller.Caller(os.getpid(), os.getuid()), {"order": "drain", "node": "n1", "reason": "", "forget": True}
    server.turn()
    with pytest.raises(errors.ControlError, match=r"^node n1 is gone: stop its agent, "):
        server._answer(order, me)
    monkeypatch.setattr(server.cluster.nodes["n1"], "down", True)
    assert [node.name for node in server._store.nodes()] == ["n1"]

    assert server._answer(order, me)["nodes"] == []
    assert server._store.nodes() == []


def test_who_says_much_is_heard_on_in_the_next_turn(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else wakes the loop for it, and a queue that cannot be written keeps nobody waiting."""
    monkeypatch.setattr(server.stored, "stuck", time.monotonic() + 3600.0)
    server.turn()
    assert server._timeout() > 0
    monkeypatch.setattr(server._desk, "serve", lambda _: True)
    server.turn()

    assert server._timeout() == 0


def test_the_longest_job_is_heard(server: Server) -> None:
    """Nobody else's requests may be as long."""
    room = LARGEST - len(json.dumps(Spec(command=("true",), folder="/", environment={"A": ""}).to_json()))
    spec = Spec(command=("true",), folder="/", environment={"A": "x" * room})
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(client.order, server._folder, "submit", server=SERVICE, jobs=[spec.to_json()], count=1)
        while not asked.done():
            server.turn()

    assert asked.result()["jobs"] == [1]
    assert server.cluster.jobs[1].spec.environment == spec.environment
    with pytest.raises(errors.ControlError, match=r"^an order is at most 64 KiB long"):
        client.order(server._folder, "submit", jobs=[spec.to_json()], count=1)


def test_promtool_has_nothing_to_say(server: Server) -> None:
    """Names, units and help texts follow Prometheus's own rules."""
    command = [tool("promtool"), "check", "metrics"]
    done = subprocess.run(command, input=scrape(server), capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_queue_is_told_in_pages(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each job once, in order, whatever the length of its name; also of those that are over, newest page first."""
    monkeypatch.setattr(paging, "PAGE_BYTES", 4000)
    me = caller.Caller(os.getpid(), os.getuid())
    numbers = [submit(server, os.getuid(), name="n" * (1 + number))["jobs"][0] for number in range(40)]
    answers: list[dict[str, Any]] = []

    def ask(order: str, **fields: Any) -> Any:
        answers.append(server._answer({"order": order} | fields, me))
        return answers[-1]

    told = all_pages(ask, "queue")
    assert [job["job"] for job in told["jobs"]] == numbers
    assert (told["after"], told["left"], len(answers) > 3) == (None, 0, True)
    assert all(len(json.dumps(answer["jobs"])) < 5000 for answer in answers)
    for fields in ({"all": True, "last": 30}, {"all": True, "last": 100}):
        assert [job["job"] for job in all_pages(ask, "queue", **fields)["jobs"]] == numbers[-fields["last"] :]
    history = all_pages(ask, "history", last=100)
    assert [job["job"] for job in history["jobs"]] == numbers
    assert [entry["job"] for entry in history["entries"]] == numbers

    first = all_pages(ask, "queue", limit=12)
    assert ([job["job"] for job in first["jobs"]], first["after"], first["left"]) == (numbers[:12], numbers[11], 28)
    chosen = all_pages(ask, "queue", names=["nn", "nnn"], users=[told["jobs"][0]["user"]], states=["pending"])
    assert [job["job"] for job in chosen["jobs"]] == numbers[1:3]
    assert all_pages(ask, "queue", users=["nobody-at-all"])["jobs"] == []


@pytest.mark.parametrize("field", ["users", "states", "names"])
@pytest.mark.parametrize("given", ["ann", [1], ["x"] * 1001, {"a": 1}])
def test_what_is_chosen_of_a_queue_is_a_short_list(server: Server, field: str, given: object) -> None:
    """Anything else is refused with a sentence."""
    with pytest.raises(errors.ControlError, match=r"^users, states and names must be lists of at most 1000 texts: "):
        server._answer({"order": "queue", field: given}, caller.Caller(os.getpid(), os.getuid()))


def test_nodes_are_told_in_pages_with_their_jobs(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each node once in the order of their indices; the answer to a drain has the node that was drained alone."""
    monkeypatch.setattr(paging, "PAGE_BYTES", 1000)
    now = server.stored.clock()
    for number in range(1, 30):
        hello = say.Hello(say.PROTOCOL, "1", f"n{number}", "n", "b", 4, 1, 0, {}, (), False, now, ())
        server.cluster.agents.hello(hello, now)
    me = caller.Caller(os.getpid(), os.getuid())
    (job,) = submit(server, os.getuid())["jobs"]
    server._answer({"order": "hold", "job": job, "held": False}, me)
    server.turn()

    told = all_pages(lambda order, **fields: server._answer({"order": order} | fields, me), "nodes")
    assert [node["name"] for node in told["nodes"]] == [f"n{number}" for number in range(1, 30)]
    assert [node["jobs"] for node in told["nodes"] if node["jobs"]] == [{job: 4}]
    drained = server._answer({"order": "drain", "node": "n7", "reason": "dust"}, me)["nodes"]
    assert [(node["name"], node["drained"]) for node in drained] == [("n7", "dust")]


def test_whether_jobs_may_share_is_found_out_once_for_all_of_a_submission(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And anew once the nodes have changed: a look at all nodes for each job takes too long on a large cluster."""
    asked: list[object] = []

    def may_share(spec: Spec, *_: object) -> bool:
        asked.append(spec)
        return True

    monkeypatch.setattr(admission, "may_share", may_share)
    me = caller.Caller(os.getpid(), os.getuid())
    order = {"order": "submit", "jobs": [Spec(command=("true",), folder="/").to_json()], "count": 100}
    server._answer(order, me)
    assert len(asked) == 1
    server.cluster.agents.hello(say.Hello(say.PROTOCOL, "1", "n2", "n2", "b", 4, 1, 0, {}, (), False, 0.0, ()), 1.0)
    server._answer(order, me)
    assert len(asked) == 2


def test_a_fault_of_the_policy_is_survived(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it left half done is taken from the queue again; the fault is logged with its place and counted."""
    said: list[dict[str, object]] = []
    monkeypatch.setattr(server.guard, "_log", lambda event, **about: said.append({"event": event, **about}))
    server.turn()
    number = submit(server, os.getuid())["jobs"][0]
    before = server.cluster
    whole = type(before).turn

    def faulty(cluster: Cluster, now: float) -> None:
        whole(cluster, now)
        raise KeyError("policy")

    with monkeypatch.context() as changed:
        changed.setattr(type(before), "turn", faulty)
        server.turn()
    assert said[0]["event"] == "fault"
    assert said[0]["part"] == "policy"
    assert "scheduler/live/server/server.py:" in str(said[0]["at"])

    server.turn()
    assert server.cluster is not before
    assert server.cluster.jobs[number].state == "pending"
    assert '\ndrom_scheduler_loop_faults_total{part="policy"} 1.0\n' in scrape(server)


def connect(server: Server) -> None:
    """Let the only node introduce itself."""
    now = server.stored.clock()
    server.cluster.agents.hello(say.Hello(say.PROTOCOL, "1", "n1", "n1", "b", 4, 1, 0, {}, (), False, now, ()), now)


def start(server: Server, count: int) -> list[int]:
    """Submit jobs of which the first one is placed on the only node, and return them."""
    connect(server)
    order = {"order": "submit", "jobs": [Spec(command=("true",), folder="/").to_json()], "count": count}
    numbers: list[int] = server._answer(order, caller.Caller(os.getpid(), os.getuid()))["jobs"]
    server.turn()
    assert server.cluster.jobs[numbers[0]].attempt == 1
    return numbers


def report_end(server: Server, number: int) -> None:
    """Report the start and the end of a job on the only node."""
    now = server.stored.clock()
    server.cluster.agents.on_message("n1", say.Started(number, 1, 1, now), now)
    server.cluster.agents.on_message("n1", say.Ended(number, 1, 0, now, 0.0, 0), now)


def test_what_nodes_report_and_what_is_placed_are_stored_at_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn has one transaction: the end of a job and the place of the next one are in it."""
    first, second = start(server, 2)
    report_end(server, first)
    saved = []
    whole = Store.save

    def save(store: Store, *args: Any) -> None:
        saved.append(args)
        whole(store, *args)

    monkeypatch.setattr(Store, "save", save)
    server.turn()
    assert len(saved) == 1
    jobs = [server._store.job(number) for number in (first, second)]
    assert [(job.state, job.attempt) for job in jobs if job] == [("completed", 1), ("starting", 1)]


def test_what_nodes_report_is_stored_though_the_policy_fails(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a first failure reports are stored before the policy is called again."""
    (number,) = start(server, 1)

    def faulty(*_: Any) -> None:
        raise KeyError("policy")

    monkeypatch.setattr(type(server.cluster), "turn", faulty)
    server.turn()
    connect(server)
    report_end(server, number)
    server.turn()
    assert server.guard.faults["policy"] == 2
    assert server._store.state(number) == "completed"


def test_nothing_is_placed_or_lent_while_it_is_not_known_what_is_lent(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nodes report is stored meanwhile."""
    first, second = start(server, 2)
    report_end(server, first)
    acted: list[int] = []
    lender = SimpleNamespace(follow=lambda: False, act=lambda: acted.append(1))
    monkeypatch.setattr(server, "_lender", lender)
    server.turn()
    assert not acted
    assert server._store.state(first) == "completed"
    assert server.cluster.jobs[second].state == "pending"
    lender.follow = lambda: True
    server.turn()
    assert acted
    assert server.cluster.jobs[second].state == "starting"


def test_a_cluster_that_cannot_say_when_it_is_to_be_asked_is_asked_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop goes on after a moment, and the failure is counted."""

    def faulty(_: Cluster) -> float:
        raise KeyError("look")

    with monkeypatch.context() as changed:
        changed.setattr(type(server.cluster), "next_look", faulty)
        assert server._timeout() == LONGEST_SLEEP
    assert server.guard.faults["policy"] == 1
    assert server._timeout() <= LONGEST_SLEEP


def test_an_agent_that_introduces_itself_again_joins_once(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """A scheduler that was paused reads an introduction for every few seconds of the pause, and logs one."""
    server._log = Log()
    hello = say.Hello(say.PROTOCOL, "1", "n2", "n2", "b", 4, 1, 0, {}, (), False, 0.0, ())
    for _ in range(3):
        server._welcome(Peer(0, b"an agent"), hello, "")
    assert capsys.readouterr().err.count("event=node_joined node=n2") == 1


@pytest.mark.parametrize("fails", ["_desk", "_clients", "_store"])
def test_each_part_of_stopping_may_fail(server: Server, fails: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The failure is in the log with its place, and the other parts are closed."""
    server._log = Log()
    closed = []
    with pytest.MonkeyPatch.context() as changed:
        for name in ("_desk", "_clients", "_store"):
            part = getattr(server, name)

            def close(name: str = name, whole: Callable[[], None] = part.close) -> None:
                whole()
                closed.append(name)
                if name == fails:
                    raise KeyError("made to fail")

            changed.setattr(part, "close", close)
        server.close()
    assert closed == ["_desk", "_clients", "_store"]
    assert not (server._folder / "control").exists()
    said = capsys.readouterr().err
    assert re.search(r"event=fault part=\w+ error=\"KeyError: 'made to fail'\" at=\S+\.py:\d+", said)


def test_an_order_that_fails_on_its_way_changes_nothing(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job whose cancellation failed halfway is as it was, and can be cancelled afterwards."""
    me = caller.Caller(os.getpid(), os.getuid())
    number = submit(server, os.getuid())["jobs"][0]
    whole = type(server.cluster).cancel

    def faulty(cluster: Cluster, *args: Any) -> None:
        whole(cluster, *args)
        raise KeyError("cancel")

    with monkeypatch.context() as changed:
        changed.setattr(type(server.cluster), "cancel", faulty)
        with pytest.raises(
            errors.ControlError, match=r"^this is a fault of drom \(KeyError\), and nothing was changed"
        ):
            server._answer({"order": "cancel", "job": number}, me)
    assert server.cluster.jobs[number].state == "pending"
    assert server._store.job(number).state == "pending"  # type: ignore[union-attr]

    assert server._answer({"order": "cancel", "job": number}, me)["state"] == "cancelled"


def test_a_part_that_fails_for_good_ends_the_loop(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """After several failures in a row: a success in between, or a short time, makes no end."""
    monkeypatch.setattr("drom.agent.observe.guarded.LASTING", 0.0)
    monkeypatch.setattr("drom.agent.observe.guarded.LONGEST", 0.0)

    def faulty() -> None:
        raise OSError(5, "broken")

    for _ in range(guarded.MOST - 1):
        server.guard.run("policy", faulty)
        server.guard.settle()
    server.guard.run("policy", lambda: None)
    for _ in range(guarded.MOST - 1):
        server.guard.run("policy", faulty)
        server.guard.settle()
    server.guard.run("policy", faulty)
    with pytest.raises(guarded.LoopError, match=r"^policy has failed 10 times in 0 seconds: see event=fault"):
        server.guard.settle()
