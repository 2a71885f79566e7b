# SPDX-License-Identifier: Apache-2.0
"""Whether drom can work with a Slurm that is configured so: a finding for each setting that matters. Pure.

Level 0: the agents respect the CPUs that Slurm gives its jobs. Level 1: malleable jobs share nodes, without a central
daemon. Level 2: a daemon decides which jobs share. Each level needs all that is below it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drom.scheduler.slurm.records import GATE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from drom.scheduler.slurm.configuration import Configuration
    from drom.scheduler.slurm.records import Partition

LEVELS = (0, 1, 2)
OK, CHANGE, NOTE = "ok", "change", "note"
TRIED = ("22.05", "24.11", "26.05")
"""The versions of Slurm that drom was tried with."""
PLUGIN = "spank_drom.so"
PROLOG = "task_prolog"
"""Part of the name of the TaskProlog for sites that build no plugin."""
LUA = "job_submit.lua"
LICENCES = 1_000_000
UNSET = "not set"
SHORTEST_JOB_AGE = 10
"""Seconds of MinJobAge below which the daemon may miss how a job ended."""
MOST_JOBS = 10_000
"""Slurm's default of MaxJobCount."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found about one setting: `state` is ok, change or note.

    `now` is its value, `wanted` the line to write (empty if none), `why` a sentence (empty if all is right).
    """

    state: str
    what: str
    now: str
    wanted: str = ""
    why: str = ""


def judge(configuration: Configuration, level: int) -> list[Finding]:
    """Return the findings for a level, in the order in which an administrator would go through slurm.conf."""
    found = [Finding(NOTE, "reading", "", "", fault) for fault in configuration.faults]
    return found + [one for least, check in CHECKS if least <= level for one in check(configuration, level)]


def _version(site: Configuration, _level: int) -> Iterator[Finding]:
    version = site.get("SLURM_VERSION")
    found = re.match(r"([0-9]{1,4})\.([0-9]{1,4})", version)
    if not found:
        why = "The version is not in this file; run 'drom slurm check' again once Slurm runs."
        yield Finding(NOTE, "Slurm's version", version or UNSET, "", why)
    elif TRIED[0] <= f"{int(found[1]):02}.{int(found[2]):02}" <= TRIED[-1]:
        yield Finding(OK, "Slurm's version", version)
    else:
        why = f"drom was tried with Slurm {', '.join(TRIED)}: try it on a test cluster first."
        yield Finding(NOTE, "Slurm's version", version, "", why)


def _select_type(site: Configuration, level: int) -> Iterator[Finding]:
    now = site.get("SelectType")
    if now in {"select/cons_tres", "select/cons_res"}:
        yield Finding(OK, "SelectType", now)
        return
    why = "Only select/cons_tres divides nodes by cores; others give whole nodes."
    state = CHANGE if level else NOTE
    drop = " A change loses all jobs: drain the cluster first."
    yield Finding(state, "SelectType", now or UNSET, "SelectType=select/cons_tres", why + drop)


def _process_tracking(site: Configuration, _level: int) -> Iterator[Finding]:
    yield _one_of(
        site,
        "ProctrackType",
        ("proctrack/cgroup",),
        "Agents learn from control groups to which job of Slurm a program belongs, and on which CPUs it may run.",
    )


def _one_of(site: Configuration, name: str, good: tuple[str, ...], why: str) -> Finding:
    now = site.get(name)
    if now in good:
        return Finding(OK, name, now)
    return Finding(CHANGE, name, now or UNSET, f"{name}={good[0]}", why)


def _task_plugins(site: Configuration, _level: int) -> Iterator[Finding]:
    now = site.words("TaskPlugin")
    now = [part if part.startswith("task/") else f"task/{part}" for part in now]
    missing = [part for part in ("task/affinity", "task/cgroup") if part not in now]
    if not missing:
        yield Finding(OK, "TaskPlugin", ",".join(now))
        return
    kept = [part for part in now if part != "task/none"]
    wanted = ",".join(sorted({*kept, *missing}, key=lambda part: (part not in {"task/affinity", "task/cgroup"}, part)))
    why = "task/cgroup confines each job to its CPUs, and task/affinity binds its tasks; agents keep to these CPUs."
    yield Finding(CHANGE, "TaskPlugin", ",".join(now) or UNSET, f"TaskPlugin={wanted}", why)


def _constrain_cores(site: Configuration, _level: int) -> Iterator[Finding]:
    what = "ConstrainCores (cgroup.conf)"
    if site.cgroup is None:
        why = "cgroup.conf could not be read: make sure that it has this line."
        yield Finding(NOTE, what, "not known", "ConstrainCores=yes", why)
        return
    now = site.cgroup.get("constraincores", UNSET)
    if now.lower() == "yes":
        yield Finding(OK, what, now)
    else:
        why = "Without it a job may run on every CPU of its node, so that agents do not see which CPUs are its own."
        yield Finding(CHANGE, what, now, "ConstrainCores=yes", why)


def _counts_memory(site: Configuration) -> bool:
    return "MEMORY" in site.get("SelectTypeParameters").upper()


def _select_parameters(site: Configuration, _level: int) -> Iterator[Finding]:
    what, now = "SelectTypeParameters", site.get("SelectTypeParameters")
    parts = {part.upper() for part in site.words(what)}
    wanted = "SelectTypeParameters=CR_Core_Memory"
    if "CR_CORE_MEMORY" in parts:
        yield Finding(OK, what, now)
    elif "CR_CORE" in parts:
        why = "Slurm does not count memory: two jobs that share a node may need more than it has."
        yield Finding(NOTE, what, now, wanted, why)
    elif parts & {"CR_CPU", "CR_CPU_MEMORY"}:
        why = "Jobs that do not share may get hardware threads of one core: count cores."
        yield Finding(CHANGE, what, now, wanted, why)
    else:
        why = "Slurm is to hand out cores and memory; what it does otherwise differs between its versions."
        yield Finding(CHANGE, what, now or UNSET, wanted, why)


def _default_memory(site: Configuration, _level: int) -> Iterator[Finding]:
    if not _counts_memory(site):
        return
    set_here = [f"{name}={value}" for name in ("DefMemPerNode", "DefMemPerCPU") if (value := _memory(site, name))]
    lacking = [one.name for one in _sharing(site) if not (one.memory_per_node_mib or one.memory_per_cpu_mib)]
    if set_here:
        yield Finding(OK, "DefMemPerNode, DefMemPerCPU", ",".join(set_here))
    elif lacking or not _sharing(site):
        names = f" of partition {', '.join(lacking)}" if lacking else ""
        why = (
            f"A job{names} that requests no memory gets all of its node, so that no other job fits beside it: give"
            " half of a node's memory in MiB, or less."
        )
        yield Finding(CHANGE, "DefMemPerNode, DefMemPerCPU", UNSET, "DefMemPerNode=HALF_OF_A_NODE", why)
    else:
        yield Finding(OK, "DefMemPerNode, DefMemPerCPU", "set in each partition that shares")


def _memory(site: Configuration, name: str) -> str:
    now = site.get(name)
    return "" if now.upper() in {"UNLIMITED", "0"} else now


def _depth(partition: Partition) -> int:
    """Return how many jobs may have a core at once: Slurm's default is four where a partition shares."""
    kind, _, count = partition.oversubscribe.partition(":")
    return _count(count, 4) if kind in {"YES", "FORCE"} else 1


