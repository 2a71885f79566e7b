# SPDX-License-Identifier: Apache-2.0
"""A cluster as its users see it: a real scheduler, real agents on emulated cores, real jobs, and what kills them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import socket
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent import errors
from drom.agent.control import client, keys
from drom.scheduler.live.cli import tables
from drom.scheduler.live.cluster.executions import HUNG
from drom.scheduler.live.cluster.paging import all_pages
from drom.scheduler.live.cluster.spec import SERVICE

from dromlib import native
from tests.support.agents import SECONDS, lives, wait_until
from tests.support.clusters import cluster, samples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.clusters import Cluster

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a cluster of two nodes with four cores each."""
    folder = tmp_path_factory.mktemp("cluster")
    keys.make(folder / "keys")
    with cluster(folder, "--users", "127.0.0.1:0", "--keys", str(folder / "keys")) as started:
        yield started


@pytest.fixture
def here(running: Cluster) -> Iterator[Cluster]:
    """Return it without a job; each test has files of its own, and leaves nothing running."""
    running.begin()
    yield running
    running.clear()


ODD = ("h5.example.org", "a_b", "localhost", "8.8.8.8", socket.gethostname())
"""Names of nodes of which mpirun takes only the last one, where it runs, as it is."""


@pytest.fixture(scope="module")
def oddly_named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a cluster with a node of each odd name."""
    with cluster(tmp_path_factory.mktemp("odd"), names=ODD) as started:
        yield started


@pytest.fixture
def odd(oddly_named: Cluster) -> Iterator[Cluster]:
    """Return it without a job."""
    oddly_named.begin()
    yield oddly_named
    oddly_named.clear()


def run_mpirun(here: Cluster, *words: str | Path) -> None:
    """Run a job that starts tasks through mpirun.

    All nodes are on one host, where daemons of Open MPI 4 race for a folder that they share. If one loses, mpirun ends
    with the status 213, or by SIGSEGV, and the job is submitted again.
    """
    for _ in range(5):
        job = here.submit(*words)
        if here.await_state(job, "completed", "failed")["status"] not in {213, 128 + signal.SIGSEGV}:
            break
    here.await_state(job, "completed")


def said(file: Path) -> list[str]:
    """Return the lines of a job's output without messages of Open MPI 4 that mean nothing: two of its races."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return [
        line for line in lines if "plm:rsh: Warning: setpgid" not in line and "] PMIX ERROR: ERROR in file " not in line
    ]


def endless(here: Cluster, name: str) -> Path:
    """Return a script that says its pid in a file and runs until it is ended; of several nodes it holds the others."""
    script = here.folder / f"{name}.sh"
    script.write_text(f"#!/bin/sh\necho $$ > {name}\nexec sleep inf\n", encoding="utf-8")
    return script


def await_pid(here: Cluster, name: str) -> int:
    """Return the pid that an endless job has said."""
    file = here.folder / name
    return int(wait_until(lambda: file.read_text().strip() if file.exists() else "", lambda: here.log))


def test_a_script_says_what_it_needs(here: Cluster) -> None:
    """Its #DROM lines count, the command line is stronger, and it finds its arguments and where it is."""
    script = here.folder / "job.sh"
    text = "#!/bin/sh -e\n#DROM --time 5 --job-name from-script\n#DROM --output 'out %x-%j.txt'\n\n"
    script.write_text(
        text + ': \n#DROM is too late\necho "$1 $DROM_NTASKS $DROM_JOB_NAME $(pwd)"\nexit 4\n', encoding="utf-8"
    )
    number = here.submit("--job-name", "mine", script, "an argument")

    value = here.await_state(number, "failed")

    assert (value["status"], value["limit"], value["name"]) == (4, 300, "mine")
    out = (here.folder / f"out mine-{number}.txt").read_text(encoding="utf-8")
    assert out == f"an argument 1 mine {here.folder}\n"
    assert [entry["what"] for entry in value["history"]] == ["submitted", "placed", "started", "failed"]
    assert not list((here.folder / "n1/run").glob("scripts/*"))


