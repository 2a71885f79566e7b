# SPDX-License-Identifier: Apache-2.0
"""Several users on one node: what one does to the agent, and to the programs of another, as real users."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.daemon import control_handler

from dromlib import layout
from dromlib.cpulist import cpus, parse_cpulist
from tests.support.agents import (
    SECONDS,
    Agent,
    Program,
    Programs,
    affinity,
    anonymous_memory,
    environment,
    launch_agent,
    start_agent,
    start_time,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else"),
    pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1"),
]
SCRIPT = Path(__file__).with_name("other_user.py")
ROOT = SCRIPT.parents[2]
TWO = ("--topology", "pack:2 core:1", "--grace", "0.2")
VICTIM, ATTACKER = 64901, 64902


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder that everybody may enter."""
    with tempfile.TemporaryDirectory(prefix="drom-users-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def agent(folder: Path) -> Iterator[Agent]:
    """Return an agent of two cores."""
    with start_agent(folder, *TWO) as agent:
        yield agent


def somebody(start: Programs, uid: int, agent: Agent, what: str, argument: object = None) -> Program:
    """Start what `other_user.py` has under a name, as a user; it is ready, and goes on until its stdin is closed."""
    command = [sys.executable, str(SCRIPT), str(uid), str(agent.dir), what, json.dumps(argument)]
    program = start.start(*command, PYTHONPATH=str(ROOT))
    program.await_out(r"\n")
    return program


def came_of(uid: int, agent: Agent, what: str, argument: object = None) -> Any:
    """Return what came of something that a user did."""
    command = [sys.executable, str(SCRIPT), str(uid), str(agent.dir), what, json.dumps(argument)]
    env = environment(PYTHONPATH=str(ROOT))
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS * 2, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def victim(agent: Agent, start: Programs) -> Program:
    """Return a running program that applies its grants."""
    program = somebody(start, VICTIM, agent, "follow")
    (row,) = agent.tasks().values()
    assert (row["uid"], row["granted"]) == (VICTIM, "0-1")
    return program


def assert_unharmed(agent: Agent, victim: Program) -> None:
    """The victim's task is as it was, and its program still follows its grants."""
    (job,) = agent.tasks()
    (row,) = agent.await_tasks(**{job: "0-1"}).values()
    assert (row["pid"], row["uid"]) == (victim.pid, VICTIM)
    agent.order("resize", job=job, cpus=1)
    agent.await_tasks(**{job: "0"})
    agent.order("resize", job=job, cpus=None)
    agent.await_tasks(**{job: "0-1"})
    wait_until(lambda: affinity(victim.pid) == "0,1", agent.tasks)


def test_files_of_the_agent_and_of_others_are_out_of_reach(agent: Agent, victim: Program) -> None:
    """A mailbox is its program's alone; registry, lock and sockets are the agent's to change."""
    (mailbox,) = (agent.dir / "mail").iterdir()
    found = came_of(ATTACKER, agent, "touch_files", int(mailbox.name))

    assert set(found.values()) == {"PermissionError"}, found
    assert_unharmed(agent, victim)


def test_nobody_passes_for_another_users_task(agent: Agent, victim: Program) -> None:
    """Who names another's task becomes a task of his own, with a registry that he cannot write."""
    found = came_of(ATTACKER, agent, "impersonate", [victim.pid, start_time(victim.pid)])

    assert found["writable"] == []
    assert found["attached"] in (0, found["we"])
    assert found["launched"] in (0, found["we"])
    agent.await_log(rf"event=task_ended .*pid={found['we']}")
    assert_unharmed(agent, victim)


def test_orders_about_anothers_job_are_refused(agent: Agent, victim: Program) -> None:
    """Neither by name nor by pid; each with the sentence that says who may."""
    (job,) = agent.tasks()
    asked = [
        ["resize", {"job": job, "cpus": 1}],
        ["resize", {"job": job, "cpus": None}],
        ["set", {"job": job, "cpus": "0"}],
        ["set", {"job": str(victim.pid), "cpus": "0"}],
        ["release", {"job": job}],
        ["release", {"job": str(victim.pid)}],
    ]
    refusal = f"job {job} belongs to another user: only root and the agent's own user may change it."
    assert came_of(ATTACKER, agent, "give_orders", asked) == [refusal] * len(asked)
    assert_unharmed(agent, victim)


def test_an_order_of_ones_own_can_be_ended_under_the_next_agent(folder: Path, start: Programs) -> None:
    """Who gave it is known after a crash: the same user ends his order, and not one that root gave."""
    agent = launch_agent(folder / "run", *TWO)
    try:
        program = somebody(start, VICTIM, agent, "follow")
        (job,) = agent.tasks()
        less: list[Any] = ["resize", {"job": job, "cpus": 1}]
        auto = ["resize", {"job": job, "cpus": None}]
        assert came_of(VICTIM, agent, "give_orders", [less]) == ["done"]
        agent.kill()
        agent = launch_agent(folder / "run", *TWO)
        agent.await_log("event=adopted tasks=1 dead=0")
        assert came_of(VICTIM, agent, "give_orders", [auto]) == ["done"]
        agent.order("resize", job=job, cpus=1)
        agent.kill()
        agent = launch_agent(folder / "run", *TWO)
        agent.await_log("event=adopted tasks=1 dead=0")
        refusal = f"job {job} is under an order of another user: "
        (said,) = came_of(VICTIM, agent, "give_orders", [auto])
        assert said.startswith(refusal)
        assert program.quit() == 0
        agent.stop()
    finally:
        agent.discard()


def test_orders_neither_fill_the_log_nor_come_without_end(agent: Agent, victim: Program) -> None:
    """What an order does not mean is not told, and who gives hundreds of them is to wait; others need not."""
    (job,) = agent.tasks()
    resize = [{"job": job, "cpus": 1, "pid": "A" * 200}, {"job": job, "cpus": None, "dry_run": True}]
    said = came_of(VICTIM, agent, "give_orders", [["resize", fields] for fields in resize] * 150)

    assert said[:100] == ["done"] * 100
    refusal = f"user {VICTIM} has given 100 orders in a moment: wait a second before the next one."
    assert said.index(refusal) < 200  # those that are only tried out count as well
    assert "event=order name=resize" in agent.log
    assert "AAA" not in agent.log
    agent.order("resize", job=job, cpus=None)
    assert_unharmed(agent, victim)


def test_a_job_named_like_a_pid_draws_no_order(agent: Agent, victim: Program, start: Programs) -> None:
    """Who calls his job by the pid of another's task does not get the orders meant for that one."""
    (job,) = agent.tasks()
    start.start(*agent.run("--job", str(victim.pid), "sleep", "1000"))
    agent.await_log(rf"event=task_started job=job-{victim.pid} ")
    agent.order("set", job=str(victim.pid), cpus="0")

    assert agent.tasks()[job]["pin"] == "0"


def test_members_of_the_group_of_masters_may_order(folder: Path, start: Programs) -> None:
    """A group is asked for at each order: here one that the user nobody is in, and one that nobody is in."""
    nobody = pwd.getpwnam("nobody")
    asked = [["resize", {"job": "calm", "cpus": 1}]]
    refusal = (
        "job calm belongs to another user: only root, the agent's own user and members of the group 0 may change it."
    )
    for group, said in ((str(nobody.pw_gid), "done"), ("0", refusal)):
        with start_agent(folder, *TWO, "--users-masters", group, name=group) as agent:
            start.start(*agent.run("--job", "calm", "sleep", "1000"))
            agent.await_tasks(calm="0-1")
            assert came_of(nobody.pw_uid, agent, "give_orders", asked) == [said]
            start.kill()


def test_a_user_has_so_many_tasks_and_others_still_register(folder: Path, start: Programs) -> None:
    """The quota is per user and told in one sentence; root and the agent's own user have none."""
    with start_agent(folder, "--emulate", "core:8", "--users-max-tasks", "3", "--capacity", "8") as agent:
        said = came_of(ATTACKER, agent, "register", 5)
        sentence = f"user {ATTACKER} has 3 tasks here, and users.max_tasks is 3: wait until some have ended."
        assert said == [sentence] * 2
        agent.await_tasks()
        programs = [start.start(*agent.run("--min", "1", "sleep", "1000")) for _ in range(5)]
        agent.await_log(r"(?s)(event=task_started .*){8}")
        assert len(agent.tasks()) == len(programs)
        start.kill()


def as_user(uid: int, *command: str) -> list[str]:
    """Return the command line of a user's command."""
    return ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups", *command]


def crowd_of(agent: Agent, start: Programs, many: int) -> list[Program]:
    """Start so many programs that never end, as one user; return them once all are registered."""
    crowd = [start.start(*as_user(ATTACKER, *agent.run("--job", f"a{n}", "sleep", "1000"))) for n in range(many)]
    wait_until(lambda: len(agent.tasks()) == many, lambda: agent.log)
    return crowd


def test_waiting_is_shared_between_users(agent: Agent, start: Programs) -> None:
    """A user whose first task comes after twenty of another one gets the next core that comes free."""
    crowd = crowd_of(agent, start, 20)
    late = start.start(*as_user(VICTIM, *agent.run("--job", "b", "sleep", "1000")))
    late.await_err("waiting: needs at least 1 CPU: 0 free")
    running = [program for program in crowd if f'pid={program.pid} old="" new=' in agent.log]
    assert len(running) == 2
    running[0].kill()
    agent.await_log("event=task_started job=b ")
    assert agent.log.count("event=task_started") == 3


def test_endless_tasks_of_one_user_leave_a_core_to_another(folder: Path, start: Programs) -> None:
    """However many tasks a user starts, another user's first one starts at once, and no core was idle before."""
    with start_agent(folder, "--emulate", "core:8") as agent:
        crowd_of(agent, start, 12)
        rows = agent.tasks().values()
        assert sum(row["state"] != "waiting" for row in rows) == 7
        targets = [cpu for row in rows for cpu in cpus(parse_cpulist(row["target"]))]
        assert sorted(targets) == list(range(8))
        kept = "the last CPUs that running jobs can lend are kept for users without running jobs."
        assert kept in [row["detail"] for row in rows]
        start.start(*as_user(VICTIM, *agent.run("--job", "b", "sleep", "1000")))
        agent.await_log("event=task_started job=b ")
        start.kill()


def test_connections_of_one_user_leave_room_for_others(folder: Path, start: Programs) -> None:
    """Whoever holds hundreds of connections to each socket holds up neither orders nor newcomers of another user."""
    with start_agent(folder, *TWO, limit=8192) as agent:
        crowd = somebody(start, ATTACKER, agent, "crowd", 5000)
        follower = somebody(start, VICTIM, agent, "follow")
        assert_unharmed(agent, follower)
        assert came_of(VICTIM, agent, "give_orders", [["ps", {}]]) == ["done"]
        crowd.quit()
        follower.quit()


def test_who_asks_without_end_has_few_answers_made(agent: Agent, victim: Program) -> None:
    """An order's seconds to go make each answer another one; root always gets a new one."""
    (job,) = agent.tasks()
    agent.order("resize", job=job, cpus=1, **{"for": 600})
    many = 300
    different, seconds = came_of(ATTACKER, agent, "look", many)
    assert (
        different
        <= control_handler.LOOKS_AT_ONCE
        + seconds * (control_handler.LOOKS_A_SECOND + 1 / control_handler.LOOK_SECONDS)
        + 1
    )
    seen = {agent.tasks()[job]["left"] for _ in range(many)}  # milliseconds: some answers are given in the same one
    assert len(seen) > 2 * control_handler.LOOKS_AT_ONCE
    agent.order("resize", job=job, cpus=None)
    assert_unharmed(agent, victim)


def test_a_mailbox_does_not_grow(agent: Agent, start: Programs) -> None:
    """Who has his own take up megabytes of the agent's file system keeps them for a moment."""
    hoard = somebody(start, ATTACKER, agent, "hoard", 64 << 20)
    (mailbox,) = (agent.dir / "mail").iterdir()
    wait_until(lambda: mailbox.stat().st_size == layout.MAILBOX_SIZE, mailbox.stat)
    assert hoard.quit() == 0
    agent.await_tasks()


def test_a_user_who_does_all_without_end_does_not_stop_the_others(agent: Agent, start: Programs) -> None:
    """Knocks, orders, subscriptions and mail in an endless stream: another user registers, follows and ends."""
    flood = somebody(start, ATTACKER, agent, "flood")
    follower = somebody(start, VICTIM, agent, "follow")
    assert follower.quit() == 0
    assert came_of(VICTIM, agent, "give_orders", [["ps", {}]]) == ["done"]
    assert flood.process.poll() is None, flood.show()
    flood.quit()
    agent.await_tasks()


def test_messages_without_end_do_not_fill_the_memory(agent: Agent, start: Programs) -> None:
    """Who says all the time that his message goes on takes up no more than a part of it; others are answered."""
    before = anonymous_memory(agent.pid)
    talker = somebody(start, ATTACKER, agent, "pile", 200)
    assert anonymous_memory(agent.pid) - before < 20 << 20
    assert came_of(VICTIM, agent, "give_orders", [["ps", {}]]) == ["done"]
    talker.quit()


SILENT = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pwd.h>
#include <stdlib.h>
#include <unistd.h>
int getpwuid_r(uid_t uid, struct passwd *entry, char *text, size_t size, struct passwd **found)
{
    int (*real)(uid_t, struct passwd *, char *, size_t, struct passwd **) = dlsym(RTLD_NEXT, "getpwuid_r");
    while (access(getenv("ANSWERS"), F_OK))
        usleep(10000);
    return real(uid, entry, text, size, found);
}
int getpwnam_r(const char *name, struct passwd *entry, char *text, size_t size, struct passwd **found)
{
    int (*real)(const char *, struct passwd *, char *, size_t, struct passwd **) = dlsym(RTLD_NEXT, "getpwnam_r");
    while (access(getenv("ANSWERS"), F_OK))
        usleep(10000);
    return real(name, entry, text, size, found);
}
"""
"""A directory that answers once a file is there."""


@pytest.fixture
def silenced(folder: Path) -> tuple[str, ...]:
    """Return the words that have a command run with a silent directory of users."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    library = folder / "silent.so"
    command = ["gcc", "-shared", "-fPIC", "-xc", "-", "-o", str(library)]
    subprocess.run(command, input=SILENT, text=True, check=True)
    return "env", f"LD_PRELOAD={library}", f"ANSWERS={folder / 'answers'}"


def test_a_silent_directory_of_users_holds_nobody_up(folder: Path, silenced: tuple[str, ...], start: Programs) -> None:
    """Metrics have numbers for names, and only who may be a member of the group of masters has to ask again."""
    nobody = pwd.getpwnam("nobody")
    answers, within = folder / "answers", silenced
    group = str(nobody.pw_gid)
    options = ("--emulate", "core:2", "--users-masters", group, "--metrics", "127.0.0.1:0")
    with start_agent(folder, *options, within=within) as agent:
        start.start(*agent.run("--job", "calm", "sleep", "1000"))
        somebody(start, nobody.pw_uid, agent, "follow")
        silent = "this machine's user directory (NSS) has not answered: try again in a moment."
        asked = [["resize", {"job": "calm", "cpus": 1}]]
        assert came_of(nobody.pw_uid, agent, "give_orders", asked) == [silent]
        number, named = (f'drom_user_allocated_cpu_seconds_total{{user="{who}"}}' for who in (nobody.pw_uid, "nobody"))
        wait_until(lambda: number in agent.metrics(), agent.metrics)

        answers.touch()
        wait_until(lambda: named in agent.metrics(), agent.metrics)
        wait_until(lambda: came_of(nobody.pw_uid, agent, "give_orders", asked) == ["done"], lambda: agent.log)
        start.kill()


def test_a_reload_does_not_wait_for_a_silent_directory_of_users(folder: Path, silenced: tuple[str, ...]) -> None:
    """A reload that has to look users up is refused, changes nothing and stops nothing; a later one is carried out."""
    config, answers = folder / "drom.toml", folder / "answers"
    config.write_text("margin = 0.1\n", encoding="utf-8")
    with start_agent(folder, "--emulate", "core:2", "--config", config, within=silenced) as agent:
        config.write_text("margin = 0.2\nexclude.users = ['nobody']\n", encoding="utf-8")
        done = agent.cli("config", "reload")
        silent = "this machine's user directory (NSS) has not answered: try again in a moment."
        assert done.returncode == 1
        assert done.stderr == f"drom: {silent}\ndrom: The agent goes on with what it had.\n"
        assert agent.order("ps")["tasks"] == []

        answers.touch()
        wait_until(lambda: agent.cli("config", "reload").returncode == 0, lambda: agent.log)
        agent.await_log("event=reloaded changed=.*margin.*exclude_users")
