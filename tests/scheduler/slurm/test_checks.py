# SPDX-License-Identifier: Apache-2.0
"""What must change in a configuration of Slurm, at each level."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from drom.scheduler.slurm.checks import CHANGE, NOTE, OK, Finding, judge
from drom.scheduler.slurm.configuration import Configuration, parse

from tests.scheduler.slurm.recorded import VERSIONS, recorded

if TYPE_CHECKING:
    from collections.abc import Mapping

GOOD = parse(
    """\
ClusterName=c
SlurmUser=slurm
SlurmctldHost=head
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
ProctrackType=proctrack/cgroup
TaskPlugin=task/affinity,task/cgroup
DefMemPerNode=2000
JobSubmitPlugins=lua
Licenses=matlab:4,drom_gate:1000000
PriorityType=priority/multifactor
PartitionName=malleable Nodes=n[1-4] OverSubscribe=YES:2
"""
)
GOOD = replace(
    GOOD,
    settings={**GOOD.settings, "slurm_version": "22.05.8"},
    cgroup={"constraincores": "yes"},
    plugstack="# ours\noptional spank_drom.so deadline=30\n",
    lua_script=True,
    lua_plugin=True,
)


def changed(settings: Mapping[str, str | None], site: Configuration = GOOD) -> Configuration:
    """Return a configuration with other settings; None removes one."""
    merged = {**site.settings, **{name.lower(): value for name, value in settings.items()}}
    return replace(site, settings={name: value for name, value in merged.items() if value is not None})


def partitions(*lines: str) -> Configuration:
    """Return the good configuration with these partitions."""
    written = parse("\n".join(["ClusterName=c", *(f"PartitionName={line}" for line in lines)]))
    return replace(GOOD, partitions=written.partitions)


def worse(site: Configuration, level: int = 2) -> list[Finding]:
    """Return all findings that are not ok."""
    return [one for one in judge(site, level) if one.state != OK]


@pytest.mark.parametrize("level", [0, 1, 2])
def test_nothing_is_wrong_with_a_good_configuration(level: int) -> None:
    """Every finding is ok, and a higher level has more of them."""
    assert worse(GOOD, level) == []
    assert len(judge(GOOD, level)) == {0: 5, 1: 12, 2: 18}[level]


@pytest.mark.parametrize(
    ("level", "settings", "what", "wanted"),
    [
        (0, {"ProctrackType": "proctrack/linuxproc"}, "ProctrackType", "ProctrackType=proctrack/cgroup"),
        (0, {"ProctrackType": None}, "ProctrackType", "ProctrackType=proctrack/cgroup"),
        (0, {"TaskPlugin": "task/none"}, "TaskPlugin", "TaskPlugin=task/affinity,task/cgroup"),
        (0, {"TaskPlugin": "cgroup,task/x"}, "TaskPlugin", "TaskPlugin=task/affinity,task/cgroup,task/x"),
        (1, {"SelectType": "select/linear"}, "SelectType", "SelectType=select/cons_tres"),
        (1, {"SelectTypeParameters": "CR_CPU"}, "SelectTypeParameters", "SelectTypeParameters=CR_Core_Memory"),
        (1, {"SelectTypeParameters": None}, "SelectTypeParameters", "SelectTypeParameters=CR_Core_Memory"),
        (1, {"DefMemPerNode": "UNLIMITED"}, "DefMemPerNode, DefMemPerCPU", "DefMemPerNode=HALF_OF_A_NODE"),
        (1, {"JobSubmitPlugins": "partition"}, "JobSubmitPlugins", "JobSubmitPlugins=partition,lua"),
        (1, {"PreemptMode": "SUSPEND,GANG"}, "PreemptMode", "PreemptMode=OFF"),
        (
            1,
            {"PlugStackConfig": "/dev/null"},
            "PlugStackConfig",
            "PlugStackConfig=/etc/slurm/plugstack.conf, and in that file: optional spank_drom.so",
        ),
        (2, {"Licenses": "matlab:4"}, "Licenses", "Licenses=matlab:4,drom_gate:1000000"),
        (2, {"Licenses": None}, "Licenses", "Licenses=drom_gate:1000000"),
        (2, {"Licenses": "drom_gate:50"}, "Licenses", "Licenses=drom_gate:1000000"),
        (
            2,
            {"SchedulerParameters": "bf_interval=30,bf_licenses,defer"},
            "SchedulerParameters",
            "SchedulerParameters=bf_interval=30,defer",
        ),
        (2, {"PriorityType": "priority/site"}, "PriorityType", "PriorityType=priority/multifactor"),
        (2, {"SchedulerType": "sched/builtin"}, "SchedulerType", "SchedulerType=sched/backfill"),
    ],
)
def test_a_setting_must_change_from_its_level_on(level: int, settings: dict[str, Any], what: str, wanted: str) -> None:
    """The finding has the line to write and the reason; lower levels do not need it."""
    (found,) = worse(changed(settings), level)

    assert (found.state, found.what, found.wanted) == (CHANGE, what, wanted)
    assert found.why.endswith(".")
    assert all(one.state != CHANGE for one in worse(changed(settings), level - 1))


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"SLURM_VERSION": "21.08.8"}, "Slurm's version"),
        ({"SLURM_VERSION": "30.05.1"}, "Slurm's version"),
        ({"SLURM_VERSION": None}, "Slurm's version"),
        ({"SelectTypeParameters": "CR_Core"}, "SelectTypeParameters"),
        ({"PreemptMode": "REQUEUE"}, "PreemptMode"),
        ({"PriorityType": "priority/basic"}, "PriorityType"),
        ({"PriorityType": None}, "PriorityType"),
        ({"SlurmUser": "root(0)"}, "SlurmUser"),
        ({"MinJobAge": "2 sec"}, "MinJobAge"),
    ],
)
def test_a_setting_that_works_but_not_well_is_noted(settings: dict[str, Any], what: str) -> None:
    """A note does not say that something must change."""
    (found,) = worse(changed(settings))

    assert (found.state, found.what) == (NOTE, what)


@pytest.mark.parametrize("version", ["22.05.8", "23.02.1", "24.11.5", "26.05.5"])
def test_versions_between_those_that_were_tried_are_right(version: str) -> None:
    """The oldest and the newest of them are bounds."""
    assert worse(changed({"SLURM_VERSION": version})) == []


def test_memory_that_slurm_does_not_count_needs_no_default() -> None:
    """Jobs then get what they use."""
    site = changed({"SelectTypeParameters": "CR_Core", "DefMemPerNode": None})

    assert [one.what for one in worse(site)] == ["SelectTypeParameters"]


def test_a_default_of_memory_may_be_that_of_each_partition() -> None:
    """Only partitions that share need one."""
    lines = ("main Nodes=n[5-8]", "malleable Nodes=n[1-4] OverSubscribe=YES:2 DefMemPerCPU=500")
    assert worse(changed({"DefMemPerNode": None}, partitions(*lines))) == []

    (found,) = worse(changed({"DefMemPerNode": None}, partitions(lines[0], "m Nodes=n[1-4] OverSubscribe=YES:2")))
    assert found.why.startswith("A job of partition m that requests no memory gets all of its node")


def test_without_a_partition_that_shares_nothing_is_shared() -> None:
    """One job on a core is no sharing."""
    for kind in ("NO", "EXCLUSIVE", "YES:1", "FORCE:1"):
        (found,) = worse(partitions(f"main Nodes=n[1-4] OverSubscribe={kind}"), 1)
        assert (found.state, found.what, found.now) == (CHANGE, "OverSubscribe", f"main: {kind}")


def test_a_partition_that_forces_sharing_is_no_substitute() -> None:
    """Beside one in which jobs ask for it, it is only noted."""
    (alone,) = worse(partitions("f Nodes=n[1-4] OverSubscribe=FORCE:2"))
    (beside,) = worse(partitions("f Nodes=n[5-8] OverSubscribe=FORCE:2", "m Nodes=n[1-4] OverSubscribe=YES:2"))

    assert (alone.state, alone.wanted) == (CHANGE, "PartitionName=f ... OverSubscribe=YES:2")
    assert (beside.state, beside.what) == (NOTE, "OverSubscribe of f")


@pytest.mark.parametrize(("kind", "depth"), [("YES", 4), ("YES:3", 3)])
def test_more_than_two_jobs_on_a_core_are_too_many_for_the_daemon(kind: str, depth: int) -> None:
    """Agents alone divide a node among more; Slurm's default is four."""
    site = partitions(f"m Nodes=n[1-4] OverSubscribe={kind}")

    assert [[one.state for one in worse(site, level)] for level in (1, 2)] == [[NOTE], [CHANGE]]
    assert worse(site)[0].why.startswith(f"Slurm puts up to {depth} jobs on a core")


