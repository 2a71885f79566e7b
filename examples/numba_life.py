# SPDX-License-Identifier: Apache-2.0
"""Conway's Life on a torus full of gliders: a numba stencil, malleable between any two rounds of four generations.

    python numba_life.py [--gliders N] [--rounds K] [--seconds S]

In four generations each glider moves on by one row and one column, so the board is known after any number of rounds.
Exit 0: right. 1: wrong board. 2: wrong usage.
"""

from __future__ import annotations

import argparse
import math
import sys
import time

import numba
import numpy as np

import dromlib  # malleable

GLIDER = np.array([[0, 1, 0], [0, 0, 1], [1, 1, 1]], dtype=np.uint8)
TILE = 8
"""Rows and columns that each glider has for itself."""


@numba.njit("void(uint8[:, ::1], uint8[:, ::1])", parallel=True)
def generation(after: np.ndarray, now: np.ndarray) -> None:
    """Compute the board after one generation, each thread some of its rows."""
    rows, columns = now.shape
    for i in numba.prange(rows):
        above, here, below = now[i - 1], now[i], now[i + 1 if i + 1 < rows else 0]
        for j in range(columns):
            left, right = j - 1, j + 1 if j + 1 < columns else 0
            beside = above[left] + above[j] + above[right] + here[left] + here[right]
            alive = beside + below[left] + below[j] + below[right]
            after[i, j] = alive == 3 or (alive == 2 and here[j] == 1)


def positive(text: str) -> float:
    """Return a number from 1 to 100 million."""
    if not 1 <= float(text) <= 1e8:
        raise ValueError
    return float(text)


def main() -> int:
    """Play, compare the board with the one that must come out, and return the exit code."""
    parser = argparse.ArgumentParser(prog="numba_life")
    parser.error = lambda message: parser.exit(2, f"{parser.prog}: {message}\n")  # one sentence
    parser.add_argument("--gliders", type=positive, metavar="N", default=512, help="N rows of N gliders")
    parser.add_argument("--rounds", type=positive, metavar="K")
    parser.add_argument("--seconds", type=positive, metavar="S", default=math.inf)
    asked = parser.parse_args()
    rounds = int(asked.rounds or (100 if asked.seconds == math.inf else sys.maxsize))

    tile = np.zeros((TILE, TILE), dtype=np.uint8)
    tile[:3, :3] = GLIDER
    start = np.tile(tile, (int(asked.gliders), int(asked.gliders)))
    now, after, done, since = start.copy(), np.zeros_like(start), 0, time.monotonic()
    for _ in dromlib.malleable(range(rounds)):  # malleable
        for _ in range(2):
            generation(after, now)
            generation(now, after)
        done += 1
        if time.monotonic() - since >= asked.seconds:
            break
    right = np.array_equal(now, np.roll(start, (done, done), axis=(0, 1)))
    print(f"numba_life: {now.size} cells, {done} rounds, {now.sum()} alive {'ok' if right else 'WRONG'}")
    return 0 if right else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MemoryError:
        sys.exit("numba_life: not enough memory; choose a smaller --gliders.")
