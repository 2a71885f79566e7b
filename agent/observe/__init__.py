# SPDX-License-Identifier: Apache-2.0
"""What happened and what is: log, events, metrics, rates, the page."""
