# SPDX-License-Identifier: Apache-2.0
"""The Python program of `drom bench node`: it polls, or sleeps until it gets a grant, and writes the time.

    python -m drom.agent.bench.waiter_program wait|signal|changed|message|pipe FILE CHANGES
    python -m drom.agent.bench.waiter_program poll REPETITIONS CALLS

FILE is mapped: word 0 counts the words written after it. Word 1 says that the program has started; those after it are
times of CLOCK_MONOTONIC in nanoseconds, one for each change.
"""

from __future__ import annotations

import asyncio
import gc
import mmap
import os
import select
import sys
import time

import dromlib

SLOT = 0
LOOK_AGAIN = 0.02


def _words(path: str) -> memoryview:
    with open(path, "r+b") as file:
        words = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")
    words[0] = 1
    return words


def wait(session: dromlib.Session, words: memoryview, changes: int) -> None:
    """Sleep on the futex until each change."""
    for index in range(2, changes + 2):
        session.wait()
        words[index] = time.monotonic_ns()
        words[0] = index


def signal(session: dromlib.Session, words: memoryview, changes: int) -> None:
    """Sleep until the ZeroMQ signal of each change arrives, and take the grant."""
    from dromlib.subscription import Subscription

    with Subscription(os.environ["DROM_RUNTIME_DIR"], SLOT) as subscription:
        for index in range(2, changes + 2):
            while not session.poll():
                select.select([subscription], [], [], LOOK_AGAIN)  # the agent may not have the subscription yet
                subscription.receive()
            words[index] = time.monotonic_ns()
            words[0] = index


async def changed(session: dromlib.Session, words: memoryview, changes: int) -> None:
    """Sleep in an event loop until each change."""
    for index in range(2, changes + 2):
        await session.changed()
        words[index] = time.monotonic_ns()
        words[0] = index


def poll(session: dromlib.Session, repetitions: int, calls: int) -> None:
    """Print the nanoseconds of a poll that finds nothing, without the loop around it, once for each repetition."""
    for _ in range(repetitions):
        begin = time.perf_counter_ns()
        for _ in range(calls):
            pass
        middle = time.perf_counter_ns()
        for _ in range(calls):
            session.poll()
        end = time.perf_counter_ns()
        sys.stdout.write(f"{((end - middle) - (middle - begin)) / calls}\n")


def message(words: memoryview, changes: int) -> None:
    """Sleep on a ZeroMQ socket until a message comes, each time."""
    import zmq

    from dromlib import signals

    with zmq.Context() as context, signals.subscribe(context, os.environ["DROM_RUNTIME_DIR"], SLOT) as sock:
        for index in range(2, changes + 2):
            sock.recv()
            words[index] = time.monotonic_ns()
            words[0] = index


def pipe(words: memoryview, changes: int) -> None:
    """Sleep until a byte comes through standard input, each time."""
    for index in range(2, changes + 2):
        os.read(0, 1)
        words[index] = time.monotonic_ns()
        words[0] = index


def main(kind: str, *words: str) -> None:
    """Attach and run `kind`. Exits with a sentence if the program does not become the responder."""
    if alone := {"message": message, "pipe": pipe}.get(kind):
        alone(_words(words[0]), int(words[1]))
        return
    with dromlib.attach([]) as session:
        if session.mode != "responder":
            sys.exit("bench_waiter: no agent manages this program")
        gc.disable()
        if kind == "poll":
            poll(session, int(words[0]), int(words[1]))
        elif kind == "changed":
            asyncio.run(changed(session, _words(words[0]), int(words[1])))
        else:
            {"wait": wait, "signal": signal}[kind](session, _words(words[0]), int(words[1]))


if __name__ == "__main__":
    main(*sys.argv[1:])
