# SPDX-License-Identifier: Apache-2.0
"""What runc is told about a filler."""

from __future__ import annotations

import json
from dataclasses import replace

from drom.agent.checkpoint import bundle
from drom.agent.checkpoint.bundle import Program

PROGRAM = Program(
    1000,
    100,
    ("/home", "/usr"),
    ("python3", "-c", "$(rm -rf /); '\"`"),
    {"A": "b=c"},
    "/home/x",
    (7, 8),
    output="/home/x/o",
    umask=0o27,
    limits={"RLIMIT_NOFILE": (1024, 4096)},
    memory=1 << 20,
)


def test_a_container_has_its_user_and_no_capability() -> None:
    """The user's id and groups are those of the job; no capability is left, and none can be gained."""
    process = bundle.config("drom-7", "/conf", PROGRAM)["process"]

    assert process["user"] == {"uid": 1000, "gid": 100, "umask": 0o27, "additionalGids": [7, 8]}
    assert process["rlimits"] == [{"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 4096}]
    assert process["noNewPrivileges"] is True
    assert set(map(tuple, process["capabilities"].values())) == {()}
    assert process["env"] == ["A=b=c"]


def test_a_container_has_memory_as_far_as_it_is_limited() -> None:
    """Swap included."""
    limited = bundle.config("drom-7", "/conf", PROGRAM)["linux"]["resources"]
    free = bundle.config("drom-7", "/conf", replace(PROGRAM, memory=0))["linux"]["resources"]

    assert limited == {"memory": {"limit": 1 << 20, "swap": 1 << 20}}
    assert free == {}


def test_words_of_a_command_are_passed_as_they_are() -> None:
    """The shell that opens the files sees names and words as parameters and interprets none."""
    args = bundle.config("drom-7", "/conf", PROGRAM)["process"]["args"]

    assert args == ["/bin/sh", "-c", bundle._OPEN, "sh", "/dev/null", "/home/x/o", "/dev/null", *PROGRAM.command]
    assert "$(" not in bundle._OPEN


def test_a_container_sees_the_folders_it_was_given() -> None:
    """Folders of the node are at their own paths; the rest of the mounts is the container's own."""
    content = bundle.config("drom-7", "/conf", PROGRAM)
    binds = {one["destination"]: one["source"] for one in content["mounts"] if one["type"] == "bind"}

    assert binds == {"/home": "/home", "/usr": "/usr"}
    assert content["annotations"] == {"org.criu.config": "/conf"}
    assert json.loads(json.dumps(content)) == content
