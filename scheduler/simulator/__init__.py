# SPDX-License-Identifier: Apache-2.0
"""Simulations as objects that are set up, run, saved and resumed, and many simulations in parallel."""
