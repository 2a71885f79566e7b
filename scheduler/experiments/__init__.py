# SPDX-License-Identifier: Apache-2.0
"""Experiments: factors, levels and seeds simulated in parallel, compared in pairs, as a table and a report."""
