"""Loads: a database filled to the size of a year's use, and what is measured before it."""
