# SPDX-License-Identifier: Apache-2.0
"""Predictions of run times for policies: a module for each method, with a function `predict`."""