def test_a_job_has_the_umask_of_its_submission(here: Cluster) -> None:
    """What it writes is for whom its user wants it to be."""
    before = os.umask(0o027)
    try:
        number = here.submit("--output", "out", "--", "touch", "made")
    finally:
        os.umask(before)
    here.await_state(number, "completed")

    assert {(here.folder / name).stat().st_mode & 0o777 for name in ("out", "made")} == {0o640}


def test_a_guest_starts_earlier_as_its_mates_shrink(here: Cluster) -> None:
    """They give it half of their cores first, and have them back when it has ended."""
    mates = [here.submit("--time", "60", endless(here, f"mate{i}")) for i in range(2)]
    for mate in mates:
        here.await_held(mate, 4)
    guest = here.submit("--nodes", "2", "--time", "10", endless(here, "guest"))
    for job in (guest, *mates):
        here.await_held(job, 2)
    value = here.job(mates[0])
    assert list(value["shares"].values()) == [2]
    shares = f"It shares nodes with job {guest}, and has all cores of a node again when those have ended."
    assert shares in value["explanation"]
    placed = next(entry for entry in here.job(guest)["history"] if entry["what"] == "placed")
    assert placed["detail"] == {"shares": {"n1": 2, "n2": 2}, "mates": mates}

    here.ask("cancel", job=guest)

    assert here.await_state(guest, "cancelled")["reason"].startswith("cancelled by ")
    for mate in mates:
        here.await_held(mate, 4)


def test_the_rates_of_a_job_that_is_resized_arrive(here: Cluster) -> None:
    """A real program tells its progress; what it does in a second is known for each size, in the order of the sizes."""
    program = (str(native.example_path("jacobi")), "--size", "300", "--iterations", "1000000000")
    mate = here.submit("--nodes", "1", "--time", "60", "--", *program)
    other = here.submit("--class", "rigid", "--time", "60", endless(here, "other"))

    def rates(*sizes: int) -> list[float]:
        """Return what is known once it is known for these sizes."""
        known = wait_until(lambda: (r := here.job(mate)["rates"]) and len(r) == len(sizes) and r, lambda: here.log)
        assert list(map(int, known)) == list(sizes)
        return list(known.values())

    assert all(rate > 0 for rate in rates(4))
    guest = here.submit("--time", "10", endless(here, "guest"))
    here.await_held(mate, 2)
    assert all(rate > 0 for rate in rates(2, 4))

    value = here.job(mate)
    assert any(sentence.startswith("Of its speed with 4 of 4 cores") for sentence in value["explanation"])
    for job in (guest, mate, other):
        here.ask("cancel", job=job)
        here.await_state(job, "cancelled")


def test_a_killed_scheduler_finds_everything_again(here: Cluster) -> None:
    """Jobs run on meanwhile; one that ended then has its status, those that waited start, none starts twice."""
    os.mkfifo(here.folder / "gate")
    rigid = ("--time", "60", "--class", "rigid")
    ends = here.submit(*rigid, "--", "sh", "-c", "read x < gate; exit 7")
    stays = here.submit(*rigid, endless(here, "stays"))
    waits = here.submit("--nodes", "2", *rigid, endless(here, "waits"))
    pid = await_pid(here, "stays")
    here.kill()
    (here.folder / "gate").write_text("go\n", encoding="utf-8")
    wait_until(lambda: len([agent for agent in here.agents.values() if agent.tasks()]) == 1, lambda: here.log)

    here.start()

    assert here.await_state(ends, "failed")["status"] == 7
    assert lives(pid)
    assert (here.job(stays)["state"], here.job(stays)["attempt"]) == ("running", 1)
    here.ask("cancel", job=stays)
    here.await_state(waits, "running")
    assert not lives(pid)


def test_a_killed_agent_takes_its_jobs_up_again(here: Cluster) -> None:
    """Its jobs run on, and the scheduler shrinks and ends them as if nothing had been."""
    mates = [here.submit("--time", "60", endless(here, f"mate{i}")) for i in range(2)]
    pids = [await_pid(here, f"mate{i}") for i in range(2)]
    here.agents["n1"].kill()
    guest = here.submit("--nodes", "2", "--time", "10", endless(here, "guest"))

    here.join("n1")

    for job in (guest, *mates):
        here.await_held(job, 2)
    assert all(map(lives, pids))
    for job in (guest, *mates):
        here.ask("cancel", job=job)
        here.await_state(job, "cancelled")
    assert not any(map(lives, pids))


