# SPDX-License-Identifier: Apache-2.0
"""The numbers of D'Amico, Jokanovic and Corbalan, "Holistic slowdown driven scheduling and resource management for
malleable jobs" (ICPP 2019), as tables and text give them. Values shown only by the height of a bar are not included.

Settings and metrics have the names of `settings` and of summary.json. A change is relative to static backfilling, in
percent.
"""  # noqa: D205 - the source is the summary

from __future__ import annotations

from typing import NamedTuple


class Given(NamedTuple):
    """A number of the paper, or an upper bound that the paper gives."""

    value: float
    bound: bool = False


RESPONSE, SLOWDOWN, MAKESPAN = "mean_response_s", "mean_slowdown", "makespan_s"

STATIC: dict[int, dict[str, Given]] = {
    number: dict(zip((RESPONSE, SLOWDOWN, MAKESPAN), map(Given, values), strict=True))
    for number, values in {
        1: (122_152, 3339.5, 899_888),
        2: (126_486, 3501, 896_024),
        3: (43_537, 1341, 407_043),
        4: (29_858.5, 3666.5, 21_615_111),
        5: (56_482, 4783.1, 159_313),
    }.items()
}
"""Table 1, by workload: seconds, and the mean slowdown, under static backfilling."""

BEST_SLOWDOWN = {1: Given(-49.5), 2: Given(-31.0), 3: Given(-25.7), 4: Given(-70.4)}
"""Text on Figure 3, by workload: change under the setting that is best for it."""

FIXED_VALUES, ALL_SETTINGS = "fixed values", "all settings"
BEST = {
    1: ("maxsd-infinite", FIXED_VALUES),
    2: ("dynavgsd", ALL_SETTINGS),
    3: ("maxsd-infinite", FIXED_VALUES),
    4: ("maxsd-10", ALL_SETTINGS),
}
"""The same: the setting with the least slowdown, and the settings among which the text says so."""

CHANGES = {
    (4, "maxsd-10", MAKESPAN): Given(0),
    (4, "maxsd-10", RESPONSE): Given(-50),
    (4, "maxsd-10", SLOWDOWN): Given(-70.4),
}
"""Text on Figures 1 to 3 and Section 4.2: the changes that it gives, by workload, setting and metric."""

LARGEST_RATIO = Given(5.69)
"""Figure 4: slowdown, static to MAXSD 10, of the class that gains most up to 512 nodes and 4 hours ("up to 569%")."""
WORSE_CLASSES = Given(3)
"""Text on Figure 4: classes with a larger slowdown."""
LARGE_JOBS, LARGE_JOBS_SLOWDOWN = Given(121), Given(15)
"""The same: jobs of 512 to 1024 nodes and 12 hours to a day, and the change of their slowdown."""

STARTS, MATES = Given(20_476), Given(17_102)
"""Text on Figure 7: jobs scheduled with malleability, and jobs that were mates."""

MODELS = {
    1: {MAKESPAN: Given(1, bound=True), RESPONSE: Given(11), SLOWDOWN: Given(16)},
    2: {MAKESPAN: Given(0), RESPONSE: Given(0), SLOWDOWN: Given(0)},
    3: {MAKESPAN: Given(9), RESPONSE: Given(1.5, bound=True), SLOWDOWN: Given(3.5)},
    4: {MAKESPAN: Given(1, bound=True), RESPONSE: Given(1.5, bound=True), SLOWDOWN: Given(1)},
}
"""Text on Figure 8, by workload: changes from the ideal to the worst-case model under DynAVGSD; bounds are of sizes."""

REAL_RUN = {
    "makespan": Given(-7),
    "response": Given(-16),
    "slowdown": Given(-16),
    "energy": Given(-6),
}
"""Text on Figure 9: changes in the real run of workload 5."""
REAL_STARTS, REAL_BETTER = Given(539), Given(449)
"""The same: jobs scheduled with malleability, and those that used their resources better than alone."""
REAL_JOBS = 2000
