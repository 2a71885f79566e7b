# SPDX-License-Identifier: Apache-2.0
"""What users ask for: read from options, scripts and requests, and refused with a sentence where it is nonsense."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from drom.agent.execution.protocol import LETTERS
from drom.agent.text import WordError
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cli.submit_script import directives
from drom.scheduler.live.cluster.node_lists import MOST_NODES
from drom.scheduler.live.cluster.spec import (
    LARGEST,
    LONGEST_NAME,
    LONGEST_PATH,
    MOST_DEPENDENCIES,
    MOST_JOBS,
    MOST_WANTS,
    Dependency,
    Spec,
    array_of,
    check,
    exported,
    from_json,
    in_array,
    parse_amounts,
    parse_array,
    parse_dependencies,
    parse_features,
    parse_memory,
    parse_signal,
    parse_time,
    sized,
    visible,
    without_environment,
)
from drom.scheduler.live.server.records import spec_of, text_of_spec
from hypothesis import given
from hypothesis import strategies as st

ASKED = Spec(command=("true",), folder="/")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10", 600),
        ("90s", 90),
        ("2h", 7200),
        ("1:30", 90),
        ("1:00:00", 3600),
        ("2-0", 172_800),
        ("1-12:30", 131_400),
        ("0-0:0:5", 5),
    ],
)
def test_times_are_read_as_sbatch_does(text: str, seconds: int) -> None:
    """Minutes alone; days make what follows hours."""
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "1:2:3:4", "1.5", "x", "9999-0", "10w", "0s", "\u0663"])
def test_other_times_are_refused(text: str) -> None:
    """With a sentence."""
    with pytest.raises(WordError, match=r"\.$"):
        parse_time(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4000", 4000 << 20),
        ("4000M", 4000 << 20),
        ("8K", 8192),
        *((f"4{unit}", 4 << 30) for unit in ("G", "g", "GB", "gb", "GiB")),
    ],
)
def test_memory_is_read_as_sbatch_does(text: str, size: int) -> None:
    """A number without a unit is one of MiB; units may be written in other ways."""
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "0", "0G", "4B", "4X", "4GBB", "4 G", "1.5G", "-1", "G", "\u0663", "9" * 99])
def test_other_sizes_are_refused(text: str) -> None:
    """With a sentence."""
    with pytest.raises(WordError, match=r"^'.*' is not a size: write for example 800M or 4G\.$"):
        parse_memory(text)


def test_lists_are_read() -> None:
    """Dependencies, amounts and features."""
    assert parse_dependencies("afterok:1:2_0,after:3") == (
        Dependency("afterok", 1),
        Dependency("afterok", 2, 0),
        Dependency("after", 3),
    )
    assert parse_amounts("gpu=2,disk:1") == {"gpu": 2, "disk": 1}
    assert parse_features("fast&bigmem,fast") == ("bigmem", "fast")
    long = f"afterok:{10**15}"
    for parse, text in (
        (parse_dependencies, "afterok"),
        (parse_dependencies, long),
        (parse_dependencies, "afterok:1_"),
        (parse_dependencies, "afterok:1_[2-3]"),
        (parse_amounts, "gpu"),
        (parse_features, "a,,b"),
    ):
        with pytest.raises(WordError, match=r"\.$"):
            parse(text)


@pytest.mark.parametrize(
    ("asked", "nodes", "tasks", "ranks"),
    [
        ({}, 1, 1, 1),
        ({"nodes": 3}, 3, 1, 3),
        ({"ranks": 10}, 3, 4, 10),
        ({"ranks": 10, "threads": 2}, 5, 2, 10),
        ({"nodes": 2, "ranks": 5}, 2, 3, 5),
        ({"nodes": 2, "tasks": 4}, 2, 4, 8),
        ({"tasks": 3, "ranks": 7}, 3, 3, 7),
    ],
)
def test_nodes_follow_from_tasks(asked: dict[str, Any], nodes: int, tasks: int, ranks: int) -> None:
    """On nodes of four cores; decision D35: as few nodes as the tasks need."""
    found = sized(replace(ASKED, **asked), 4)
    assert (found.nodes, found.tasks, found.ranks) == (nodes, tasks, ranks)


@pytest.mark.parametrize("asked", [{"tasks": 5}, {"threads": 5}, {"nodes": 2, "tasks": 2, "ranks": 9}])
def test_tasks_that_do_not_fit_are_refused(asked: dict[str, Any]) -> None:
    """With a sentence."""
    with pytest.raises(SchedulerError, match=r"\.$"):
        sized(replace(ASKED, **asked), 4)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (
            {"threads": 5},
            "1 task of 5 cores does not fit on a node, which has 4 cores: ask for fewer with --cpus-per-task.",
        ),
        (
            {"tasks": 5},
            "5 tasks of 1 core do not fit on a node, which has 4 cores: ask for fewer with --tasks-per-node.",
        ),
        (
            {"nodes": 2, "ranks": 6, "threads": 2},
            "3 tasks of 2 cores do not fit on a node, which has 4 cores: ask for more nodes with --nodes.",
        ),
    ],
)
def test_what_would_fit_is_said(asked: dict[str, Any], sentence: str) -> None:
    """By the option that can help: no number of nodes makes one of them larger."""
    with pytest.raises(SchedulerError) as refused:
        sized(replace(ASKED, **asked), 4)

    assert str(refused.value) == sentence


def test_a_specification_survives_a_request() -> None:
    """All of it."""
    spec = replace(ASKED, after=(Dependency("after", 2),), constraint=("a",), resources={"gpu": 1}, hold=True)
    assert from_json(spec.to_json()) == spec


def test_a_job_is_as_long_as_its_request() -> None:
    """What it takes on the way counts, not its characters; one byte more is refused with what to do."""
    room = LARGEST - len(json.dumps(replace(ASKED, environment={"A": ""}).to_json()))
    for text in ("x" * room, "\N{SNOWMAN}" * (room // 6)):
        check(replace(ASKED, environment={"A": text}))

        with pytest.raises(SchedulerError, match=r"^command, script and environment are .* KiB, and a job may have "):
            check(replace(ASKED, environment={"A": text + "xxxxxx"}))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ALL", {"HOME": "/h", "A": "1", "B": "2"}),
        ("NONE", {"HOME": "/h"}),
        ("B", {"HOME": "/h", "B": "2"}),
        ("A,C=x=y,D=", {"HOME": "/h", "A": "1", "C": "x=y", "D": ""}),
        ("ALL,A=3", {"HOME": "/h", "A": "3", "B": "2"}),
    ],
)
def test_variables_are_chosen_as_with_sbatch(text: str, found: dict[str, str]) -> None:
    """Who the user is goes along always."""
    assert exported(text, {"HOME": "/h", "A": "1", "B": "2"}) == found


@pytest.mark.parametrize("text", ["", "C", "A,,B", "=x", "ALL,none"])
def test_variables_that_are_not_there_are_refused(text: str) -> None:
    """With a sentence."""
    with pytest.raises(WordError, match=r"^'.*' is not a variable here: write ALL, NONE, NAME or NAME=VALUE\.$"):
        exported(text, {"A": "1", "B": "2"})


_JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda s: st.lists(s, max_size=3))


@given(field=st.sampled_from(sorted(ASKED.to_json())), value=_JSON | st.dictionaries(st.text(max_size=3), _JSON))
def test_no_request_is_taken_for_what_it_is_not(field: str, value: Any) -> None:
    """A field of any JSON value is refused, or is a specification that means what it says."""
    found: Spec | None = None
    with contextlib.suppress(SchedulerError):
        found = from_json(ASKED.to_json() | {field: value})
    assert found is None or from_json(found.to_json()) == found


@pytest.mark.parametrize("number", [0, MOST_JOBS, 10**30])
def test_a_job_waits_for_numbers_that_a_job_may_have(number: int) -> None:
    """Others could not be looked for in the queue."""
    with pytest.raises(SchedulerError, match=r"^a field of the job has a wrong type: "):
        from_json(ASKED.to_json() | {"after": [["afterok", number]]})
    assert from_json(ASKED.to_json() | {"after": [["afterok", MOST_JOBS - 1]]}).after[0].job == MOST_JOBS - 1


@pytest.mark.parametrize(
    ("text", "indices", "most", "step"),
    [
        ("0-3", (0, 1, 2, 3), 0, 1),
        ("5,1,20-30:5%2", (1, 5, 20, 25, 30), 2, 1),
        ("1-3,2-4", (1, 2, 3, 4), 0, 1),
        ("0-999999:1001", tuple(range(0, 1_000_000, 1001)), 0, 1001),
        ("1000000", (1_000_000,), 0, 1),
    ],
)
def test_an_array_has_each_index_once(text: str, indices: tuple[int, ...], most: int, step: int) -> None:
    """In rising order, with its step and how many of its jobs may run at once."""
    assert array_of(text) == (indices, most, step)
    assert from_json(ASKED.to_json() | {"array": text}).array == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0-9999999", "an array has at most 1,000 jobs: submit several, such as 0-999 and 1000-1999."),
        ("0-499,500-1000", "an array has at most 1,000 jobs"),
        (",".join(map(str, range(300))), "is not an array"),
        ("3-1", "3-1 has no index: write the smaller one first."),
        ("1-5:0", "is not an array: write indices of at most 7 digits such as 0-99"),
        ("1%0", "is not an array"),
        ("-1", "is not an array"),
        ("1-2-3", "is not an array"),
        ("9" * 8, "is not an array"),
        ("0-10000000", "is not an array: write indices of at most 7 digits"),
    ],
)
def test_an_array_that_cannot_be_is_a_sentence(text: str, said: str) -> None:
    """Whatever its size, it is refused without being built."""
    with pytest.raises(WordError, match=re.escape(said)):
        parse_array(text)
    with pytest.raises(SchedulerError, match=f"^--array: .*{re.escape(said)}"):
        from_json(ASKED.to_json() | {"array": text})


def test_files_of_arrays() -> None:
    """%A and %a are the array's number and the index; %a is for arrays alone."""
    assert in_array("%A_%a.%j.%%a", 7, 3) == "7_3.%j.%%a"
    with pytest.raises(SchedulerError, match=r"^--output has %a, the index of an array, and the job is none: "):
        from_json(ASKED.to_json() | {"output": "out-%a"})
    assert from_json(ASKED.to_json() | {"output": "100%%a"}).output == "100%%a"


