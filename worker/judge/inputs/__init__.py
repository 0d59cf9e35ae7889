"""What is drawn: families by domain, other sizes and layouts, new values for every timed call."""
