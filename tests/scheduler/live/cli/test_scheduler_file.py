# SPDX-License-Identifier: Apache-2.0
"""The file of drom scheduler, and that a running scheduler reads it again."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest
import typer
from drom.agent.errors import ControlError
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cli import commands, scheduler_file
from drom.scheduler.live.cli.scheduler import CHANGEABLE, SchedulerOptions
from drom.scheduler.live.cluster.partitions import Partition

from tests.support.agents import wait_until
from tests.support.clusters import Cluster, cluster
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def no_system_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no file of this machine read."""
    monkeypatch.setattr(scheduler_file, "SYSTEM_FILE", tmp_path / "scheduler.toml")


def options(*words: str | Path) -> dict[str, Any]:
    """Return the options that a scheduler would have."""
    command: Any = typer.main.get_command(commands.app)
    context = command.commands["scheduler"].make_context("scheduler", [*map(str, words)])
    found: dict[str, Any] = dict(context.params)
    return found


def test_options_are_read_from_the_file(tmp_path: Path) -> None:
    """Those of the command line override them, and all others have their defaults."""
    file = tmp_path / "some.toml"
    file.write_text(
        'max_jobs = 7\nmax_time = "2h"\ndurable = true\nsilence = 9.5\nset = ["a=1", "b=2"]\nmax_bytes = "1M"\n'
    )
    found = options("--config", file, "--max-jobs", "8", "--set", "a=3")
    assert (found["max_jobs"], found["max_time"], found["durable"], found["silence"]) == (8, 7200, True, 9.5)
    assert (list(found["choices"]), found["max_bytes"], found["keep"]) == (["a=1", "b=2", "a=3"], 1 << 20, 90)


def test_the_systems_file_is_read_if_no_other_is_named(tmp_path: Path) -> None:
    """It may be missing; a named one may not."""
    assert options()["max_jobs"] == 10_000
    (tmp_path / "scheduler.toml").write_text("max_jobs = 7")
    assert options()["max_jobs"] == 7
    assert options("--config", "/dev/null")["max_jobs"] == 10_000
    with pytest.raises(
        SchedulerError, match=r"^cannot read the configuration .*/none: No such file or directory: check its "
    ):
        options("--config", tmp_path / "none")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "max_jobs = 0",
            "1: max_jobs: Invalid value for '--max-jobs': '0' is out of range: write a whole number of at least 1.",
        ),
        ('\nmax_jobs = "x"', "2: max_jobs: Invalid value for '--max-jobs': 'x' is no whole number: write a whole "),
        ("max_jobs = true", "1: max_jobs: true is not a text or a number."),
        ("max_jobs = [1]", "1: max_jobs: [1] is not a text or a number."),
        ("policy = {a = 1}", "1: policy: {a = 1} is not a text or a number."),
        ("policy = 2026-11-20", "1: policy: 2026-11-20 is not a text or a number."),
        ("durable = 1", "1: durable: 1 is not true or false."),
        ('set = "a=1"', '1: set: "a=1" is not a list of texts.'),
        ('max_time = "soon"', "1: max_time: Invalid value for '--max-time': 'soon' is not a time: write minutes, "),
        ("max_job = 1", "1: max_job: there is no option max_job: did you mean max_jobs?"),
        ("zzz = 1", "1: zzz: there is no option zzz: `drom scheduler --help` lists all options."),
        ('config = "x"', "1: config: there is no option config: "),
        ("max_jobs = ", "1: this is not TOML ("),
        ("max_jobs = 1\nmax_jobs = 2", "2: max_jobs is set in line 1 already: remove one of the two."),
        ("a = " + "[" * 9999, " brackets are nested too deep: write key = value."),
    ],
)
def test_a_fault_is_named_with_its_line_and_key(tmp_path: Path, text: str, sentence: str) -> None:
    """In one sentence."""
    file = tmp_path / "some.toml"
    file.write_text(text)
    with pytest.raises(SchedulerError) as refused:
        options("--config", file)
    assert str(refused.value).startswith(f"{file}:{sentence}")
    assert "\n" not in str(refused.value)


def test_all_faults_are_told(tmp_path: Path) -> None:
    """A line each."""
    file = tmp_path / "some.toml"
    file.write_text("max_jobs = 0\nkeep = 5\nzzz = 1\n")
    with pytest.raises(SchedulerError) as refused:
        options("--config", file)
    assert [line.split(" ")[0] for line in str(refused.value).splitlines()] == [f"{file}:1:", f"{file}:3:"]


