# SPDX-License-Identifier: Apache-2.0
"""The command line as scripts see it: exit codes, streams and JSON."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer

from drom import app
from drom.help import HEADINGS
from tests.support.commands import run_forked
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMANDS = (
    "agent",
    "ps",
    "explain",
    "set",
    "resize",
    "attach",
    "release",
    "events",
    "topology",
    "config",
    "doctor",
    "demo",
    "demo-cluster",
    "demo-adaptive",
    "demo-mixed",
    "bench",
)
ORDERS = (
    ["ps"],
    ["ps", "--json"],
    ["ps", "--watch"],
    ["explain", "a"],
    ["resize", "a", "2"],
    ["resize", "a", "2", "--for", "10m", "--dry-run"],
    ["set", "a", "0-1"],
    ["attach", "9", "--job", "a", "--cpus", "2", "--min", "1", "--class", "rigid", "--mem", "1G"],
    ["release", "a", "--json"],
)
CLUSTER_ORDERS = (
    ["submit", "--", "true"],
    ["queue"],
    ["history"],
    ["job", "1"],
    ["update", "1", "--time", "5"],
    ["cancel", "1"],
    ["hold", "1"],
    ["nodes"],
    ["drain", "n1"],
)
GO_ON = {"agent", "scheduler", "run"}
TOLD_IN_A_SENTENCE = {
    *("keys make", "keys trust"),
    *("workload make", "workload filter", "workload convert", "workload plot"),
}
KEYS = {
    *("schema_version", "packages", "numa", "dies", "groups", "cores", "quota", "memory", "emulated", "warnings"),
    *("online", "allowed", "offline", "present", "possible", "isolated", "nohz_full"),
}


def drom(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a fork of this process."""
    return run_forked(*arguments, folder=ROOT, env=os.environ)


def started(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a new Python, which imports for itself what the command needs."""
    command = [sys.executable, "-m", "drom", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """Return the one sentence that a failure says on stderr."""
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["ps", "--nonsense"],
        ["ps", "more"],
        ["resize", "a"],
        ["resize", "a", "0"],
        ["resize", "a", "many"],
        ["resize", "a", "2", "--for", "soon"],
        ["resize", "a", "auto", "--for", "1h"],
        ["ps", "3"],
        ["attach"],
        ["attach", "1.5"],
        ["attach", "9", "--class", "odd"],
        ["attach", "9", "--distribution", "odd"],
        ["attach", "9", "--mem", "3Q"],
        ["release"],
        ["explain"],
        ["events", "--since", "soon"],
        ["topology", "more"],
        ["set", "a", "3-1"],
        ["bench", "moon"],
        ["agent", "--grace", "soon"],
    ],
)
def test_a_wrong_use_exits_with_two(arguments: list[str]) -> None:
    """What the command line does not understand is told in one sentence on stderr, with the way to the help."""
    done = drom(*arguments)

    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert re.fullmatch(r"drom: .*[^.]: see `drom( [a-z]+)? --help`\.", line), line


@pytest.mark.parametrize("group", [[], ["config"], ["workload"]])
def test_a_group_of_commands_alone_is_its_help(group: list[str]) -> None:
    """Whoever names no command sees which there are."""
    alone, asked = drom(*group), drom(*group, "--help")

    assert (alone.returncode, alone.stdout, alone.stderr) == (0, asked.stdout, "")
    assert f"Usage: {' '.join(['drom', *group])} [OPTIONS] COMMAND" in alone.stdout


@pytest.mark.parametrize("group", [[], ["config"], ["keys"], ["workload"], ["reproduce"]])
def test_what_help_says_of_a_command_is_whole(group: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is cut off on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    usage, *lines = drom(*group, "--help").stdout.splitlines()

    assert usage.startswith("Usage: ")
    assert [line for line in lines if line.endswith("...") or len(line) > 80] == []


@pytest.mark.parametrize("arguments", ORDERS)
def test_without_an_agent_one_sentence_says_so(arguments: list[str], tmp_path: Path) -> None:
    """Exit 1, nothing on stdout, and how to start an agent on stderr."""
    done = started(*arguments, "--runtime-dir", str(tmp_path))

    start = f"start one with: drom agent --runtime-dir {tmp_path}"
    assert sentence(done) == f"drom: no agent answers in {tmp_path}: {start}"


@pytest.mark.parametrize("arguments", CLUSTER_ORDERS)
def test_without_a_scheduler_one_sentence_says_so(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 1, nothing on stdout, and how to start a scheduler on stderr."""
    monkeypatch.setenv("DROM_QUEUE", str(tmp_path))
    done = started(*arguments)

    start = f"start one with: drom scheduler --state {tmp_path}"
    assert sentence(done) == f"drom: no scheduler answers in {tmp_path}: {start}"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["topology", "--emulate", "cor:4"], "drom: 'cor:4' is not a level of a topology: "),
        (["topology", "--emulate", ""], "drom: the topology is empty: write words such as "),
        (
            ["topology", "--emulate", "core:1", "--topology", "core:1"],
            "drom: --topology and --emulate exclude each other",
        ),
        (["topology", "--topology", "core:9999"], "drom: the topology 'core:9999' needs 9999 CPUs and "),
        (
            ["agent", "--emulate", "core:1", "--grace", "-1"],
            "drom: --grace -1 is not a number of seconds from 0 to 3600.",
        ),
        (["agent", "--emulate", "core:1", "--runtime-dir", "/dev/null"], "drom: cannot use /dev/null: "),
    ],
)
def test_what_cannot_be_done_exits_with_one(arguments: list[str], text: str) -> None:
    """One sentence on stderr says what to do."""
    assert sentence(drom(*arguments)).startswith(text)


