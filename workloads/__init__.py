"""Logs, models and mixes of jobs. Independent of the agent and of the scheduler."""
