# SPDX-License-Identifier: Apache-2.0
"""Orders from another node to a real agent, whose folder of keys names who may."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
from drom.agent.control import keys

from tests.support.agents import Programs, drom, environment, start_agent
from tests.support.commands import commands_of, run_lines
from tests.support.terminals import has, terminal

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system


def test_who_has_a_key_commands_and_who_has_none_gets_a_sentence(tmp_path: Path, start: Programs) -> None:
    """The command line reaches the agent over TCP, the log names the key, and no file of the node is needed."""
    own, ben, stranger = (keys.make(tmp_path / name) for name in ("agent", "ben", "stranger"))
    keys.trust(own, ben.folder / keys.PUBLIC, "ben")
    for other in (ben, stranger):
        keys.trust(other, own.folder / keys.PUBLIC, "127.0.0.1")
    with start_agent(
        tmp_path, "--emulate", "core:4", "--remote-listen", "127.0.0.1:0", "--remote-keys", own.folder
    ) as agent:
        where = f"127.0.0.1:{agent.await_log(r'event=remote .*port=([0-9]+)')[1]}"
        start.start(*agent.run("--job", "calm", "cat"))
        agent.await_tasks(calm="0-3")
        shrunk = drom("resize", "calm", "2", "--remote", where, "--remote-keys", ben.folder)
        rows = json.loads(drom("ps", "--json", "--remote", where, DROM_REMOTE_KEYS=str(ben.folder)).stdout)["tasks"]
        command = [sys.executable, "-m", "drom", "top", "--remote", where, "--remote-keys", str(ben.folder)]
        with terminal(command, environment()) as screen:
            screen.await_screen(has(r"drom top, 127\.0\.0\.1: 1 job, .* 2 of 4 cores in use$", r"^A calm "))
            screen.type("\n")
            screen.await_screen(has(r"^An order .*holds it at 2 CPUs"))
            screen.type("\n")
            drom("resize", "calm", "3", "--remote", where, "--remote-keys", ben.folder)
            screen.await_screen(has(r"3 of 4 cores in use$"))
            screen.type("q")
            assert screen.process.wait(60) == 0
        once = drom("top", "--remote", where, "--remote-keys", stranger.folder)
        refused = drom("resize", "calm", "4", "--remote", where, "--remote-keys", stranger.folder)

        assert shrunk.returncode == 0, shrunk.stderr
        assert [row["target"] for row in rows] == ["0-1"]
        assert "event=order name=resize key=ben job=calm cpus=2" in agent.log
        assert (once.returncode, once.stderr) == (1, refused.stderr)
        assert refused.returncode == 1
        assert refused.stderr.startswith(f"drom: the agent at {where} does not trust this key: let its administrator ")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--remote-listen", "127.0.0.1:0"), "there are no keys in {folder}: make them with `drom keys make --dir "),
        (("--users-masters", "no-such-group"), "there is no group no-such-group here: check users.masters."),
        (("--remote-listen", "9465x"), "--remote-listen 9465x is not ADDRESS:PORT: write for example 0.0.0.0:9465."),
    ],
)
def test_an_agent_that_cannot_do_so_does_not_start(tmp_path: Path, options: tuple[str, ...], sentence: str) -> None:
    """One sentence, and nothing is left."""
    folder = tmp_path / "none"
    done = drom("agent", "--runtime-dir", tmp_path / "run", "--emulate", "core:1", "--remote-keys", folder, *options)

    assert done.returncode == 1
    assert done.stderr.startswith("drom: " + sentence.format(folder=folder)), done.stderr
    assert not (tmp_path / "run").exists()


def test_the_page_about_it_is_right(tmp_path: Path) -> None:
    """Its commands run one after the other, but for the port, which is the one that was free."""
    page = commands_of("docs/remote.md")
    shown = run_lines(page[:-1], tmp_path)
    with start_agent(
        tmp_path, "--emulate", "core:1", "--remote-listen", "127.0.0.1:0", "--remote-keys", tmp_path / "node1"
    ) as agent:
        port = agent.await_log(r"event=remote .*port=([0-9]+)")[1]
        asked = run_lines([page[-1].replace("9465", port)], tmp_path)

    assert [line.split()[-1] for line in shown.splitlines()[-2:]] == ["ben", "ourselves"]
    assert asked == "No task runs here: start one with: drom run -- COMMAND\n"
