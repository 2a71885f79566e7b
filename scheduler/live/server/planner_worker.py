# SPDX-License-Identifier: Apache-2.0
"""The process of a planner: reads snapshots from its input and writes plans to its output, until the input ends."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time

import numpy as np
from drom.scheduler.allocation.backfill import Held, Requests
from drom.scheduler.allocation.snapshot import Snapshot
from drom.scheduler.cp.live_planner import LivePlanner

_TWO = np.ones(2, np.int64)
EXAMPLE = Snapshot(
    0,
    np.array([[1]], np.int64),
    np.array([[0]], np.int64),
    [1, 2],
    _TWO,
    _TWO,
    Requests(_TWO, _TWO, _TWO, 0 * _TWO, _TWO.reshape(2, 1)),
    Held(_TWO[:0], _TWO[:0], _TWO[:0].reshape(0, 1)),
)
"""Two jobs for one core."""


def main(words: list[str]) -> None:
    """Plan with the parameters in `words`, each NAME=NUMBER; ``seconds`` is the longest time of the solver."""
    for number in (signal.SIGINT, signal.SIGTERM):  # of the scheduler's terminal: its end closes the input
        signal.signal(number, signal.SIG_IGN)
    os.nice(5)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries may print
    options = {name: float(value) for name, _, value in (word.partition("=") for word in words)}
    planner = LivePlanner(options, options.pop("seconds"))
    planner(EXAMPLE)  # compiles what is not in the cache
    while True:
        try:
            snapshot = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the scheduler
        except EOFError:
            return
        try:
            begin = time.process_time()
            answer = planner(snapshot)
            pickle.dump(answer._replace(seconds=time.process_time() - begin), answers)
            answers.flush()
        except BrokenPipeError:  # the scheduler has ended
            os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
