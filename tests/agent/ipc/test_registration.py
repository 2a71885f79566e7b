# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from drom.agent.ipc import registration
from drom.agent.ipc.registration import BadRequest, Request, parse_request
from drom.agent.model.jobs import Arrival
from drom.agent.model.layouts import Layout
from hypothesis import given
from hypothesis import strategies as st

from dromlib import layout
from dromlib.layout import REPLY, REQUEST


def request(**fields: Any) -> bytes:
    """Return the bytes of a well-formed request with these fields changed."""
    data = bytearray(REQUEST.size)
    good: dict[str, Any] = {"magic": layout.DOOR_MAGIC, "protocol": layout.PROTOCOL_VERSION, "kind": 1}
    REQUEST.write(data, **{**good, **fields})
    return bytes(data)


class TestParse:
    """From bytes to a request."""

    def test_every_field(self) -> None:
        """What drom-run writes is what the agent reads."""
        data = request(
            kind=2, task_pid=5, task_start=6, max_cpus=8, min_cpus=2, job_class=1, local_rank=1, local_size=2,
            job="jacobi", session="77", distribution=3, per_socket=4, memory=5 << 30, flags=layout.REQUEST_STRICT,
        )  # fmt: skip

        assert parse_request(data) == Request(
            "attach",
            (5, 6),
            "jacobi",
            registration.session_number("77"),
            "moldable",
            2,
            8,
            1,
            2,
            Layout("per_socket", 4, strict=True),
            5 << 30,
        )

    @pytest.mark.parametrize(("kind", "for_parent"), [(1, True), (2, False)])
    def test_only_a_launch_is_for_a_parent_or_is_confined_by_its_affinity(self, kind: int, for_parent: bool) -> None:
        """The flags mean nothing in a request to attach."""
        parent, confined = (request(kind=kind, flags=flag) for flag in (layout.REQUEST_PARENT, layout.REQUEST_FENCED))

        assert (parse_request(parent).for_parent, parse_request(confined).is_confined) == (for_parent, for_parent)
        assert (parse_request(confined).for_parent, parse_request(parent).is_confined) == (False, False)

    def test_what_is_left_out(self) -> None:
        """Without fields a request is a launch of one malleable task that is of no session and no task."""
        assert parse_request(request()) == Request("launch", None, "", 0, "malleable", 0, 0, 0, 1)

    @pytest.mark.parametrize(("pid", "start"), [(0, 6), (5, 0), (-5, 6)])
    def test_half_a_task_is_none(self, pid: int, start: int) -> None:
        """DROM_TASK names a process by pid and start time or not at all."""
        assert parse_request(request(task_pid=pid, task_start=start)).task is None

    @pytest.mark.parametrize(
        ("data", "sentence"),
        [
            (b"", r"^a request has \d+ bytes, this message has 0: .*\.$"),
            (request() + b"x", r"^a request has \d+ bytes, this message has \d+: .*\.$"),
            (request(magic=1), r"^this agent uses registration protocol 1: .*\.$"),
            (request(protocol=2), r"^this agent uses registration protocol 1: .*\.$"),
            (request(kind=0), r"^the request has an unknown kind, class or distribution: .*\.$"),
            (request(kind=3), r"^the request has an unknown kind, class or distribution"),
            (request(job_class=3), r"^the request has an unknown kind, class or distribution"),
            (request(distribution=4), r"^the request has an unknown kind, class or distribution"),
            (request(distribution=3), r"^the request has an unknown kind, class or distribution"),
            (request(distribution=1, per_socket=1), r"^the request has an unknown kind, class or distribution"),
            (request(distribution=3, per_socket=1 << 31), r"^a count in the request is above"),
            (request(max_cpus=1 << 31), r"^a count in the request is above 1048576: .*\.$"),
            (request(local_size=1 << 31), r"^a count in the request is above"),
        ],
    )
    def test_what_is_no_request_is_refused(self, data: bytes, sentence: str) -> None:
        """Each fault has a sentence that says what to do."""
        with pytest.raises(BadRequest, match=sentence):
            parse_request(data)

    @given(st.binary(max_size=2 * REQUEST.size) | st.binary(min_size=REQUEST.size, max_size=REQUEST.size))
    def test_noise_is_a_bad_request(self, data: bytes) -> None:
        """Whatever arrives, nothing but BadRequest is ever raised."""
        with suppress(BadRequest):
            parse_request(data)

    @given(st.binary(min_size=REQUEST.size - 12, max_size=REQUEST.size - 12), st.sampled_from([1, 2]))
    def test_noise_behind_a_good_head_is_a_request_or_a_bad_one(self, tail: bytes, kind: int) -> None:
        """What is accepted has names that fit on one line, counts in range, and a known kind and class."""
        with suppress(BadRequest):
            found = parse_request(request(kind=kind)[:12] + tail)
            assert found.job.isprintable()
            assert found.job == found.job.strip()
            assert max(found.min_cpus, found.max_cpus, found.rank, found.size) <= registration.MAX_CPUS
            assert found.size >= 1

    @given(st.text(max_size=80))
    def test_names_keep_to_one_line(self, name: str) -> None:
        """A job may be called anything that can be printed; the rest becomes underscores."""
        with suppress(UnicodeEncodeError):
            assert parse_request(request(job=name)).job.isprintable()

    def test_names_are_cut_between_characters(self) -> None:
        """A long name loses its end, never half a character."""
        assert parse_request(request(job="ä" * 60)).job == "ä" * 31


