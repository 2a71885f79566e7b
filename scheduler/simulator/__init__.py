# SPDX-License-Identifier: Apache-2.0
"""One simulation as an object: set up, run, saved, resumed; and many at once."""
