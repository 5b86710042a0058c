"""Chat templates: the sandbox they run in, and what they write."""
