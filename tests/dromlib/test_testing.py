from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import zmq

import dromlib
from dromlib import layout, native, signals
from dromlib.cpulist import CpuListError
from dromlib.testing import FakeAgent, Left, Registry

PROGRAM = """
import dromlib, sys
done = 0
with dromlib.attach(min_cpus=2, max_cpus=6) as session:
    print(session.mode, flush=True)
    while (grant := session.wait()):
        session.apply(grant)
        done += 10
        session.progress(done)
print("alone")
"""


def test_a_program_is_driven_through_its_life() -> None:
    """A child finds the fake agent, applies what it is granted, tells its progress, and runs on when it is retired."""
    with FakeAgent("0-3") as fake, subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE) as program:
        assert program.stdout
        assert program.stdout.readline() == b"responder\n"
        fake.wait_attached()
        fake.wait_applied(1)
        assert fake.wanted == (2, 6)
        for count, cpus in enumerate(("0-1", "0-5,9"), 1):
            fake.wait_applied(fake.grant(cpus, reason="order"))
            deadline = time.monotonic() + 60
            while fake.progress < 10 * count:
                assert time.monotonic() < deadline
                time.sleep(0.001)
        fake.retire()
        assert program.stdout.read() == b"alone\n"


def test_mailboxes_are_whole_before_anybody_looks(tmp_path: Path) -> None:
    """Of two threads that ask for one none finds what the other has only begun to write."""
    registry = Registry(tmp_path, 2)

    assert [registry.mailbox(slot).stat().st_size for slot in range(2)] == [layout.MAILBOX_SIZE] * 2
    assert [registry.mail(slot, "slot") for slot in range(2)] == [0, 1]


def test_the_environment_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the block programs find this agent alone; after it the variables are what they were and the files are gone."""
    monkeypatch.setenv("DROM_TASK", "1:2")
    monkeypatch.delenv("DROM_RUNTIME_DIR", raising=False)
    with FakeAgent() as fake:
        folder = Path(os.environ["DROM_RUNTIME_DIR"])
        assert folder == fake.folder
        assert folder.is_dir()
        assert "DROM_TASK" not in os.environ
    assert os.environ["DROM_TASK"] == "1:2"
    assert "DROM_RUNTIME_DIR" not in os.environ
    assert not folder.exists()


def test_waiting_in_vain_is_one_sentence() -> None:
    """What does not happen in time is named."""
    with FakeAgent() as fake:
        epoch = fake.grant("0")
        with pytest.raises(TimeoutError, match=r"^After 0.01 s epoch 1 is not applied; the newest applied is 0\.$"):
            fake.wait_applied(epoch, 0.01)
        with pytest.raises(TimeoutError, match="no program has attached"):
            fake.wait_attached(0.01)
        with dromlib.attach([]), pytest.raises(TimeoutError, match="the program is still attached"):
            fake.wait_left(0.01)


@pytest.mark.parametrize("ending", ["import dromlib; dromlib.attach([]).close()", "import dromlib; dromlib.attach([])"])
def test_a_program_that_leaves_at_once_is_not_waited_for(ending: str) -> None:
    """Closed or just gone, also while its parent has not asked after it: one sentence, long before the time is over."""
    with FakeAgent() as fake, subprocess.Popen([sys.executable, "-c", ending + "; import os; os._exit(0)"]) as program:
        fake.wait_attached()
        os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
        fake.wait_left(0.1)
        epoch = fake.grant("0")
        with pytest.raises(Left, match=r"^The program has left, and epoch 1 was not seen in force: let it wait"):
            fake.wait_applied(epoch)


def test_what_a_program_has_said_is_known_after_the_block() -> None:
    """Progress, polls and wishes can be looked at when the agent is gone, and are none when it is opened again."""
    fake = FakeAgent("0-3")
    with fake, dromlib.attach([], 1, 3) as session:
        session.poll()
        session.progress(7)
    assert (fake.progress, fake.polls, fake.wanted, fake.applied) == (7, 1, (1, 3), layout.EPOCH_RETIRED)
    with fake:
        assert (fake.progress, fake.polls, fake.wanted, fake.applied) == (0, 0, (0, 0), 0)


def test_outside_of_its_block_it_is_one_sentence() -> None:
    """Before and after it nothing can be granted, and before it nobody has said anything."""
    fake = FakeAgent("0")
    for act in (lambda: fake.grant("0"), fake.wait_attached, fake.retire, lambda: fake.applied):
        with pytest.raises(RuntimeError, match=r"^a FakeAgent acts in its block: "):
            act()
    with fake:
        pass
    with pytest.raises(RuntimeError, match=r"^a FakeAgent acts in its block: "):
        fake.grant("0")


def test_nonsense_is_refused() -> None:
    """A CPU list or reason that is none is a ValueError, and nothing is granted."""
    with FakeAgent() as fake, dromlib.attach([]) as session:
        with pytest.raises(CpuListError):
            fake.grant("0-")
        for cpus in ("", "1024"):
            with pytest.raises(ValueError, match=rf"^'{cpus}' cannot be granted: name one CPU or more, from 0 to 1023"):
                fake.grant(cpus)
        with pytest.raises(ValueError, match=r"^'whim' is no reason of a grant: choose from none, arrival, share"):
            fake.grant("0", reason="whim")
        assert session.poll() is None


def test_a_program_can_register_after_the_responder_has_died() -> None:
    """A program can become the responder after one that was killed."""
    with FakeAgent("0") as fake:
        with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE) as program:
            fake.wait_attached()
            fake.wait_applied(1)
            program.kill()
        with dromlib.attach([]) as session:
            assert session.mode == "responder"


def test_signals_are_those_of_the_agent() -> None:
    """Who listens to the slot's topic hears of grants."""
    with FakeAgent() as fake, zmq.Context() as context, signals.subscribe(context, fake.folder, 0) as sock:
        while not sock.poll(10):
            fake.grant("0-1")
        message = sock.recv()

    assert message.startswith(signals.topic(0))
    assert signals.event(message)["new"] == "0-1"


def test_drom_run_is_told_to_do_it_alone() -> None:
    """A launch under a fake agent runs the command unmanaged, with one line."""
    with FakeAgent():
        done = subprocess.run([native.run_path(), "echo", "ran"], capture_output=True, text=True, check=False)

    assert done.stdout == "ran\n"
    assert done.stderr == "drom: running unmanaged: A fake agent launches nothing: start the program itself.\n"


def test_what_goes_wrong_behind_the_door_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the fake agent is not taken for one of the program."""

    def fail(*_: object) -> bool:
        raise AssertionError("mine")

    monkeypatch.setattr(FakeAgent, "_make_responder", fail)
    with pytest.raises(AssertionError, match="mine"), FakeAgent(), dromlib.attach([]) as session:
        assert session.mode == "unmanaged"
