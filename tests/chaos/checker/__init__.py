"""The checker: what must hold after any schedule. It reads rows, journals and /proc, with no code of the service."""
