# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import pwd

import pytest
from drom.agent.config.exclusions import Exclusions, find_users
from drom.agent.system.users import group_number


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("bash", "bash", True),
        ("bash", "/bin/bash", True),
        ("bash", "rbash", False),
        ("ba*", "/usr/bin/bash", True),
        ("Bash", "bash", False),
        ("/usr/bin/rsync", "/usr/bin/rsync", True),
        ("/usr/bin/rsync", "/opt/bin/rsync", False),
        ("/usr/bin/rsync", "rsync", True),
        ("/opt/*", "/opt/a/b", True),
        ("/opt/*", "/usr/b", False),
        ("bash", "", False),
        ("*", "", False),
    ],
)
def test_programs_are_patterns(pattern: str, name: str, matches: bool) -> None:
    """Without a slash the last part counts, with one the whole path, unless only a bare name is known."""
    reason = Exclusions(programs=("other", pattern)).reason(7, ["", name])

    assert reason == (f"the agent leaves {pattern} alone (exclude.programs)." if matches else "")


def test_a_folder_is_no_name() -> None:
    """Where the path is known the bare name says nothing more, and where it is not, a folder's pattern fits nobody."""
    exclusions = Exclusions(programs=("/home/*/bin/*", "/opt/site/rsync"))

    assert exclusions.reason(7, ["/usr/bin/python3", "python3"]) == ""
    assert exclusions.reason(7, ["python3"]) == ""
    assert exclusions.reason(7, ["/usr/bin/rsync", "rsync"]) == ""
    assert exclusions.reason(7, ["rsync"]) == "the agent leaves /opt/site/rsync alone (exclude.programs)."
    assert (
        exclusions.reason(7, ["/home/ann/bin/tool", "tool"])
        == "the agent leaves /home/*/bin/* alone (exclude.programs)."
    )


def test_users_are_numbers_with_the_word_that_named_them() -> None:
    """The sentence says what the admin wrote."""
    exclusions = Exclusions(users=((1000, "backup"),))

    assert exclusions.reason(1000, []) == "the agent leaves programs of user backup alone (exclude.users)."
    assert exclusions.reason(1001, ["backup"]) == ""


def test_names_of_users_are_found_and_unknown_ones_told() -> None:
    """Numbers are taken as they are, also those that nobody has."""
    me = pwd.getpwuid(os.getuid()).pw_name

    assert find_users([me, "4000000000", "no such user"]) == (
        ((os.getuid(), me), (4000000000, "4000000000")),
        ["no such user"],
    )


@pytest.mark.parametrize("word", ["9" * 5000, "no\0body"])
def test_what_no_system_could_hold_is_nobody(word: str) -> None:
    """A number of more digits than Python reads, or a name with a NUL, names neither a user nor a group."""
    assert find_users([word]) == ((), [word])
    assert group_number(word) is None
