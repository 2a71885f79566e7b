# SPDX-License-Identifier: Apache-2.0
"""learn.py FILE: fit models of scikit-learn again and again until FILE exists; print how well they fit."""

import sys
from pathlib import Path

import numpy as np
from sklearn.cluster import KMeans
from sklearn.ensemble import HistGradientBoostingRegressor

rng = np.random.default_rng(1)
x = rng.normal(size=(4000, 8))
y = np.sin(x[:, 0]) + x[:, 1] * x[:, 2]
while True:
    trees = HistGradientBoostingRegressor(max_iter=20, random_state=1).fit(x, y)
    clusters = KMeans(8, n_init=1, random_state=1).fit(x)
    print("result", trees.score(x, y) + clusters.inertia_, flush=True)
    if Path(sys.argv[1]).exists():
        break
