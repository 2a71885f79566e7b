# SPDX-License-Identifier: Apache-2.0
"""Slurm's configuration, as slurmctld prints it and as administrators write it."""

from __future__ import annotations

import pytest
from drom.agent.errors import SlurmError
from drom.scheduler.slurm.configuration import includes, parse, parse_cgroup

from tests.scheduler.slurm.recorded import VERSIONS, recorded

WRITTEN = """\
# the cluster
ClusterName=c SlurmUser=slurm  # two in a line
selecttype = select/cons_tres
TaskPlugin=task/affinity,\\
task/cgroup
Licenses="drom_gate:1000000,matlab:4"
NodeName=n[1-4] CPUs=8 RealMemory=4000 State=UNKNOWN
PartitionName=DEFAULT Nodes=n[1-4] DefMemPerNode=2000
PartitionName=main Default=YES State=UP
PartitionName=malleable Nodes=n[1-2] OverSubscribe=yes:2 PreemptMode=off
PartitionName=old Nodes=ALL Shared=FORCE
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_a_saved_configuration_is_read(version: str) -> None:
    """Settings without a value are not there, and names are found in any case."""
    site = parse(recorded(version, "config.txt"))

    assert (site.is_running, site.partitions, site.faults) == (True, None, ())
    assert site.get("SLURM_VERSION").startswith(version)
    assert (site.get("selecttype"), site.get("Epilog"), site.get("SlurmUser")) == (
        "select/cons_tres",
        "",
        "slurm(64030)",
    )
    assert site.words("Licenses") == ["drom_gate:1000000", "matlab:4"]
    assert (site.get("SlurmctldHost"), site.folder) == ("head(10.99.0.1)", "/work")


def test_partitions_may_follow_a_saved_configuration() -> None:
    """They are the output of another command."""
    site = parse(recorded("24.11", "config.txt") + recorded("24.11", "partition.txt"))

    assert [(one.name, one.oversubscribe) for one in site.partitions or ()] == [
        ("main", "NO"),
        ("malleable", "YES:2"),
        ("forced", "FORCE:2"),
    ]


def test_settings_of_control_groups_are_part_of_a_saved_configuration() -> None:
    """Slurm prints them where a plugin uses them; the settings of MPI that follow are others."""
    assert (parse(recorded("22.05", "config.txt")).cgroup or {}).get("constraincores") == "yes"
    assert "pmixdebug" not in (parse(recorded("22.05", "config.txt")).cgroup or {})
    assert parse(recorded("24.11", "config.txt")).cgroup is None


def test_a_written_configuration_is_read() -> None:
    """Comments, quotes, continued lines, several settings in a line and any case are as Slurm takes them."""
    site = parse(WRITTEN)

    assert (site.is_running, site.faults) == (False, ())
    assert (site.get("ClusterName"), site.get("SlurmUser"), site.get("SelectType")) == (
        "c",
        "slurm",
        "select/cons_tres",
    )
    assert site.words("TaskPlugin") == ["task/affinity", "task/cgroup"]
    assert site.words("Licenses") == ["drom_gate:1000000", "matlab:4"]


def test_written_partitions_take_the_defaults_of_theirs() -> None:
    """The line of the partition DEFAULT holds for those that follow."""
    main, malleable, old = parse(WRITTEN).partitions or ()

    assert (main.nodes, main.is_default, main.oversubscribe) == (("n1", "n2", "n3", "n4"), True, "NO")
    assert (malleable.nodes, malleable.oversubscribe, malleable.memory_per_node_mib) == (("n1", "n2"), "YES:2", 2000)
    assert (old.nodes, old.oversubscribe) == (("ALL",), "FORCE")


def test_a_broken_partition_is_left_out() -> None:
    """A sentence says why, and all other lines are read."""
    site = parse(WRITTEN + "PartitionName=bad Nodes=n[1-\n")

    assert site.faults == ("partition bad is left out: one of its values is not a list of nodes such as n[1-4].",)
    assert len(site.partitions or ()) == 3


@pytest.mark.parametrize("text", ["", "hello", "key=value\n", "# ClusterName=c\n"])
def test_other_files_are_refused(text: str) -> None:
    """The sentence says what to give."""
    with pytest.raises(SlurmError, match=r"neither a slurm\.conf nor what 'scontrol show config' prints"):
        parse(text)


def test_files_that_a_file_includes_are_found() -> None:
    """In any case, not in comments."""
    assert includes("Include /etc/slurm/nodes.conf\n# include a\ninclude more/*.conf\n") == [
        "/etc/slurm/nodes.conf",
        "more/*.conf",
    ]


def test_settings_of_a_cgroup_conf_are_read() -> None:
    """Their names are found in any case."""
    assert parse_cgroup("# comment\nConstrainCores = yes\nCgroupPlugin=cgroup/v1\n") == {
        "constraincores": "yes",
        "cgroupplugin": "cgroup/v1",
    }
