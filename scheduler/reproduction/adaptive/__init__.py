# SPDX-License-Identifier: Apache-2.0
"""Adaptive jobs: Kale, Kumar and DeSouza, reproduced."""
