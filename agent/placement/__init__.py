# SPDX-License-Identifier: Apache-2.0
"""Which cores jobs get, and which grants may be published now. Pure."""
