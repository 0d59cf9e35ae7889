"""Endurance: a whole service that is killed again and again while it works. See `__main__`."""
