# SPDX-License-Identifier: Apache-2.0
"""Measure the costs for a malleable Python program, and the time until it wakes up after a grant."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, cast

import zmq
from drom.agent.bench import publish as bench_publish
from drom.agent.control.server import Server
from drom.agent.errors import ControlError
from drom.agent.system import python_command

from dromlib import signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from drom.agent.bench.agent import Agent

PAIRS = 25
POLLS = (11, 1_000_000)
"""Repetitions in a run, and calls in each."""
CHANGES = 400
WARM_UP = 50
REST = 0.0005
"""Seconds between a program's wake-up and the next grant: it is asleep again by then."""


def import_ms(pairs: int = PAIRS) -> float:
    """Return the median extra time of Python with dromlib's names imported, in milliseconds."""
    code = "from dromlib import attach, malleable"
    return statistics.median(-_run_seconds("pass") + _run_seconds(code) for _ in range(pairs)) * 1e3


def _run_seconds(code: str) -> float:
    begin = time.monotonic()
    subprocess.run(python_command.python(code), check=True)
    return time.monotonic() - begin


def poll_ns(agent: Agent, repetitions: int = POLLS[0], calls: int = POLLS[1]) -> float:
    """Return the nanoseconds of a `Session.poll` that finds nothing new, without the loop around it."""
    with agent.launch(*_waiter("poll", str(repetitions), str(calls))) as program:
        said, _ = program.communicate(timeout=bench_publish.PATIENCE)
    if program.returncode:
        raise ControlError("the Python program of the benchmark has failed: its words stand above.")
    return statistics.median(map(float, said.split()))


@contextlib.contextmanager
def cpus_awake() -> Iterator[None]:
    """Keep every CPU of this process's affinity awake for a block, as cyclictest does, but also if a host decides.

    A loop on each CPU has the policy SCHED_IDLE: any other thread gets the CPU at once.
    """
    loop = (
        "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\n"
        "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)); print(flush=True)\n"
        "while True: pass"
    )
    with contextlib.ExitStack() as stack:
        for cpu in sorted(os.sched_getaffinity(0)):
            words = python_command.python(loop, str(cpu))
            process = stack.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE))
            stack.callback(process.kill)
            if process.stdout is None or not process.stdout.readline():
                raise ControlError("a loop that keeps a CPU awake has ended: its words stand above.")
        yield


def awake_after(kind: str, changes: int = CHANGES) -> list[float]:
    """Return for each of `changes` grants the microseconds from the call of publish until Python code continues.

    `kind` is "wait" for a program that sleeps on the futex; the agent's signal wakes those of kind "signal", which
    sleep on a ZeroMQ socket, and of kind "changed", which sleep in an asyncio loop. Two kinds do not use drom: a mere
    ZeroMQ message, as long as a signal, wakes the kind "message", and a byte through a pipe the kind "pipe".
    """
    count = WARM_UP + changes
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="drom-bench-")))
        told = stack.enter_context(bench_publish.shared_words(folder / "told", count + 2))
        stage = bench_publish.FakeAgent(folder)
        stack.callback(stage.close)
        words = _waiter(kind, str(folder / "told"), str(count))
        program = stack.enter_context(subprocess.Popen(words, env=stage.environment, stdin=subprocess.PIPE, bufsize=0))
        stack.callback(program.kill)
        waker = {"pipe": _by_pipe, "message": _by_message}.get(kind, _by_grant)
        wake = stack.enter_context(waker(stage, program))
        return _time_changes(wake, told, count, program)[WARM_UP:]


@contextlib.contextmanager
def _by_grant(stage: bench_publish.FakeAgent, program: subprocess.Popen[bytes]) -> Iterator[Callable[[int], None]]:
    server = Server(stage.folder, 0o600, slots=1)
    with contextlib.closing(server):
        task = stage.admit()

        def publish(epoch: int) -> None:
            stage.registry.publish(task, epoch, 1 + epoch % 2, "share")
            server.signal(0, _event(epoch, program))
            server.serve(lambda *_: None)

        yield publish


@contextlib.contextmanager
def _by_message(stage: bench_publish.FakeAgent, program: subprocess.Popen[bytes]) -> Iterator[Callable[[int], object]]:
    with zmq.Context() as context, context.socket(zmq.XPUB) as sock:
        sock.setsockopt(zmq.LINGER, 0)
        sock.bind(signals.endpoint(stage.folder))
        if not sock.poll(int(1000 * bench_publish.PATIENCE)):
            raise ControlError("the sleeping program of the benchmark does not listen: its words stand above.")
        yield lambda epoch: sock.send(signals.message(0, _event(epoch, program)))


@contextlib.contextmanager
def _by_pipe(_: bench_publish.FakeAgent, program: subprocess.Popen[bytes]) -> Iterator[Callable[[int], object]]:
    pipe = cast("IO[bytes]", program.stdin)
    yield lambda _: pipe.write(b"x")


def _event(epoch: int, program: subprocess.Popen[bytes]) -> dict[str, object]:
    return {"event": "granted", "epoch": epoch, "pid": program.pid, "reason": "share"}


def _time_changes(
    publish: Callable[[int], object], told: memoryview, count: int, program: subprocess.Popen[bytes]
) -> list[float]:
    took = []
    _await(told, 1, program)
    for epoch in range(1, count + 1):
        time.sleep(REST)
        begin = time.monotonic_ns()
        publish(epoch)
        _await(told, epoch + 1, program)
        took.append((told[epoch + 1] - begin) / 1000)
    return took


def _await(told: memoryview, count: int, program: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + bench_publish.PATIENCE
    while told[0] < count:
        time.sleep(REST)
        if program.poll() is not None or time.monotonic() > deadline:
            raise ControlError("the sleeping program of the benchmark has stopped: its words stand above.")


def _waiter(*words: str) -> list[str]:
    return python_command.module("drom.agent.bench.waiter_program", *words)
