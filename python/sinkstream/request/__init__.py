"""A request: its options, their checks and their ranges."""