def _count(text: str, default: int) -> int:
    """Return a number of at most twelve digits, or the default where the text is none."""
    return int(text) if re.fullmatch(r"[0-9]{1,12}", text) else default


def _sharing(site: Configuration) -> list[Partition]:
    return [one for one in site.partitions or () if _depth(one) > 1]


def _partitions(site: Configuration, level: int) -> Iterator[Finding]:
    if site.partitions is None:
        why = "The partitions are not in this file: append what 'scontrol show partition -o' prints, and check again."
        yield Finding(NOTE, "partitions", "not known", "", why)
        return
    sharing = _sharing(site)
    if not sharing:
        why = "Slurm lets jobs share cores only in a partition that says so; jobs that do not ask keep their own."
        now = ", ".join(f"{one.name}: {one.oversubscribe}" for one in site.partitions) or UNSET
        yield Finding(CHANGE, "OverSubscribe", now, "PartitionName=malleable Nodes=... OverSubscribe=YES:2", why)
    chosen = [one for one in sharing if one.oversubscribe.startswith("YES")]
    for one in sharing:
        yield _oversubscription(one, level, chosen=bool(chosen))
    yield from _neighbours(site.partitions, chosen or sharing)


def _oversubscription(one: Partition, level: int, *, chosen: bool) -> Finding:
    """Judge a partition that shares; `chosen` if there is one in which only jobs share that ask for it."""
    what, wanted = f"OverSubscribe of {one.name}", f"PartitionName={one.name} ... OverSubscribe=YES:2"
    if one.oversubscribe.startswith("FORCE"):
        why = "FORCE makes every job share its cores, rigid ones too; with YES only jobs that ask for it do."
        return Finding(NOTE if chosen else CHANGE, what, one.oversubscribe, "" if chosen else wanted, why)
    if _depth(one) > 2:
        why = f"Slurm puts up to {_depth(one)} jobs on a core; drom plans two, a job and a guest."
        return Finding(CHANGE if level == 2 else NOTE, what, one.oversubscribe, wanted, why)
    return Finding(OK, what, one.oversubscribe)