@pytest.mark.parametrize("nodes", ["n[4-6]", "ALL"])
def test_other_partitions_on_the_same_nodes_are_noted(nodes: str) -> None:
    """Their jobs take nodes and share none."""
    (found,) = worse(partitions("m Nodes=n[1-4] OverSubscribe=YES:2", f"main Nodes={nodes}", "far Nodes=n[7-8]"))

    assert (found.state, found.what, found.now) == (NOTE, "nodes of m", "also in main")


def test_gang_scheduling_of_a_partition_is_refused() -> None:
    """Slurm would stop a job and its guest in turns."""
    (found,) = worse(partitions("m Nodes=n[1-4] OverSubscribe=YES:2 PreemptMode=SUSPEND"))

    assert (found.state, found.what) == (CHANGE, "PreemptMode")


@pytest.mark.parametrize(
    ("plugstack", "state"),
    [
        ("required /usr/lib/drom/spank_drom.so\n", CHANGE),
        ("# optional spank_drom.so\n", CHANGE),
        ("", CHANGE),
        (None, NOTE),
        ("optional /usr/lib/drom/spank_drom.so deadline=30\n", OK),
    ],
)
def test_the_plugin_is_optional_in_plugstack_conf(plugstack: str | None, state: str) -> None:
    """A required one stops slurmd where its file is missing."""
    (found,) = [one for one in judge(replace(GOOD, plugstack=plugstack), 1) if one.what == "PlugStackConfig"]

    assert found.state == state


