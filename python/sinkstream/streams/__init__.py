"""A running generation from its reader's side."""
