# SPDX-License-Identifier: Apache-2.0
"""Analysis of simulations: schedules, metrics, figures and comparisons."""
