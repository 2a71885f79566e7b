"""Where the commands of a cluster look for the queue."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import typer
from drom.agent.cli.usage import usage_sentence
from drom.agent.config.options import OPTIONS
from drom.agent.control.remote import RemoteAddress
from drom.agent.errors import ControlError, RefusedError
from drom.agent.observe.log import Log
from drom.scheduler.analysis.results import load_schedule
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cli import commands, job_options, places, scheduler, tables
from drom.scheduler.live.cli.wait import exit_status
from drom.scheduler.live.cluster.spec import LARGEST, Dependency

from drom.app import USAGE_ERROR
from tests.scheduler.live.test_accounting import shared_history

if TYPE_CHECKING:
    from drom.scheduler.live.server.server import Server

ALICE = 1000


def test_a_variable_of_users_is_none_of_the_agents() -> None:
    """Whoever names the queue to the commands does not send the agent to another scheduler."""
    assert "DROM_QUEUE" not in [option.variable for option in OPTIONS]


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return what the scheduler is asked to take in, which is done at once."""
    asked: list[dict[str, Any]] = []

    def take_in(where: str, order: str, jobs: list[dict[str, Any]], count: int, home: str) -> dict[str, Any]:
        assert (where, order, count, home) == ("here", "submit", 1, "")
        asked.extend(jobs)
        return {"jobs": [len(asked)]}

    monkeypatch.setenv("DROM_QUEUE", "here")
    monkeypatch.setattr(commands, "_ask", take_in)
    return asked


def drom(*words: str | Path) -> Any:
    """Run a command and return its status; what it refuses is raised."""
    return typer.main.get_command(commands.app)([*map(str, words)], standalone_mode=False)


def submit(*words: str | Path) -> Any:
    """Run `drom submit`."""
    return drom("submit", *words)


def script(folder: Path, *lines: str) -> Path:
    """Return a script with these lines after its first."""
    path = folder / "job.sh"
    path.write_text("\n".join(["#!/bin/sh", *lines, "true", ""]), encoding="utf-8")
    return path


