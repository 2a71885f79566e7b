# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from drom.workloads.anonymising import anonymised
from drom.workloads.errors import WorkloadError

from tests.support.job_logs import COMMENTS, same, synthetic


def test_numbers_are_drawn_anew_and_names_are_gone() -> None:
    """The same people stay together; the numbers before have no influence; a comment says so."""
    log = synthetic().commented((*COMMENTS, "; User: 1 ann", ";Queue: 2 long", "; Partition: 1 gpu", "; Group: 1 bio"))
    log = log.with_columns(user=np.where(log.user == 3, -1, log.user * 1000))
    made = anonymised(log, 7)
    pairs = set(zip(log.user.tolist(), made.user.tolist(), strict=True))

    assert made.comments == (*COMMENTS, "; Note: users, groups and executables have been anonymised")
    assert len(pairs) == len(set(log.user.tolist()))
    assert {new for old, new in pairs if old != -1} == set(range(1, len(pairs)))
    assert dict(pairs)[-1] == -1
    assert same(made, anonymised(log.with_columns(user=np.where(log.user < 0, -1, 10**6 - log.user)), 7))
    assert not np.array_equal(made.user, anonymised(log, 8).user)
    assert same(made.with_columns(user=log.user).commented(log.comments), log)


def test_a_log_is_anonymised_once() -> None:
    """A second time is refused."""
    with pytest.raises(WorkloadError, match="has been anonymised already: omit --anonymise"):
        anonymised(anonymised(synthetic(), 1), 1)
