"""Chaos: real programs and a real agent under seeded faults, watched by a checker that shares no code with it."""
