# SPDX-License-Identifier: Apache-2.0
"""SD-Policy: D'Amico, Jokanovic and Corbalan, reproduced."""
