# SPDX-License-Identifier: Apache-2.0
"""The numbers of Zhou et al., "Exploring distributed resource allocation techniques in the SLURM job management
system", as its text gives them. No value is read off a figure: what only a figure shows is not included.

Tables are by workload and number of nodes; a controller of SLURM++ has 50 of them.
"""  # noqa: D205 - the source is the summary

FIGURES = {"small": (2, 3), "medium": (5, 6), "large": (7, 8)}
"""The figures of throughput and of messages."""
ONE = {
    "small": {250: 51.6, 500: 39.0},
    "medium": {50: 2.1, 250: 7.0},
    "large": {100: 1.2, 400: 3.8, 500: 4.3},
}
"""Figures 2, 5, 7 and 9: jobs per second of SLURM, with one controller. Medium jobs: "almost constant" from 250 on."""
MANY = {"small": {500: 91.5}, "medium": {50: 6.2, 500: 68.0}, "large": {500: 19.3}}
"""The same of SLURM++."""
MESSAGES = {"small": {500: 12.0}, "medium": {50: 13.0, 200: 19.0}, "large": {50: 30.1, 500: 24.7}}
"""Figures 3, 6 and 8: messages to the store, per job. Medium jobs: 17 to 20 from 200 on."""
MTC_MESSAGES, MTC_CONTROLLERS, MTC_THROUGHPUT = 32.5, 1000, 20_000.0
"""Text on Figure 4, extrapolated: messages per job and jobs per second of 1,000 controllers of a node each."""