def test_the_example_is_right(tmp_path: Path) -> None:
    """It is one that a site can start from; options that change in a running scheduler are options."""
    example = ROOT / "contrib/drom-scheduler.toml"
    found = options("--config", example)
    assert (found["fair_share"], found["max_time"]) == (7 * 86400, 7 * 86400)
    names = [(one.name, one.default) for one in partitions(tmp_path / "some.toml", example.read_text())]
    assert names == [("debug", False), ("batch", True)]
    assert {"partition", *SchedulerOptions.__dataclass_fields__} >= CHANGEABLE


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Cluster]:
    """Run a real scheduler of one node, with a file."""
    (tmp_path / "some.toml").write_text("max_jobs = 5\n")
    with cluster(tmp_path, "--config", str(tmp_path / "some.toml"), nodes=1) as found:
        yield found


def reload(here: Cluster, text: str) -> str:
    """Change the file, send SIGHUP, and return what is logged of it."""
    (here.state.parent / "some.toml").write_text(text)
    lines = len(here.log.splitlines())
    assert here._process

    def news() -> list[str]:
        return [line for line in here.log.splitlines()[lines:] if "reloaded" in line or "rejected" in line]

    here._process.send_signal(signal.SIGHUP)
    wait_until(lambda: bool(news()), lambda: here.log)
    (line,) = news()
    return line.partition(" event=")[2]


@pytest.mark.timeout(300)
def test_a_running_scheduler_reads_its_file_again(here: Cluster) -> None:
    """What can change does, jobs go on, and what needs a restart is named; a broken file changes nothing."""
    assert here.cli("submit", "--", "sleep", "1000").stdout == "Submitted job 1\n"
    wait_until(lambda: here.ask("job", job=1)["state"] == "running", lambda: here.log)
    waiting = here.cli("submit", "--parsable", "--", "true").stdout.strip()

    assert (
        reload(here, 'max_jobs = 6\nmax_time = "2h"\npolicy = "easy"\nset = ["a=1"]\n')
        == "reloaded changed=max_jobs,max_time kept=set,policy"
    )
    assert here.cli("submit", "--time", "3h", "--", "true").stderr == (
        "drom: the job asks for 3 h, and jobs here may take 2 h: request less with --time.\n"
    )
    broken = reload(here, "max_time = 5\nmax_jobs = 0\n")
    assert broken.startswith("config_rejected ")
    assert "max_jobs: Invalid value for" in broken
    assert reload(here, 'max_time = "4h"\n') == "reloaded changed=max_jobs,max_time kept=none"
    assert here.cli("submit", "--time", "3h", "--hold", "--", "true").returncode == 0

    wait_until(lambda: here.ask("nodes")["nodes"][0]["state"] == "up", lambda: here.log)
    assert (here.ask("job", job=1)["state"], here.ask("job", job=1)["attempt"]) == ("running", 1)
    here.ask("cancel", job=1)
    wait_until(lambda: here.ask("job", job=int(waiting))["state"] == "completed", lambda: here.log)
    with pytest.raises(ControlError, match="is over"):
        here.ask("cancel", job=1)


PARTITIONS = """
max_jobs = 7
[partition.debug]
nodes = ["n1", "n[3-4]"]
max_time = "30m"
default_time = 5
expected_wait = "10m"
max_nodes = 2
priority = 100
users = ["root", "0"]
groups = ["root"]
[partition.all]
default = true
features = ["big"]
"""


def partitions(file: Path, text: str) -> tuple[Partition, ...]:
    """Return the partitions in a file with this text."""
    file.write_text(text)
    command: Any = typer.main.get_command(commands.app)
    context = command.commands["scheduler"].make_context("scheduler", ["--config", str(file)])
    found: tuple[Partition, ...] = context.meta[scheduler_file.PARTITIONS]
    return found


