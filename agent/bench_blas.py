"""The BLAS loop of `drom bench resize-cost`: python -m agent.bench_blas SIZE FILE, run by drom-run until SIGTERM.

It multiplies matrices with NumPy, passes a malleability point before each product, and writes at its end for each
step the words that dromlib/native/bench/resize.c describes.
"""

from __future__ import annotations

import array
import signal
import sys
from pathlib import Path
from time import monotonic_ns

import dromlib


def main(size: int, path: Path) -> None:
    """Multiply until told to stop, then write the steps."""
    import numpy as np

    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    signal.alarm(600)
    left, right = np.ones((size, size)), np.ones((size, size))
    product = np.empty((size, size))
    steps = array.array("Q")
    with dromlib.attach() as session:
        while not stopped:
            begin = monotonic_ns()
            grant = session.poll()
            if grant:
                session.apply(grant)
            region = monotonic_ns()
            np.matmul(left, right, out=product)
            ncpus = session.grant.ncpus if session.grant else 0
            steps.extend((begin, region, monotonic_ns(), ncpus, int(grant is not None)))
    path.write_bytes(steps.tobytes())


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
