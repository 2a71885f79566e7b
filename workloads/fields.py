# SPDX-License-Identifier: Apache-2.0
"""The eighteen fields of a line of the Standard Workload Format (SWF 2.2), defined once.

Chapin et al., "Benchmarks and Standards for the Evaluation of Parallel Job Schedulers", JSSPP 1999. Each value is a
whole number; -1 means unknown. Some logs have fractions of seconds or of kilobytes, which are rounded when read.
"""

from __future__ import annotations

from dataclasses import dataclass

COLUMNS = 18
UNKNOWN = -1
TIME_LIMIT = 10**10
"""Seconds, some 300 years. With PROCESSOR_LIMIT, so that processors times seconds stay within 64 bits."""
PROCESSOR_LIMIT = 10**8
NUMBER_LIMIT = 10**15


@dataclass(frozen=True, slots=True)
class Field:
    """A column: its name here, its name for users, its largest value, and whether fractions are rounded."""

    name: str
    label: str
    limit: int = NUMBER_LIMIT
    fractions: bool = False
    least: int = UNKNOWN


FIELDS = (
    Field("job", "job number", least=0),
    Field("submit", "submit time", TIME_LIMIT, fractions=True, least=0),
    Field("wait", "wait time", TIME_LIMIT, fractions=True),
    Field("run_time", "run time", TIME_LIMIT, fractions=True),
    Field("allocated", "allocated processors", PROCESSOR_LIMIT),
    Field("cpu_time", "average CPU time", TIME_LIMIT, fractions=True),
    Field("used_memory", "used memory", fractions=True),
    Field("requested_processors", "requested processors", PROCESSOR_LIMIT),
    Field("requested_time", "requested time", TIME_LIMIT, fractions=True),
    Field("requested_memory", "requested memory", fractions=True),
    Field("status", "status", 5),
    Field("user", "user"),
    Field("group", "group"),
    Field("executable", "executable"),
    Field("queue", "queue"),
    Field("partition", "partition"),
    Field("previous_job", "preceding job"),
    Field("think_time", "think time", TIME_LIMIT, fractions=True),
)
NAMES = tuple(field.name for field in FIELDS)
