# SPDX-License-Identifier: Apache-2.0
"""Every field of a request to a scheduler has a bound: what is at it is taken, what is over it is refused at once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.control import messages
from drom.agent.control import server as control
from drom.agent.errors import ControlError
from drom.agent.execution import protocol as say
from drom.scheduler.live.cluster.job_filter import MOST_CHOSEN
from drom.scheduler.live.cluster.node_lists import MOST_NODES
from drom.scheduler.live.cluster.spec import (
    LARGEST,
    LONGEST_NAME,
    LONGEST_PATH,
    LONGEST_REQUEST,
    MOST,
    MOST_AT_ONCE,
    MOST_DEPENDENCIES,
    MOST_JOBS,
    MOST_KINDS,
    MOST_VARIABLES,
    MOST_WANTS,
    MOST_WORDS,
    Spec,
    size_of,
)

from tests.support.scheduler_requests import HELD, ROOT, cost, scheduler, submit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drom.scheduler.live.server.server import Server

pytestmark = pytest.mark.timeout(600)

YEAR = 366 * 86400
MEMORY = 10 << 20


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Return a scheduler with as many jobs as one may wait for."""
    with scheduler() as found:
        hello = say.Hello(say.PROTOCOL, "1", "n1", "n1", "b", 4, 1, 0, {}, (), False, 0.0, ())
        assert hello.node in found.cluster.nodes
        submit(found, MOST_DEPENDENCIES)
        submit(found, 1)
        yield found


def job(**about: Any) -> dict[str, Any]:
    """Return a submission of one job with these fields."""
    return {"order": "submit", "jobs": [HELD.to_json() | about]}


def many(count: int) -> list[str]:
    """Return so many different short names."""
    return [f"n{number}" for number in range(count)]


def text(size: int) -> dict[str, str]:
    """Return an environment with which a job has just so many bytes."""
    return {"A": "x" * (size - size_of(Spec(**HELD.to_json() | {"environment": {"A": ""}})))}


def script(size: int) -> str:
    """Return a script with which a job has just so many bytes."""
    line = "#!/bin/sh\ntrue #"
    return line + "x" * (size - size_of(Spec(**HELD.to_json() | {"command": (), "script": line})))


def word(size: int) -> list[str]:
    """Return a command with which a job has just so many bytes."""
    return ["true", "x" * (size - size_of(Spec(**HELD.to_json() | {"command": ("true", "")})))]