def test_partitions_are_tables_of_the_file(tmp_path: Path) -> None:
    """All keys but the name may be left out."""
    root = frozenset({0})
    names = frozenset({"n1", "n3", "n4"})
    assert partitions(tmp_path / "some.toml", PARTITIONS) == (
        Partition(
            "debug",
            names,
            max_time=1800,
            default_time=300,
            max_nodes=2,
            priority=100,
            users=root,
            groups=root,
            expected_wait=600,
        ),
        Partition("all", features=frozenset({"big"}), default=True),
    )
    assert partitions(tmp_path / "some.toml", "[partition.x]") == (Partition("x"),)
    assert partitions(tmp_path / "some.toml", "") == ()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nodes = 1", ":2: partition.x.nodes: 1 is not a list of texts."),
        ('nodes = ["n["]', ":2: partition.x.nodes: 'n[' is not a list of nodes: write for example n1,n[3-5,7]."),
        ('nodes = ["a[1-4096]", "b"]', ":2: partition.x.nodes: it names over 4096 nodes: give them a feature, and "),
        ('features = ["a b"]', ":2: partition.x.features: 'a b' is no feature: nodes have features of at most 32 "),
        ("max_time = true", ':2: partition.x.max_time: true is not a time: write for example "2h".'),
        ('max_time = "soon"', ":2: partition.x.max_time: 'soon' is not a time: write minutes, H:M:S, "),
        ("expected_wait = 0", ":2: partition.x.expected_wait: a time limit is from 1 s to "),
        ("max_nodes = 0", ":2: partition.x.max_nodes: 0 is not a whole number from 1 to 1048576."),
        ('priority = "1"', ':2: partition.x.priority: "1" is not a whole number from -1048576 to 1048576.'),
        ('users = ["nobody-here"]', ":2: partition.x.users: there is no user nobody-here here: check its name."),
        ('groups = ["nobody-here"]', ":2: partition.x.groups: there is no group nobody-here here: check its name."),
        ("default = 1", ":2: partition.x.default: 1 is not true or false."),
        ("max_tim = 1", ":2: partition.x.max_tim: there is no option max_tim: did you mean max_time?"),
        ("[partition.'a.b']", ": 'a.b' is no name of a partition: use letters, digits, _ and -."),
        ("default = true\n[partition.y]\ndefault = true", ": several partitions have default = true: leave one."),
        ("\n".join(f"[partition.p{i}]" for i in range(64)), ": 65 partitions are too many: 64 are possible."),
    ],
)
def test_a_fault_of_a_partition_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    """With its line, if it has one."""
    with pytest.raises(SchedulerError) as refused:
        partitions(tmp_path / "some.toml", f"[partition.x]\n{text}\n")
    assert str(refused.value).startswith(f"{tmp_path}/some.toml{sentence}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["partition = 1", "[partition]\nx = 1"])
def test_a_partition_is_a_table(tmp_path: Path, text: str) -> None:
    """Nothing else."""
    with pytest.raises(SchedulerError, match=r": partition: write a table \[partition\.NAME\] for each partition\.$"):
        partitions(tmp_path / "some.toml", text)


def test_a_policy_that_takes_nodes_as_equal_has_no_partitions(tmp_path: Path) -> None:
    """It could not heed them."""
    (tmp_path / "some.toml").write_text("[partition.x]")
    words = (
        "scheduler",
        "--config",
        str(tmp_path / "some.toml"),
        "--policy",
        "fcfs",
        "--state",
        str(tmp_path / "state"),
    )
    with pytest.raises(
        SchedulerError, match=r"^policy fcfs treats all nodes as equal, so that there can be no partitions: "
    ):
        typer.main.get_command(commands.app)(words, standalone_mode=False)
    assert not (tmp_path / "state").exists()


@pytest.mark.timeout(300)
def test_partitions_come_and_go_while_a_scheduler_runs(here: Cluster) -> None:
    """Users see them, and a job gets into them, from the next SIGHUP on."""
    assert here.cli("submit", "-p", "debug", "--", "true").stderr == (
        "drom: there is no partition debug: there are none here, so omit --partition.\n"
    )
    table = '[partition.debug]\nnodes = ["n1"]\nmax_time = "30m"\n'
    assert reload(here, f"max_jobs = 5\n{table}") == "reloaded changed=partition kept=none"
    wait_until(lambda: here.ask("nodes")["nodes"][0]["state"] == "up", lambda: here.log)
    assert here.cli("submit", "--", "true").stderr.startswith(
        "drom: the job names no partition, and none is the default: "
    )
    number = here.submit("-p", "debug", "--hold", "--", "true")
    assert "30 min, malleable, partition debug" in here.cli("job", str(number)).stdout
    head, row = here.cli("queue").stdout.splitlines()
    assert (head.split()[4], row.split()[4]) == ("PARTITION", "debug")
    shown = " ".join(here.cli("nodes").stdout.split())
    assert "PARTITIONS JOBS REASON n1 up 4" in shown
    assert shown.endswith("debug free")
    here.ask("hold", job=number, held=False)
    here.await_state(number, "completed")
    assert here.cli("history", "--columns", "job,partition").stdout.split()[-2:] == [str(number), "debug"]
