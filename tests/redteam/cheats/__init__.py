"""Cheating and silently broken candidates, one module per family."""
