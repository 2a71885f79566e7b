# SPDX-License-Identifier: Apache-2.0
"""The measurements of SLURM++: many controllers on one store, as a model and with real schedulers."""