def test_a_task_prolog_takes_the_place_of_the_plugin() -> None:
    """Sites that build nothing have that alone."""
    site = changed({"TaskProlog": "/etc/slurm/task_prolog.sh"}, replace(GOOD, plugstack=""))

    assert worse(site) == []


@pytest.mark.parametrize(("there", "state"), [(True, OK), (False, CHANGE), (None, NOTE)])
def test_the_script_must_be_there_before_slurmctld_starts(there: bool | None, state: str) -> None:
    """A script that may be on another machine is noted."""
    (found,) = [one for one in judge(replace(GOOD, lua_script=there), 1) if one.what == "job_submit.lua"]

    assert (found.state, "/etc/slurm/job_submit.lua" in found.now + found.why) == (state, True)


def test_a_slurm_without_lua_is_told_apart() -> None:
    """The setting is right, and the plugin is not installed."""
    (found,) = worse(replace(GOOD, lua_plugin=False))

    assert (found.state, found.what) == (CHANGE, "JobSubmitPlugins")
    assert found.why == (
        "Slurm was built or installed without its plugin for Lua: install it (Debian: slurm-wlm-basic-plugins)."
    )


@pytest.mark.parametrize(("cgroup", "state"), [(None, NOTE), ({}, CHANGE), ({"constraincores": "no"}, CHANGE)])
def test_jobs_must_be_confined_to_their_cores(cgroup: dict[str, str] | None, state: str) -> None:
    """From level 0 on."""
    (found,) = worse(replace(GOOD, cgroup=cgroup), 0)

    assert (found.state, found.what, found.wanted) == (state, "ConstrainCores (cgroup.conf)", "ConstrainCores=yes")


def test_what_could_not_be_read_is_noted() -> None:
    """A saved configuration has no partitions, and a broken line is repeated."""
    assert [one.what for one in worse(replace(GOOD, partitions=None))] == ["partitions"]
    assert worse(replace(GOOD, faults=("a line.",))) == [Finding(NOTE, "reading", "", "", "a line.")]


@pytest.mark.parametrize(
    "value", ["", "²", "9" * 5000, "-1", "a:b:c", "=", "\0", "n[1-", "YES:²", "FORCE:" + "9" * 5000]
)
def test_no_value_breaks_the_check(value: str) -> None:
    """Whatever a setting or a partition has, there are findings."""
    names = {*GOOD.settings, "maxjobcount", "minjobage", "preemptmode", "schedulerparameters", "taskprolog"}
    lines = (f"m Nodes=n1 OverSubscribe={value}", "o Nodes=n1")
    for name in names:
        assert len(judge(changed({name: value}, partitions(*lines)), 2)) > 10


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_configurations_are_judged(version: str) -> None:
    """Those of newer versions print settings without plugins as (null)."""
    site = parse(recorded(version, "config.txt") + recorded(version, "partition.txt"))
    must = [one.what for one in judge(site, 2) if one.state == CHANGE]

    assert must == [*(["ProctrackType", "TaskPlugin"] if version != "22.05" else []), "PlugStackConfig"]
