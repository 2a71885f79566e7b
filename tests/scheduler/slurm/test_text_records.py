# SPDX-License-Identifier: Apache-2.0
"""What squeue and scontrol of real Slurms printed as text, as values."""

from __future__ import annotations

from dataclasses import replace

import pytest
from drom.scheduler.slurm.records import GATE, Job, Licence, Partition
from drom.scheduler.slurm.text_records import (
    NOT_ALL,
    JobParser,
    job_format,
    parse_jobs,
    parse_licences,
    parse_nodes,
    parse_partitions,
    parse_reservations,
)

from tests.scheduler.slurm.recorded import SEPARATOR, VERSIONS, of_helper, recorded


def jobs(version: str) -> dict[str, Job]:
    """Return the recorded jobs by name; the waiting tasks of the array as 'array', those that run as 'array_N'."""
    read = parse_jobs(recorded(version, "squeue.txt"), SEPARATOR)
    assert read.faults == ()
    return {job.name + (f"_{job.task}" if job.task else ""): job for job in read.records}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_running_job_has_its_nodes_and_times(version: str) -> None:
    """Times are in seconds since 1970, limits in minutes."""
    job = jobs(version)["running"]

    assert (job.states, job.runs, job.waits) == (frozenset({"RUNNING"}), True, False)
    assert (job.nodes, job.least_nodes, job.most_nodes) == (("rec1", "rec2"), 2, 2)
    assert (job.tasks, job.cpus_per_task, job.cpus, job.memory) == (4, 4, 16, "1000M")
    assert job.started is not None
    assert job.submitted is not None
    assert 0 <= job.started - job.submitted < 60
    assert (job.limit_min, job.ends) == (30, job.started + 1800)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_gated_job_waits_with_its_licence(version: str) -> None:
    """Slurm shows its nice value and that it shares its cores."""
    job = jobs(version)["gated"]

    assert (job.waits, job.holds(GATE), job.shares) == (True, True, True)
    assert (job.nice, job.limit_min, job.comment) == (100, 90, "share gate, MIN=1 a b")
    assert (job.nodes, job.ends) == ((), None)


@pytest.mark.parametrize("version", VERSIONS)
def test_only_jobs_that_asked_to_share_do(version: str) -> None:
    """Rigid and exclusive jobs, and those of the same user alone, do not."""
    found = jobs(version)

    assert [name for name in ("rigid", "excl", "whole", "after", "hold") if found[name].shares] == []
    assert found["running"].shares
    assert found["a b=c|d"].shares  # its partition forces it


@pytest.mark.parametrize("version", VERSIONS)
def test_the_range_of_a_malleable_job_is_in_its_admin_comment(version: str) -> None:
    """A job without the words there has none."""
    assert [jobs(version)[name].malleable for name in ("running", "gated")] == [(1, 2), None]


@pytest.mark.parametrize(
    ("comment", "found"),
    [("drom:malleable=2:8", (2, 8)), ("a drom:malleable=2:8 b", (2, 8)), ("drom:malleable=8:2", None)],
)
def test_a_range_has_its_least_first(comment: str, found: tuple[int, int] | None) -> None:
    """Other words of the comment do not matter."""
    assert replace(jobs("22.05")["rigid"], admin_comment=comment).malleable == found


@pytest.mark.parametrize("version", VERSIONS)
def test_tasks_of_an_array_that_wait_are_one_record(version: str) -> None:
    """A task that runs is a job of its own number."""
    found = jobs(version)
    waiting, first = found["array"], found["array_1"]

    assert (waiting.number, waiting.array, waiting.task, waiting.tasks_left) == (4, 4, None, "3-5%2")
    assert (first.array, first.task, first.tasks_left, first.runs) == (4, 1, "", True)
    assert first.number != 4
    assert (found["rigid"].array, found["rigid"].task) == (None, None)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_keeps_jobs_waiting_is_read(version: str) -> None:
    """Dependencies, requested nodes, several partitions, licences, accounts and a hold."""
    found = jobs(version)

    assert found["after"].dependency == "afterok:1(unfulfilled),afterok:2(unfulfilled)"
    assert found["after"].requested_nodes == ("rec1", "rec2")
    assert (found["begin"].partitions, found["begin"].limit_min) == (("main", "forced"), 3065)
    assert (found["excl"].licences, found["a b=c|d"].account) == ((("matlab", 2),), "acct")
    assert (found["hold"].priority, found["hold"].reason, found["hold"].eligible) == (0, "JobHeldUser", None)


def test_components_of_a_heterogeneous_job_name_it() -> None:
    """Each is a job; its number is that of the first."""
    components = [job for job in parse_jobs(recorded("22.05", "squeue.txt"), SEPARATOR).records if job.het]

    assert sorted((job.number, job.het) for job in components) == [(10, 10), (11, 10)]


@pytest.mark.parametrize("version", VERSIONS)
def test_line_ends_in_names_break_nothing(version: str) -> None:
    """What users write is read as it is."""
    assert jobs(version)["two\nlines"].comment == "li\nne JobId=5 share gate"


def test_an_ended_job_neither_runs_nor_waits() -> None:
    """Slurm shows it until MinJobAge is over."""
    job = jobs("24.11")["ended"]

    assert (job.states, job.runs, job.waits) == (frozenset({"FAILED"}), False, False)


def test_a_broken_field_leaves_out_its_job() -> None:
    """The sentence names the field and the job, and all other jobs are read."""
    text = recorded("22.05", "squeue.txt")
    broken = text.replace("1:30:00", "soon", 1)
    read = parse_jobs(broken, SEPARATOR)

    assert read.faults == (
        "Slurm's record of job 3 is left out: TimeLimit is 'soon', which is not a time limit such as 2-03:05:00.",
    )
    assert len(read.records) == len(parse_jobs(text, SEPARATOR).records) - 1