def test_jobs_wait_for_each_other_and_for_their_user(here: Cluster) -> None:
    """Dependencies, holds, drained nodes, limits and signals that are ignored."""
    first = here.submit("--hold", "--", "true")
    good = here.submit("--dependency", f"afterok:{first}", "--", "true")
    bad = here.submit("--dependency", f"afternotok:{first}", "--", "true")
    assert here.job(good)["reason"] == f"waits for job {first}"
    assert here.job(first)["reason"] == f"held: release it with drom hold --release {first}"
    assert here.cli("hold", "--release", str(first)).stdout == f"Released job {first}\n"
    here.await_state(good, "completed")
    assert here.await_state(bad, "cancelled")["reason"] == (
        f"it was to start after failure of job {first}, which is completed"
    )
    for name in here.agents:
        assert here.cli("drain", name, "--reason", "new memory").stdout == f"Drained node {name}\n"
    stubborn = here.submit("--time", "2s", "--", "sh", "-c", "trap '' TERM; while :; do sleep 0.05; done")
    rows = [row.split() for row in here.cli("nodes").stdout.splitlines()[1:]]
    drained = [[name, "drained", "4", "-", "new", "memory"] for name in here.agents]
    assert [row[:3] + row[-3:] for row in rows] == drained
    assert here.job(stubborn)["state"] == "pending"
    here.cli("drain", "n2", "--undo")
    value = here.await_state(stubborn, "timeout")
    here.cli("drain", "n1", "--undo")
    assert value["status"] == -signal.SIGKILL
    assert value["reason"] == "its limit of 2 s was over, and it was killed, as it did not end on SIGTERM"
    assert list(value["shares"]) == ["n2"]


def submitted(here: Cluster) -> float:
    """Return how many jobs this scheduler says were submitted to it."""
    events = samples(here.metrics(), "drom_scheduler_events_total")
    return sum(value for labels, value in events if labels["event"] == "submitted")


def test_what_ran_is_told_as_of_a_simulation(here: Cluster) -> None:
    """As a chart, as a folder that `drom compare` takes, as a page, and to Prometheus."""
    before = submitted(here)
    good = here.submit("--time", "60", "--", "true")
    here.await_state(good, "completed")
    told = here.cli("queue", "--gantt", "ran.png", "--out", "ran", "--html", "ran.html")
    assert told.stdout == "Drew ran.png\nWrote ran: compare it with drom compare\nWrote ran.html\n", told.stderr
    page = (here.folder / "ran.html").read_text(encoding="utf-8")
    assert "<h1>ran</h1>" in page
    assert "data:image/png;base64," in page
    assert (here.folder / "ran.png").read_bytes().startswith(b"\x89PNG")
    rows = (here.folder / "ran/jobs.csv").read_text(encoding="utf-8").splitlines()
    mine = next(row.split(",") for row in rows if row.startswith(f"{good},"))
    assert (mine[4:6], mine[-2]) == (["1", "4"], "ended")
    assert "malleable starts" in here.cli("compare", "ran", "ran").stdout
    assert submitted(here) == before + 1
    assert 'drom_scheduler_nodes{state="up"} 2.0' in here.metrics()


REFUSED: tuple[tuple[list[str], str], ...] = (
    (["--nodes", "3", "--", "true"], "the job asks for 3 nodes, and this cluster has 2 nodes: ask for less."),
    (
        ["--constraint", "fast", "--", "true"],
        "the job asks for 1 node, and this cluster has no node with feature fast: see drom nodes.",
    ),
    (
        ["--tasks-per-node", "5", "--", "true"],
        "5 tasks of 1 core do not fit on a node, which has 4 cores: ask for fewer with --tasks-per-node.",
    ),
    (["-d", "afterok:999999", "--", "true"], "there is no job 999999 to wait for: see drom queue --all."),
    ([], "a job needs a command: write drom submit -- COMMAND, or name a script."),
)


