"""Chaos: a fleet of real processes under a seeded schedule of faults, and a checker that trusts none of it."""
