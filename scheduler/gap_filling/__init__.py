# SPDX-License-Identifier: Apache-2.0
"""Gap filling: containers of low priority in the holes of a schedule (Polyakov and Dubenskaya, GRID 2018)."""