def test_a_machine_as_json() -> None:
    """One value with exactly the documented keys."""
    done = started("topology", "--emulate", "pack:2 core:1 pu:2", "--json")

    value = json.loads(done.stdout)
    assert (done.returncode, done.stderr, value.keys(), value["schema_version"]) == (0, "", KEYS, 1)
    assert value["cores"] == [
        {"package": 0, "numa": 0, "cpus": "0-1", "kind": ""},
        {"package": 1, "numa": 0, "cpus": "2-3", "kind": ""},
    ]


def test_a_machine_as_a_table() -> None:
    """For people alike cores are a line."""
    done = drom("topology", "--emulate", "core:2")

    assert done.stdout.splitlines() == [
        "1 package, 1 NUMA node, 2 cores, 2 CPUs",
        "online: 0-1",
        "allowed: 0-1",
        "quota: none",
        "memory: unknown",
        "",
        "PACKAGE  NUMA  CORES  THREADS  CPUS  FIRST CORE  ALLOWED",
        "0        0     2      1        0-1   0           0-1",
        "",
        "NUMA  MEMORY   CPUS",
        "0     unknown  0-1",
    ]


@pytest.mark.parametrize("missing", ["", "none"])
def test_a_folder_without_a_machine(tmp_path: Path, missing: str) -> None:
    """A root with neither sys nor proc is refused in one sentence."""
    done = drom("topology", "--sysfs-root", str(tmp_path / missing))

    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr
        == f"drom: {tmp_path / missing} does not describe a machine: name a folder with sys/ or proc/ in it.\n"
    )


def test_a_recorded_machine(tmp_path: Path) -> None:
    """Another root than ours is read, and what it lacks is told on its own lines."""
    (tmp_path / "sys/devices/system/cpu").mkdir(parents=True)
    (tmp_path / "sys/devices/system/cpu/online").write_text("0-1\n", encoding="utf-8")
    done = drom("topology", "--sysfs-root", str(tmp_path), "--json")

    value = json.loads(done.stdout)
    assert (value["online"], value["emulated"], bool(value["warnings"])) == ("0-1", True, True)


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_every_command_has_help(command: list[str]) -> None:
    """Help goes to stdout and exits with 0."""
    done = drom(*command, "--help")

    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: drom" in done.stdout


def test_says_its_version() -> None:
    """`drom --version` is what the installed distribution is."""
    done = started("--version")

    assert (done.returncode, done.stdout, done.stderr) == (0, f"drom {metadata.version('drom')}\n", "")


def test_a_configuration_is_checked_and_shown(tmp_path: Path) -> None:
    """A good file is ok; every option is shown with its value and where that is from; a flag is stronger."""
    file = tmp_path / "drom.toml"
    file.write_text("# short\ngrace = 2\n", encoding="utf-8")
    assert drom("config", "check", str(file)).stdout == "ok\n"

    done = started("config", "show", "--config", str(file), "--capacity", "7", "--json")
    rows = {row["key"]: (row["value"], row["origin"]) for row in json.loads(done.stdout)["options"]}
    assert (rows["grace"], rows["capacity"]) == ((2.0, f"{file}:2"), (7, "flag --capacity"))
    assert rows["sharing_factor"] == (0.5, "default")

    table = drom("config", "show", "--config", str(file)).stdout.splitlines()
    assert table[0].split() == ["OPTION", "VALUE", "FROM"]
    assert f"{file}:2" in next(line for line in table if line.startswith("grace"))