@pytest.mark.parametrize(("text", "number"), [("USR1", 10), ("sigterm", 15), ("9", 9), ("64", 64)])
def test_signals_have_names_and_numbers(text: str, number: int) -> None:
    """As for kill."""
    assert parse_signal(text) == number


@pytest.mark.parametrize("text", ["", "0", "65", "NOSUCH", "USR1x", "-9"])
def test_no_other_word_is_a_signal(text: str) -> None:
    """It is refused with what to write."""
    with pytest.raises(WordError, match="is not a signal: write for example USR1"):
        parse_signal(text)


def test_a_dependency_counts_once() -> None:
    """Whoever names a job many times waits for it as if it were named once."""
    once = (Dependency("afterany", 1),)
    assert parse_dependencies("afterany" + ":1" * 15_000) == once
    assert from_json(ASKED.to_json() | {"after": [["afterany", 1]] * 15_000}).after == once


def test_a_job_waits_for_some_hundreds() -> None:
    """One more is refused with what to do."""
    many = [["afterany", number] for number in range(1, MOST_DEPENDENCIES + 2)]
    assert len(from_json(ASKED.to_json() | {"after": many[:-1]}).after) == MOST_DEPENDENCIES

    with pytest.raises(
        SchedulerError, match=r"^the job waits for 1001 jobs, and one may wait for 1000: let intermediate .*\.$"
    ):
        from_json(ASKED.to_json() | {"after": many})


