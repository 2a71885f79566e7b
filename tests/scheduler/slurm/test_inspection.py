# SPDX-License-Identifier: Apache-2.0
"""The files of a configuration: which are read, and what is known where they are missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from drom.agent.errors import SlurmError
from drom.scheduler.slurm.inspection import inspect_file, inspect_running
from drom.scheduler.slurm.reader import Reader

from tests.scheduler.slurm.recorded import recorded

if TYPE_CHECKING:
    from pathlib import Path


def slurm_conf(folder: Path, *lines: str) -> Path:
    """Write a slurm.conf."""
    path = folder / "slurm.conf"
    path.write_text("\n".join(["ClusterName=c", *lines, ""]), encoding="utf-8")
    return path


def test_files_beside_slurm_conf_are_read(tmp_path: Path) -> None:
    """As Slurm finds them."""
    (tmp_path / "cgroup.conf").write_text("ConstrainCores=yes\n", encoding="utf-8")
    (tmp_path / "plugstack.conf").write_text("include plugstack.d/*.conf\n", encoding="utf-8")
    (tmp_path / "plugstack.d").mkdir()
    (tmp_path / "plugstack.d" / "a.conf").write_text("optional spank_drom.so\n", encoding="utf-8")
    (tmp_path / "job_submit.lua").touch()
    site = inspect_file(slurm_conf(tmp_path))

    assert (site.cgroup, site.lua_script, site.folder) == ({"constraincores": "yes"}, True, str(tmp_path))
    assert "optional spank_drom.so" in (site.plugstack or "")


def test_files_that_are_missing_are_told_apart_from_those_unknown(tmp_path: Path) -> None:
    """Slurm does without plugstack.conf; what cgroup.conf would have said is not known."""
    site = inspect_file(slurm_conf(tmp_path))

    assert (site.cgroup, site.plugstack, site.lua_script) == (None, "", False)


def test_included_files_are_part_of_slurm_conf(tmp_path: Path) -> None:
    """A missing one is an error, as it is for Slurm."""
    path = slurm_conf(tmp_path, "Include nodes.conf")
    with pytest.raises(SlurmError, match=r"nodes\.conf cannot be read, which another file includes"):
        inspect_file(path)
    (tmp_path / "nodes.conf").write_text("PartitionName=p Nodes=n1\n", encoding="utf-8")

    assert [one.name for one in inspect_file(path).partitions or ()] == ["p"]


def test_nothing_is_read_beside_a_saved_configuration(tmp_path: Path) -> None:
    """It may come from another machine."""
    path = tmp_path / "saved"
    path.write_text(recorded("24.11", "config.txt"), encoding="utf-8")
    (tmp_path / "cgroup.conf").write_text("ConstrainCores=yes\n", encoding="utf-8")
    site = inspect_file(path)

    assert (site.cgroup, site.plugstack, site.lua_script, site.partitions) == (None, None, None, None)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """The sentence names it."""
    with pytest.raises(SlurmError, match=r"absent cannot be read: give a slurm\.conf"):
        inspect_file(tmp_path / "absent")


@pytest.mark.parametrize(("host", "script"), [("head", False), ("head.example.org", False), ("login", None)])
def test_the_script_of_a_running_slurm_is_looked_for_on_its_host(
    tmp_path: Path, host: str, script: bool | None
) -> None:
    """On other machines it need not be."""
    conf = recorded("22.05", "config.txt").replace("/work/", f"{tmp_path}/")
    (tmp_path / "config").write_text(conf, encoding="utf-8")
    (tmp_path / "partitions").write_text(recorded("22.05", "partition.txt"), encoding="utf-8")
    command = tmp_path / "scontrol"
    command.write_text(
        f'#!/bin/sh\ncase "$*" in *config) cat {tmp_path}/config ;; *) cat {tmp_path}/partitions ;; esac\n',
        encoding="utf-8",
    )
    command.chmod(0o755)
    site = inspect_running(Reader({"PATH": f"{tmp_path}:/usr/bin:/bin"}), host)

    assert site.lua_script is script
    assert [one.name for one in site.partitions or ()] == ["main", "malleable", "forced"]
    assert (site.cgroup or {})["constraincores"] == "yes"
