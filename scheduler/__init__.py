# SPDX-License-Identifier: Apache-2.0
"""Policies that say which job starts where and when, and the simulator that drives them."""
