# SPDX-License-Identifier: Apache-2.0
"""The single definition of the agent's options, the sources of their values, and checks against the machine."""
