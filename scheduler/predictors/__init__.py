# SPDX-License-Identifier: Apache-2.0
"""How long jobs will run, as policies plan with it: a module for each way to know, with a function `predict`."""