def test_a_queue_may_hold_more_from_before() -> None:
    """What an earlier version let wait for thousands is loaded, with each of them once."""
    many = tuple(Dependency("afterany", number) for number in range(1, 12_001))
    kept = text_of_spec(replace(ASKED, after=many + many))

    assert spec_of(1, kept).after == many


@pytest.mark.parametrize(
    ("field", "most"),
    [
        ("name", "x" * LONGEST_NAME),
        ("output", "x" * LONGEST_PATH),
        ("error", "x" * LONGEST_PATH),
        ("input", "x" * LONGEST_PATH),
        ("folder", "/" * LONGEST_PATH),
        ("constraint", ["x"] * MOST_WANTS),
        ("nodelist", ["x"] * MOST_NODES),
        ("exclude", ["x"] * MOST_NODES),
    ],
)
def test_every_field_has_a_bound(field: str, most: Any) -> None:
    """What is as long as it may be is taken, and one more is refused with what to do."""
    check(from_json(ASKED.to_json() | {field: most}))

    with pytest.raises(SchedulerError, match=r", and (a job )?may (name|have) \d+: .*\.$"):
        from_json(ASKED.to_json() | {field: most + most[:1]})


def test_what_an_earlier_version_stored_is_read() -> None:
    """Fields that it did not have yet have their defaults."""
    values = ASKED.to_json()
    del values["nodelist"], values["exclude"]

    assert spec_of(1, json.dumps(values)) == ASKED


def test_resources_are_few() -> None:
    """A job that names more of them than nodes have is refused."""
    some = {f"r{number}": 1 for number in range(MOST_WANTS + 1)}
    with pytest.raises(SchedulerError, match=r"^--resources names 65, and a job may name 64: leave some out\.$"):
        from_json(ASKED.to_json() | {"resources": some})