def test_a_broken_configuration_is_refused_by_check_and_agent(tmp_path: Path) -> None:
    """Each fault is one sentence with file, line and key; an agent does not start with it."""
    file = tmp_path / "drom.toml"
    file.write_text('grce = 1\nobserve = "yes"\n', encoding="utf-8")
    faults = [
        f"drom: {file}:1: there is no option grce: did you mean grace?",
        f'drom: {file}:2: observe = "yes" is not true or false.',
    ]
    for arguments in (["config", "check", str(file)], ["agent", "--config", str(file), "--runtime-dir", str(tmp_path)]):
        done = drom(*arguments)
        assert (done.returncode, done.stdout, done.stderr.splitlines()) == (1, "", faults)


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (
            'topology = "pack:2"\nemulate = "pack:2 core:1"\n',
            "2: topology and emulate exclude each other: set one of them.",
        ),
        ('emulate = "pack:none"\n', "1: emulate: "),
        ('reserved = "0-32767"\n', "1: reserved = 0-32767 leaves no core to manage here: reserve fewer CPUs."),
        (
            'emulate = "pack:2 core:4"\nreserved = "0-7"\n',
            "2: reserved = 0-7 leaves no core to manage here: reserve fewer CPUs.",
        ),
        ('topology = "pack:4096"\n', "1: topology: the topology 'pack:4096' needs 4096 CPUs and "),
        (
            '[exclude]\nusers = ["root", "nobody-of-that-name"]\n',
            "2: nobody-of-that-name is not a user of this node: check exclude.users.",
        ),
        (
            'scheduler = "ipc:///s"\nobserve = true\n',
            "2: an agent that only observes starts no jobs: omit observe or scheduler.",
        ),
        ('[users]\nmasters = "no-such-group"\n', "2: there is no group no-such-group here: check users.masters."),
    ],
)
def test_a_configuration_that_cannot_be_here_is_refused(tmp_path: Path, lines: str, fault: str) -> None:
    """Options that are right each by itself, but not together or not on this machine."""
    file = tmp_path / "drom.toml"
    file.write_text(lines, encoding="utf-8")
    done = drom("config", "check", str(file))

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"drom: {file}:{fault}")
    assert done.stderr.count("\n") == 1


def test_a_file_without_an_event_is_told(tmp_path: Path) -> None:
    """What is something else is no history; an agent to which nothing has happened yet has an empty one."""
    file = tmp_path / "other"
    file.write_bytes(bytes(range(256)) * 40)
    wrong = started("events", "--file", str(file))
    assert sentence(wrong) == f"drom: there is no event in {file}: name an agent's file of events with --file."

    file.write_bytes(b"")
    empty = drom("events", "--file", str(file))
    assert (empty.returncode, empty.stdout, empty.stderr) == (0, "", "")


def test_a_configuration_is_checked_for_scripts_too(tmp_path: Path) -> None:
    """The same faults, as one value."""
    file = tmp_path / "drom.toml"
    file.write_text("grce = 1\n", encoding="utf-8")
    broken = drom("config", "check", "--json", str(file))
    fault = f"{file}:1: there is no option grce: did you mean grace?"
    assert (broken.returncode, broken.stderr) == (1, "")
    assert json.loads(broken.stdout) == {"schema_version": 1, "file": str(file), "faults": [fault]}

    file.write_text("grace = 1\n", encoding="utf-8")
    good = drom("config", "check", "--json", str(file))
    assert (good.returncode, json.loads(good.stdout)["faults"]) == (0, [])


