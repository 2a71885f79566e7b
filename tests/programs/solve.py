# SPDX-License-Identifier: Apache-2.0
"""solve.py FILE: products, eigenvalues and solutions in NumPy and SciPy until FILE exists; print a sum of them."""

import sys
from pathlib import Path

import numpy as np
from scipy import linalg

rng = np.random.default_rng(1)
a = rng.normal(size=(300, 300))
while True:
    spread = np.abs(linalg.eigvalsh(a @ a.T)).sum()
    solved = linalg.solve(a + 100 * np.eye(300), a).sum()
    print("result", spread + solved, flush=True)
    if Path(sys.argv[1]).exists():
        break
