"""The tuner on exhaustively measured spaces, beside Kernel Tuner's strategies (`python -m benchmarks.tuning`)."""
