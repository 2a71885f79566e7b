# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import dataclasses
import json
import tracemalloc
from dataclasses import fields
from typing import Any

import pytest
from drom.agent.execution import protocol
from drom.agent.execution.protocol import (
    Alive,
    Discard,
    Ended,
    Forget,
    Hello,
    HelloError,
    Kept,
    Known,
    Lost,
    MalformedError,
    No,
    NotResized,
    NotSaved,
    Occupy,
    Offer,
    Offered,
    Pace,
    Post,
    Refused,
    Resize,
    Resized,
    Save,
    Signal,
    Source,
    Start,
    Started,
    Vacated,
    Wants,
    Welcome,
    Who,
    encode,
    from_agent,
    in_bounds,
    to_agent,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fake_scheduler import start

HELLO = Hello(
    1,
    "0.1.0",
    "n1",
    "host",
    "ab",
    4,
    2,
    1 << 40,
    {"gpu": 2},
    ("big",),
    True,
    1.5,
    (Known(1, 2, "ended", 3),),
    True,
    ("container", "program"),
    "cpu",
    (Kept(1, 3),),
)
FROM_AGENT: list[Any] = [
    HELLO,
    Alive("n1", 2.0, (Pace(1, 2, 3, 0.5, 1 << 70),)),
    Started(1, 1, 77, 3.0),
    Refused(1, 1, "node", "no."),
    Ended(1, 1, -9, 4.0, 0.5, 1 << 20, "gone."),
    Ended(1, 1, -9, 4.0, 0.5, 1 << 20, "too much.", over_memory=True),
    Resized(1, 1, 3),
    NotResized(1, 1, 3, "no."),
    Ended(1, 2, -9, 4.0, 0.5, 1 << 20, "", saved=3, written=1 << 30, began=3.5),
    NotSaved(1, 1, "no."),
    Vacated(1, 1, True),
    Wants(1, 1, 2, 0),
    Offered(1, 3, Source("host", 7000, "key", "secret")),
    Offered(1, 3, None, "no."),
    Post(1, 1, "n1", "n2", {"any": [1, None]}),
]
TO_AGENT: list[Any] = [
    Welcome("c", 1.0),
    No("no."),
    Who(),
    start(1, "a", "b\udcff", env={"A": "b=c", "B": ""}),
    Resize(1, 1, 4, 0.5),
    Occupy(1, 1, ("n1", "n2"), (2, 0)),
    Signal(1, 1, 15),
    Signal(1, 1, 15, 2.5),
    start(1, "a", saving="container", image=3, source=Source("host", 7000, "key", "secret")),
    Save(1, 1, 3, 60.0),
    Offer(1, 3),
    Discard(1, 3),
    Signal(1, 1, 10, to="tasks", once=True),
    Forget(1, 1),
    Post(1, 1, "n1", "n2", {}),
    Lost(1, 1, "n2", {}),
]


@pytest.mark.parametrize("message", FROM_AGENT, ids=lambda message: type(message).__name__)
def test_what_an_agent_says_is_heard(message: Any) -> None:
    """A message of an agent is the same after the way."""
    assert from_agent(encode(message)) == message


@pytest.mark.parametrize("kind", [Refused, Ended, NotResized])
def test_a_sentence_that_is_too_long_is_cut(kind: type[Refused | Ended | NotResized]) -> None:
    """The scheduler would drop what is longer than it takes, and hear of it again and again."""
    short = next(message for message in FROM_AGENT if isinstance(message, kind))
    name = "note" if kind is Ended else "reason"
    change: dict[str, Any] = {name: "\udcff" * 9999}

    heard = from_agent(encode(in_bounds(dataclasses.replace(short, **change))))

    assert getattr(heard, name) == "\udcff" * 4095
    assert in_bounds(short) is short


@pytest.mark.parametrize("message", TO_AGENT, ids=lambda message: type(message).__name__)
def test_what_a_scheduler_says_is_heard(message: Any) -> None:
    """A message of a scheduler is the same after the way."""
    assert to_agent(encode(message)) == message


def test_all_kinds_are_tried() -> None:
    """The lists above have every kind there is."""
    assert {type(one) for one in FROM_AGENT} == set(protocol.FROM_AGENT.values())
    assert {type(one) for one in TO_AGENT} == set(protocol.TO_AGENT.values())


@pytest.mark.parametrize(
    ("kind", "change", "sentence"),
    [
        (Resize, {"job": 0}, "job of resize is a whole number from 1 to 9007199254740992."),
        (Resize, {"cores": True}, "cores of resize is a whole number from 0 to 1048576."),
        (Resize, {"within": float("inf")}, "within of resize is a number of seconds."),
        (Resize, {"within": "1"}, "within of resize is a number of seconds."),
        (Resize, {"more": 1}, "resize has no field 'more': use the drom of one version on all nodes."),
        (Resize, {"cores": None}, "cores of resize is a whole number from 0 to 1048576."),
        (Signal, {"signal": 65}, "signal of signal is a whole number from 1 to 64."),
        (Start, {"mode": "fly"}, "mode of start is run or launch or hold."),
        (Start, {"argv": "sleep"}, "argv of start is a list."),
        (Start, {"argv": ["a\0b"]}, "argv of start is text of 0 to 2097152 characters."),
        (Start, {"env": {"A=": ""}}, "env of start is an object with names without =."),
        (Start, {"env": {"": ""}}, "env of start is text of 1 to 4095 characters."),
        (Start, {"cwd": ""}, "cwd of start is text of 1 to 4095 characters."),
        (Start, {"uid": -1}, "uid of start is a whole number from 0 to 4294967294."),
        (Start, {"output": 1}, "output of start is text of 0 to 4095 characters."),
        (Start, {"output": "\ud800"}, "output of start is text of 0 to 4095 characters."),
    ],
)
def test_a_field_that_is_wrong_is_named(kind: type, change: dict[str, Any], sentence: str) -> None:
    """What may not stand in a field is refused with one sentence that names it."""
    good: Any = next(one for one in TO_AGENT if type(one) is kind)
    value = json.loads(encode(good)) | change

    with pytest.raises(MalformedError) as refused:
        to_agent(json.dumps(value).encode())

    assert str(refused.value) == sentence


def test_a_field_that_is_missing_is_named() -> None:
    """Nothing that has no default may be left out."""
    with pytest.raises(MalformedError, match=r"^resize lacks attempt, cores, within: use the drom of one version"):
        to_agent(b'{"kind": "resize", "job": 1}')


VERSIONS = "this scheduler uses protocol 1, not 2: install the same version."
ADDED = "hello has no field 'colour': use the drom of one version on all nodes."


@pytest.mark.parametrize(
    ("change", "sentence", "node"),
    [
        ({"protocol": 2, "colour": "red"}, VERSIONS, "n1"),
        ({"protocol": 2, "cores": "many"}, VERSIONS, "n1"),
        ({"protocol": 2, "node": [1]}, VERSIONS, "unknown"),
        ({"colour": "red"}, ADDED, "n1"),
        ({"protocol": -1}, "protocol of hello is a whole number from 0 to 9007199254740992.", "n1"),
        ({"protocol": "2"}, "protocol of hello is a whole number from 0 to 9007199254740992.", "n1"),
        ({"protocol": 10**4000}, "protocol of hello is a whole number from 0 to 9007199254740992.", "n1"),
    ],
)
def test_a_hello_of_another_version_is_told_so(change: dict[str, Any], sentence: str, node: str) -> None:
    """Whatever else is new in it; of this version the field that is wrong is named."""
    with pytest.raises(HelloError) as refused:
        from_agent(json.dumps(json.loads(encode(HELLO)) | change).encode())

    assert (str(refused.value), refused.value.node) == (sentence, node)


def test_inner_fields_are_checked_too() -> None:
    """A job in a hello is as strict as a message."""
    value = json.loads(encode(HELLO))
    value["jobs"][0]["state"] = "asleep"

    with pytest.raises(MalformedError, match=r"^state of known is running or ended or refused\.$"):
        from_agent(json.dumps(value).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"1",
        b"{}",
        b'{"kind": 1}',
        b'{"kind": "fly"}',
        b'{"kind": "hello"}',
        b"[" * 100_000,
        b"NaN",
    ],
)
def test_what_is_no_message_is_told_in_a_sentence(data: bytes) -> None:
    """Bytes that mean nothing are refused."""
    for parse in (from_agent, to_agent):
        with pytest.raises(MalformedError, match=r"\.$"):
            parse(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = sorted({one.name for kind in protocol.TO_AGENT.values() for one in fields(kind)})


@pytest.mark.parametrize("part", [b"[],", b"{},", b"10,", b'"",', b"[" * 8])
def test_a_message_of_many_values_takes_little_memory(part: bytes) -> None:
    """As many as fit into the longest message would take a hundred times as much."""
    data = b'{"kind": "alive", "jobs": [' + part * (protocol.MAX_MESSAGE // len(part) - 10)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedError, match=r"^a message has at most 262144 brackets and commas: "):
            from_agent(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@given(st.sampled_from(TO_AGENT), st.dictionaries(st.sampled_from(NAMES), JSON, max_size=3))
def test_nothing_but_messages_gets_through(good: Any, change: dict[str, Any]) -> None:
    """Whatever stands in a field, the answer is a message or a refusal, never another error."""
    data = json.dumps(json.loads(encode(good)) | change).encode()
    message: Any = None
    with contextlib.suppress(MalformedError):
        message = to_agent(data)

    assert message is None or to_agent(encode(message)) == message
