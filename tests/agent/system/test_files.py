# SPDX-License-Identifier: Apache-2.0
"""Files of a machine, whatever they are."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest
from drom.agent.system.files import FileTree
from drom.agent.text import escaped

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> FileTree:
    """Return an empty root."""
    return FileTree(tmp_path)


def test_text_loses_blanks_and_nuls_around_it(root: FileTree) -> None:
    """Kernels end files in newlines, old ones in a NUL after it; what is no text is replaced."""
    (root.folder / "a").write_bytes(b" 1 2\xff\n\0")

    assert root.text("/a") == "1 2\N{REPLACEMENT CHARACTER}"
    assert root.warnings == ()


@pytest.mark.parametrize("path", ["none", "none/below", "file/below"])
def test_what_is_missing_is_no_news(root: FileTree, path: str) -> None:
    """A file that is not there is None, without a word."""
    (root.folder / "file").touch()

    assert root.text(path) is None
    assert root.warnings == ()


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("pipe", "it is not a plain file"),
        ("folder", "it is not a plain file"),
        ("loop", os.strerror(errno.ELOOP)),
        ("x" * 5000, os.strerror(errno.ENAMETOOLONG)),
        ("a\0b", "embedded null byte"),
        ("long", "it is longer than 262144 bytes"),
    ],
)
def test_what_cannot_be_read_is_named(root: FileTree, path: str, reason: str) -> None:
    """Nothing is waited for or raised; the path, printable and short, and the reason are told."""
    os.mkfifo(root.folder / "pipe")
    (root.folder / "folder").mkdir()
    (root.folder / "loop").symlink_to("loop")
    (root.folder / "long").write_bytes(bytes(300_000))

    assert root.text(path) is None
    assert root.warnings == (f"/{escaped(path[:80])} cannot be read: {reason}.",)


@pytest.mark.parametrize(
    ("text", "number"),
    [("7\n", 7), ("-1", -1), ("", -1), ("4294967295", -1), ("2147483647", 2147483647), ("9" * 5000, -1), ("0x1", -1)],
)
def test_numbers_are_those_a_kernel_holds(root: FileTree, text: str, number: int) -> None:
    """A number is decimal and below 2**31; anything else is -1."""
    (root.folder / "n").write_text(text, encoding="utf-8")

    assert root.number("n") == number


def test_the_first_set_counts(root: FileTree) -> None:
    """Lists and masks are told by their names, and files that are empty or wrong are passed over."""
    for name, text in {"a_list": "x", "b_list": "", "c": "00000000,00000003"}.items():
        (root.folder / name).write_text(text, encoding="utf-8")

    assert root.first_mask("", "a_list", "b_list", "c", "d_list") == 3
    assert [warning[:20] for warning in root.warnings] == ["/a_list is left out:"]


def test_numbered_entries(root: FileTree) -> None:
    """Only whole names with a number below the limit count, each once."""
    for name in ("cpu10", "cpu2", "cpu02", "cpufreq", "cpu", "cpu99999", "xcpu1"):
        (root.folder / name).touch()

    assert root.numbered("", "cpu") == [2, 10]
    assert root.numbered("none", "cpu") == []