def _neighbours(partitions: tuple[Partition, ...], sharing: list[Partition]) -> Iterator[Finding]:
    """Note partitions on the nodes of one that shares: jobs share cores only with jobs of their own partition."""
    for one in sharing:
        nodes = set(one.nodes)
        others = [
            other.name
            for other in partitions
            if other is not one and ("ALL" in {*nodes, *other.nodes} or nodes & set(other.nodes))
        ]
        if others:
            why = (
                f"Jobs share cores only within a partition; jobs of {', '.join(others)} take nodes of {one.name} and"
                " share none of them. One partition for all malleable jobs is best."
            )
            yield Finding(NOTE, f"nodes of {one.name}", f"also in {', '.join(others)}", "", why)


def _lua(site: Configuration, level: int) -> Iterator[Finding]:
    plugins = [part.removeprefix("job_submit/") for part in site.words("JobSubmitPlugins")]
    path = f"{site.folder}/{LUA}"
    if "lua" not in plugins:
        wanted = f"JobSubmitPlugins={','.join([*plugins, 'lua'])}"
        what_it_does = "lets malleable jobs share their cores" + (
            " and puts jobs behind the gate" if level == 2 else ""
        )
        why = f"{LUA} {what_it_does}. Copy it to {path} first: slurmctld does not start without it."
        yield Finding(CHANGE, "JobSubmitPlugins", ",".join(plugins) or UNSET, wanted, why)
        return
    if site.lua_plugin is False:
        why = "Slurm was built or installed without its plugin for Lua: install it (Debian: slurm-wlm-basic-plugins)."
        yield Finding(CHANGE, "JobSubmitPlugins", ",".join(plugins), "", why)
    else:
        yield Finding(OK, "JobSubmitPlugins", ",".join(plugins))
    if site.lua_script:
        yield Finding(OK, LUA, path)
    elif site.lua_script is None:
        yield Finding(
            NOTE, LUA, "not known", "", f"Make sure that slurmctld's host has {path}: it does not start without."
        )
    else:
        why = "slurmctld goes on with the script that it has read, but does not start again without the file."
        yield Finding(CHANGE, LUA, f"{path} is missing", f"contrib/slurm/{LUA} as {path}", why)


REGISTERS = f"The plugin registers the tasks of malleable jobs. Sites that build nothing set TaskProlog to {PROLOG}.sh."


def _plugstack(site: Configuration, _level: int) -> Iterator[Finding]:
    what = "PlugStackConfig"
    if PROLOG in site.get("TaskProlog"):
        yield Finding(OK, "TaskProlog", site.get("TaskProlog"))
        return
    path = site.get(what) or f"{site.folder}/plugstack.conf"
    wanted = f"optional {PLUGIN} (in {path})"
    if path == "/dev/null":
        wanted = f"{what}={site.folder}/plugstack.conf, and in that file: optional {PLUGIN}"
        yield Finding(CHANGE, what, path, wanted, REGISTERS)
        return
    if site.plugstack is None:
        why = "The file could not be read here: make sure that it has this line on every node and login node."
        yield Finding(NOTE, what, path, wanted, why)
        return
    lines = [line.split() for line in site.plugstack.splitlines() if PLUGIN in line.partition("#")[0]]
    if not lines:
        why = (
            f"The plugin registers the tasks of malleable jobs. Sites that build nothing set TaskProlog to {PROLOG}.sh."
        )
        yield Finding(CHANGE, what, f"{path} has no {PLUGIN}", wanted, why)
    elif any(words[0] == "required" for words in lines):
        why = "With 'required' a missing file stops slurmd and srun; with 'optional' jobs run as Slurm would run them."
        yield Finding(CHANGE, what, f"required {PLUGIN}", wanted, why)
    else:
        yield Finding(OK, what, f"{path}: {' '.join(lines[0])}")


