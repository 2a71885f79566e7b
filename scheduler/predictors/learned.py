# SPDX-License-Identifier: Apache-2.0
"""A linear model of the logarithm of the run time that learns from every job that ends.

On-line regression on users, sizes, requests and the time of day, in the manner of Gaussier, Glesser, Reis and Trystram,
"Improving backfilling by using machine learning to predict running times" (SC 2015), with another method: recursive
least squares whose weights may drift, which is a Kalman filter. With features x, weights w, their covariance P and the
logarithm y of a run time

g = P x / (1 + x' P x)    w <- w + g (y - w' x)    P <- P - g x' P + DRIFT I

where y - w' x is cut to +-LARGEST, so that no single job dominates the model. The prediction is exp(w' x). The
initial w gives the mean of similar jobs, so that it begins with the history, or with the request. Jobs are similar if
they have user, request and size in common.
"""

from __future__ import annotations

from math import cos, exp, log, pi, sin
from typing import TYPE_CHECKING

import numpy as np
from drom.scheduler.interface import NOBODY, compilable
from drom.scheduler.predictors.knowledge import FEATURES

if TYPE_CHECKING:
    from drom.scheduler.interface import Floats, Jobs
    from drom.scheduler.predictors.knowledge import RuntimeKnowledge

SIMILAR = 5
"""The feature that the model begins with."""
DOUBT = 0.1
"""The variance of each weight at first."""
DRIFT = 1e-6
LARGEST = 3.0
KEPT = 0.5
"""What the mean of similar jobs keeps of itself when another one has ended."""
DAY = 86_400
COUNT, LAST, BEFORE = range(3)
"""Columns of `RuntimeKnowledge.by_user`, the last two as logarithms, and of `by_kind`; its second is a mean of them."""


def predict(jobs: Jobs, known: RuntimeKnowledge, job: int) -> int:
    """Return the expected run time of a job that is submitted now."""
    if known.model[0, SIMILAR] == 0 and known.counts[1] == 0:
        begin(known.model)
    for i in range(known.counts[1], known.counts[0]):
        learn(known, known.gone[i])
    known.counts[1] = known.counts[0]
    describe(jobs, known, job)
    return int(exp(min(dot(known.model[0], known.seen[job]), 40.0)) + 0.5)


@compilable
def begin(model: Floats) -> None:
    """Set the first weights, in row 0, and their covariance, in the others."""
    model[0, SIMILAR] = 1.0
    for i in range(FEATURES):
        model[1 + i, i] = DOUBT


@compilable
def describe(jobs: Jobs, known: RuntimeKnowledge, job: int) -> None:
    """Store the features of a job at its submission."""
    x, user, kind = known.seen[job], known.user[job], known.kind[job]
    hour = 2 * pi * (jobs.submit[job] % DAY) / DAY
    x[0], x[1], x[2] = 1.0, log(max(1, jobs.requested[job])), log(max(1, jobs.cores[job]))
    x[3] = known.by_user[user, LAST] if user != NOBODY and known.by_user[user, COUNT] > 0 else x[1]
    x[4] = known.by_user[user, BEFORE] if user != NOBODY and known.by_user[user, COUNT] > 1 else x[3]
    familiar = user != NOBODY and known.by_kind[kind, COUNT] > 0
    x[5] = known.by_kind[kind, LAST] if familiar else (x[3] + x[4]) / 2
    x[6] = 1.0 if familiar else 0.0
    x[7], x[8] = sin(hour), cos(hour)


@compilable
def learn(known: RuntimeKnowledge, job: int) -> None:
    """Update the model with a job that has ended."""
    user, kind, took = known.user[job], known.kind[job], log(max(1, known.took[job]))
    update(known.model, known.seen[job], took)
    if user == NOBODY:
        return
    known.by_user[user, BEFORE] = known.by_user[user, LAST]
    known.by_user[user, LAST] = took
    known.by_user[user, COUNT] += 1
    kept = KEPT if known.by_kind[kind, COUNT] > 0 else 0.0
    known.by_kind[kind, LAST] = kept * known.by_kind[kind, LAST] + (1 - kept) * took
    known.by_kind[kind, COUNT] += 1


@compilable
def update(model: Floats, x: Floats, y: float) -> None:
    """Update weights and covariance with one observation."""
    weights, spread = model[0], np.empty(FEATURES)
    for i in range(FEATURES):
        spread[i] = dot(model[1 + i], x)
    scale = 1.0 + dot(spread, x)
    error = min(max(y - dot(weights, x), -LARGEST), LARGEST)
    for i in range(FEATURES):
        weights[i] += spread[i] * error / scale
        for k in range(FEATURES):
            model[1 + i, k] -= spread[i] * spread[k] / scale
        model[1 + i, i] += DRIFT


@compilable
def dot(one: Floats, other: Floats) -> float:
    """Return the sum of the products."""
    total = 0.0
    for i in range(len(one)):
        total += one[i] * other[i]
    return total
