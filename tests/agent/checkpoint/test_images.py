# SPDX-License-Identifier: Apache-2.0
"""Names, records and quotas of images."""

from __future__ import annotations

import json
from typing import Any

import pytest
from drom.agent.checkpoint import images
from drom.agent.checkpoint.images import CheckpointError, Image, Quota, Use

IMAGE = Image(7, 3, images.CONTAINER, 1000, 100, 4711, 99, "0" * 32, 1 << 20, ("/home", "/usr"))
GIB = 1 << 30


def test_a_record_comes_back() -> None:
    """A record that is written as JSON is read with every field."""
    assert images.from_json(json.loads(images.to_json(IMAGE))) == IMAGE


@pytest.mark.parametrize(
    "change",
    [
        {"job": 0},
        {"job": "7"},
        {"job": True},
        {"generation": 10**9},
        {"way": "telepathy"},
        {"uid": -1},
        {"gid": (1 << 32) - 1},
        {"pid": 0},
        {"boot": "0" * 31},
        {"boot": "../" * 12},
        {"reserved": 1.5},
        {"binds": ["home"]},
        {"binds": ["/a\0b"]},
        {"binds": ["/a"] * 257},
        {"binds": "/home"},
    ],
)
def test_a_record_with_a_wrong_field_is_rejected(change: dict[str, Any]) -> None:
    """Records come from other nodes: each field has a type and a range."""
    value = {**json.loads(images.to_json(IMAGE)), **change}
    with pytest.raises(CheckpointError, match=f"not valid: {next(iter(change))} is"):
        images.from_json(value)


@pytest.mark.parametrize("value", [None, [], "7", {}, {"job": 7}])
def test_what_is_no_record_is_rejected(value: object) -> None:
    """A value that is no object, or lacks fields, is no record."""
    with pytest.raises(CheckpointError, match="is missing or wrong"):
        images.from_json(value)


def test_a_record_of_a_later_version_can_be_read() -> None:
    """Fields that this version does not know are ignored."""
    assert images.from_json({**json.loads(images.to_json(IMAGE)), "colour": "red"}) == IMAGE


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("7.3", (7, 3, "")),
        ("7.3.new", (7, 3, ".new")),
        ("7.3.restoring", (7, 3, ".restoring")),
        ("07.3", None),
        ("7", None),
        ("7.3.old", None),
        ("tools", None),
        ("7.3\n", None),
    ],
)
def test_a_name_states_job_generation_and_state(name: str, found: tuple[int, int, str] | None) -> None:
    """Other names are not those of images."""
    assert images.parse_name(name) == found


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", ".hidden", "a" * 129, "a\n", "ä", "a\0"])
def test_a_file_of_an_image_lies_in_its_folder(name: str) -> None:
    """A name with a separator, or one that leads elsewhere, is rejected."""
    assert not images.is_file_name(name)


def test_a_reservation_is_a_quarter_more_than_the_estimate_and_slack() -> None:
    """Where room is left, an image may become larger than its estimate."""
    assert images.reservation(GIB, Use(0, 0, 100 * GIB), Quota(9 * GIB, 9 * GIB), 1000) == GIB * 5 // 4 + images.SLACK


def test_a_reservation_ends_where_the_room_does() -> None:
    """An image never gets more than what is left of the quotas and of the disk."""
    assert images.reservation(GIB, Use(3 * GIB, GIB, 2 * GIB), Quota(4 * GIB, 9 * GIB), 1000) == GIB


@pytest.mark.parametrize(
    ("use", "why"),
    [
        (Use(9 * GIB, 0, 9 * GIB), "the image store may hold 9 GiB"),
        (Use(4 * GIB, 4 * GIB, 9 * GIB), "user 1000 may have images of 4 GiB"),
        (Use(0, 0, -1), "the disk of the image store is full"),
    ],
)
def test_an_image_without_room_is_refused(use: Use, why: str) -> None:
    """The sentence names the limit and what to do."""
    with pytest.raises(CheckpointError, match=rf"^an image of 1 GiB does not fit, 0 bytes are left; {why}.*: .*\."):
        images.reservation(GIB, use, Quota(9 * GIB, 4 * GIB), 1000)


def test_the_use_of_a_user_is_a_part_of_that_of_the_store() -> None:
    """Images of all users count in the store, those of one user for this user."""
    other = Image(8, 1, images.PROCESSES, 2000, 100, 4711, 99, "0" * 32)

    assert images.used([(IMAGE, 5), (other, 7)], 1000, 9) == Use(12, 5, 9)