def _preemption(site: Configuration, _level: int) -> Iterator[Finding]:
    now = [part.upper() for part in site.words("PreemptMode")]
    gang = [one.name for one in _sharing(site) if "GANG" in one.preempt_mode or "SUSPEND" in one.preempt_mode]
    if {"GANG", "SUSPEND"} & {*now} or gang:
        why = "Slurm stops jobs that share a core in turns, so that a job and its guest never run at the same time."
        yield Finding(CHANGE, "PreemptMode", ",".join(now) or UNSET, "PreemptMode=OFF", why)
    elif now in ([], ["OFF"]):
        yield Finding(OK, "PreemptMode", "OFF")
    else:
        why = "Jobs that Slurm preempts give their cores back as jobs that end do; drom was not tried with preemption."
        yield Finding(NOTE, "PreemptMode", ",".join(now), "", why)


def _licences(site: Configuration, _level: int) -> Iterator[Finding]:
    counts = {
        name: _count(count, 1) for name, count in re.findall(r"([\w.@-]+)(?::([0-9]+))?(?=,|$)", site.get("Licenses"))
    }
    others = [part for part in site.words("Licenses") if part.partition(":")[0] != GATE]
    wanted = f"Licenses={','.join([*others, f'{GATE}:{LICENCES}'])}"
    jobs = site.get("MaxJobCount")
    most = _count(jobs, MOST_JOBS)
    if counts.get(GATE, 0) >= most:
        yield Finding(OK, "Licenses", site.get("Licenses"))
    else:
        why = (
            f"Each waiting job has a licence {GATE}, which the daemon reserves until it releases the job. Without the"
            f" daemon every job that runs needs one: at least MaxJobCount ({most})."
        )
        yield Finding(CHANGE, "Licenses", site.get("Licenses") or UNSET, wanted, why)


def _scheduler(site: Configuration, _level: int) -> Iterator[Finding]:
    now = site.get("SchedulerType") or ("" if site.is_running else "sched/backfill")
    if now == "sched/backfill":
        yield Finding(OK, "SchedulerType", now)
    else:
        why = "Without backfill a released job waits behind every job of higher priority."
        yield Finding(CHANGE, "SchedulerType", now or UNSET, "SchedulerType=sched/backfill", why)


def _scheduler_parameters(site: Configuration, _level: int) -> Iterator[Finding]:
    now = site.words("SchedulerParameters")
    if "bf_licenses" not in now:
        yield Finding(OK, "SchedulerParameters", ",".join(now) or UNSET)
        return
    rest = ",".join(part for part in now if part != "bf_licenses")
    why = (
        "bf_licenses makes backfill plan jobs behind the gate for the end of the reservation of licences, and keep"
        " nodes idle until then."
    )
    yield Finding(CHANGE, "SchedulerParameters", ",".join(now), f"SchedulerParameters={rest}", why)


def _priority(site: Configuration, _level: int) -> Iterator[Finding]:
    name, wanted = "PriorityType", "priority/multifactor"
    now = site.get(name)
    if now in {"priority/basic", ""}:
        why = "With priority/basic a job that was released, but not started, loses its place: it becomes the last one."
        yield Finding(NOTE, name, now or UNSET, f"{name}={wanted}", why)
        return
    yield _one_of(
        site, name, (wanted,), "The daemon releases jobs ahead of others as this plugin and priority/basic do it."
    )


def _slurm_user(site: Configuration, _level: int) -> Iterator[Finding]:
    now = site.get("SlurmUser").partition("(")[0] or ("root" if not site.is_running else UNSET)
    if now == "root":
        why = "The daemon runs as SlurmUser; a user without further rights is safer."
        yield Finding(NOTE, "SlurmUser", now, "SlurmUser=slurm", why)
    else:
        yield Finding(OK, "SlurmUser", now)


def _job_age(site: Configuration, _level: int) -> Iterator[Finding]:
    now = site.get("MinJobAge") or "300"
    seconds = re.match(r"[0-9]{1,9}", now)
    if seconds and 0 < int(seconds[0]) < SHORTEST_JOB_AGE:
        why = "Slurm forgets ended jobs so soon that a daemon which restarts does not learn how they ended."
        yield Finding(NOTE, "MinJobAge", now, "MinJobAge=300", why)
    else:
        yield Finding(OK, "MinJobAge", now)


CHECKS: tuple[tuple[int, Callable[[Configuration, int], Iterator[Finding]]], ...] = (
    (0, _version),
    (0, _select_type),
    (0, _process_tracking),
    (0, _task_plugins),
    (0, _constrain_cores),
    (1, _select_parameters),
    (1, _default_memory),
    (1, _partitions),
    (1, _preemption),
    (1, _lua),
    (1, _plugstack),
    (2, _licences),
    (2, _scheduler),
    (2, _scheduler_parameters),
    (2, _priority),
    (2, _slurm_user),
    (2, _job_age),
)
"""The checks, each with the lowest level that needs it."""