def test_a_submission_may_wait_for_the_end(here: Cluster) -> None:
    """Its status is the job's, its output a number for scripts, and a sentence says what was wrong."""
    good = here.cli("submit", "--wait", "--parsable", "--", "true")
    done = here.cli("submit", "--wait", "--parsable", "--", "sh", "-c", "exit 7")
    killed = here.cli("submit", "--wait", "--", "sh", "-c", "kill -9 $$")

    assert (good.returncode, good.stdout.strip().isdigit(), good.stderr) == (0, True, "")
    assert (done.returncode, done.stderr) == (7, f"drom: job {int(done.stdout)}: it returned 7\n")
    assert killed.returncode == 128 + 9


def test_what_can_never_run_is_refused(here: Cluster) -> None:
    """At submission, with the reason, and nothing is queued."""
    for words, sentence in REFUSED:
        done = here.cli("submit", *words)
        assert (done.returncode, done.stderr) == (1, f"drom: {sentence}\n")
    assert here.ask("queue")["jobs"] == []


def test_one_command_submits_many_jobs(here: Cluster) -> None:
    """The command sends common fields once for up to a thousand jobs, the most in one request."""
    done = here.cli("submit", "--hold", "--count", "1001", "--", "true", LONG="x" * 5000)

    assert (done.returncode, done.stderr) == (0, "")
    _, _, first, _, last = done.stdout.split()
    queued = all_pages(here.ask, "queue")["jobs"]
    assert [job["job"] for job in queued] == list(range(int(first), int(last) + 1))
    assert (len(queued), {job["state"] for job in queued}) == (1001, {"pending"})
    for order in ("queue", "history"):
        page = here.ask(order, all=True, last=1 << 52)
        shown = [job["job"] for job in page["jobs"]]
        assert 0 < len(shown) <= 1000
        assert (shown, page["before"]) == (list(range(shown[0], int(last) + 1)), shown[0])
        assert {entry["job"] for entry in page.get("entries", [])} <= set(shown)
    told = json.loads(here.cli("queue", "--all", "--last", "1001", "--json").stdout)
    assert [job["job"] for job in told["jobs"]] == list(range(int(first), int(last) + 1))
    with pytest.raises(errors.ControlError, match=r"^20002 jobs are too many for one request, which takes 1000: "):
        here.ask("submit", jobs=[{"command": ["true"], "folder": "/"}] * 2, count=10_001)


def test_a_key_is_a_user(here: Cluster, tmp_path: Path) -> None:
    """Whoever shows the key of a user may change what is that user's alone; a key of no user may do nothing."""
    ours = keys.load(here.state.parent / "keys")
    for name in ("nobody", "stranger"):
        theirs = keys.make(tmp_path / name)
        keys.trust(theirs, ours.folder / keys.PUBLIC, "127.0.0.1")
        keys.trust(ours, theirs.folder / keys.PUBLIC, name)
    nobody = here.remote(tmp_path / "nobody")
    number = here.submit("--hold", "--", "true")
    whose = here.job(number)["user"]
    spec = {"command": ["true"], "folder": "/tmp", "hold": True}
    theirs_too = client.order(nobody, "submit", jobs=[spec])["jobs"][0]

    assert here.job(theirs_too)["user"] == "nobody"
    for order, sentence in (
        ({"name": "cancel", "job": number}, f"job {number} belongs to {whose}: only they and root may change it."),
        ({"name": "drain", "node": "n1", "reason": "x"}, "only root and the scheduler's own user may drain nodes."),
    ):
        with pytest.raises(errors.ControlError) as refused:
            client.order(nobody, **order)
        assert str(refused.value) == sentence
    client.order(nobody, "cancel", job=theirs_too)
    stranger = here.remote(tmp_path / "stranger")

    def refusal() -> str:
        with pytest.raises(errors.ControlError) as refused:
            client.order(stranger, "submit", jobs=[spec])
        return str(refused.value)

    def answer() -> str:
        return "" if "try again" in (text := refusal()) else text

    said = wait_until(answer, lambda: here.log)  # the user directory may be slow
    assert said.startswith("no user here has the name of the key, stranger: trust it under a user")


