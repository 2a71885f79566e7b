"""Logs, models and mixes of jobs. Knows neither the agent nor the scheduler."""
