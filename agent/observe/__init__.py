# SPDX-License-Identifier: Apache-2.0
"""Observation of a node: log, events, metrics, rates, the web page."""
