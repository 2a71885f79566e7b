# SPDX-License-Identifier: Apache-2.0
"""The released jobs on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from drom.agent.errors import SlurmError
from drom.scheduler.slurm.engine import Asked
from drom.scheduler.slurm.store import FILE, Store

if TYPE_CHECKING:
    from pathlib import Path

ONE, TWO = Asked("drom_gate:1,matlab:2", "n1,n2", 5), Asked("drom_gate:1", "", -3)


def test_what_was_released_is_there_after_a_restart(tmp_path: Path) -> None:
    """Exactly the jobs that were stored last."""
    store = Store(tmp_path / "state")
    store.save({"1": ONE, "7_3": TWO})
    store.save({"7_3": ONE, "9": TWO})
    store.close()

    assert Store(tmp_path / "state").load() == {"7_3": ONE, "9": TWO}
    assert (tmp_path / "state" / FILE).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


def test_a_second_daemon_is_refused(tmp_path: Path) -> None:
    """Until the first has ended."""
    store = Store(tmp_path)
    with pytest.raises(SlurmError, match=f"another drom slurm uses {tmp_path}/{FILE}: stop that one"):
        Store(tmp_path)
    store.close()
    Store(tmp_path).close()


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    """The sentence names it."""
    (tmp_path / FILE).write_bytes(b"no database " * 100)
    with pytest.raises(SlurmError, match=f"{FILE}: file is not a database"):
        Store(tmp_path)
    assert (tmp_path / FILE).read_bytes() == b"no database " * 100


def test_a_folder_that_others_may_replace_is_refused(tmp_path: Path) -> None:
    """Whoever may change the file could have jobs taken back wrongly."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(SlurmError, match="and so may replace"):
        Store(tmp_path / "open")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """Somebody else may have made it."""
    (tmp_path / "other").write_text("precious", encoding="utf-8")
    (tmp_path / FILE).symlink_to(tmp_path / "other")
    with pytest.raises(SlurmError, match="choose another folder with --state"):
        Store(tmp_path)
    assert (tmp_path / "other").read_text(encoding="utf-8") == "precious"
