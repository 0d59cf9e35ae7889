"""A rehearsal: judges with real locks and work that is slept, to see what sharing a device costs. See `__main__`."""
