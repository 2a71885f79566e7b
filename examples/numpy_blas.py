# SPDX-License-Identifier: Apache-2.0
"""Powers of a matrix modulo a prime with NumPy: products in BLAS, malleable between any two.

    python numpy_blas.py [--size N] [--steps K] [--seconds S]

All numbers are whole and below 2**53, so that float64 is exact and the answer the same however many threads add them
up. It is checked in the manner of Freivalds: w A^k x(0) = w x(k), the left side computed from w alone. Exit 0: right.
1: wrong. 2: wrong usage.
"""

from __future__ import annotations

import argparse
import math
import sys
import time

import numpy as np

import dromlib  # malleable

PRIME = 32749


def positive(text: str) -> float:
    """Return a number from 1 to 100 million."""
    if not 1 <= float(text) <= 1e8:
        raise ValueError
    return float(text)


def reduced(numbers: np.ndarray) -> np.ndarray:
    """Return smaller numbers, equal modulo PRIME; several times as fast as the operator %."""
    return numbers - PRIME * np.floor(numbers / PRIME)


def main() -> int:
    """Multiply, check, and return the exit code."""
    parser = argparse.ArgumentParser(prog="numpy_blas")
    parser.error = lambda message: parser.exit(2, f"{parser.prog}: {message}\n")  # one sentence
    parser.add_argument("--size", type=positive, metavar="N", default=1000)
    parser.add_argument("--steps", type=positive, metavar="K")
    parser.add_argument("--seconds", type=positive, metavar="S", default=math.inf)
    asked = parser.parse_args()
    size, steps = int(asked.size), int(asked.steps or (400 if asked.seconds == math.inf else sys.maxsize))

    random = np.random.default_rng(1)
    a, start = random.integers(0, PRIME, (2, size, size)).astype(float)
    w = first = random.integers(0, PRIME, size).astype(float)
    x, done, since = start, 0, time.monotonic()
    with dromlib.attach() as session:  # malleable
        while done < steps and time.monotonic() - since < asked.seconds:
            if grant := session.poll():  # malleable
                session.apply(grant)  # malleable
            x, w, done = reduced(a @ x), reduced(w @ a), done + 1
            session.progress(done)  # malleable
    right = np.array_equal(w @ start % PRIME, first @ x % PRIME)
    checksum = int((x % PRIME).sum())
    print(f"numpy_blas: n={size} steps={done} checksum {checksum} {'ok' if right else 'WRONG'}")
    return 0 if right else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MemoryError:
        sys.exit("numpy_blas: not enough memory; choose a smaller --size.")
