# SPDX-License-Identifier: Apache-2.0
"""Rigid jobs by the model of Lublin and Feitelson, "The workload on parallel supercomputers: modeling the
characteristics of rigid jobs", JPDC 63(11), 2003: sizes, run times that depend on them, arrivals with a daily cycle.

The parameters are those of the authors' program, with its limits of e^12 s for a run time and e^13 s for a gap.
"""  # noqa: D205 - the source is the summary

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from drom.workloads.distributions import at_rate, gamma_cdf, redrawn
from drom.workloads.errors import WorkloadError
from drom.workloads.workload import Floats, Ints, Workload, make_workload

SLOTS = 48
SLOT_S = 1800.0
LONGEST_LN = 12.0
WIDEST_GAP_LN = 13.0
_FITTED_HI = 7.0
"""log2 of the size of the machine to which the sizes below apply: 128 nodes."""
_FIRST = 11
_START_S = 0


@dataclass(frozen=True, slots=True)
class Stream:
    """The parameters of one stream of jobs, named as in the paper.

    Sizes: `p_serial` and `p_pow2` are shares of all jobs; log2 of the size is uniform on [low, med] with probability
    `p`, else on [med, hi]. Run times: the natural logarithm of the seconds is gamma(a1, b1) with probability
    ``pa * nodes + pb``, else gamma(a2, b2) (shape, scale). Arrivals: the logarithm of the work between two of them is
    gamma(aarr * arar, barr), the daily cycle is gamma(anum, bnum) in half-hours.
    """

    p_serial: float
    p_pow2: float
    low: float
    med: float
    hi: float
    p: float
    a1: float
    b1: float
    a2: float
    b2: float
    pa: float
    pb: float
    aarr: float
    barr: float
    anum: float
    bnum: float
    arar: float

    def sizes_for(self, nodes: int) -> tuple[float, float, float]:
        """Return low, med and hi of a machine of `nodes`: hi and med move with log2 of the machine."""
        shift = math.log2(nodes) - _FITTED_HI
        hi = max(self.hi + shift, 0.0)
        med = min(max(self.med + shift, 0.0), hi)
        return min(self.low, med), med, hi


BATCH = Stream(
    *(0.2927, 0.6686, 1.2, 5.0, 7.0, 0.875, 6.57, 0.823, 639.1, 0.0156, -0.003, 0.6986),
    *(6.0415, 0.8531, 6.1271, 5.2740, 1.0519),
)
INTERACTIVE = Stream(
    *(0.1541, 0.625, 1.0, 3.0, 5.5, 0.705, 3.8351, 0.6605, 7.073, 0.6856, -0.0118, 0.9156),
    *(6.5510, 0.6621, 8.9186, 3.6680, 0.9797),
)
UNTYPED = Stream(
    *(0.244, 0.576, 0.8, 4.5, 7.0, 0.86, 4.2, 0.94, 312.0, 0.03, -0.0054, 0.78),
    *(10.2303, 0.4871, 8.1737, 3.9631, 1.0225),
)
STREAMS = {"untyped": (UNTYPED,), "batch": (BATCH,), "interactive": (INTERACTIVE,), "both": (INTERACTIVE, BATCH)}


def lublin(jobs: int, nodes: int, seed: int, kind: str = "untyped", load: float | None = None) -> Workload:
    """Return `jobs` jobs for a machine of `nodes`; sizes count nodes, there are no requested times.

    `kind` is a name in STREAMS. With ``both``, two independent streams, the interactive jobs are in queue 0 and the
    batch jobs in queue 1. With `load` the work between arrivals is scaled, with the same daily cycle, so that the jobs'
    node-seconds are about that fraction of those of the machine from the first to the last arrival. Time 0 is midnight.
    Raises WorkloadError for an unknown kind, for less than one job or node, and for a load that is not positive.
    """
    if jobs < 1 or nodes < 1 or kind not in STREAMS or not (load is None or load > 0):
        kinds = ", ".join(STREAMS)
        msg = f"Lublin's model needs at least 1 job and 1 node, a positive load, and one of the kinds {kinds}."
        raise WorkloadError(msg)
    generator = np.random.default_rng(seed)
    streams = STREAMS[kind]
    size = [sizes(stream, jobs, nodes, generator) for stream in streams]
    run_time = [run_times(stream, own, generator) for stream, own in zip(streams, size, strict=True)]
    work = [gaps(stream, jobs, generator) for stream in streams]
    made = _together(streams, work, size, run_time, 1.0)
    if load is not None:
        offered = float((made["allocated"] * made["run_time"]).sum()) / max(1, int(np.ptp(made["submit"]))) / nodes
        made = _together(streams, work, size, run_time, offered / load)
    return make_workload(
        made | {"requested_processors": made["allocated"], "status": np.ones(jobs, dtype=np.int64)},
        comments=(
            f"; Computer: synthetic, {nodes} nodes",
            f"; Note: model of Lublin and Feitelson (JPDC 2003), {kind}, {jobs} jobs, seed {seed}"
            + ("" if load is None else f", load {load:g}"),
            f"; UnixStartTime: {_START_S}",
            f"; MaxNodes: {nodes}",
            f"; MaxProcs: {nodes}",
        ),
    )


