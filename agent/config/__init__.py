# SPDX-License-Identifier: Apache-2.0
"""Options of the agent, said once: where each value is from, and what contradicts the machine."""
