# SPDX-License-Identifier: Apache-2.0
"""Who may speak for which node: by the keys of those who come over the network."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import zmq

from agent import keys
from agent.log import Log
from agent.remote import Gate
from agent.steward import protocol as say
from scheduler.live.desk import Desk
from tests.agents import wait_until

ANOTHER = "give its key the name of the node"


@pytest.mark.parametrize(
    ("key", "node", "why_not"),
    [
        ("node-1", "node-1", ""),
        ("node-1", "node-2", ANOTHER),
        ("nobody", "node-1", ANOTHER),
        ("nobody", "nobody", "the key nobody is that of a user here: trust the node's key under a name that no user"),
        (keys.OURSELVES, "nobody", ""),
    ],
)
def test_a_key_speaks_for_the_node_of_its_name_that_is_no_users(
    tmp_path: Path, key: str, node: str, why_not: str
) -> None:
    """Who is trusted as a user cannot join as a node and be sent the jobs of others; our own key may be any node."""
    ours = keys.make(tmp_path / "ours")
    theirs = ours if key == keys.OURSELVES else keys.make(tmp_path / "theirs")
    if theirs != ours:
        keys.trust(ours, theirs.folder / keys.PUBLIC, key)
        keys.trust(theirs, ours.folder / keys.PUBLIC, "127.0.0.1")
    gate = Gate("127.0.0.1:0", ours)
    with TemporaryDirectory(dir="/tmp") as folder, closing(Desk(Path(folder), Log(quiet=True), gate)) as desk:
        with zmq.Context() as context:
            agent: zmq.Socket[bytes] = context.socket(zmq.DEALER)
            keys.guard_client(agent, theirs, "127.0.0.1")
            agent.connect(f"tcp://127.0.0.1:{gate.port}")
            agent.send(say.encode(say.Alive(node, 0.0)))
            (said,) = wait_until(lambda: list(desk.read()), lambda: "nothing")
            agent.close(linger=0)
        reason = said.why_not(node)

    assert (why_not in reason) if why_not else (reason == "")