def test_fields_that_are_missing_are_a_fault() -> None:
    """A Slurm that lacks one of the fields prints fewer of them, and an error message."""
    fields = recorded("22.05", "squeue.txt").split(SEPARATOR)
    read = parse_jobs(
        SEPARATOR.join(fields[:50]) + "\nsqueue: error: Invalid job format specification: Nice", SEPARATOR
    )

    assert len(read.records) == 1
    assert read.faults == (NOT_ALL,)
    assert parse_jobs("", SEPARATOR) == ((), ())


def test_each_field_is_as_long_as_it_is() -> None:
    """Slurm would cut off what is longer than a width."""
    assert job_format("|x;").startswith("JobID:0|x;,ArrayJobID:0|x;,")


@pytest.mark.parametrize("version", VERSIONS)
def test_nodes_have_their_cores_and_states(version: str) -> None:
    """A drained node is not usable; its reason is text."""
    read = parse_nodes(recorded(version, "node.txt"))
    first, *_, last = read.records

    assert (read.faults, len(read.records)) == ((), 4)
    assert (first.name, first.cpus, first.usable_cpus, first.cores, first.threads_per_core) == ("rec1", 8, 8, 8, 1)
    assert (first.memory_mib, first.partitions, first.features) == (4000, ("main", "malleable", "forced"), ("fast",))
    assert (first.is_usable, last.is_usable, last.states) == (True, False, frozenset({"IDLE", "DRAIN"}))
    assert last.reason == "disk broken, call us"
    assert first.version.startswith(version)


@pytest.mark.parametrize(("text", "states"), [("IDLE*", {"IDLE", "NOT_RESPONDING"}), ("DOWN~", {"DOWN"})])
def test_signs_after_a_state_are_no_part_of_it(text: str, states: set[str]) -> None:
    """An asterisk says that the node does not respond."""
    line = recorded("22.05", "node.txt").splitlines()[0].replace("State=ALLOCATED", f"State={text}")
    line = line.replace("State=MIXED", f"State={text}")

    assert parse_nodes(line).records[0].states == states


def test_a_broken_node_is_left_out() -> None:
    """The sentence names it."""
    text = recorded("22.05", "node.txt").replace("CPUTot=8", "CPUTot=", 1)

    assert parse_nodes(text).faults == (
        "Slurm's record of node rec1 is left out: CPUTot is '', which is not a whole number.",
    )
    assert parse_nodes("State=UP\n").faults == (
        "Slurm's record of node without a name is left out: NodeName is missing.",
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_partitions_have_what_drom_needs(version: str) -> None:
    """How jobs share cores, limits and memory."""
    main, malleable, forced = parse_partitions(recorded(version, "partition.txt")).records

    assert malleable == Partition(
        name="malleable",
        nodes=("rec1", "rec2", "rec3"),
        is_default=False,
        oversubscribe="YES:2",
        state="UP",
        preempt_mode="OFF",
        default_limit_min=60,
        most_limit_min=1440,
        memory_per_node_mib=None,
        memory_per_cpu_mib=None,
    )
    assert (main.is_default, main.most_limit_min, main.oversubscribe) == (True, None, "NO")
    assert forced.oversubscribe == "FORCE:2"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_lease_is_a_reservation_of_licences(version: str) -> None:
    """All licences are reserved while it is active."""
    lease, maintenance = parse_reservations(recorded(version, "reservation.txt")).records

    assert parse_licences(recorded(version, "licenses.txt")).records == (
        Licence("drom_gate", 1_000_000, 0, 1_000_000),
        Licence("matlab", 4, 0, 0),
    )
    assert (lease.name, lease.licences, lease.is_active) == ("dromgate", ((GATE, 1_000_000),), True)
    assert lease.starts is not None
    assert lease.ends == lease.starts + 3600
    assert (maintenance.nodes, maintenance.is_active) == (("rec4",), False)
    assert maintenance.flags >= {"MAINT", "IGNORE_JOBS"}


def test_a_slurm_without_licences_or_reservations_has_none() -> None:
    """Slurm says so in words."""
    assert parse_licences("No licenses configured in Slurm.\n") == ((), ())
    assert parse_reservations("No reservations in the system\n") == ((), ())


def test_jobs_that_have_not_changed_are_not_parsed_anew() -> None:
    """The records are the same objects; a changed job is another one, and one that is gone is not kept."""
    text = recorded("22.05", "squeue.txt")
    parser = JobParser()
    first = parser.parse(text, SEPARATOR)
    again = parser.parse(text.replace(SEPARATOR, "|other;"), "|other;")
    changed = parser.parse(text.replace("share gate, MIN=1 a b", "changed"), SEPARATOR)

    assert all(one is other for one, other in zip(first.records, again.records, strict=True))
    assert [job.comment for job in changed.records if job not in first.records] == ["changed"]
    assert parser.parse("", SEPARATOR) == ((), ())


def test_records_that_end_with_two_separators_are_parsed_alike() -> None:
    """A record with too few fields, or a text after the last one, is a fault."""
    ended, parser = of_helper("22.05", "|a;"), JobParser()
    read, again = (parser.parse_records(ended, "|a;") for _ in range(2))

    assert read == parse_jobs(recorded("22.05", "squeue.txt"), SEPARATOR)
    assert all(one is other for one, other in zip(read.records, again.records, strict=True))
    assert parser.parse_records(ended + "7|a;", "|a;") == (read.records, (NOT_ALL,))
    assert parser.parse_records(ended + "7|a;|a;", "|a;") == (read.records, (NOT_ALL,))
    assert parser.parse_records("", "|a;") == ((), ())