def test_a_script_is_read_up_to_its_first_command() -> None:
    """Quotes and comments count as in the shell; other comments are the script's own."""
    text = "#!/bin/sh\n# hello\n#DROM --nodes 2 --job-name 'a b' # why\n\n#DROMEDARY\n#DROM\n: \n#DROM --nodes 3\n"
    assert directives(text, "job.sh") == [(3, ["--nodes", "2", "--job-name", "a b"])]
    for line in ("#DROM --job-name 'a", "#DROM --nodes 2 --help"):
        with pytest.raises(SchedulerError, match=r"^job.sh, line 2: .*\.$"):
            directives("#!/bin/sh\n" + line, "job.sh")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("-o out#%j.txt -D /tmp/a#1", ["-o", "out#%j.txt", "-D", "/tmp/a#1"]),
        ("--hold # not yet # see #12", ["--hold"]),
        ("--hold #", ["--hold"]),
        (r"-J 'a #1' -o \# -D '#b' -e \  # no -e", ["-J", "a #1", "-o", "#", "-D", "#b", "-e", " "]),
        (r'-J "say \"#\" #" -o a"# b"#c # it\'s', ["-J", 'say "#" #', "-o", "a# b#c"]),
    ],
)
def test_a_comment_begins_where_a_word_could(text: str, words: list[str]) -> None:
    """As in the shell: within a word, behind a backslash or in quotes a # means itself."""
    assert directives(f"#!/bin/sh\n#DROM {text}\n", "job.sh") == [(2, words)]


def test_a_line_without_a_blank_is_refused() -> None:
    """Such a line would be read as a comment, and its options would be ignored."""
    with pytest.raises(SchedulerError) as refused:
        directives("#!/bin/sh\n#DROM--nodes=2\n", "job.sh")

    assert str(refused.value) == "job.sh, line 2: a blank is missing after #DROM: write #DROM --nodes=2"


def test_no_command_is_refused() -> None:
    """Neither none nor an empty word."""
    for command in ((), ("",), ("", "x")):
        with pytest.raises(SchedulerError, match=r"^a job needs a command: write drom submit -- COMMAND, or "):
            check(Spec(command=command, folder="/"))


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("true\n", "the first line of a script must name its interpreter: write for example #!/bin/sh."),
        (
            "#!/bin/sh\n#DROM --nodes 1\n\n  # later\n",
            "the script has no command, only comments: add commands below them.",
        ),
    ],
)
def test_what_is_no_script_is_refused(script: str, sentence: str) -> None:
    """Before it waits in a queue to do nothing."""
    with pytest.raises(SchedulerError) as refused:
        check(Spec(script=script, folder="/"))

    assert str(refused.value) == sentence


@pytest.mark.parametrize("letter", LETTERS)
def test_what_nodes_replace_in_a_path_is_taken(letter: str) -> None:
    """All of it, in each of the three."""
    check(replace(ASKED, output=f"a%{letter}", error=f"%{letter}%%N", input=f"%{letter}%{letter}"))


@pytest.mark.parametrize("option", ["output", "error", "input"])
@pytest.mark.parametrize(("path", "mark"), [("%N", "%N"), ("%x-%5j", "%5"), ("%%%t", "%t"), ("100%", "%")])
def test_what_means_nothing_in_a_path_is_refused(option: str, path: str, mark: str) -> None:
    """Slurm has more than we know; it would stay in the names of files."""
    with pytest.raises(SchedulerError) as refused:
        from_json(ASKED.to_json() | {option: path})

    there = "use %j (job), %A and %a (array and index), %n (node), %u (user), %x (name) and %%."
    assert str(refused.value) == f"--{option}: '{mark}' has no meaning: {there}"


def test_output_goes_somewhere() -> None:
    """Whoever wants none says where it is to be lost."""
    with pytest.raises(SchedulerError, match=r"^--output: the name of a file is empty: for no file write /dev/null\.$"):
        check(replace(ASKED, output=""))


def test_a_terminal_is_never_shown() -> None:
    """Nor is it kept when its job is over; its program is started once, whatever the job's size."""
    spec = Spec(("bash",), nodes=2, tasks=4, ranks=8, folder="/", terminal="desk:1 secret")

    assert "secret" not in repr(spec)
    assert all("terminal" not in visible(spec, whole=whole) for whole in (True, False))
    assert without_environment(spec).terminal == ""
    assert (spec.by_mpirun, replace(spec, terminal="").by_mpirun) == (False, True)
