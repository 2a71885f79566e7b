# SPDX-License-Identifier: Apache-2.0
"""What came of a simulation: schedules, metrics, pictures and comparisons."""
