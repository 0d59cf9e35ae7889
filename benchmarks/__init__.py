"""Measurements that are run by hand, on machines worth measuring. Results are kept in docs/results/."""
