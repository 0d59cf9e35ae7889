"""The API before requests that nobody would think of: `python -m tests.fuzz`."""