def test_a_script_is_shown_to_its_user_alone(here: Cluster, tmp_path: Path) -> None:
    """Others learn that there is one; root, and who submitted it, may read it and its arguments."""
    ours = keys.load(here.state.parent / "keys")
    theirs = keys.make(tmp_path / "daemon")
    keys.trust(theirs, ours.folder / keys.PUBLIC, "127.0.0.1")
    keys.trust(ours, theirs.folder / keys.PUBLIC, "daemon")
    daemon = here.remote(tmp_path / "daemon")
    spec = {"folder": "/", "hold": True, "command": ["word"], "environment": {"TOKEN": "secret"}}
    with_script = spec | {"script": "#!/bin/sh\necho secret\n"}
    mine, plain = here.ask("submit", jobs=[with_script, spec])["jobs"]
    (theirs_too,) = client.order(daemon, "submit", jobs=[with_script], server=SERVICE)["jobs"]

    def seen(job: dict[str, Any]) -> tuple[object, ...]:
        return tuple(job["spec"].get(name) for name in ("script", "command", "environment"))

    whole = (with_script["script"], ["word"], None)
    assert seen(client.order(daemon, "job", job=mine, server=SERVICE)) == (None, None, None)
    assert seen(client.order(daemon, "job", job=plain, server=SERVICE)) == ("", ["word"], None)
    assert seen(client.order(daemon, "job", job=theirs_too, server=SERVICE)) == whole
    assert seen(here.job(mine)) == seen(here.job(theirs_too)) == whole
    told = tables.job(client.order(daemon, "job", job=mine, server=SERVICE))
    assert "command: a script of its user" in told
    assert "command: word" in tables.job(client.order(daemon, "job", job=plain, server=SERVICE))


@pytest.mark.parametrize(
    "order",
    [
        {"name": "job", "job": 1 << 70},
        {"name": "job", "job": True},
        {"name": "queue", "all": True, "last": "x"},
        {"name": "history", "last": -1},
        {"name": "submit", "jobs": [{"command": ["true"], "folder": "/" + "x" * 5000}]},
        {"name": "submit", "jobs": [{"command": ["true"], "folder": "/", "environment": {"": "x"}}]},
        {"name": "submit", "jobs": [{}, 3]},
        {"name": "submit", "jobs": []},
        {"name": "drain", "node": 3},
        {"name": "nosuch"},
    ],
    ids=str,
)
def test_strange_orders_are_refused(here: Cluster, order: dict[str, Any]) -> None:
    """With a sentence, and the scheduler goes on."""
    with pytest.raises(errors.ControlError, match=r"\.$"):
        here.ask(**order)
    assert here.ask("queue")["jobs"] == []


def test_the_scheduler_tells_its_service_manager(here: Cluster) -> None:
    """READY once it has compiled, STATUS with what it has, the watchdog petted, STOPPING at its end."""
    here.end()
    address = here.folder / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(SECONDS)
        here.start(NOTIFY_SOCKET=str(address), WATCHDOG_USEC="60000000")
        said = [manager.recv(4096).decode()]
        while "2 of 2 nodes up" not in said[-1]:
            said.append(manager.recv(4096).decode())
        here.end()
        while said[-1] != "STOPPING=1":
            said.append(manager.recv(4096).decode())
    here.start()

    assert said[:2] == ["WATCHDOG=1\nSTATUS=compiling the policy", "READY=1"]
    assert any(line.startswith("STATUS=0 jobs running, 0 waiting; ") for line in said), said


def test_orders_for_several_jobs_are_tried_for_each(here: Cluster) -> None:
    """Whoever cannot be is told apart, the others are, and the exit says that not all were."""
    first, last = (here.submit("--hold", "--", "true") for _ in range(2))
    lost = "drom: there is no job 999999: see drom queue --all.\n"
    released = here.cli("hold", "--release", "999999", str(first), str(last))
    assert (released.returncode, released.stderr) == (1, lost)
    assert released.stdout == f"Released job {first}\nReleased job {last}\n"
    here.await_state(last, "completed")
    held = here.submit("--hold", "--", "true")

    cancelled = here.cli("cancel", str(last), "999999", str(held))

    assert (cancelled.returncode, cancelled.stdout) == (1, f"Cancelled job {held}\n")
    assert cancelled.stderr == f"drom: job {last} is over: it is completed.\n{lost}"


