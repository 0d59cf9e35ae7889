"""What the device can do at most, and what is faster than light."""