def test_a_word_that_is_neither_script_nor_command_is_refused(tmp_path: Path, submitted: list[dict[str, Any]]) -> None:
    """A mistyped script would wait in the queue to fail on a node; who means a command there says so."""
    for word in ("nosuch.sh", tmp_path / "nosuch", tmp_path):
        with pytest.raises(SchedulerError) as refused:
            submit("--nodes", "2", word, "argument")
        assert str(refused.value) == f"there is no script {word}: to run a command write drom submit -- {word}"
    assert submitted == []

    (tmp_path / "empty.sh").write_text("\n")
    with pytest.raises(SchedulerError, match=r"empty\.sh is empty: write #!/bin/sh and below it the commands\.$"):
        submit(tmp_path / "empty.sh")
    assert submitted == []

    submit("true", "an argument")
    submit("--", "nosuch.sh")
    submit(script(tmp_path), "an argument")

    assert [job["command"] for job in submitted] == [("true", "an argument"), ("nosuch.sh",), ("an argument",)]
    assert [bool(job["script"]) for job in submitted] == [False, False, True]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "--nodes two",
            "Invalid value for '--nodes' / '-N': 'two' is no whole number: write a whole number from 1 to ",
        ),
        ("--nodes=2 --time soon", "Invalid value for '--time' / '-t': 'soon' is not a time: write minutes, H:M:S, "),
        ("--nodez 2", "No such option: --nodez"),
        ("--nodes", "Option '--nodes' requires an argument."),
        ("--help", "--help is only for the command line: remove it."),
        ("--nodes 2 more", "'more' is not an option: write for example #DROM --nodes 2."),
        ("nodes 2", "'nodes' is not an option: write for example #DROM --nodes 2."),
        ("job.sh", "'job.sh' is not an option: write for example #DROM --nodes 2."),
        ("--hold --", "-- is only for the command line: remove it."),
    ],
)
def test_a_line_of_a_script_that_cannot_be_read_is_named(
    tmp_path: Path, submitted: list[dict[str, Any]], line: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With file and number, also one that names a script, and nothing is submitted."""
    monkeypatch.chdir(tmp_path)
    path = script(tmp_path, "#DROM --tasks-per-node 1", f"#DROM {line}")
    with pytest.raises(SchedulerError) as refused:
        submit(path)

    assert str(refused.value).startswith(f"{path}, line 3: {reason}")
    assert submitted == []


def test_the_environment_may_be_left_out(
    tmp_path: Path, submitted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is too long is refused, a chosen part of it goes along, but for what belongs to this place."""
    for name, text in {"LONG": "x" * LARGEST, "MINE": "1", "DROM_CPUS": "3"}.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(SchedulerError, match=r": leave variables out with --export, or put text into a file\.$"):
        submit("--", "true")

    submit("--export", "MINE,OTHER=2", "--", "true")
    submit(script(tmp_path, "#DROM --export NONE"))

    chosen, none = (job["environment"] for job in submitted)
    assert none.keys() <= {"HOME", "LOGNAME", "SHELL", "USER"}
    assert chosen == none | {"MINE": "1", "OTHER": "2"}
    with pytest.raises(typer.BadParameter, match=r"^'DROM_CPUS' is not a variable here: "):
        submit("--export", "DROM_CPUS", "--", "true")


def test_options_of_a_script_are_weaker_than_those_of_the_command_line(
    tmp_path: Path, submitted: list[dict[str, Any]]
) -> None:
    """Whatever the lines on which they stand."""
    submit("--nodes", "3", script(tmp_path, "#DROM --nodes 2 --time 1:30", "#DROM --job-name 'a b'"))

    assert [(job["nodes"], job["time"], job["name"]) for job in submitted] == [(3, 90, "a b")]


@pytest.mark.parametrize("text", ["node1:9467", "tcp://node1:9467"])
def test_a_scheduler_elsewhere_is_named_as_agents_name_theirs(text: str) -> None:
    """With or without what stands before an address."""
    (found,) = places.parse(text)

    assert isinstance(found, RemoteAddress)
    assert (found.address, found.host) == ("node1:9467", "node1")


@pytest.mark.parametrize("text", ["host:notaport", "tcp://h", "ipc:///var/lib/drom/agents", "tcp://h:x", ":9467"])
def test_what_is_no_scheduler_is_refused(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is taken for a folder in which somebody might start one; a folder may be called so."""
    with pytest.raises(SchedulerError) as refused:
        places.parse(text)
    assert str(refused.value) == f"{text!r} is not a scheduler: write HOST:PORT, or the folder of its queue."

    monkeypatch.chdir(tmp_path)
    Path("host:notaport").mkdir()
    assert places.parse("host:notaport") == [Path("host:notaport")]


COUNTS = ["--cpus-per-task", "--tasks-per-node", "--ntasks", "--nodes", "--min-nodes", "--min", "--max"]


@pytest.mark.parametrize("option", COUNTS)
def test_none_of_something_is_wrong_usage(submitted: list[dict[str, Any]], option: str) -> None:
    """It is not what no option would mean."""
    with pytest.raises(typer.BadParameter, match="1<=x<=1048576") as refused:
        submit(option, "0", "--", "true")
    assert option in refused.value.format_message()
    assert submitted == []


@pytest.mark.parametrize("option", [*COUNTS, "--priority"])
def test_a_number_that_is_nonsense_is_wrong_usage(submitted: list[dict[str, Any]], option: str) -> None:
    """By its option, not by what we call it."""
    with pytest.raises(typer.BadParameter, match="1048576") as refused:
        submit(option, "99999999", "--", "true")
    assert option in refused.value.format_message()
    assert submitted == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--class", "odd"), "'odd' is not a class: choose malleable, moldable, rigid."),
        (("--mem", "0"), "'0' is not a size: write for example 800M or 4G."),
        (("--output", ""), "the name of a file is empty: for no file write /dev/null."),
        (("--error", ""), "the name of a file is empty: for no file write /dev/null."),
        (
            ("--signal", "R:USR1"),
            "'R:USR1' is not a signal before a limit: write [B:]SIGNAL[@SECONDS], such as USR1 or B:USR1@120.",
        ),
        (
            ("--output", "%t.out"),
            "'%t' has no meaning: use %j (job), %A and %a (array and index), %n (node), %u (user), %x (name) and %%.",
        ),
    ],
)
def test_a_word_that_an_option_does_not_know_is_wrong_usage(
    submitted: list[dict[str, Any]], words: tuple[str, ...], sentence: str
) -> None:
    """Before anybody is asked."""
    with pytest.raises(typer.BadParameter) as refused:
        submit(*words, "--", "true")

    assert (str(refused.value), submitted) == (sentence, [])


def test_an_update_sends_what_was_given(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty text unsets a value; without an option there is nothing to do."""
    asked: list[dict[str, Any]] = []

    def take_in(where: str, order: str, ranges: list[list[int]], changes: dict[str, Any]) -> dict[str, Any]:
        assert (where, order) == ("here", "update")
        asked.append({"jobs": ranges, **changes})
        return {"jobs": [{"job": first, "array": array} for array, first, _ in ranges], "refused": []}

    monkeypatch.setenv("DROM_QUEUE", "here")
    monkeypatch.setattr(commands, "_ask", take_in)
    drom(
        "update",
        "7",
        "8",
        "--time",
        "2h",
        "-N",
        "3",
        "-p",
        "long",
        "--mem",
        "1G",
        "-d",
        "afterok:1",
        "--priority",
        "0",
        "-n",
        "9",
    )
    drom("update", "9", "--time", "", "--mem", "", "--dependency", "", "--constraint", "", "--job-name", "")
    change = {
        "time": 7200,
        "nodes": 3,
        "ranks": 9,
        "partition": "long",
        "memory": 1 << 30,
        "after": (Dependency("afterok", 1),),
        "priority": 0,
    }
    nothing = {"time": 0, "memory": 0, "after": (), "constraint": (), "name": ""}
    assert asked == [{"jobs": [[0, 7, 7], [0, 8, 8]], **change}, {"jobs": [[0, 9, 9]], **nothing}]
    assert capsys.readouterr().out == "Updated job 7\nUpdated job 8\nUpdated job 9\n"

    with pytest.raises(typer.BadParameter, match=r"^nothing to change: give what the job is to have, such as --time "):
        drom("update", "7")
    with pytest.raises(typer.BadParameter, match=r"^'soon' is not a time: "):
        drom("update", "7", "--time", "soon")


def test_a_signal_is_sent_instead_of_an_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It goes to the tasks of a job, or with B: to its first process."""
    asked: list[dict[str, Any]] = []

    def take_in(_: str, order: str, **fields: Any) -> dict[str, Any]:
        asked.append({"order": order, **fields})
        return {"jobs": [{"job": 7, "array": 0}], "refused": []}

    monkeypatch.setattr(commands, "_ask", take_in)
    drom("cancel", "--scheduler", "here", "--signal", "USR1", "7")
    drom("cancel", "--scheduler", "here", "--signal", "B:12", "7")
    with pytest.raises(typer.BadParameter, match=r"^'USR1@5' is not a signal: write for example USR1"):
        drom("cancel", "--scheduler", "here", "--signal", "USR1@5", "7")

    about = {"order": "cancel", "ranges": [[0, 7, 7]]}
    assert asked == [{**about, "signal": 10, "first": False}, {**about, "signal": 12, "first": True}]
    assert capsys.readouterr().out == "Signalled job 7\n" * 2


@pytest.mark.parametrize("command", ["cancel", "hold", "job"])
def test_there_is_no_job_0(command: str) -> None:
    """That is wrong usage, too."""
    with pytest.raises(typer.BadParameter):
        drom(command, "--scheduler", "here", "0")


@pytest.mark.parametrize(
    "words",
    [
        ("--array", "1-3"),
        ("--count", "2"),
        ("--output", "out"),
        ("--error", "err"),
        ("--input", "in"),
        ("--parsable",),
        ("--json",),
    ],
)
def test_an_option_that_a_terminal_excludes_is_refused(submitted: list[dict[str, Any]], words: tuple[str, ...]) -> None:
    """The program has one terminal, which is its input and output."""
    with pytest.raises(typer.BadParameter) as refused:
        submit("--pty", *words, "--", "bash")

    assert (str(refused.value), submitted) == (f"--pty and {words[0]} contradict each other: give one of them.", [])


def test_a_script_on_standard_input_has_no_terminal(
    submitted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The input is the program's."""
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"#!/bin/sh\ntrue\n"), isatty=lambda: True))
    with pytest.raises(typer.BadParameter, match=r"^--pty connects the input to the program"):
        submit("--pty", "-")
    assert submitted == []


