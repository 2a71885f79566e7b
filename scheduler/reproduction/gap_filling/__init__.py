# SPDX-License-Identifier: Apache-2.0
"""Gap filling: Polyakov and Dubenskaya, reproduced."""
