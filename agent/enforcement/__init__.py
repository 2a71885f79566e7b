# SPDX-License-Identifier: Apache-2.0
"""The one place that sets affinity and cpusets, and puts wrong masks right."""
