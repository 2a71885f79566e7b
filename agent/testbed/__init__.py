# SPDX-License-Identifier: Apache-2.0
"""A real agent in a directory of its own, for demonstrations, benchmarks and tests."""
