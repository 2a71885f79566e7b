# SPDX-License-Identifier: Apache-2.0
"""The parameters of SD-Policy: defaults, named values, checks, and the rules that follow from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from drom.scheduler.interface import MILLION, lean
from drom.scheduler.policies import slurm
from drom.scheduler.policies.change_cost import BANDWIDTH, LONGEST, MEMORY, STALL
from drom.scheduler.policies.sd_mates import Rules, average_slowdown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drom.scheduler.interface import Floats, State

DYNAMIC = -np.inf
"""The value of MAX_SLOWDOWN that stands for DynAVGSD: no number that is meant as a cut-off."""

OPTIONS = slurm.OPTIONS | {
    "sharing_factor": 0.5,
    "max_slowdown": 10,
    "mates": 2,
    "candidates": 0,
    "objective": 0,
    "test": 1,
    "far": 0,
    "inside": 1,
    "guests": 1,
    "mix": 0,
    "guard": 0,
    "min_cores": 1,
    "recompute": 0,
    "feedback": 0,
    "least_factor": 0.25,
    "most_factor": 0.75,
    "stall": STALL,
    "memory": MEMORY,
    "bandwidth": BANDWIDTH,
}
"""Those of `slurm`, and: SharingFactor; MAX_SLOWDOWN (dynavgsd: the mean of running jobs); m; how many candidates are
looked at (0: all); the objective (sum, or weighted by nodes); whether static_end > mall_end is tested; whether a start
beyond the window counts as infinitely far or as predicted; whether guests must end before their mates; guests per node;
whether free nodes may be among a guest's; how many reservations mates may not delay; the least cores of a node that a
job keeps; whether limits are corrected when sharing ends; whether mates are chosen by what they were measured to lose,
and between which bounds the SharingFactor then is (`feedback`); the assumed cost of a change of nodes: seconds of any
change, megabytes of data on a node, megabytes per second that a node sends or receives (`sd_nodes`). Jobs may be on
contiguous nodes with reservations of numbers as well."""

WORDS: dict[str, dict[str, float]] = slurm.WORDS | {
    "max_slowdown": {"infinite": np.inf, "dynavgsd": DYNAMIC},
    "objective": {"sum": 0, "weighted": 1},
    "far": {"infinite": 0, "predicted": 1},
}
(SHARING_FACTOR, MAX_SLOWDOWN, MATES, CANDIDATES, OBJECTIVE, TEST, FAR, INSIDE, GUESTS, MIX, GUARD) = range(8, 19)
(MIN_CORES, RECOMPUTE, FEEDBACK, LEAST_FACTOR, MOST_FACTOR, STALL_S, MEMORY_MB, BANDWIDTH_MBS) = range(19, 27)
_FLAGS = ("objective", "test", "far", "inside", "mix", "recompute", "feedback")
_LEAST = {"mates": 1, "candidates": 0, "guests": 1, "guard": 0, "min_cores": 1}


def check(options: Mapping[str, float]) -> str:
    """Return what is wrong with the parameters; empty if nothing is."""
    return (
        check_sharing(options)
        or check_costs(options)
        or check_combinations(options)
        or slurm.check_backfilling({name: options[name] for name in slurm.OPTIONS})
    )


def check_sharing(options: Mapping[str, float]) -> str:
    """Return what is wrong with a parameter of the malleable trial; empty if nothing is."""
    if not 0 < options["sharing_factor"] < 1:
        return f"sharing_factor is between 0 and 1, not {options['sharing_factor']:g}."
    if not 0 < options["least_factor"] <= options["most_factor"] < 1:
        return "least_factor and most_factor are between 0 and 1, the least not above the most."
    if not (options["max_slowdown"] >= 0 or options["max_slowdown"] == DYNAMIC):
        return "max_slowdown is a number, infinite or dynavgsd."
    for name in _FLAGS:
        if options[name] not in {0, 1}:
            words = " or ".join(WORDS.get(name, {"0": 0, "1": 1}))
            return f"{name} is {words}, not {options[name]:g}."
    for name, least in _LEAST.items():
        if not least <= options[name] <= 1_000_000 or options[name] != int(options[name]):
            return f"{name} is a whole number from {least} to 1000000, not {options[name]:g}."
    return ""


def check_costs(options: Mapping[str, float]) -> str:
    """Return what is wrong with the assumed cost of a change of nodes; empty if nothing is."""
    stall, memory, bandwidth = options["stall"], options["memory"], options["bandwidth"]
    if not (0 <= stall <= LONGEST and bandwidth > 0 and 0 <= memory < np.inf and memory <= LONGEST * bandwidth):
        return f"stall, and memory over bandwidth, are from 0 to {LONGEST:,} seconds, and bandwidth is above 0."
    return ""


def check_combinations(options: Mapping[str, float]) -> str:
    """Return which parameters contradict each other; empty if none do."""
    if options["guests"] > 1 and options["mix"]:
        return "mix is for one guest per node: set guests=1 or mix=0."
    if options["contiguous"] and options["mix"]:
        return "contiguous=1 is for guests without free nodes: set mix=0."
    if options["feedback"] and options["mix"]:
        return "feedback=1 is for guests without free nodes: set mix=0."
    if options["contiguous"] and options["main"] and not options["reservations"]:
        return "contiguous=1 with main=1 needs reservations=nodes."
    return ""


@lean
def rules_of(state: State, options: Floats) -> Rules:
    """Return the parameters of the choice of mates on this machine."""
    share = int(options[SHARING_FACTOR] * state.cores + 1e-9)
    share = share if share >= options[MIN_CORES] else 0
    cutoff, kept, feedback = options[MAX_SLOWDOWN], int(options[MIN_CORES]), options[FEEDBACK] > 0 and share > 0
    least, most = int(options[LEAST_FACTOR] * state.cores + 1e-9), int(options[MOST_FACTOR] * state.cores + 1e-9)
    return Rules(
        share,
        state.cores,
        average_slowdown(state) if cutoff == DYNAMIC else cutoff,
        int(options[MATES]),
        int(options[CANDIDATES]),
        options[OBJECTIVE] > 0,
        options[INSIDE] > 0,
        int(options[GUESTS]),
        options[MIX] > 0,
        int(options[GUARD]),
        kept,
        options[slurm.CONTIGUOUS] > 0,
        feedback,
        share,
        min(share, max(least, kept)) if feedback else share,
        max(share, min(most, state.cores - kept)) if feedback else share,
        int(options[STALL_S] * MILLION),
        int(options[MEMORY_MB] / options[BANDWIDTH_MBS] * MILLION),
    )


@lean
def with_share(rules: Rules, share: int) -> Rules:
    """Return the same rules with another share of a node for a guest."""
    return Rules(
        share,
        rules.cores,
        rules.max_slowdown,
        rules.mates,
        rules.candidates,
        rules.weighted,
        rules.inside,
        rules.guests,
        rules.mix,
        rules.guard,
        rules.min_cores,
        rules.contiguous,
        rules.feedback,
        rules.usual,
        rules.least,
        rules.most,
        rules.stall,
        rules.transfer,
    )
