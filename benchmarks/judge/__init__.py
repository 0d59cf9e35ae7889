"""What the judge costs and how far its timings can be trusted: `python -m benchmarks.judge`, see `__main__`."""
