# SPDX-License-Identifier: Apache-2.0
"""The event loop of simulations, the state that it works on, and policies compiled into it. Pure but for `compile`."""
