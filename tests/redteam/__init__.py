"""The red team: cheating and broken candidates that must be rejected, and hard honest ones that must be accepted."""
