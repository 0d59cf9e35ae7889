"""Honest candidates that a nervous judge might reject, one module per family."""
