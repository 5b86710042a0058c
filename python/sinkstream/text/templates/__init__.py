"""Chat templates: the sandbox they run in, and their output."""