def test_dependencies_on_jobs_in_arrays_are_sent_with_their_index(submitted: list[dict[str, Any]]) -> None:
    """The scheduler knows the numbers of these jobs."""
    submit("--dependency", "afterok:12_3:13", "--", "true")

    assert submitted[0]["after"] == [("afterok", 12, 3), ("afterok", 13)]


def test_a_folder_that_cannot_be_entered_is_refused_at_once(tmp_path: Path, submitted: list[dict[str, Any]]) -> None:
    """One that can only be entered will do; of those on another scheduler's nodes nothing is known here."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o311)
    (tmp_path / "file").touch()
    submit("--chdir", closed, "--", "true")
    for name, reason in (("none", "No such file or directory"), ("file", "Not a directory")):
        with pytest.raises(SchedulerError) as refused:
            submit("--chdir", tmp_path / name, "--", "true")
        assert str(refused.value) == f"cannot change to {tmp_path / name}: {reason}: choose another --chdir."
    assert [job["folder"] for job in submitted] == [str(closed)]


def test_a_folder_on_the_nodes_of_another_machine_is_not_looked_for(
    submitted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder may exist on the nodes alone."""
    monkeypatch.setattr(places, "parse", lambda _: [RemoteAddress("node1:9467", Path("/"))])
    submit("--chdir", "/nosuch", "--", "true")

    assert [job["folder"] for job in submitted] == ["/nosuch"]