def test_scripts_are_told_what_an_order_has_made_of_jobs_and_nodes(here: Cluster) -> None:
    """As one value, whose moments are those of a calendar; reasons why not go to stderr all the same."""
    number = here.submit("--hold", "--", "true")

    done = here.cli("cancel", "--json", "999999", str(number))
    value = json.loads(done.stdout)
    node = json.loads(here.cli("drain", "n1", "--json").stdout)["nodes"][0]
    undone = json.loads(here.cli("drain", "n1", "--undo", "--json").stdout)["nodes"][0]

    assert (done.returncode, done.stderr) == (1, "drom: there is no job 999999: see drom queue --all.\n")
    assert [(job["job"], job["state"]) for job in value["jobs"]] == [(number, "cancelled")]
    assert value["jobs"][0]["ended"].endswith("Z")
    assert [(one["name"], one["state"]) for one in (node, undone)] == [("n1", "drained"), ("n1", "up")]


def test_jobs_that_were_over_long_ago_are_forgotten(here: Cluster) -> None:
    """After `--keep`; those that wait stay, and the numbers go on."""
    over = here.submit("--", "true")
    here.await_state(over, "completed")
    waits = here.submit("--hold", "--", "true")
    here.end()
    with contextlib.closing(sqlite3.connect(here.state / "queue.sqlite", isolation_level=None)) as db:
        db.execute("UPDATE entries SET at = at - ?", (91 * 86400,))
    here.start()

    wait_until(lambda: [job["job"] for job in here.ask("queue", all=True)["jobs"]] == [waits], lambda: here.log)
    with pytest.raises(errors.ControlError, match=f"^there is no job {over}: see drom queue --all"):
        here.job(over)
    assert here.submit("--hold", "--", "true") == waits + 1


def test_no_file_of_a_job_has_its_node_drained(here: Cluster) -> None:
    """Not even a terminal that nobody has any more, which fails as a broken disk does."""
    master, terminal = os.openpty()
    path = f"/proc/{os.getpid()}/fd/{terminal}"
    os.close(master)
    try:
        number = here.submit("--output", path, "--", "true")
        value = here.await_state(number, "failed")
    finally:
        os.close(terminal)

    about = f"cannot open {path} for the output of the job: {os.strerror(errno.EIO)}: check --output."
    assert value["reason"].partition(": ")[2] == about
    assert {node["state"] for node in here.ask("nodes")["nodes"]} == {"up"}


def test_a_job_that_hangs_as_it_starts_is_ended_at_its_limit(here: Cluster) -> None:
    """Nobody reads the pipe that its output goes to."""
    os.mkfifo(here.folder / "pipe")
    number = here.submit("--time", "1s", "--output", "pipe", "--", "true")

    value = here.await_state(number, "timeout")

    assert [entry["what"] for entry in value["history"]] == ["submitted", "placed", "ending", "timeout"]
    assert value["explanation"] == [f"It is over: timeout: {HUNG}."]


def test_two_schedulers_do_not_share_a_queue(here: Cluster) -> None:
    """The second is refused; so are orders about jobs that are not there."""
    done = here.cli("scheduler", "--state", here.state)
    again = f"another scheduler has the queue in {here.state}: stop it, or give this one another folder with --state."
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, f"drom: {again}")
    done = here.cli("cancel", "999999")
    assert (done.returncode, done.stderr) == (1, "drom: there is no job 999999: see drom queue --all.\n")