def _together(
    streams: tuple[Stream, ...], work: list[Floats], size: list[Ints], run_time: list[Ints], factor: float
) -> dict[str, Ints]:
    """Return the first jobs of all streams in order, their gaps multiplied by `factor`."""
    times = [arrivals(stream, own * factor) for stream, own in zip(streams, work, strict=True)]
    jobs = len(times[0])
    submit = np.concatenate(times)
    first = np.argsort(submit, kind="stable")[:jobs]
    queue = np.repeat(np.arange(len(streams)) if len(streams) > 1 else [-1], jobs)
    columns = {
        "submit": submit,
        "allocated": np.concatenate(size),
        "run_time": np.concatenate(run_time),
        "queue": queue,
    }
    return {name: column[first] for name, column in columns.items()}


def sizes(stream: Stream, jobs: int, nodes: int, generator: np.random.Generator) -> Ints:
    """Return the nodes of each job, from 1 to `nodes`."""
    low, med, hi = stream.sizes_for(nodes)
    kind = generator.random(jobs)
    lower = generator.random(jobs) <= stream.p
    log2 = np.where(lower, generator.uniform(low, med, jobs), generator.uniform(med, hi, jobs))
    log2 = np.where(kind <= stream.p_serial + stream.p_pow2, np.floor(log2 + 0.5), log2)
    parallel = np.minimum(np.rint(2.0**log2).astype(np.int64), nodes)
    return np.where(kind <= stream.p_serial, 1, parallel)


def run_times(stream: Stream, size: Ints, generator: np.random.Generator) -> Ints:
    """Return the seconds of each job of these sizes, at least 1."""
    short = np.clip(stream.pa * size + stream.pb, 0.0, 1.0)
    logarithms = np.full(size.shape, np.inf)
    while (left := np.flatnonzero(logarithms > LONGEST_LN)).size:
        first = generator.random(left.size) <= short[left]
        logarithms[left] = np.where(
            first,
            generator.gamma(stream.a1, stream.b1, left.size),
            generator.gamma(stream.a2, stream.b2, left.size),
        )
    return np.asarray(np.maximum(np.rint(np.exp(logarithms)), 1), dtype=np.int64)


def gaps(stream: Stream, jobs: int, generator: np.random.Generator) -> Floats:
    """Return the work between arrivals, before each of them: e^g / 1800 with g gamma distributed and at most 13."""
    logarithms = redrawn(
        lambda number: generator.gamma(stream.aarr * stream.arar, stream.barr, number),
        lambda values: values > WIDEST_GAP_LN,
        jobs,
    )
    return np.asarray(np.exp(logarithms) / SLOT_S, dtype=np.float64)


def arrivals(stream: Stream, work: Floats) -> Ints:
    """Return submit times in seconds from midnight, in order, for the work between them.

    Each half-hour of the day adds its weight to the work done. The work done is a piecewise linear function of time, so
    that the arrivals are its inverse at the cumulative sums.
    """
    return np.floor(at_rate(np.cumsum(work), daily_weights(stream), SLOT_S)).astype(np.int64)


def daily_weights(stream: Stream) -> Floats:
    """Return the relative rate of arrivals in each half-hour of the day, mean 1; the cycle begins at 5 a.m."""
    weights = np.empty(SLOTS)
    for i in range(_FIRST, _FIRST + SLOTS):
        share = gamma_cdf(stream.anum, stream.bnum, i + 0.5) - gamma_cdf(stream.anum, stream.bnum, i - 0.5)
        weights[(i - 1) % SLOTS] = share
    return np.asarray(weights / weights.mean(), dtype=np.float64)
