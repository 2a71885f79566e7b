# SPDX-License-Identifier: Apache-2.0
"""What tests share: real agents and clusters, fake ones, reference implementations and checkers."""