def test_a_folder_that_one_may_not_enter_is_refused(
    tmp_path: Path, submitted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a user is told who is not root."""
    monkeypatch.setattr("drom.scheduler.live.cli.commands.os.access", lambda *_: False)
    with pytest.raises(SchedulerError, match=r": Permission denied: choose another --chdir\.$"):
        submit("--chdir", tmp_path, "--", "true")
    assert submitted == []


@pytest.mark.parametrize("where", ["foo", "127.0.0.1:x", "127.0.0.1:99999", "127.0.0.1:²", "127.0.0.1:-1"])
def test_a_place_for_metrics_that_is_none_is_refused(where: str) -> None:
    """With the port that documents have."""
    closed: list[bool] = []
    server = SimpleNamespace(cluster=None, counts=None, lock=None, close=lambda: closed.append(True))
    with pytest.raises(SchedulerError) as refused:
        scheduler._serve_metrics(cast("Server", server), where, Log(quiet=True))

    assert str(refused.value) == (
        f"cannot serve metrics at {where}: it is not ADDRESS:PORT: choose another --metrics, such as 127.0.0.1:9468."
    )
    assert closed == [True]


def test_a_queue_that_is_watched_outlives_its_scheduler(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once it has answered; before that it is one sentence and the end."""
    answers: list[Any] = []

    def ask(*_: object, **__: object) -> Any:
        if isinstance(answer := answers.pop(0), BaseException):
            raise answer
        return answer

    monkeypatch.setattr(commands, "_ask", ask)
    monkeypatch.setattr("drom.agent.cli.output.time.sleep", lambda _: None)
    command = typer.main.get_command(commands.app)
    gone, empty = ControlError("no scheduler answers."), {"jobs": [], "time": 0.0}
    answers[:] = [gone]
    with pytest.raises(ControlError):
        command(["queue", "--watch", "--scheduler", "here"], standalone_mode=False)

    answers[:] = [empty, gone, empty, StopIteration("Ctrl-C")]
    with pytest.raises(StopIteration, match="Ctrl-C"):
        command(["queue", "--watch", "--scheduler", "here"], standalone_mode=False)

    said = capsys.readouterr()
    assert (said.out, said.err) == (f"{tables.EMPTY}\n" * 2, "no scheduler answers.\n")


def test_several_nodes_are_drained_by_one_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each node is drained once; those that cannot be are named at the end, and the command fails."""
    asked: list[tuple[str, str]] = []

    def ask(_where: str, _order: str, *, node: str, reason: str, forget: bool) -> dict[str, Any]:
        assert not forget
        if node == "n4":
            raise RefusedError("there is no node n4: see drom nodes.")
        asked.append((node, reason))
        return {"schema_version": 1, "time": 0.0, "nodes": [{"name": node}]}

    monkeypatch.setattr(commands, "_ask", ask)
    with pytest.raises(SchedulerError, match=r"^there is no node n4: see drom nodes\.$"):
        drom("drain", "--scheduler", "here", "n1", "n[3-5],n1", "--reason", "fan")
    assert capsys.readouterr().out == "Drained node n1\nDrained node n3\nDrained node n5\n"
    drom("drain", "--scheduler", "here", "n1", "n2", "--undo", "--json")
    assert [node["name"] for node in json.loads(capsys.readouterr().out)["nodes"]] == ["n1", "n2"]
    assert asked == [("n1", "fan"), ("n3", "fan"), ("n5", "fan"), ("n1", ""), ("n2", "")]
    with pytest.raises(typer.BadParameter, match="is not a list of nodes: write for example"):
        drom("drain", "--scheduler", "here", "n[3")


@pytest.mark.parametrize("name", ["chart", "chart.bmp", ".png"])
def test_a_picture_of_no_known_kind_is_wrong_usage(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Before the scheduler is asked for what has run."""
    monkeypatch.setattr(commands, "_ask", lambda *_, **__: pytest.fail("it was asked"))
    with pytest.raises(typer.BadParameter) as refused:
        drom("queue", "--scheduler", "here", "--gantt", name)

    assert str(refused.value) == f"{name!r} is not a picture: end its name in one of .png, .svg, .pdf."


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--gres", "gpu:1"), "--resources gpu=1"),
        (("--wrap", "true"), "drom submit -- sh -c"),
        (("--begin=20:00",), "--hold"),
        (("--exclusive",), "--class rigid"),
    ],
)
def test_who_knows_slurm_is_told_what_there_is(
    tmp_path: Path, submitted: list[dict[str, Any]], words: tuple[str, ...], hint: str
) -> None:
    """On the command line, where it stays wrong usage, and in a script with its line."""
    with pytest.raises(USAGE_ERROR) as refused:
        submit(*words, "--", "true")
    said = refused.value.format_message()  # type: ignore[attr-defined]
    assert said.startswith(f"No such option: {words[0].partition('=')[0]}: ")
    assert hint in said
    path = script(tmp_path, f"#DROM {' '.join(words)}")
    with pytest.raises(SchedulerError) as in_script:
        submit(path)
    assert (str(in_script.value), submitted) == (f"{path}, line 2: {said}.", [])