@pytest.mark.parametrize(
    ("words", "script", "ranks"),
    [
        (("-N", "1", "-n", "2", "--", "hostname"), "", 2),
        (("-N", "2", "-n", "2", "--", "hostname"), "", 2),
        (("-N", "1", "--tasks-per-node", "2"), "mpirun -n 2 hostname", 2),
        (("-N", "1", "--tasks-per-node", "2"), "mpirun --host $DROM_HOSTS hostname", 2),
        (("-N", "2", "--tasks-per-node", "2"), "mpirun --host $DROM_HOSTS hostname", 4),
    ],
)
@pytest.mark.skipif(not shutil.which("mpirun"), reason="needs mpirun")
def test_tasks_start_whatever_a_node_is_called(here: Cluster, words: tuple[str, ...], script: str, ranks: int) -> None:
    """The nodes are called n1 and n2, which no host is: mpirun finds them without ssh, also one that is alone."""
    path = here.folder / "job.sh"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    run_mpirun(here, "--output", "out", *words, *([path] if script else []))

    assert said(here.folder / "out") == [socket.gethostname()] * ranks


@pytest.mark.skipif(not shutil.which("mpirun"), reason="needs mpirun")
@pytest.mark.parametrize("words", [("--", "sh", "-c", "echo $DROM_NODE"), ("mpirun",), ("mpirun --host $DROM_HOSTS",)])
def test_mpirun_starts_a_task_on_each_node_whatever_the_names(odd: Cluster, words: tuple[str, ...]) -> None:
    """Names that mpirun would shorten, refuse or take for its own host reach the right agents."""
    path = odd.folder / "job.sh"
    path.write_text(f"#!/bin/sh\n{words[0]} sh -c 'echo $DROM_NODE'\n", encoding="utf-8")
    run_mpirun(odd, "--output", "out", "-N", str(len(ODD)), "--tasks-per-node", "1", *(words if words[1:] else [path]))

    assert sorted(said(odd.folder / "out")) == sorted(ODD)


@pytest.mark.skipif(not shutil.which("mpirun"), reason="needs mpirun")
@pytest.mark.parametrize("job_class", ["malleable", "moldable", "rigid"])
def test_each_task_of_a_job_has_the_class_of_the_job(here: Cluster, job_class: str) -> None:
    """Each of two tasks finds in its environment what the only task of a job finds."""
    show = "echo $DROM_MALLEABILITY [${GOMAXPROCS:+most}] [${LD_PRELOAD##*/}]"
    words = ("-N", "1", "--class", job_class, "--", "sh", "-c", show)
    for name, tasks in (("alone", "1"), ("both", "2")):
        here.await_state(here.submit("--output", name, "-n", tasks, *words), "completed")

    (line,) = said(here.folder / "alone")
    assert ("[most]" in line) == (job_class == "malleable")
    assert said(here.folder / "both") == [line] * 2


FREEZER = Path("/sys/fs/cgroup/freezer")
"""Where control groups of version 1 are: SIGKILL does not end a process in a frozen one, which is in state D."""


@pytest.mark.skipif(os.geteuid() != 0 or not FREEZER.is_dir(), reason="takes cgroups of version 1")
def test_a_process_that_cannot_be_killed_is_told(here: Cluster) -> None:
    """The agent's log names it, drom nodes and drom job say why the node waits, and it all goes by itself."""
    job = here.submit("--nodes", "1", "--output", "out", endless(here, "hangs"))
    pid = await_pid(here, "hangs")
    group = FREEZER / f"drom-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(pid), encoding="ascii")
        (group / "freezer.state").write_text("FROZEN", encoding="ascii")
        here.ask("cancel", job=job)
        (name,) = here.job(job)["shares"]
        here.agents[name].await_log(f"level=warning event=job_kill_failed job=drom-{job} attempt=1 .*{pid}:D:sleep")
        wait_until(lambda: "was killed" in here.ask("job", job=job)["reason"], lambda: here.log)
        (node,) = [node for node in here.ask("nodes")["nodes"] if node["name"] == name]
        assert (node["state"], node["busy"].partition(":")[0]) == ("busy", f"job {job} was killed and does not end")
        assert [value for _, value in samples(here.metrics(), "drom_scheduler_unkillable_jobs")] == [1.0]
        assert f"event=job_kill_failed job={job} " in here.log
    finally:
        (group / "freezer.state").write_text("THAWED", encoding="ascii")
        wait_until(lambda: not lives(pid), lambda: pid)
        group.rmdir()
    here.await_state(job, "cancelled")
    wait_until(lambda: {node["state"] for node in here.ask("nodes")["nodes"]} == {"up"}, lambda: here.log)
