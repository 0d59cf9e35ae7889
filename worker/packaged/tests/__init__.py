"""The tests that travel with a package: `python -m pytest --pyargs <package>`."""
