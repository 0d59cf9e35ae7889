"""The checker: what must hold after any schedule. It reads rows, journals and /proc, and uses no code of the service."""
