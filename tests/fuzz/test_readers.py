# SPDX-License-Identifier: Apache-2.0
"""What the agent reads from files and sockets that others wrote: whatever stands there, at worst it is refused.

Requests at the door, messages of schedulers, files of the machine and keys have the same in their own modules.
`make fuzz` tries examples that were never tried before.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zmq
from drom.agent.config import sources
from drom.agent.control.messages import endpoint
from drom.agent.control.server import Server
from drom.agent.daemon.acknowledgements import demand_in
from drom.agent.errors import ControlError
from drom.agent.ipc.mailboxes import Mailboxes
from drom.agent.ipc.registry import Registry, RegistryError, restore
from drom.agent.node import orders
from drom.agent.node.orders import Attach, Release, Resize, Set
from drom.agent.system import cgroups, proc
from drom.agent.topology.synthetic import TopologyError, synthetic_topology
from hypothesis import given
from hypothesis import strategies as st

from dromlib import layout
from dromlib.layout import HEADER, SLOT
from tests.agent.ipc.test_registry import OWNER, job_of, task_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drom.agent.model.caller import Caller

NUMBERS = st.integers(0, 9) | st.integers(0, (1 << 64) - 1)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["0-3", "4096-1", "auto"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ("job", "cpus", "pid", "for", "min", "mem", "class", "distribution", "dry_run")


@given(
    st.sampled_from(["resize", "set", "attach", "release", ""]) | st.text(max_size=5),
    st.dictionaries(st.sampled_from(FIELDS), JSON),
)
def test_orders_are_understood_or_refused(name: str, fields: dict[str, Any]) -> None:
    """Whatever their fields hold."""
    found: Any = None
    with contextlib.suppress(ControlError):
        found = orders.parse({"order": name, **fields})

    assert found is None or isinstance(found, (Attach, Release, Resize, Set))


@pytest.fixture(scope="module")
def asker() -> Iterator[tuple[Server, zmq.Socket[bytes]]]:
    """Return an agent's side of the control socket, and one who asks."""
    with tempfile.TemporaryDirectory(prefix="drom") as folder, zmq.Context() as context:
        server = Server(Path(folder), 0o600)
        with context.socket(zmq.DEALER) as sock:
            sock.setsockopt(zmq.LINGER, 0)
            sock.connect(endpoint(Path(folder), "control"))
            yield server, sock
        server.close()


@given(frames=st.lists(st.binary(max_size=60), max_size=3))
def test_frames_at_the_control_socket_get_one_answer(
    asker: tuple[Server, zmq.Socket[bytes]], frames: list[bytes]
) -> None:
    """Bytes that are no order are refused, and the next are heard."""
    server, sock = asker
    sock.send_multipart([*frames, b"x"])
    heard: list[Caller] = []
    while not sock.poll(1):
        server.serve(lambda _, caller: heard.append(caller))

    assert b'"ok": false' in sock.recv()
    assert heard == []


@given(st.binary(max_size=2 * layout.MAILBOX_SIZE))
def test_any_mail_is_read_within_bounds(data: bytes) -> None:
    """A mailbox that its program cut short, or filled with what it liked."""
    with tempfile.TemporaryDirectory() as folder:
        mailboxes = Mailboxes(Path(folder, "mail"))
        number = mailboxes.make(os.geteuid(), 0)
        (mailboxes.directory / str(number)).write_bytes(data)
        mail = mailboxes.read(number)
        mailboxes.close()

    assert (mail is None) == (len(data) < layout.MAILBOX.size)
    assert mail is None or demand_in(mail).least >= 0


def changes(record: Any, names: tuple[str, ...]) -> st.SearchStrategy[dict[str, int]]:
    """Return values for some fields of a record."""
    return st.fixed_dictionaries(
        {},
        optional={name: NUMBERS.map(lambda n, bits=record.fields[name].size * 8: n % (1 << bits)) for name in names},  # type: ignore[misc]
    )


PLAIN = tuple(name for name, field in SLOT.fields.items() if field.count == 1 and field.kind not in {"char", "i32"})
IN_HEADER = ("layout_version", "header_size", "slot_size", "capacity", "mask_bits", "flags", "retired")


@given(
    changes(HEADER, IN_HEADER),
    changes(SLOT, PLAIN),
    st.binary(max_size=200),
    st.integers(0, 4000),
    st.integers(0, 9000),
)
def test_a_registry_of_an_earlier_agent_is_read_or_refused(
    header: dict[str, int], slot: dict[str, int], noise: bytes, at: int, cut: int
) -> None:
    """However its fields were changed, its bytes overwritten, or its end cut off."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "registry")
        task = task_of(1, (2, 0b0011))
        made = Registry.create(path, 4, 128, OWNER)
        made.register(task, job_of(task))
        base = HEADER.read(made.memory, "header_size") + HEADER.read(made.memory, "slot_size")
        SLOT.write(made.memory, base, **slot)
        HEADER.write(made.memory, **header)
        data = bytearray(path.read_bytes())
        data[at : at + len(noise)] = noise[: max(0, len(data) - at)]
        path.write_bytes(data[: len(data) - max(0, cut - 8000)])
        with contextlib.suppress(RegistryError):
            found = Registry.open(path)
            for record in found.records():
                restored, job = restore(record)
                assert restored.job == job.name


@given(
    st.text(max_size=200)
    | st.lists(
        st.sampled_from(["[exclude]", "users", "=", "[", "]", '"', "1", "grace", "\n", "'''", "{", "}", ".", ","]),
        max_size=30,
    ).map(" ".join)
)
def test_any_configuration_is_taken_or_told_where_it_is_wrong(text: str) -> None:
    """A fault begins with file and line."""
    file = sources.parse_file(Path("/f"), text)

    assert all(fault.startswith("/f:") and fault.split(":")[1].isdecimal() for fault in file.faults)


@given(st.text("packcorenuma:0123456789* ()", max_size=30))
def test_any_words_are_a_machine_or_a_sentence(words: str) -> None:
    """Synthetic words are typed by people."""
    with contextlib.suppress(TopologyError):
        assert synthetic_topology(words).cores


@given(st.text(max_size=200), st.binary(max_size=120))
def test_what_the_kernel_says_may_be_anything(text: str, data: bytes) -> None:
    """Files of /proc that a process's name is part of."""
    assert isinstance(cgroups.parse_mounts(text), list)
    assert isinstance(cgroups.parse_cgroups(text), dict)
    found = proc.parse_stat(data.decode(errors="replace"))
    assert found is None or found.ppid >= -(1 << 200)
