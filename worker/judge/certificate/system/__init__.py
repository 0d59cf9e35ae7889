"""System checks of a finalist, one module each: a function that takes a Trial and records rows."""