class TestArrival:
    """From a request to an arrival."""

    def test_the_kernel_says_who(self) -> None:
        """Process and user are those of the peer credentials, whatever DROM_TASK says."""
        asked = parse_request(request(job="a", task_pid=1, task_start=1, min_cpus=2, max_cpus=4))

        arrival = asked.arrival(50, 60, 70, 0b11, "cmd")

        assert arrival == Arrival(50, 60, 70, "a", "malleable", 0, 2, 4, 0, 1, 0b11, within=(1, 1))

    def test_only_a_launch_comes_from_within_a_task(self) -> None:
        """Who attaches to a task that is gone is a task by itself."""
        asked = parse_request(request(kind=2, task_pid=1, task_start=1))

        assert asked.arrival(50, 60, 70, 0, "cmd").within is None

    def test_layout_and_memory_go_with_it(self) -> None:
        """What was asked for beside counts reaches the arrival."""
        asked = parse_request(request(distribution=2, memory=7, flags=layout.REQUEST_STRICT))
        arrival = asked.arrival(50, 60, 70, 0, "cmd")

        assert (arrival.layout, arrival.memory) == (Layout("spread", strict=True), 7)

    def test_a_job_without_a_name_has_its_commands(self) -> None:
        """The command names what nobody named."""
        assert parse_request(request()).arrival(1, 2, 3, 0, "make").job == "make"
        assert parse_request(request()).arrival(1, 2, 3, 0, "a\x1b[2Jb\n").job == "a_[2Jb_"
        assert parse_request(request()).arrival(1, 2, 3, 0, " ").job == "program"

    @given(st.text(max_size=70), st.text(max_size=70))
    def test_sessions_are_told_apart(self, one: str, other: str) -> None:
        """A session's number is 64 bits, never 0, and as good as its text."""
        with suppress(UnicodeEncodeError):
            a, b = registration.session_number(one), registration.session_number(other)
            assert 0 < a < 1 << 64
            assert (a == b) == (one == other)


class TestReply:
    """From an answer to bytes."""

    def test_every_field(self) -> None:
        """The record is followed by the mask."""
        data = layout.pack_reply(
            "granted", slot=3, mask=0b101, mask_bits=128, max_cpus=8, epoch=9, task=(5, 6), flags=1
        )

        fields = REPLY.unpack(data)
        assert {name: fields[name] for name in ("status", "slot", "mask_bits", "max_cpus", "epoch", "flags")} == {
            "status": 0, "slot": 3, "mask_bits": 128, "max_cpus": 8, "epoch": 9, "flags": 1,
        }  # fmt: skip
        assert (fields["pid"], fields["start_time"]) == (5, 6)
        assert data[REPLY.size :] == (0b101).to_bytes(16, "little")

    def test_a_sentence_that_is_too_long_is_cut(self) -> None:
        """Text always ends in NUL."""
        text = REPLY.read_text(layout.pack_reply("refused", text="ä" * 300), "text")

        assert text == "ä" * 127
