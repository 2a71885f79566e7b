# SPDX-License-Identifier: Apache-2.0
"""Constraint programming: Bridi et al., reproduced."""