REQUESTS: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("jobs", {"order": "submit", "jobs": [HELD.to_json()] * MOST_KINDS},
     {"order": "submit", "jobs": [HELD.to_json()] * (MOST_KINDS + 1)}, "51 different jobs are too many"),
    ("count", job() | {"count": MOST_AT_ONCE}, job() | {"count": MOST_AT_ONCE + 1}, "1001 jobs are too many"),
    ("command, words", job(command=["true"] * MOST_WORDS), job(command=["true"] * (MOST_WORDS + 1)), "has 16385 words"),
    ("command, bytes", job(command=word(LARGEST)), job(command=word(LARGEST + 1)), "a job may have 512 KiB"),
    ("script", job(command=[], script=script(LARGEST)), job(command=[], script=script(LARGEST + 1)), "512 KiB"),
    ("environment, bytes", job(environment=text(LARGEST)), job(environment=text(LARGEST + 1)), "512 KiB"),
    ("environment, variables", job(environment=dict.fromkeys(many(MOST_VARIABLES), "")),
     job(environment=dict.fromkeys(many(MOST_VARIABLES + 1), "")), "has 4097 variables"),
    ("name", job(name="x" * LONGEST_NAME), job(name="x" * (LONGEST_NAME + 1)), "--job-name has 1025 characters"),
    *((name, job(**{name: "/".ljust(LONGEST_PATH, "x")}), job(**{name: "/".ljust(LONGEST_PATH + 1, "x")}),
       f"{option} has 4096 characters")
      for name, option in (("output", "--output"), ("error", "--error"), ("input", "--input"), ("folder", "--chdir"))),
    ("after", job(after=[["afterany", number] for number in range(1, MOST_DEPENDENCIES + 1)]),
     job(after=[["afterany", number] for number in range(1, MOST_DEPENDENCIES + 2)]), "waits for 1001 jobs"),
    ("after, number", job(after=[["afterany", 1]]), job(after=[["afterany", MOST_JOBS]]), "has a wrong type"),
    ("constraint, letters", job(), job(constraint=["x" * 33]), "at most 32 letters"),
    ("constraint", job(), job(constraint=many(MOST_WANTS + 1)), "--constraint names 65"),
    ("nodelist", job(), job(nodelist=many(MOST_NODES + 1)), "--nodelist names 4097"),
    ("partition", job(), job(partition="x" * (LONGEST_NAME + 1)), "--partition has 1025 characters"),
    ("exclude", job(), job(exclude=many(MOST_NODES + 1)), "--exclude names 4097"),
    ("resources", job(), job(resources=dict.fromkeys(many(MOST_WANTS + 1), 1)), "--resources names 65"),
    ("resources, letters", job(), job(resources={"x" * 33: 1}), "at most 32 letters"),
    ("resources, amount", job(), job(resources={"gpu": MOST + 1}), "needs a positive whole number"),
    ("nodes", job(nodes=1), job(nodes=MOST + 1), "--nodes is a whole number from 0 to 1048576"),
    ("tasks", job(tasks=4), job(tasks=MOST + 1), "--tasks-per-node is a whole number"),
    ("ranks", job(ranks=4), job(ranks=MOST + 1), "--ntasks is a whole number"),
    ("threads", job(threads=4), job(threads=MOST + 1), "--cpus-per-task is a whole number"),
    ("time", job(time=YEAR), job(time=YEAR + 1), "--time is a whole number"),
    ("priority", job(priority=MOST), job(priority=MOST + 1), "--priority is a whole number"),
    ("memory", job(), job(memory=(1 << 60) + 1), "--mem is a whole number"),
    ("umask", job(umask=0o777), job(umask=0o1000), "the umask is a whole number"),
    ("class", job(job_class="rigid"), job(job_class="x" * 100_000), "is not a class"),
    ("job", {"order": "job", "job": 1}, {"order": "job", "job": MOST_JOBS}, "job must be a positive whole number"),
    ("cancel", {"order": "cancel", "job": 257}, {"order": "cancel", "job": 10**400}, "job must be a positive whole"),
    ("ranges", {"order": "cancel", "ranges": [[0, 300, 300]] * MOST_CHOSEN},
     {"order": "cancel", "ranges": [[0, 300, 300]] * (MOST_CHOSEN + 1)}, "ranges must be a list of at most 1000"),
    ("signal", {"order": "cancel", "ranges": [[0, 300, 300]], "signal": 64},
     {"order": "cancel", "ranges": [[0, 300, 300]], "signal": 65}, "signal is a number from 1 to 64"),
    ("signal before the limit", job(signal="64@59"), job(signal="USR1@100000"), "is not a signal before a limit"),
    ("array", job(array="0-999"), job(array="0-1000"), "an array has at most 1,000 jobs"),
    ("hold", {"order": "hold", "job": 1, "held": True}, {"order": "hold", "job": -1}, "job must be a positive whole"),
    ("update, job", job(), {"order": "update", "job": 10**400, "changes": {}}, "job must be a positive whole"),
    ("update, changes", job(), {"order": "update", "job": 1, "changes": dict.fromkeys(many(10_000), "")}, "use this v"),
    ("update, value", job(), {"order": "update", "job": 1, "changes": {"name": "x" * (LONGEST_NAME + 1)}},
     "--job-name has 1025 characters"),
    ("last", {"order": "history", "last": MOST_JOBS - 1}, {"order": "history", "last": MOST_JOBS}, "last is a "),
    ("before", {"order": "history", "before": 5}, {"order": "history", "before": 0}, "before is a whole number "),
    ("users", {"order": "queue", "users": many(MOST_CHOSEN)}, {"order": "queue", "users": many(MOST_CHOSEN + 1)},
     "lists of at most 1000 texts"),
    ("drain, reason", {"order": "drain", "node": "n1", "reason": "x" * LONGEST_NAME},
     {"order": "drain", "node": "n1", "reason": "x" * (LONGEST_NAME + 1)}, "the reason has 1025 characters"),
    ("drain, node", {"order": "drain", "node": "n1", "reason": ""},
     {"order": "drain", "node": "x" * 500_000, "reason": ""}, "there is no node x"),
    ("order", {"order": "nodes"}, {"order": "x" * 500_000}, "has no order 'x"),
]  # fmt: skip
"""A field, a request at its bound, one over it, and what is said of that."""


def refusal(server: Server, request: dict[str, Any]) -> str:
    """Return what is said of a request that is refused."""
    with pytest.raises(ControlError) as told:
        server._answer(request, ROOT)
    return str(told.value)


@pytest.mark.parametrize(("field", "good", "bad", "why_not"), REQUESTS, ids=[row[0] for row in REQUESTS])
def test_a_field_has_a_bound(
    server: Server, field: str, good: dict[str, Any], bad: dict[str, Any], why_not: str
) -> None:
    """What is at it is taken, what is over it is refused in one sentence; both cost little memory."""
    del field
    with cost() as taken:
        server._answer(json.loads(json.dumps(good)), ROOT)
        said = refusal(server, json.loads(json.dumps(bad)))
    assert why_not in said
    assert said.endswith(".")
    assert len(said) < 300
    assert "\n" not in said
    assert taken.peak < MEMORY


