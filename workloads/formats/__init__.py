"""Logs of other systems: each module turns one format into a workload, or a workload into that format. Pure."""
