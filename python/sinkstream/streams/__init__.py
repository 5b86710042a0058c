"""A running generation, as its reader sees it."""