def test_the_largest_request_that_is_read_costs_little() -> None:
    """Whatever is in it, also lists alone; longer ones are hung up on before that."""
    head = f'{{"protocol":{messages.PROTOCOL},"order":"submit","jobs":'
    lists = "[" + "[]," * (LONGEST_REQUEST // 3 - 40) + "0]}"
    most = "[" + "[]," * (messages.MOST_BRACKETS - 3) + "0]}"
    for rest, is_read in ((lists, False), (most, True), ('"' + "x" * LARGEST + '"}', True)):
        data = (head + rest).encode()
        assert len(data) <= LONGEST_REQUEST
        with cost() as taken:
            said = order_in(data)
        assert (said == "") == is_read
        assert taken.peak < MEMORY


def order_in(data: bytes) -> str:
    """Read an order, and return why it was refused; empty if it was not."""
    try:
        control._order(data)
    except ControlError as error:
        return str(error)
    return ""


NODE: dict[str, Any] = {"node": "n1", "host": "n1", "boot": "b", "version": "1", "protocol": say.PROTOCOL}
HELLO: dict[str, Any] = NODE | {"kind": "hello", "cores": 4, "cpus_per_core": 1, "memory": 0, "resources": {}}
HELLO |= {"features": [], "emulated": False, "time": 0.0, "jobs": []}
KNOWN = {"job": 1, "attempt": 1, "state": "running", "cores": 1}
PACE = {"job": 1, "attempt": 1, "cores": 1, "seconds": 1.0, "work": 1}
IDS: dict[str, Any] = {"job": 1, "attempt": 1}
ENDED = IDS | {"kind": "ended", "status": 0, "time": 0.0, "cpu_seconds": 0.0, "max_rss": 0}
MESSAGES: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    *((f"hello, {name}", HELLO, {name: "x" * 255}, {name: "x" * 256}) for name in ("node", "host", "boot", "version")),
    ("hello, cores", HELLO, {"cores": MOST}, {"cores": MOST + 1}),
    ("hello, memory", HELLO, {"memory": 1 << 60}, {"memory": (1 << 60) + 1}),
    ("hello, features", HELLO, {"features": many(say.MOST_WORDS)}, {"features": many(say.MOST_WORDS + 1)}),
    ("hello, resources", HELLO, {"resources": dict.fromkeys(many(say.MOST_WORDS), 1)},
     {"resources": dict.fromkeys(many(say.MOST_WORDS + 1), 1)}),
    ("hello, jobs", HELLO, {"jobs": [KNOWN] * say.MOST_ON_NODE}, {"jobs": [KNOWN] * (say.MOST_ON_NODE + 1)}),
    ("alive, paces", {"kind": "alive", "node": "n1", "time": 0.0}, {"paces": [PACE] * say.MOST_ON_NODE},
     {"paces": [PACE] * (say.MOST_ON_NODE + 1)}),
    ("started, pid", IDS | {"kind": "started", "time": 0.0}, {"pid": 1 << 53}, {"pid": (1 << 53) + 1}),
    ("refused, reason", IDS | {"kind": "refused", "fault": "job"}, {"reason": "x" * 4095}, {"reason": "x" * 4096}),
    ("ended, note", ENDED, {"note": "x" * 4095}, {"note": "x" * 4096}),
    ("ended, status", ENDED, {"status": 255}, {"status": 256}),
    ("resized, cores", IDS | {"kind": "resized"}, {"cores": MOST}, {"cores": MOST + 1}),
    ("not_resized, reason", IDS | {"kind": "not_resized", "cores": 1}, {"reason": "x" * 4095}, {"reason": "x" * 4096}),
    ("post, to", IDS | {"kind": "post", "node": "n1", "body": {}}, {"to": "x" * 255}, {"to": "x" * 256}),
]  # fmt: skip
"""A field of what agents say, the rest of the message, and values at the bound and over it."""


@pytest.mark.parametrize(("field", "message", "good", "bad"), MESSAGES, ids=[row[0] for row in MESSAGES])
def test_a_field_of_an_agent_has_a_bound(
    field: str, message: dict[str, Any], good: dict[str, Any], bad: dict[str, Any]
) -> None:
    """What is at it is read, what is over it is dropped with one sentence; both cost little memory."""
    del field
    with cost() as taken:
        say.from_agent(json.dumps(message | good).encode())
        with pytest.raises(say.MalformedError, match=r"\.$"):
            say.from_agent(json.dumps(message | bad).encode())
    assert taken.peak < MEMORY
