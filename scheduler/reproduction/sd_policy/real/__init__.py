# SPDX-License-Identifier: Apache-2.0
"""The SD-Policy paper's workload 5 as a run: real submissions, scheduler, agents and programs."""