def _commands(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield path, command
    for name, one in getattr(command, "commands", {}).items():
        yield from _commands(one, f"{path} {name}".strip())


def test_whatever_shows_something_can_be_read_by_scripts() -> None:
    """As the README, docs/orders.md and the manual say: all but two commands that show something have --json."""
    commands = dict(_commands(typer.main.get_command(app.command_line())))
    without = {name for name, one in commands.items() if not any("--json" in row.opts for row in one.params)}

    assert without == {"top", "flags"} | GO_ON | TOLD_IN_A_SENTENCE


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_a_caller_may_close_the_standard_streams(tmp_path: Path, closed: str) -> None:
    """Closed streams behave as /dev/null, and no other file takes their descriptors."""
    command = [sys.executable, "-m", "drom", "top", "--runtime-dir", str(tmp_path)]
    done = subprocess.run(
        ["bash", "-c", f'"$@" {closed}', "bash", *command], capture_output=True, text=True, check=False
    )
    said = "" if "2" in closed else f"drom: no agent answers in {tmp_path}: start one with: drom agent "

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == ("2" not in closed)


def test_text_that_cannot_be_written_is_told_all_the_same(tmp_path: Path) -> None:
    """A log with a name in Latin-1 on a terminal of UTF-8."""
    log = tmp_path / "one.swf"
    log.write_bytes(b"; Installation: Ume\xe5\n1 0 0 10 1 -1 -1 1 10 -1 1 1 1 1 1 1 -1 -1\n")
    command = [sys.executable, "-m", "drom", "workload", "info", str(log)]
    env = os.environ | {"PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)

    assert (done.returncode, done.stderr) == (0, "")
    assert "Ume\\udce5" in done.stdout


@pytest.mark.parametrize("arguments", [["topology"], ["--help"]])
def test_a_reader_that_has_seen_enough_ends_it_as_a_program_of_c(arguments: list[str]) -> None:
    """The status is that of SIGPIPE, and nothing is said."""
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "drom", *arguments]
    try:
        done = subprocess.run(command, stdout=writes, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writes)

    assert (done.returncode, done.stderr) == (141, "")


INTERRUPTED = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
from drom.__main__ import main
main()
"""


@pytest.mark.parametrize("module", ["drom.app", "typer", "drom.scheduler.live.cli.commands"])
def test_ctrl_c_during_the_imports_ends_a_command_without_a_traceback(module: str) -> None:
    """The signal ends the process, as it does a program of C; no import can catch it and go on."""
    command = [sys.executable, "-c", INTERRUPTED.replace("sys.argv[1]", repr(module)), "nodes", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_ctrl_c_waits_while_python_starts(tmp_path: Path) -> None:
    """`drom` blocks SIGINT for the Python that it becomes, which would print a traceback."""
    shutil.copy(Path(sys.executable).with_name("drom"), tmp_path)
    asked = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    (tmp_path / "drom-cli").write_text(f"#!{sys.executable}\n{asked}\n")
    done = subprocess.run([tmp_path / "drom", "nodes"], capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr) == ("True\n", "")


def test_a_fault_of_ours_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence names what can be reported; with a variable set the traceback is shown."""

    def fail(**_: object) -> None:
        raise KeyError("metrics\nof")

    monkeypatch.setattr(app, "command_line", lambda *_: fail)
    with pytest.raises(SystemExit) as caught:
        app.run_app()
    assert str(caught.value) == (
        r"drom: this is a fault of drom (KeyError: 'metrics\nof'): "
        "report it, with the output under DROM_DEBUG=1."
    )

    monkeypatch.setenv(app.DEBUG, "1")
    with pytest.raises(KeyError):
        app.run_app()


def test_the_variable_of_the_completion_alone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell sets it together with the words to complete."""
    monkeypatch.setenv("_DROM_COMPLETE", "complete_bash")
    monkeypatch.delenv("COMP_WORDS", raising=False)
    monkeypatch.setattr(sys, "argv", ["drom", "ps"])
    with pytest.raises(SystemExit) as caught:
        app.run_app()

    assert str(caught.value) == (
        "drom: _DROM_COMPLETE is for a shell's completion, which also sets 'COMP_WORDS': unset it."
    )


def test_every_command_is_mounted_with_those_of_its_heading() -> None:
    """A command finds itself, and loads what belongs to its heading, not the commands of other packages."""
    whole = typer.main.get_group(app.command_line()).commands
    assert set(whole) == {name for names in HEADINGS.values() for name in names}
    for names in HEADINGS.values():
        for name in names:
            assert set(names) <= set(typer.main.get_group(app.command_line(name)).commands)
    assert "ps" not in typer.main.get_group(app.command_line("simulate")).commands
    assert set(typer.main.get_group(app.command_line("nonsense")).commands) == set(whole)