def test_lines_for_sbatch_are_told_of(
    tmp_path: Path, submitted: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """They are translated, and what has no counterpart is named; where a script has lines for us, these count."""
    path = script(
        tmp_path,
        "#SBATCH --nodes=2 --mail-type=ALL -p long",
        "#SBATCH -H --gres=gpu:a100:2 --mem 3GB --signal=B:USR1@30 -o %x_%N-%J-%%N",
    )
    submit("--nodes", "3", path)
    said = capsys.readouterr()
    submit(script(tmp_path, "#SBATCH --nodes=3", "#DROM --nodes 2"))

    warning = f"drom: {path}: these options of sbatch are left out: --mail-type: see drom submit --help\n"
    assert (said.out, said.err) == ("Submitted job 1\n", warning)
    assert capsys.readouterr().err == f"drom: the #SBATCH lines of {path} are ignored, as it has #DROM lines.\n"
    fields = ("nodes", "hold", "resources", "memory", "partition", "signal", "output")
    assert [tuple(job[name] for name in fields) for job in submitted] == [
        (3, True, {"gpu": 2}, 3 << 30, "long", "B:USR1@30", "%x_%n-%j-%%N"),
        (2, False, {}, 0, "", "", "drom-%j.out"),
    ]


def test_a_script_may_come_on_standard_input(
    submitted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With its lines; what is no script, or none at all, is refused with a sentence."""
    for text, words in ((b"#!/bin/sh\n#DROM --nodes 2\ntrue\n", ()), (b"#!/bin/sh\nfalse\n", ("--nodes", "3", "-"))):
        (tmp_path / "in").write_bytes(text)
        with (tmp_path / "in").open(encoding="utf-8") as stream:
            monkeypatch.setattr("sys.stdin", stream)
            submit(*words)
    assert [(job["name"], job["nodes"], job["script"][-6:]) for job in submitted] == [
        ("stdin", 2, "\ntrue\n"),
        ("stdin", 3, "false\n"),
    ]
    for text, sentence in (
        (b"", "a job needs a command: "),
        (b"\xff\xfe", "standard input is not a script: "),
        (b"#!/bin/sh\n# f\xfcr\ntrue\n", "standard input is not UTF-8 text: convert it, such as with iconv "),
        (b"true", "the first line of a script must name its interpreter: "),
        (b"#" * (600 << 10), "the script on standard input is longer than 512 KiB: "),
    ):
        (tmp_path / "in").write_bytes(text)
        with (tmp_path / "in").open(encoding="utf-8") as stream:
            monkeypatch.setattr("sys.stdin", stream)
            with pytest.raises(SchedulerError, match=f"^{sentence}"):
                submit()
    assert len(submitted) == 2


def test_a_script_is_utf8_with_ends_of_lines_of_unix_or_windows(
    submitted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A script in a file and on standard input arrive alike, and a carriage return within a line stays."""
    path = tmp_path / "from_windows"
    path.write_bytes("#!/bin/sh\r\necho f\xfcr 1\r2\r\n".encode())
    submit(str(path))
    with path.open(encoding="utf-8") as stream:
        monkeypatch.setattr("sys.stdin", stream)
        submit()
    assert [job["script"] for job in submitted] == ["#!/bin/sh\necho f\xfcr 1\r2\n"] * 2

    path.write_bytes("#!/bin/sh\necho f\xfcr\n".encode("latin1"))
    with pytest.raises(SchedulerError, match=rf"^{path} is not UTF-8 text: convert it, such as with iconv "):
        submit(str(path))


def test_a_checkpoint_is_that_of_a_filler(submitted: list[dict[str, Any]]) -> None:
    """A filler is saved in a container unless it names another way; a job that is no filler is refused with a way."""
    submit("--filler", "--", "true")
    submit("--filler", "--checkpoint", "program", "--", "true")
    with pytest.raises(typer.BadParameter, match="--checkpoint says how a filler is saved: add --filler, or leave"):
        submit("--checkpoint", "container", "--", "true")

    assert [job["saving"] for job in submitted] == ["container", "program"]


def test_an_array_is_one_request(submitted: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    """It prints one number, and its jobs have a file each."""
    submit("--array", "0-9%2", "--", "true")
    submit("--array", "1,5", "--output", "%j", "--", "true")

    assert capsys.readouterr().out == "Submitted job 1\nSubmitted job 2\n"
    assert [(job["array"], job["output"]) for job in submitted] == [("0-9%2", "drom-%A_%a.out"), ("1,5", "%j")]
    with pytest.raises(typer.BadParameter, match="--array and --count contradict each other"):
        submit("--array", "1-3", "--count", "2", "--", "true")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("cancel 1_", "'1_' is not a job: write a number such as 12, a range 3-7, or 12_3 and 12_[1-4] in an array"),
        ("hold x", "'x' is not a job: write a number such as 12, a range 3-7, or 12_3 and 12_[1-4] in an array"),
        ("job 3-7", "'3-7' is not one job: write its number, such as 12, or 12_3 in an array"),
        ("cancel", "no job is chosen: name some, or use --me, --user, --state or --name"),
        ("submit -N 1-3 -- true", "'1-3' is no whole number: write a whole number from 1 to 1048576"),
        ("submit -c 1.5 -- true", "'1.5' is no whole number: write a whole number from 1 to 1048576"),
        ("submit --count 0 -- true", "'0' is out of range: write a whole number from 1 to 10000"),
        ("queue --last x", "'x' is no whole number: write a whole number from 1 to 100000"),
        ("queue --limit -1", "'-1' is out of range: write a whole number from 0 to 10000000"),
        (f"queue --limit {10**20}", "'100000000000000000000' is out of range: write a whole number from 0 to 10000000"),
        ("scheduler --silence x", "'x' is no number: write a number of at least 1"),
        ("scheduler --silence nan", "'nan' is out of range: write a number of at least 1"),
    ],
)
def test_a_wrong_number_is_named_with_what_to_write(words: str, sentence: str) -> None:
    """The sentence of a usage error has the value, what is wrong with it, and what may stand there."""
    with pytest.raises(USAGE_ERROR) as refused:
        drom(*words.split())
    found = usage_sentence(refused.value)
    assert found.startswith("Invalid value for '")
    assert found.endswith(f"': {sentence}")


def answering(monkeypatch: pytest.MonkeyPatch, answers: dict[str, list[Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Have orders answered with these, by order, without any rest; return which orders are given."""
    asked: list[tuple[str, dict[str, Any]]] = []

    def ask(_: str, order: str, **fields: Any) -> Any:
        asked.append((order, fields))
        if isinstance(answer := answers[order].pop(0), Exception):
            raise answer
        return answer

    monkeypatch.setenv("DROM_QUEUE", "here")
    monkeypatch.setattr(commands, "_ask", ask)
    monkeypatch.setattr("drom.scheduler.live.cli.wait.time.sleep", lambda _: None)
    return asked


def test_a_submission_waits_for_the_ends_of_its_jobs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It waits whatever becomes of the scheduler, reports its absence once, and says why jobs did not complete."""
    gone = ControlError("no scheduler answers.")
    failed = {"job": 9, "array": 7, "index": 2, "state": "failed", "status": 3, "reason": "it returned 3"}
    signalled = {"job": 8, "state": "failed", "status": -9, "reason": "it needed more than its 20 MiB"}
    running = {"state": "running", "status": None}
    told = [running, gone, gone, running, gone, {"state": "completed", "status": 0}, signalled, failed]
    answering(monkeypatch, {"submit": [{"jobs": [7, 8, 9]}], "job": told})

    assert submit("--wait", "--count", "3", "--parsable", "--", "true") == 128 + 9
    said = capsys.readouterr()
    reasons = "drom: job 8: it needed more than its 20 MiB\ndrom: job 7_2: it returned 3\n"
    assert (said.out, said.err) == ("7\n8\n9\n", "drom: no scheduler answers.\n" * 2 + reasons)
    assert told == []


def test_a_job_that_is_not_known_any_more_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the scheduler refuses it would refuse again."""
    answering(monkeypatch, {"submit": [{"jobs": [7]}], "job": [RefusedError("there is no job 7.")]})
    with pytest.raises(RefusedError, match="no job 7"):
        submit("--wait", "--", "true")


@pytest.mark.parametrize(
    ("state", "status", "found"),
    [
        ("completed", 0, 0),
        ("failed", 255, 255),
        ("timeout", -15, 143),
        ("cancelled", None, 1),
        ("node_fail", None, 1),
        ("timeout", 0, 1),
    ],
)
def test_the_end_of_a_job_is_a_status(state: str, status: int | None, found: int) -> None:
    """As a shell has it; what did not come to a good end is no success."""
    assert exit_status({"state": state, "status": status}) == found


def row(number: int, user: str, state: str, name: str) -> dict[str, Any]:
    """Return what a scheduler tells of a job in its queue."""
    rest = {"started": None, "ended": None, "expected_start": None, "reason": "held", "limit": 60, "nodes": 1}
    return {"job": number, "user": user, "state": state, "name": name, "shares": {}, "sizes": {}, **rest}


ROWS = [row(1, "ann", "pending", "a"), row(2, "ben", "running", "a"), row(3, "ann", "failed", "b")]


@pytest.mark.parametrize(
    ("words", "every", "numbers"),
    [
        ((), False, [1, 2, 3]),
        (("--user", "ann"), False, [1, 3]),
        (("--user", "ben,carl"), False, [2]),
        (("--me",), False, [1, 3]),
        (("--me", "--user", "ben"), False, [1, 2, 3]),
        (("--state", "PENDING,running"), False, [1, 2]),
        (("--state", "failed"), True, [3]),
        (("--name", "a", "--user", "ann"), False, [1]),
        (("--name", "c"), False, []),
    ],
)
def test_jobs_of_a_queue_are_chosen(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    every: bool,
    numbers: list[int],
) -> None:
    """For people and scripts; who names a state that jobs end in wants those that are over."""
    value = {"time": 0.0, "jobs": ROWS}
    asked = answering(monkeypatch, {"queue": [value, value]})
    monkeypatch.setattr(job_options, "user_name", lambda _uid: "ann")
    drom("queue", "--json", *words)
    assert [one["job"] for one in json.loads(capsys.readouterr().out)["jobs"]] == numbers
    drom("queue", *words)

    _, *lines = capsys.readouterr().out.splitlines() if numbers else ["", *capsys.readouterr().out.splitlines()]
    assert lines == [tables.NONE] if not numbers else [line.split()[0] for line in lines] == [*map(str, numbers)]
    order, fields = asked[0]
    assert (order, fields.get("all", False), fields.get("last")) == ("queue", every, 100 if every else None)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--last", "5"), "--last applies to jobs that have ended: "),
        (("--gantt", "a.png", "--watch"), "--gantt, --html and --out show all jobs "),
        (("--html", "a", "--json"), "--gantt, --html and --out show all jobs "),
        (("--out", "a", "--user", "ann"), "--gantt, --html and --out show all jobs "),
        (("--state", "done"), "'done' is not a state of a job: choose from pending, starting, "),
        (("--name", ""), "'' is not a list of names: "),
    ],
)
def test_options_of_a_queue_that_do_nothing_are_refused(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], reason: str
) -> None:
    """Before anybody is asked."""
    answering(monkeypatch, {})
    with pytest.raises(typer.BadParameter) as refused:
        drom("queue", *words)
    assert str(refused.value).startswith(reason)


def test_a_report_on_shared_nodes_has_a_chart_of_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its results can be compared; a name that looks like a formula is drawn as it is."""
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    told = shared_history()
    for job in told["jobs"]:
        job["name"] = "$x_"
    answering(monkeypatch, {"history": [told]})
    drom("queue", "--gantt", tmp_path / "a.svg", "--out", tmp_path / "lab", "--html", tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text(encoding="utf-8")

    assert capsys.readouterr().out.count("\n") == 3
    assert load_schedule(tmp_path / "lab").shared == (("g1", 4, 2), ("gone", 3, 0), ("old", 1, 0))
    assert '<td class="text">3 nodes with 8 cores together</td>' in page
    assert all(f"<!-- {text} -->" in (tmp_path / "a.svg").read_text() for text in ("$x_", "g1", "gone", "its GPUs"))


def test_where_no_job_has_run_there_is_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither on shared nodes nor before the first node."""
    told = {"nodes": ["n1"], "cores": 0, "sizes": {"n1": [4, 0]}, "time": 1.0, "jobs": [], "entries": []}
    answering(monkeypatch, {"history": [told, told | {"nodes": [], "sizes": {}}]})
    for _ in range(2):
        with pytest.raises(SchedulerError, match=r"^no job has run yet, so there is nothing to draw or to write: "):
            drom("queue", "--out", "folder")


@pytest.mark.parametrize(("words", "last"), [((), 100_000), (("--last", "5"), 5), (("--all",), 100_000)])
def test_a_report_is_about_the_last_jobs(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], last: int) -> None:
    """Of which it is said how many, else about all."""
    monkeypatch.setattr(commands, "_write_history", lambda *_: None)
    asked = answering(monkeypatch, {"history": [{}]})
    drom("queue", "--out", "folder", *words)

    assert asked == [("history", {"last": last})]


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ((), {"limit": 1000}),
        (("--limit", "2"), {"limit": 2}),
        (("--limit", "0"), {}),
        (("--json",), {}),
        (("--json", "--limit", "2"), {"limit": 2}),
    ],
)
def test_a_long_queue_is_cut_with_a_line_that_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], fields: dict[str, int]
) -> None:
    """For scripts it is whole unless they want fewer jobs."""
    value = {"time": 0.0, "jobs": ROWS, "after": 3, "left": 19_997}
    asked = answering(monkeypatch, {"queue": [value]})
    drom("queue", *words)

    assert asked == [("queue", fields)]
    last = "These are 3 of 20,000 jobs: see all with --limit 0, or choose with --me, --user, --state and --name."
    assert (capsys.readouterr().out.splitlines()[-1] == last) == ("--json" not in words)


@pytest.mark.parametrize("option", ["--gantt", "--html"])
def test_without_matplotlib_it_is_said_what_to_install(tmp_path: Path, option: str) -> None:
    """Before anybody is asked: it is no fault of drom."""
    code = "import sys; sys.modules['matplotlib'] = None; from drom.app import run_app; run_app()"
    words = ("queue", "--scheduler", str(tmp_path), option, str(tmp_path / "a.svg"))
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "drom: Drawing needs matplotlib: run pip install 'drom[plots]'.\n")
