# SPDX-License-Identifier: Apache-2.0
"""Quality-of-service contracts: the pay-off of a job, its deadlines, and the penalty for missing them.

The pay-off is full until a soft deadline, falls linearly to nothing at a hard one, and is a penalty after it. Contracts
come from a table with the columns ``job,soft,hard,payoff,penalty``, deadlines in seconds after submission, all whole
numbers; a job without a line pays nothing. Or they are drawn: the soft deadline is a multiple of the job's run time,
uniform between two bounds, the hard one later by a fraction of that; the pay-off is the job's processor time at a price
that is distributed log-normally with mean 1.
"""

from __future__ import annotations

from statistics import NormalDist
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from drom.workloads.choices import number, read_choices
from drom.workloads.classes import uniform
from drom.workloads.errors import WorkloadError
from drom.workloads.rows import read_rows, whole

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from drom.workloads.workload import Floats, Ints

COLUMNS = ("job", "soft", "hard", "payoff", "penalty")
LATEST = 10**9
"""The latest deadline, in seconds after submission."""
LARGEST = 10**13
"""The largest pay-off or penalty: sums of 900,000 of them stay within 64 bits."""
UNBOUND = 10**12
"""Deadlines of a job without a contract."""
_MOST = {"soft deadline": LATEST, "hard deadline": LATEST, "pay-off": LARGEST, "penalty": LARGEST}
_DEADLINE_SALT = 0x534F4654
_PRICE_SALT = 0x5052494345


class Contracts(NamedTuple):
    """A column per term, each of shape ``(jobs,)``; deadlines are in seconds after submission."""

    soft: Ints
    hard: Ints
    payoff: Ints
    penalty: Ints
    places: Mapping[int, str] = MappingProxyType({})
    """The file and line of the contract of a job, by its number; empty for drawn contracts."""


class Terms(NamedTuple):
    """The parameters by which contracts are drawn."""

    tight: float = 2.0
    """The smallest soft deadline, as a multiple of the run time."""
    loose: float = 6.0
    """The largest soft deadline, as a multiple of the run time."""
    grace: float = 1.0
    """The time from the soft to the hard deadline, as a fraction of the time to the soft one."""
    spread: float = 1.0
    """Standard deviation of the logarithm of the price of a processor-second."""
    penalty: float = 0.0
    """The penalty, as a fraction of the pay-off."""


def parse_terms(choices: Iterable[str]) -> Terms:
    """Return the terms in texts ``NAME=VALUE``, with defaults for others. Raises WorkloadError for invalid ones."""
    chosen = read_choices("--contracts", choices, Terms._fields, _value, WorkloadError)
    terms = Terms(**chosen)
    if not 1 <= terms.tight <= terms.loose:
        msg = f"--contracts: tight={terms.tight:g} and loose={terms.loose:g} cannot be: write 1 <= tight <= loose."
        raise WorkloadError(msg)
    return terms


def _value(_: str, text: str) -> tuple[float | None, str]:
    value = number(text)
    return (value if 0 <= value <= 1000 else None), "a number from 0 to 1000"


def draw_contracts(job: Ints, run_time: Ints, size: Ints, terms: Terms, seed: int) -> Contracts:
    """Return contracts for jobs of these numbers, run times in seconds and processors, by job number and seed.

    Raises WorkloadError for a deadline or a pay-off that is too large.
    """
    multiple = terms.tight + (terms.loose - terms.tight) * uniform(job, seed ^ _DEADLINE_SALT)
    quantile = NormalDist().inv_cdf
    normal = np.array([quantile(part) for part in np.clip(uniform(job, seed ^ _PRICE_SALT), 1e-12, None)])
    price: Floats = np.exp(terms.spread * normal - terms.spread**2 / 2)
    soft = np.ceil(multiple * run_time)
    payoff = run_time * size * price
    columns = np.rint((soft, soft * (1 + terms.grace), payoff, payoff * terms.penalty))
    for name, *drawn in zip(job, *columns, strict=True):
        if fault := _too_much(drawn):
            msg = f"--contracts: job {name}: {fault}: choose smaller ones of loose, grace, spread and penalty."
            raise WorkloadError(msg)
    return Contracts(*columns.astype(np.int64))


def _too_much(terms: Iterable[float]) -> str:
    """Return a clause about a job's first term that is too large; empty if none is."""
    for value, (name, most) in zip(terms, _MOST.items(), strict=True):
        if value > most:
            return f"a {name} of {value:,.0f} is above the most in a contract, {most:,}"
    return ""


def read_contracts(path: str | os.PathLike[str], job: Ints) -> Contracts:
    """Return the contracts of these jobs from a table. Raises WorkloadError with file and line of an error."""
    at = {int(number): i for i, number in enumerate(job)}
    columns = np.zeros((4, len(job)), np.int64)
    columns[:2] = UNBOUND
    places: dict[int, str] = {}
    for row in read_rows(path, [COLUMNS]):
        number, *terms = (whole(row, name) for name in COLUMNS)
        fault = _fault(number, terms, at, places)
        if fault:
            msg = f"{row.place}: {fault}"
            raise WorkloadError(msg)
        columns[:, at[number]] = terms
        places[number] = row.place
    soft, hard, payoff, penalty = columns
    return Contracts(soft, hard, payoff, penalty, places)


def _fault(number: int, terms: list[int], at: Mapping[int, int], places: Mapping[int, str]) -> str:
    """Return the error in a line; empty for a valid one."""
    soft, hard, *_ = terms
    if number not in at:
        return f"there is no job {number} among those simulated: remove the line."
    if number in places:
        return f"job {number} has a contract in {places[number]}: remove one of them."
    if fault := _too_much(terms):
        return f"{fault}."
    if soft > hard:
        return f"the soft deadline {soft} is after the hard one {hard}: exchange them."
    return ""
