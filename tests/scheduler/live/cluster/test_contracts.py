# SPDX-License-Identifier: Apache-2.0
"""Contracts of live jobs: how they are written, what jobs pay, and that policy payoff goes by them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from drom.agent.text import WordError
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cluster.contracts import paid
from drom.scheduler.live.cluster.jobs import Job, User
from drom.scheduler.live.cluster.spec import Contract, Spec, contract_of

from tests.support.fake_cluster import FakeCluster, Size, submitted

if TYPE_CHECKING:
    from pathlib import Path

SIZES: tuple[Size, ...] = ((2, 0, {}),)
POLICY = load_policy("payoff")


@pytest.mark.parametrize(
    ("text", "contract"),
    [
        ("1h,2h,100", Contract(3600, 7200, 100, 0)),
        ("30,1:00:00,0,7", Contract(1800, 3600, 0, 7)),
        ("90s,90s,10000000000000,10000000000000", Contract(90, 90, 10**13, 10**13)),
    ],
)
def test_a_contract_is_two_times_and_one_or_two_amounts(text: str, contract: Contract) -> None:
    """Times are written like a limit; without a penalty there is none."""
    assert contract_of(text) == contract


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no contract: write SOFT,HARD,PAYOFF,PENALTY, such as"),
        ("1h,2h", "is no contract"),
        ("1h,2h,3.5", "is no contract"),
        ("1h,2h,-5", "is no contract"),
        ("1h,2h,5,5,5", "is no contract"),
        ("soon,2h,5", "'soon' is not a time"),
        ("2h,1h,5", "has its deadlines in the wrong order"),
        ("1h,2h,10000000000001", "a job pays at most 10000000000000"),
        ("1h,2h,1,99999999999999", "a job pays at most 10000000000000"),
        ("1h,2h," + "9" * 100_000, "is no contract"),
    ],
)
def test_a_wrong_contract_is_one_sentence(text: str, said: str) -> None:
    """It says how to write one, and shows little of what was written."""
    with pytest.raises(WordError, match=said) as error:
        contract_of(text)

    assert len(str(error.value)) < 160


@pytest.mark.parametrize(
    ("state", "ended", "pays"),
    [
        ("completed", 1010.0, 100),
        ("completed", 1010.2, 90),  # the next whole second
        ("completed", 1015.0, 50),
        ("completed", 1020.0, 0),
        ("completed", 1021.0, -7),
        ("failed", 1005.0, -7),
        ("cancelled", 1005.0, -7),
        ("running", None, None),
    ],
)
def test_a_job_pays_by_the_time_of_its_end(state: str, ended: float | None, pays: int | None) -> None:
    """All until the soft deadline, less until the hard one; and minus the penalty unless it has completed."""
    spec = Spec(command=("true",), folder="/", contract="10s,20s,100,7")
    job = Job(1, spec, User(0, 0, "root"), 1000.0)
    job.state, job.ended = state, ended

    assert paid(job) == pays
    job.spec = replace(spec, contract="")
    assert paid(job) is None


def test_the_job_that_gains_most_starts_first(here: FakeCluster) -> None:
    """Of three that wait the last one pays most a second, and one without a contract is the last, across a restart."""
    submitted(here, ranks=2)
    for contract in ("", "10h,20h,1000", "10h,20h,9000,10"):
        submitted(here, ranks=2, contract=contract)
    here.crash()
    order = []
    for _ in range(4):
        here.settle()
        (running,) = (job for job in here.cluster.jobs.values() if job.state == "running")
        order.append(running.number)
        here.cluster.cancel(running.number, here.now, "cancelled")

    assert order == [1, 4, 3, 2]


def test_other_policies_refuse_contracts(tmp_path: Path) -> None:
    """With a sentence that names the policy that goes by them."""
    here = FakeCluster(tmp_path, load_policy("easy"), 1)
    here.settle()
    said = r"^policy easy does not go by contracts: leave out --contract, or run the scheduler with --policy payoff\.$"
    with pytest.raises(SchedulerError, match=said):
        submitted(here, contract="1h,2h,100")
    here.store.close()
