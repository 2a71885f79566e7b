# SPDX-License-Identifier: Apache-2.0
"""Workloads without what names people: other numbers for users, groups and executables, no names in comments."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from drom.workloads.errors import WorkloadError
from drom.workloads.formats.runs import NAMED

if TYPE_CHECKING:
    from drom.workloads.workload import Workload

_NOTE = "; Note: users, groups and executables have been anonymised"
_NAME = re.compile(rf"[\s;]*(?:{'|'.join(NAMED.values())}):")
_FIELDS = ("user", "group", "executable")


def anonymised(workload: Workload, seed: int) -> Workload:
    """Return the workload with users, groups and executables numbered from 1 in an order drawn by `seed`.

    The order is drawn over that of first appearance, so that it says nothing about the numbers before. Comments with
    names of users, groups, queues and partitions are left out, and a comment says so. Raises WorkloadError for a
    workload that has this comment.
    """
    if _NOTE in workload.comments:
        msg = f"{workload.source} has been anonymised already: omit --anonymise."
        raise WorkloadError(msg)
    generator = np.random.default_rng(seed)
    columns = {}
    for name in _FIELDS:
        column = getattr(workload, name)
        values, first, which = np.unique(column, return_index=True, return_inverse=True)
        known = values >= 0
        numbers = np.full(len(values), -1, np.int64)
        numbers[np.flatnonzero(known)[np.argsort(first[known])]] = generator.permutation(int(known.sum())) + 1
        columns[name] = numbers[which]
    kept = (comment for comment in workload.comments if not _NAME.match(comment))
    return workload.with_columns(**columns).commented((*kept, _NOTE))
