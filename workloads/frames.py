# SPDX-License-Identifier: Apache-2.0
"""Workloads as data frames of pandas, with the columns of tables. pandas is imported when a frame is made."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import numpy as np
from drom.workloads.errors import WorkloadError, short
from drom.workloads.fields import FIELDS, UNKNOWN
from drom.workloads.tables import check_names
from drom.workloads.workload import make_workload

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd
    from drom.workloads.fields import Field
    from drom.workloads.workload import Ints, Workload

SOURCE = "the data frame"
"""The name of a frame in sentences and summaries."""
_NEEDED = (("submit",), ("run_time",), ("allocated", "requested_processors"))


def make_frame(columns: Mapping[str, Any]) -> pd.DataFrame:
    """Return a data frame of these columns. Raises WorkloadError if pandas is missing."""
    if importlib.util.find_spec("pandas") is None:
        raise WorkloadError("Data frames need pandas: run pip install 'drom[notebooks]'.")
    import pandas as pd

    return pd.DataFrame(columns)


def from_frame(frame: pd.DataFrame) -> Workload:
    """Return the jobs of a data frame, a row each; columns are fields, in any order, and nan is unknown.

    Raises WorkloadError for a column that is missing, that is not a field, or whose values a field cannot have.
    """
    names = [str(name) for name in frame.columns]
    check_names(names, SOURCE)
    for several in _NEEDED:
        if not set(several) & set(names):
            msg = (
                f"{SOURCE} has no column {' or '.join(several)}: it needs submit and run_time, in seconds, and "
                "allocated, the processors of each job."
            )
            raise WorkloadError(msg)
    if not len(frame):
        msg = f"{SOURCE} contains no job: it has no rows."
        raise WorkloadError(msg)
    fields = [field for field in FIELDS if field.name in names]
    return make_workload({field.name: _column(frame[field.name], field) for field in fields}, source=SOURCE)


def _column(column: pd.Series, field: Field) -> Ints:
    """Return the values of a column as whole numbers; pandas has floats where some are missing."""
    if column.dtype.kind not in "iuf":
        remedy = "convert it to seconds" if column.dtype.kind in "mM" else "convert it with astype(int)"
        msg = f"{SOURCE}, column {field.name}: {column.dtype} is not a type of numbers: {remedy}."
        raise WorkloadError(msg)
    values = column.to_numpy(np.float64, na_value=np.nan)
    values = np.where(np.isnan(values), UNKNOWN, values)
    wrong = (values < field.least) | (values > field.limit) | (values != np.rint(values))
    if wrong.any():
        row = int(wrong.argmax())
        msg = (
            f"{SOURCE}, row {row}, {field.name}: {short(f'{values[row]:.15g}')} is not a whole number between "
            f"{field.least} and {field.limit:,}."
        )
        raise WorkloadError(msg)
    return values.astype(np.int64)
